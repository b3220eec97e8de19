"""Records of a stream, which other jobs can read. `processing/emission/result_stream_writer.py` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.core.documents import Path
from strandline.results.names import WINDOW_FIELDS
from strandline.results.sinks.sink import EmittedFields, Sink


class StreamSink(Sink):
    description = "A stream, which other jobs can read, with one JSON document per result."
    has_short_form = True
    options_elsewhere = "a stream has its options in 'create stream'; remove this"
    store_prefix = "stream:"
    is_stream = True
    merges_slices = True
    container = "the index"
    is_compared = True

    def document(self) -> Any:
        from strandline.core.document_values import Name

        return Name

    def problems_of_document(self, value: Any) -> Iterator[tuple[Path, str]]:
        if value.endswith(".dead-letter"):
            yield (), "names that end in '.dead-letter' belong to the jobs; choose another"

    def problems(self, value: Any, emitted: EmittedFields, path: Path) -> Iterator[tuple[Path, str]]:
        if value in emitted.inputs:
            yield path, f"this pipeline reads '{value}', so it would read its own results; choose another name"
        for name, field in emitted.fields if emitted.has_windows else ():
            if name.lower() in WINDOW_FIELDS:
                yield (
                    field,
                    f"'{name}' is the name of a window time in a stream of results; choose another name",
                )


SINK = StreamSink()
