"""Splits a byte stream into lines as its pieces arrive. Does no input or output, and reads no clock."""

from __future__ import annotations

from strandline.core.files.text_rows import BYTE_ORDER_MARK

_WHITESPACE = b" \t\r"


class LineSplitter:
    r"""Splits at `\n` or `\r\n`, and skips blank lines. A line that is too long is dropped and returned as None.

    A byte order mark before the first line isn't part of it. Memory is bounded: an unfinished line is kept only up to
    the limit.
    """

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._rest = bytearray()
        self._is_begun = False
        """True if the first line has ended."""
        self._is_skipping = False
        """True if the unfinished line is too long, and None was returned for it."""

    @property
    def bytes_held(self) -> int:
        """Bytes of the unfinished line."""
        return len(self._rest)

    def split(self, data: bytes) -> list[bytes | None]:
        """Return the lines that end in `data`, in order, without their line ends."""
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
            if not self._is_begun:
                self._is_begun, block = True, block.removeprefix(BYTE_ORDER_MARK)
            for line in block.split(b"\n"):
                value = line[:-1] if line.endswith(b"\r") else line
                if len(value) > self._line_bytes_max:
                    lines.append(None)
                elif value and (value[0] > 0x20 or value.strip(_WHITESPACE)):
                    lines.append(value)
        self._rest += data[end + 1 :]
        if len(self._rest) > self._line_bytes_max + 1:  # one more: it may be the \r of the line's end
            lines.append(None)
            self._rest.clear()
            self._is_skipping = True
        return lines

    def end(self) -> list[bytes | None]:
        """Return the unfinished line, if there is one. Call it when no more data comes."""
        self._is_skipping = False
        return self.split(b"\n") if self._rest else []
