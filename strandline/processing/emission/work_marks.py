"""Marks: the job that each worker of a pool works on, in one file for each worker.

A worker that hangs, or that has ended, can't report. Its mark names the job. A mark costs one write to a file that is open.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_BYTES = 512
"""Size of a mark. The name of a job is shorter."""


class WorkMark:
    """The mark of this process."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(directory / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._count = 0

    def works_on(self, job: str) -> None:
        """Note that this process works on the slice of this job. An empty name: on nothing of a single job."""
        self._count += 1
        os.pwrite(self._file, f"{self._count} {job}".encode().ljust(_BYTES), 0)


_marks: dict[tuple[str, int], WorkMark] = {}


def mark_of_process(directory: Path) -> WorkMark:
    """Return the mark of this process in the directory. A forked process has its own. Raises OSError."""
    key = str(directory), os.getpid()
    if key not in _marks:
        _marks[key] = WorkMark(directory)
    return _marks[key]


@dataclass(frozen=True)
class FoundMark:
    """A mark as another process reads it."""

    pid: int
    text: str
    """Differs for each piece of work."""

    @property
    def job(self) -> str:
        """The job. Empty if the worker works on nothing of a single job."""
        return self.text.partition(" ")[2]


def read_marks(directory: Path) -> list[FoundMark]:
    """Return the marks of all workers, also of those that have ended."""
    try:
        paths = [path for path in directory.iterdir() if path.name.isdecimal()]
    except FileNotFoundError:
        return []
    return [FoundMark(int(path.name), path.read_text(encoding="utf-8").rstrip()) for path in paths]


def marks_of_living(directory: Path) -> list[FoundMark]:
    """Return the marks of the workers that still run."""
    return [one for one in read_marks(directory) if Path(f"/proc/{one.pid}").exists()]


def forget_marks(directory: Path, ended: Collection[int]) -> None:
    """Remove the marks of these workers, which have ended."""
    for pid in ended:
        (directory / str(pid)).unlink(missing_ok=True)
