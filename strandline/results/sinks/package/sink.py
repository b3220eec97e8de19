"""The field of documents that names a sink of a package.

The package's own `Sink` implements the emission (`registry`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from strandline.core.documents import Path
from strandline.results.sinks.sink import EmittedFields, Sink


class PackageSink(Sink):
    description = "A sink of a package: {use, name, options}."
    store_prefix = "other:"
    stored_word = "sink"

    def document(self) -> Any:
        from strandline.results.sinks.package.document import SinkSpec

        return SinkSpec

    def emission_name(self, value: Any) -> str:
        return f"{value.use}:{value.name}"

    def options(self, value: Any) -> str:
        return json.dumps(value.options, sort_keys=True)

    def problems(self, value: Any, emitted: EmittedFields, path: Path) -> Iterator[tuple[Path, str]]:
        if emitted.has_several_streams:
            yield (
                path,
                "a sink of a package doesn't get a record's stream, so it accepts only records of a pipeline's first "
                "stream; emit results of windows, or to another kind of sink",
            )


SINK = PackageSink()
