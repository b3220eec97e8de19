"""Bare values: each record is a number or a string."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from strandline.core.streams.format import StreamDocument
    from strandline.processing.formats.inference.sample import Proposed, Sample


class ValueFormat(Format):
    name = "value"
    content_type = b"text/plain"
    untyped_body = "lines"
    paths = "value"
    is_line = True
    takes_bare_json = True
    fills_in_sources = True
    sample_rank = 90

    def refused_changes(self, old: StreamDocument, new: StreamDocument) -> Iterator[str]:
        given = new.mqtt.fields.keys() if new.mqtt else set()
        is_reported = any(field.path == "$" for one in (old, new) for field in one.fields.values())
        for name in sorted(new.fields.keys() - old.fields.keys() - given):
            if not is_reported:
                yield (
                    f"field {name}: it would be unknown which field contains a bare value; mark this field with "
                    "'from: $' first"
                )

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.value.reader import BareValues

        return BareValues(request.fields, request.source_fields)

    def propose(self, name: str, sample: Sample) -> Proposed | None:
        from strandline.processing.formats.value.sample import propose

        return propose(name, sample)


FORMAT = ValueFormat()
