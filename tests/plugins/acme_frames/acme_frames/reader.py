"""Frames to JSON objects, and plain frames to columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import msgspec
import numpy as np
import pyarrow as pa

from acme_frames.frame import MAGIC, SIZE, layout
from strandline.core.record_headers import REASON_DECODE
from strandline.processing.formats.columns.read_columns import Column, ColumnsAndMarks, can_be_read
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection

_TYPES = {"device": ("string",), "time": ("timestamp",), "value": ("double",)}


class FrameReader:
    """Reads the frames of one stream."""

    def __init__(self, fields: Sequence[RecordField], byte_order: str) -> None:
        self._layout = layout(byte_order)
        order = "<" if byte_order == "little" else ">"
        self._dtype = np.dtype([("magic", "S2"), ("device", "S8"), ("time", f"{order}i8"), ("value", f"{order}f8")])
        self._fields = list(fields)
        self._can_read = all(can_be_read(field) and field.type in _TYPES.get(field.name, ()) for field in fields)

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each frame as a JSON object."""
        return [None if value is None else self._object(value) for value in values]

    def columns(
        self, values: Sequence[bytes | None], _sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return frames with ASCII names and finite values as columns."""
        if not self._can_read:
            return None
        fits = np.array([value is not None and len(value) == SIZE for value in values])
        blank = bytes(SIZE)
        data = b"".join(value if fit else blank for value, fit in zip(values, fits, strict=True))  # type: ignore[misc]
        frames = np.frombuffer(data, self._dtype)
        names = np.frombuffer(data, np.uint8).reshape(len(values), SIZE)[:, 2:10]
        fits &= (frames["magic"] == MAGIC) & np.isfinite(frames["value"])
        fits &= ((names >= 0x20) & (names < 0x7F)).all(axis=1)
        devices = [name.decode("latin-1").rstrip(" ") for name in frames["device"].tolist()]
        found = {
            "device": pa.array(devices),
            "time": frames["time"].astype("i8"),
            "value": frames["value"].astype("f8"),
        }
        everywhere = np.ones(len(values), np.bool_)
        return {field.name: Column(found[field.name], everywhere) for field in self._fields}, fits

    def _object(self, value: bytes) -> JsonText:
        if len(value) != SIZE:
            return Rejection(REASON_DECODE, f"a frame has {SIZE} bytes, got {len(value)}")
        magic, device, time_ms, number = self._layout.unpack(value)
        if magic != MAGIC:
            return Rejection(REASON_DECODE, f"a frame begins with {MAGIC!r}, got {magic!r}")
        try:
            name = device.decode("ascii").rstrip(" ")
        except UnicodeDecodeError:
            return Rejection(REASON_DECODE, f"the name of a device is ASCII, got {device!r}")
        return msgspec.json.encode({"device": name, "time": time_ms, "value": number if isfinite(number) else None})
