"""Converts MessagePack maps to JSON objects. Extensions become base64 strings."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from strandline.processing.formats.columns.packed_columns import PackedColumns, msgpack_coding
from strandline.processing.formats.packed_maps import PackedMaps
from strandline.processing.formats.record_fields import RecordField


def msgpack_maps(fields: Sequence[RecordField] = ()) -> PackedMaps:
    """Return a reader of the maps of a stream with these fields."""
    return PackedMaps("MessagePack", msgspec.msgpack.Decoder().decode, PackedColumns(msgpack_coding(), fields))
