"""docs/tutorial.md, typed as it stands there: every command, in order, against a stack of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.servers import free_port_offset

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
STRANDLINE = Path(sys.executable).parent / "strandline"
PORTS = (8080, 8081, 9200)


def blocks(page: str) -> list[str]:
    """The shell blocks of a page."""
    return re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Typist:
    """Types the tutorial's commands in a directory of its own, against ports and files of its own."""

    directory: Path
    offset: int

    def own(self, block: str) -> str:
        """The same commands for this stack: only the program's path, its options and the ports differ."""
        where = f"--data-dir {self.directory / 'data'}"
        more = {"up": f"{where} --port-offset {self.offset}", "pipeline check": ""}

        def command(match: re.Match[str]) -> str:
            return f"{STRANDLINE} {match[1]} {more.get(match[1], where)}"

        block = re.sub(r"\.venv/bin/strandline ((?:job |dead-letters |pipeline )?[a-z]+)", command, block)
        for port in PORTS:
            block = block.replace(f"127.0.0.1:{port}", f"127.0.0.1:{port + self.offset}")
        return block

    def type(self, block: str, timeout_s: float = 280) -> str:
        """Run a block; every command of it must succeed. Returns what it printed."""
        script = f"set -euo pipefail\n{self.own(block)}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.directory, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def typist(monkeypatch: pytest.MonkeyPatch) -> Iterator[Typist]:
    monkeypatch.setenv("STRANDLINE_STANDBYS", "0")
    with tempfile.TemporaryDirectory(prefix="strandline-tutorial-") as directory:
        one = Typist(Path(directory), free_port_offset())
        try:
            yield one
        finally:
            if (one.directory / "data" / "stack.json").exists():
                command = [str(STRANDLINE), "down", "--data-dir", str(one.directory / "data")]
                subprocess.run(command, env=dict(os.environ), capture_output=True, timeout=120, check=False)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_command_of_the_tutorial_does_what_it_says(typist: Typist) -> None:
    up, check, apply, send, results, draw, rejected, audit, down = blocks(TUTORIAL.read_text())
    typist.type(up)
    typist.type(check)
    typist.type(apply)
    assert json.loads(typist.type(send)) == {"accepted": 5}
    answer = typist.type(results)
    found = json.loads(answer[answer.index('{\n  "took"') :])["hits"]["hits"]
    rows = [(hit["_source"]["room"], hit["_source"]["n"], hit["_source"]["mean"]) for hit in found]
    assert sorted(rows) == [("cellar", 1, 12.0), ("kitchen", 1, 22.3), ("kitchen", 2, 21.65)]
    typist.type(draw)
    data = json.loads(re.findall(r'id="data">(.*?)</script>', (typist.directory / "comfort.html").read_text())[0])
    assert data["series"] == ["kitchen", "cellar"]
    assert data["data"][1:] == [[21.65, 22.3], [12.0, None]]
    letters = typist.type(rejected)
    assert "schema" in letters and "celsius" in letters
    typist.type(audit)
    typist.type(down)
    assert not (typist.directory / "data" / "pids.json").exists() or "kafka" not in json.loads(
        (typist.directory / "data" / "pids.json").read_text()
    )


def test_the_tutorial_has_no_command_that_is_not_run() -> None:
    page = TUTORIAL.read_text()
    outside = re.sub(r"^```sh\n.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert ".venv/bin/" not in outside and "curl" not in outside
    assert len(blocks(page)) == 9
