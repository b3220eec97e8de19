"""Reports of a side while it runs, one JSON line each on its output: when the first records are done, and its final outcome.

The main programs of the peers in Java print the same lines. The benchmark reads the process tree's CPU time at each line.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from benchmarks.works import Outcome

_POLL_S = 0.02
_NOTHING = Outcome(0, 0, 0, 0.0)


@dataclass(frozen=True)
class Progress:
    """One report."""

    records: int
    """Number of records that are done."""
    outcome: Outcome
    """Results up to now."""
    complete: bool
    """True if this is the final outcome."""

    @classmethod
    def parse(cls, line: str) -> Progress | None:
        """Return the content of the line; None for other output of a side."""
        if not line.startswith('{"records"'):
            return None
        fields = json.loads(line)
        records, complete = fields.pop("records"), fields.pop("complete")
        return cls(records, Outcome(**fields), complete)

    def line(self) -> str:
        return json.dumps({"records": self.records, **asdict(self.outcome), "complete": self.complete})


@contextmanager
def telling_mark(done: Callable[[], int], mark: int) -> Iterator[None]:
    """Report once when `done`, the number of records that are done, reaches `mark`. It isn't called after that, so the measured
    part contains no cost of it."""
    ended = threading.Event()

    def wait() -> None:
        records = 0
        while records < mark:
            if ended.wait(_POLL_S):
                return
            records = done()
        _say(Progress(records, _NOTHING, complete=False))

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def tell_answer(records: int, outcome: Outcome) -> None:
    """Report that all is done. Return when the benchmark has read it and closes this process's input."""
    _say(Progress(records, outcome, complete=True))
    sys.stdin.read()


def _say(progress: Progress) -> None:
    print(progress.line(), flush=True)
