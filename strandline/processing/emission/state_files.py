"""State of one run of a member, as files: one file for the state after a slice.

Invariants:
- A file never changes. Its name is the number of the slice. The same slice always has the same bytes.
- When the state after a slice is written, the state before the slice stays. So a repeated task finds the state that it needs.
- The ledger determines which slice is next. The state of a slice that isn't committed is not read; it is written again.

If a file is missing or damaged, the run ends, and the job rewinds.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from strandline.core.errors import StrandlineError

_HEADER, _CHECKSUM = struct.Struct(">8sQQ"), struct.Struct(">I")
"""Header: format, number of the slice, number of the slice before (_NONE if there is none). It is followed by the CRC-32 of the
header and the state."""
_FORMAT = b"state  1"
_NONE = (1 << 64) - 1


@dataclass(frozen=True)
class HeldState:
    """State after a slice."""

    number: int
    """Number of the slice."""
    before: int | None
    """Number of the slice whose state this state was computed from. None if it was computed without state."""
    state: bytes


class StateFiles:
    """The states of one run of a member."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def read(self, number: int) -> HeldState:
        """Return the state after this slice. Raises StrandlineError if the file is missing or damaged."""
        path = self._path(number)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise StrandlineError(f"the state {path} can't be read: {error}; the job rewinds") from error
        header, state = content[: _HEADER.size], content[_HEADER.size + _CHECKSUM.size :]
        if len(content) >= _HEADER.size + _CHECKSUM.size:
            form, own, before = _HEADER.unpack(header)
            (checksum,) = _CHECKSUM.unpack_from(content, _HEADER.size)
            if (form, own, checksum) == (_FORMAT, number, zlib.crc32(state, zlib.crc32(header))):
                return HeldState(number, None if before == _NONE else before, state)
        raise StrandlineError(f"the state {path} is damaged: its header doesn't fit its content; the job rewinds")

    def write(self, number: int, state: bytes, before: HeldState | None) -> None:
        """Write the state after this slice, computed from `before`. Remove the state that is no longer needed: that of the slice
        before `before`. Raises StrandlineError if the state can't be written."""
        header = _HEADER.pack(_FORMAT, number, _NONE if before is None else before.number)
        checksum = _CHECKSUM.pack(zlib.crc32(state, zlib.crc32(header)))
        new = f"{self._path(number)}.{uuid4().hex}.tmp"
        try:
            if before is None:
                os.makedirs(self._directory, exist_ok=True)
            with open(new, "wb") as file:
                file.writelines((header, checksum, state))
            os.replace(new, self._path(number))
            if before is not None and before.before is not None:
                with suppress(FileNotFoundError):
                    os.unlink(self._path(before.before))
        except OSError as error:
            raise StrandlineError(
                f"the state {self._path(number)} can't be written: {error}. Free disk space there."
            ) from error

    def _path(self, number: int) -> str:
        """Return the path of the state after this slice. A string, because `pathlib` costs a tenth of the time of a small
        slice."""
        return f"{self._directory}/{number}"
