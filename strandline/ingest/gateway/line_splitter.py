"""Cuts a byte stream into lines as it arrives, however it is split on the way. No input, no output, no clock."""

from __future__ import annotations

_WHITESPACE = b" \t\r"


class LineSplitter:
    r"""Lines end in `\n` or `\r\n`; blank ones are left out. One that is too long is thrown away and shows as None.

    Memory is bounded: of a line that has not ended, no more is kept than may belong to a record.
    """

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._rest = bytearray()
        self._is_skipping = False
        """The line that has not ended yet is too long, and was said to be."""

    @property
    def bytes_held(self) -> int:
        """Of a line that has begun and not ended."""
        return len(self._rest)

    def split(self, data: bytes) -> list[bytes | None]:
        """The lines that end in `data`, in order, without their ends."""
        lines: list[bytes | None] = []
        if self._is_skipping:
            end = data.find(b"\n")
            if end < 0:
                return lines
            data = data[end + 1 :]
            self._is_skipping = False
        end = data.rfind(b"\n")
        if end >= 0:
            block = data[:end]
            if self._rest:
                block = bytes(self._rest) + block
                self._rest.clear()
            for line in block.split(b"\n"):
                value = line[:-1] if line.endswith(b"\r") else line
                if len(value) > self._line_bytes_max:
                    lines.append(None)
                elif value and (value[0] > 0x20 or value.strip(_WHITESPACE)):
                    lines.append(value)
        self._rest += data[end + 1 :]
        if len(self._rest) > self._line_bytes_max + 1:  # one more, as it may turn out to be the \r of its end
            lines.append(None)
            self._rest.clear()
            self._is_skipping = True
        return lines

    def end(self) -> list[bytes | None]:
        """The line that never got its end, once nothing more comes; nothing if there is none."""
        self._is_skipping = False
        return self.split(b"\n") if self._rest else []
