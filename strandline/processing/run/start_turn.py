"""Turns of runs to start: only a few runs of a pool prepare at once."""

from __future__ import annotations

import threading

TURN_S = 20.0
"""Maximum time in seconds that a run waits for its turn. Then it begins without one: runs that hang delay others only so long."""


class StartTurn:
    """The turn of one run to start. Used by the thread of the run.

    After a kill of a pool, all its runs begin. If all of them prepared at once, each would wait for the others at the ledger
    and at the stores, and the first results of all of them would be late. A few at once let the first jobs go on in a moment.
    """

    def __init__(self, turns: threading.Semaphore | None) -> None:
        """`turns`: one for each run that may prepare at once. None: no limit."""
        self._turns = turns
        self._is_held = False

    def take(self) -> None:
        """Wait for a turn, for TURN_S at most, unless this run has it."""
        if self._turns is not None and not self._is_held:
            self._is_held = self._turns.acquire(timeout=TURN_S)

    def give_back(self) -> None:
        """Let the next run prepare. Does nothing if this run has no turn."""
        if self._turns is not None and self._is_held:
            self._is_held = False
            self._turns.release()
