"""Lines are the same however the bytes are split on the way."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from strandline.ingest.gateway.line_splitter import LineSplitter

LINE_BYTES_MAX = 8
BYTES = st.lists(st.sampled_from([b"a", b"bb", b"cccccc", b" ", b"\r", b"\n", b"\n", b"\r\n", b"\xff", b"\0"])).map(
    b"".join
)


def simply(data: bytes) -> list[bytes | None]:
    """Return the expected lines, computed from all data at once."""
    lines: list[bytes | None] = []
    for part in data.split(b"\n"):
        line = part[:-1] if part.endswith(b"\r") else part
        if len(line) > LINE_BYTES_MAX:
            lines.append(None)
        elif line.strip(b" \t\r"):
            lines.append(line)
    return lines


@given(BYTES, st.lists(st.integers(0, 60)))
def test_any_splitting_gives_the_same_lines(data, cuts):
    splitter = LineSplitter(LINE_BYTES_MAX)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    lines: list[bytes | None] = []
    for start, end in itertools.pairwise(places):
        lines += splitter.split(data[start:end])
        assert splitter.bytes_held <= LINE_BYTES_MAX + 1
    assert lines + splitter.end() == simply(data)
    assert splitter.bytes_held == 0
