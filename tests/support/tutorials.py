"""The pages that a reader types, and who types them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_port_offset
from tests.support.waiting import stretched, wait_until

ROOT = Path(__file__).parents[2]
FIRST = ROOT / "docs" / "tutorial.md"
DEVICES = ROOT / "docs" / "tutorial-devices.md"
BIN = Path(sys.executable).parent
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORTS = (1884, 8000, 8080, 8081, 9200)
_WITHOUT_STACK = ("pipeline check", "pipeline run", "pipeline test", "stream infer")


def blocks(page: Path) -> list[str]:
    """The shell blocks of a page."""
    return _BLOCK.findall(page.read_text())


def outside_of_blocks(page: Path) -> str:
    return _BLOCK.sub("", page.read_text())


@dataclass(frozen=True)
class Typist:
    """Types the commands of a page in a directory of its own, against ports and files of its own."""

    directory: Path
    offset: int

    def own(self, block: str) -> str:
        """Return the same commands for this stack: only the programs' paths, their options, and the ports differ."""
        where = f"--data-dir {self.directory / 'data'}"
        more = {"up": f"{where} --port-offset {self.offset}", **dict.fromkeys(_WITHOUT_STACK, "")}

        def command(match: re.Match[str]) -> str:
            return f"{match[0]} {more.get(match[1], where)}"

        block = re.sub(r"\.venv/bin/strandline ((?:job |dead-letters |pipeline |stream )?[a-z]+)", command, block)
        for port in _PORTS:
            block = re.sub(rf"(127\.0\.0\.1:|http\.server ){port}\b", rf"\g<1>{port + self.offset}", block)
        return block.replace(".venv/bin/", f"{BIN}/")

    def type(self, block: str, timeout_s: float = 280) -> str:
        """Run a block; every command of it must succeed. Returns what it printed."""
        script = f"set -euo pipefail\n{self.own(block)}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.directory, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def type_until(self, block: str, is_there: Callable[[str], bool], timeout_s: float = 180) -> str:
        """Run a block again and again, as who waits for something does. Returns what it printed last."""
        return wait_until(lambda: self.type(block), is_there, f"printed by\n{block}", timeout_s, poll_s=0.5)


@contextmanager
def typing() -> Iterator[Typist]:
    """A typist, whose stack and whose device are stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="strandline-tutorial-") as directory:
        one = Typist(Path(directory), free_port_offset())
        try:
            yield one
        finally:
            if (device := one.directory / "pump.pid").exists() and (pid := device.read_text().strip()):
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGTERM)
            if (one.directory / "data" / "stack.json").exists():
                command = [f"{BIN}/strandline", "down", "--data-dir", str(one.directory / "data")]
                subprocess.run(command, env=dict(os.environ), capture_output=True, timeout=stretched(120), check=False)
