"""The page that `strandline results --html` writes: it needs nothing else, and a browser draws it."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from strandline.services.cli.result_verbs import _caption, _table, page

CHROMIUM = shutil.which("chromium")
START_MS = 1_793_491_200_000
EVIL = "</script><script>document.title='broken'</script>"
COLORS = [(0x0D, 0x74, 0xCE), (0xCC, 0x4E, 0x00)]
"""Of the first two series."""


def answer(**more: Any) -> dict[str, Any]:
    """As `GET /v1/results/ALIAS` answers."""
    rising = [[START_MS + n * 60_000, 10.0 + n] for n in range(100)]
    falling = [[START_MS + n * 60_000, 120.0 - n] for n in range(100) if n % 7]
    return {
        "alias": "turbine-minute",
        "job": "turbine-health",
        "stage": "per_minute",
        "size_ms": 60_000,
        "every_ms": 60_000,
        "value": "load",
        "operation": "average",
        "by": "turbine",
        "from_ms": START_MS,
        "to_ms": START_MS + 99 * 60_000,
        "step_ms": 60_000,
        "results": 186,
        "series": [{"key": "t-1", "points": rising}, {"key": EVIL, "points": falling}],
        "counts": {"records": 10_000, "rejected": {"late": 7, "parse": 12}},
    } | more


def data_of(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    data: dict[str, Any] = json.loads(found)
    return data


def test_all_that_it_shows_stands_in_it_and_a_key_can_not_end_its_script() -> None:
    text = page(answer())
    data = data_of(text)
    assert data["series"] == ["t-1", EVIL]
    assert EVIL not in text
    starts, rising, falling = data["data"]
    assert starts == [START_MS / 1000 + 60 * n for n in range(100)]
    assert rising == [10.0 + n for n in range(100)]
    assert falling == [120.0 - n if n % 7 else None for n in range(100)]
    assert data["counts"] == [["records", "10,000"], ["late", "7"], ["dead letters: parse", "12"]]
    assert "__" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_nothing_is_loaded_from_elsewhere() -> None:
    own = re.sub(r"<script.*?</script>", "", page(answer()), flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=|url\(|@import""", own)


def test_before_the_first_result_it_says_so() -> None:
    nothing = answer(series=[], from_ms=None, to_ms=None, step_ms=0, results=0)
    assert data_of(page(nothing))["data"] == [[]]
    assert "has no result yet" in data_of(page(nothing))["about"]


def test_several_windows_in_a_point_are_said() -> None:
    assert "each point the average of the windows of 5 min" in data_of(page(answer(step_ms=300_000)))["about"]


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page was NOT looked at")
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_browser_draws_the_lines(tmp_path: Path, is_empty: bool) -> None:
    shown = answer(series=[], from_ms=None, to_ms=None, step_ms=0, results=0) if is_empty else answer()
    (tmp_path / "page.html").write_text(page(shown), encoding="utf-8")
    picture = tmp_path / "page.png"
    browser = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    common = ["--window-size=1000,700", "--virtual-time-budget=2000", (tmp_path / "page.html").as_uri()]
    subprocess.run([*browser, f"--screenshot={picture}", *common], check=True, capture_output=True, timeout=120)
    dom = subprocess.run(
        [*browser, "--dump-dom", *common], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    assert "<title>turbine-minute: load by turbine</title>" in dom
    pixels = colors_of(picture)
    for color in COLORS:
        assert (pixels[color] > 100) is not is_empty, f"{pixels[color]} pixels of {color}"
    assert ("There is no result yet." in re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)) is is_empty


def colors_of(picture: Path) -> Counter[tuple[int, ...]]:
    """How many pixels of each color a PNG of 8 bits a channel has. Format: https://www.w3.org/TR/png-3/#9Filters."""
    content, chunks, at = picture.read_bytes(), Counter[bytes](), 8
    packed = b""
    while at < len(content):
        (length,), kind = struct.unpack(">I", content[at : at + 4]), content[at + 4 : at + 8]
        body = content[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color_type = struct.unpack(">IIBB", body[:10])
        packed += body if kind == b"IDAT" else b""
        chunks[kind] += 1
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


def test_the_terminal_shows_a_line_for_each_key() -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(_caption(answer()))
        console.print(_table(answer()))
    said = console.export_text()
    assert "186 results, each point a window of 1 min" in said
    assert "Since the job began: records 10,000, late 7, dead letters: parse 12." in said
    (line,) = [one for one in said.splitlines() if "│ t-1" in one]
    assert re.search(r"▁+▂+▃+▄+▅+▆+▇+", line)
    assert line.split("│")[2].strip(" │") == "10"
