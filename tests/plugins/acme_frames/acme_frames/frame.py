"""The form of a frame: magic bytes, the name of a device in eight ASCII characters, milliseconds since 1970, and a value."""

from __future__ import annotations

import struct

MAGIC = b"AF"
SIZE = 26


def layout(byte_order: str) -> struct.Struct:
    """Return the layout of a frame. `byte_order`: `little` or `big`."""
    return struct.Struct(f"{'<' if byte_order == 'little' else '>'}2s8sqd")


def frame(device: str, time_ms: int, value: float, byte_order: str = "little") -> bytes:
    """Return a frame."""
    return layout(byte_order).pack(MAGIC, device.encode().ljust(8), time_ms, value)
