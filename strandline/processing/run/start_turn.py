"""Turns of runs to start. Only a few runs of a pool prepare at once, with a few connections to the log."""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.log.index import LogIndex

TURN_S = 20.0
"""Maximum time in seconds that a run waits for its turn. Then it begins without one: runs that hang delay others only so long."""


class StartTurns:
    """The turns of a pool. Used by the threads of all its runs.

    After a kill of a pool, all its runs begin. If all prepared at once, each would wait for the others at the ledger and at the
    stores. A few at once let the first jobs go on in a moment.
    """

    def __init__(self, count: int, make_index: Callable[[], LogIndex]) -> None:
        """`count`: number of runs that may prepare at once."""
        self._free, self._make_index = threading.BoundedSemaphore(count), make_index
        self._indices: list[LogIndex] = []
        """Connections that no run uses. Opening one takes time and some threads."""

    def turn(self) -> StartTurn:
        """Return the turn of one run, which doesn't have it yet."""
        return StartTurn(self)

    def close(self) -> None:
        """Close the connections that no run uses."""
        while self._indices:
            self._indices.pop().close()

    def _take(self) -> tuple[bool, LogIndex]:
        has_turn = self._free.acquire(timeout=TURN_S)
        try:
            return has_turn, self._indices.pop()
        except IndexError:  # another run may have taken the last one
            return has_turn, self._make_index()

    def _give_back(self, has_turn: bool, index: LogIndex) -> None:
        if has_turn:
            self._indices.append(index)
            self._free.release()
        else:
            index.close()


class StartTurn:
    """The turn of one run. Used by the thread of the run."""

    def __init__(self, turns: StartTurns) -> None:
        self._turns = turns
        self._taken: tuple[bool, LogIndex] | None = None

    def take(self) -> LogIndex:
        """Wait for a turn, for TURN_S at most, unless this run has it. Return what the run reads the log with until it gives back
        the turn."""
        if self._taken is None:
            self._taken = self._turns._take()
        return self._taken[1]

    def give_back(self) -> None:
        """Let the next run prepare. Does nothing if this run has no turn."""
        if self._taken is not None:
            taken, self._taken = self._taken, None
            self._turns._give_back(*taken)
