"""What a side says of itself while it runs, a JSON line each on its output: when the first records are done, and its answer.

The peers' mains in Java print the same lines. Whoever measures takes the process tree's CPU time when such a line comes.
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
    """One line."""

    records: int
    """Done so far."""
    outcome: Outcome
    """What was given out so far."""
    complete: bool
    """Whether that is all."""

    @classmethod
    def parse(cls, line: str) -> Progress | None:
        """The line's content; None when it is something else that a side printed."""
        if not line.startswith('{"records"'):
            return None
        fields = json.loads(line)
        records, complete = fields.pop("records"), fields.pop("complete")
        return cls(records, Outcome(**fields), complete)

    def line(self) -> str:
        return json.dumps({"records": self.records, **asdict(self.outcome), "complete": self.complete})


@contextmanager
def telling_mark(done: Callable[[], int], mark: int) -> Iterator[None]:
    """Meanwhile say once when `done`, the number of records that are done, has come to `mark`. It isn't asked again after
    that, so asking costs nothing that is measured."""
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
    """Say that all is done; return when the one who measures has seen it and closes this process's input."""
    _say(Progress(records, outcome, complete=True))
    sys.stdin.read()


def _say(progress: Progress) -> None:
    print(progress.line(), flush=True)
