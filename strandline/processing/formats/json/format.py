"""JSON objects, and arrays of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from strandline.processing.formats.columns.exploded_columns import ExplodedColumns
    from strandline.processing.formats.columns.read_columns import ColumnReader
    from strandline.processing.formats.inference.sample import Proposed, Sample
    from strandline.processing.formats.record_fields import RecordField


class JsonFormat(Format):
    name = "json"
    content_type = b"application/json"
    untyped_body = "json"
    is_json = True
    is_json_text = True
    is_line = True
    explodes = True
    has_nested = True
    keeps_rest = True
    columns_follow_paths = True
    sample_rank = 20

    def columns(self, request: ReaderRequest, reader: FormatReader | None) -> ColumnReader | None:
        from strandline.processing.formats.columns.json_columns import JsonColumns
        from strandline.processing.formats.shapes.position_columns import PositionColumns

        is_of_positions = any(field.path and isinstance(field.path[0], int) for field in request.fields)
        return (PositionColumns if is_of_positions else JsonColumns)(request.fields)

    def element_columns(self, fields: Sequence[RecordField], array: JsonPath) -> ExplodedColumns | None:
        from strandline.processing.formats.columns.exploded_columns import ExplodedColumns
        from strandline.processing.formats.json_rows import EXPLODED_BYTES_MAX

        return ExplodedColumns(fields, array, EXPLODED_BYTES_MAX)

    def propose(self, name: str, sample: Sample) -> Proposed | None:
        from strandline.processing.formats.json.sample import propose

        return propose(name, sample)


FORMAT = JsonFormat()
