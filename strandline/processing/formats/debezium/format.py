"""Change events of Debezium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from strandline.core.streams.format import StreamDocument
    from strandline.processing.formats.inference.sample import Proposed, Sample
    from strandline.processing.formats.record_fields import RecordField


class DebeziumFormat(Format):
    name = "debezium"
    content_type = b"application/json"
    is_json_text = True
    is_line = True
    skips_tombstones = True
    columns_follow_paths = True
    sample_rank = 10

    def problems_of_lookup(self, stream: StreamDocument, *, deletes: bool) -> Iterator[str]:
        if not deletes:
            yield (
                f"stream '{stream.stream}' has changes of a table, which include deletions; declare a field there, as "
                "'op: {type: string, from: $.op}', and write here 'deleted_if: \"op = 'd'\"'"
            )

    def fields(self, fields: tuple[RecordField, ...]) -> tuple[RecordField, ...]:
        from strandline.processing.formats.debezium.reader import fields_of_changes

        return fields_of_changes(fields)

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.debezium.reader import ChangeEvents

        return ChangeEvents(request.fields)

    def propose(self, name: str, sample: Sample) -> Proposed | None:
        from strandline.processing.formats.debezium.sample import propose

        return propose(name, sample)


FORMAT = DebeziumFormat()
