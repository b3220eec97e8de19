"""Turns of runs to start. Only a few runs of a pool prepare at once, with a few connections to the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from strandline.log.index import LogIndex

TURN_S = 20.0
"""Maximum time in seconds without a run that is let in. Then the next run begins without a turn, so runs that hang delay each
other run only so long."""


class StartTurns:
    """The turns of a pool. Used by the threads of all its runs.

    After a kill of a pool, all its runs begin. If all prepared at once, each would wait for the others at the ledger and at the
    stores. A few at once let the first jobs go on in a moment.
    """

    def __init__(self, count: int, make_index: Callable[[], LogIndex]) -> None:
        """`count`: number of runs that may prepare at once."""
        self._make_index = make_index
        self._changed = threading.Condition()
        """Guards the following fields. Notified when a turn is free."""
        self._free = count
        self._last_let_in = 0.0
        self._indices: list[LogIndex] = []
        """Connections that no run uses. Opening one takes time and some threads."""

    def turn(self, is_stopped: Callable[[], bool] = lambda: False) -> StartTurn:
        """Return the turn of one run, which doesn't have it yet. `is_stopped`: if it returns True, the run doesn't wait."""
        return StartTurn(self, is_stopped)

    def wake_up(self) -> None:
        """Let runs that wait ask `is_stopped` again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Close the connections that no run uses."""
        with self._changed:
            while self._indices:
                self._indices.pop().close()

    def _take(self, is_stopped: Callable[[], bool]) -> tuple[bool, LogIndex]:
        with self._changed:
            has_turn = self._wait(is_stopped)
            self._free -= has_turn
            self._last_let_in = monotonic()
            index = self._indices.pop() if self._indices else None
        return has_turn, index or self._make_index()

    def _wait(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until a turn is free. Return False if the run must begin without one."""
        began = monotonic()
        while not self._free and not is_stopped():
            left_s = max(began, self._last_let_in) + TURN_S - monotonic()
            if left_s <= 0:
                return False
            self._changed.wait(left_s)
        return self._free > 0

    def _give_back(self, has_turn: bool, index: LogIndex) -> None:
        with self._changed:
            if has_turn:
                self._indices.append(index)
                self._free += 1
                self._changed.notify()
                return
        index.close()


class StartTurn:
    """The turn of one run. Used by the thread of the run."""

    def __init__(self, turns: StartTurns, is_stopped: Callable[[], bool]) -> None:
        self._turns, self._is_stopped = turns, is_stopped
        self._taken: tuple[bool, LogIndex] | None = None

    def take(self) -> LogIndex:
        """Wait for a turn, unless this run has it or is stopped, and as long as other runs are let in. Return what the run reads
        the log with until it gives back the turn."""
        if self._taken is None:
            self._taken = self._turns._take(self._is_stopped)
        return self._taken[1]

    def give_back(self) -> None:
        """Let the next run prepare. Does nothing if this run has no turn."""
        if self._taken is not None:
            taken, self._taken = self._taken, None
            self._turns._give_back(*taken)
