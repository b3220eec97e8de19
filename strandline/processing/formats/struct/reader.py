"""Converts binary records with a declared layout to JSON objects."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from strandline.core.record_headers import REASON_DECODE
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection
from strandline.processing.formats.struct.columns import StructColumns, block_of, values_of
from strandline.processing.formats.struct.layout import Layout

_encode = msgspec.json.encode


class StructRecords:
    """Reads the records of one stream."""

    def __init__(self, layout: Layout, fields: Sequence[RecordField] = ()) -> None:
        self._layout = layout
        self.columns = StructColumns(layout, fields).columns

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each record as a JSON object."""
        block, fits = block_of(values, self._layout)
        names, columns = [], []
        for one in values_of(block, self._layout):
            names.append(one.name)
            found = one.values.astype(object)
            found[~one.present] = None
            columns.append(found.tolist())
        rows = zip(*columns, strict=True)
        return [
            self._object(names, row) if is_good else self._rejection(value)
            for value, is_good, row in zip(values, fits.tolist(), rows, strict=True)
        ]

    def _object(self, names: list[str], row: Sequence[object]) -> JsonText:
        try:
            texts = (one.decode() if isinstance(one, bytes) else one for one in row)
            return _encode(dict(zip(names, texts, strict=True)))
        except UnicodeDecodeError as error:
            return Rejection(REASON_DECODE, f"a string isn't UTF-8: {error.reason} at byte {error.start} of the string")

    def _rejection(self, value: bytes | None) -> JsonText:
        if value is None:
            return None
        expected = f"{'at least ' if self._layout.ignores_longer else ''}{self._layout.size:,}"
        return Rejection(REASON_DECODE, f"expected {expected} bytes, got {len(value):,}")
