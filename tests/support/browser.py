"""Looks at a page of `strandline results --html` with Debian's Chromium, without a window."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from collections import Counter
from pathlib import Path

from tests.support.waiting import stretched

CHROMIUM = shutil.which("chromium")
COLORS = [(0x0D, 0x74, 0xCE), (0xCC, 0x4E, 0x00)]
"""Colors of the page's first two series."""
TIMEOUT_S = 120


def look_at(page: str, directory: Path, picture: Path) -> tuple[str, Counter[tuple[int, ...]]]:
    """Return the page after its scripts have run, and the number of pixels of each color in its picture."""
    (directory / "page.html").write_text(page, encoding="utf-8")
    browser = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory}/profile"]
    common = [
        "--window-size=1100,680",
        "--hide-scrollbars",
        "--virtual-time-budget=2000",
        (directory / "page.html").as_uri(),
    ]
    subprocess.run(
        [*browser, f"--screenshot={picture}", *common], check=True, capture_output=True, timeout=stretched(TIMEOUT_S)
    )
    dumped = subprocess.run(
        [*browser, "--dump-dom", *common], check=True, capture_output=True, text=True, timeout=stretched(TIMEOUT_S)
    )
    return dumped.stdout, colors_of(picture)


def colors_of(picture: Path) -> Counter[tuple[int, ...]]:
    """Return the number of pixels of each color in a PNG with 8 bits per channel.

    Format: https://www.w3.org/TR/png-3/#9Filters.
    """
    content, at = picture.read_bytes(), 8
    packed = b""
    while at < len(content):
        (length,), kind = struct.unpack(">I", content[at : at + 4]), content[at + 4 : at + 8]
        body = content[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color_type = struct.unpack(">IIBB", body[:10])
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    channels = {2: 3, 6: 4}[color_type]
    assert depth == 8
    lines, before = zlib.decompress(packed), bytearray(width * channels)
    found: Counter[tuple[int, ...]] = Counter()
    for row in range(height):
        start = row * (width * channels + 1)
        line = unfilter(lines[start], bytearray(lines[start + 1 : start + 1 + width * channels]), before, channels)
        found.update(zip(line[0::channels], line[1::channels], line[2::channels], strict=True))
        before = line
    return found


def unfilter(kind: int, line: bytearray, before: bytearray, channels: int) -> bytearray:
    for at in range(len(line)):
        left = line[at - channels] if at >= channels else 0
        up, corner = before[at], before[at - channels] if at >= channels else 0
        if kind == 4:
            guess = left + up - corner
            nearest = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
        else:
            nearest = (0, left, up, (left + up) // 2)[kind]
        line[at] = (line[at] + nearest) & 0xFF
    return line
