"""Sinks beside the index and streams: who writes to files, to tables, and to what other packages bring."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from strandline.core.errors import InvalidSettings
from strandline.processing.pipelines.stages import Emit
from strandline.results.document import DocumentShape
from strandline.results.writer import StoreWriter

if TYPE_CHECKING:
    from strandline.core.settings import Settings

GROUP = "strandline.sinks"
"""The group of entry points under which packages bring sinks."""


@dataclass(frozen=True)
class SinkRequest:
    """What a sink of another package is asked for, by calling its entry point with this."""

    name: str
    """The place, as the document names it."""
    options: dict[str, str | int | float | bool]
    """As in the document."""
    shape: DocumentShape
    """Makes ids and documents of rows."""


def sink_writer(settings: Settings, shape: DocumentShape, emit: Emit) -> StoreWriter:
    """The writer of one emission to such a sink. Raises InvalidSettings."""
    # Imported where they are used: each takes half a second.
    if emit.kind == "files":
        from strandline.results.sinks.files_writer import FilesWriter

        return FilesWriter(emit.name, shape)
    if emit.kind == "sql":
        from strandline.results.sinks.sql_writer import SqlWriter, sql_url

        return SqlWriter(sql_url(settings), emit.name, shape)
    use, _, name = emit.name.partition(":")
    found = next(iter(entry_points(group=GROUP, name=use)), None)
    if found is None:
        known = ", ".join(sorted(one.name for one in entry_points(group=GROUP))) or "none"
        raise InvalidSettings(
            f"no installed package brings a sink '{use}' (entry points of {GROUP}: {known}); install it for the control service "
            "and for each executor"
        )
    writer: StoreWriter = found.load()(SinkRequest(name, json.loads(emit.options or "{}"), shape))
    return writer
