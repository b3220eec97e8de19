"""Files and orders between a control service and the process of a pool.

The process gets its orders on stdin, one line of JSON each: `{"start": JOB, "lease": EPOCH, "number": N, "alone": BOOL}` and
`{"end": JOB, "number": N}`. `alone`: the job runs alone in a batch until it has committed a slice, because it may have ended the
last pool. The process writes two files in its directory: `ended` gets a line for each run that has ended, and `batch` contains
the jobs of the present batch. So the control service finds both after the process was killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ENDED, BATCH = "ended", "batch"


class StartOrder(NamedTuple):
    """Start a run of the job in the pool."""

    job: str
    lease: int | None
    number: int
    """Number of the start. No other start in this pool has it."""
    alone: bool = False


class EndOrder(NamedTuple):
    """End this run of the job at once. Its next run repeats its slice."""

    job: str
    number: int


def encode_order(order: StartOrder | EndOrder) -> bytes:
    """Return the line of an order."""
    if isinstance(order, EndOrder):
        return json.dumps({"end": order.job, "number": order.number}).encode() + b"\n"
    start = {"start": order.job, "lease": order.lease, "number": order.number, "alone": order.alone}
    return json.dumps(start).encode() + b"\n"


def decode_order(line: bytes) -> StartOrder | EndOrder:
    """Return the order in a line."""
    found = json.loads(line)
    if "end" in found:
        return EndOrder(found["end"], found["number"])
    return StartOrder(found["start"], found["lease"], found["number"], found["alone"])


class PoolReports:
    """Reports of a pool. Its threads can call the methods at the same time."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError."""
        self._ended = os.open(directory / ENDED, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._batch = os.open(directory / BATCH, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def ended(self, number: int, code: int) -> None:
        """Report that the run with this number has ended. Raises OSError."""
        os.write(self._ended, json.dumps([number, code]).encode() + b"\n")

    def batch(self, jobs: Sequence[str]) -> None:
        """Report the jobs of the batch that begins. No job: the batch has ended. Raises OSError."""
        content = json.dumps(list(jobs)).encode() + b"\n"
        os.pwrite(self._batch, content, 0)
        os.ftruncate(self._batch, len(content))


def read_ended(directory: Path, position: int = 0) -> tuple[dict[int, int], int]:
    """Return the exit code of each run whose end was reported after a position in the file, by its number, and the position for
    the next call."""
    try:
        with (directory / ENDED).open("rb") as file:
            file.seek(position)
            content = file.read()
    except FileNotFoundError:
        return {}, position
    complete = content[: content.rfind(b"\n") + 1]  # the last line may be incomplete
    return dict(json.loads(line) for line in complete.splitlines()), position + len(complete)


def read_batch(directory: Path) -> list[str]:
    """Return the jobs of the batch in which the process ended. Empty if it ended between two batches."""
    try:
        found = json.loads((directory / BATCH).read_bytes() or b"[]")
    except (FileNotFoundError, ValueError):  # ValueError: it ended while it wrote the file
        return []
    return [str(one) for one in found]
