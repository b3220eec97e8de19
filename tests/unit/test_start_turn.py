"""Turns of runs to start."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strandline.processing.run import start_turn
from strandline.processing.run.start_turn import StartTurns


class Index:
    """A LogIndex without a log."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def turns_of(made: list[Index], count: int = 1) -> StartTurns:
    def make() -> Any:
        made.append(Index())
        return made[-1]

    return StartTurns(count, make)


def test_a_run_has_one_turn_until_it_gives_it_back() -> None:
    made: list[Index] = []
    turns = turns_of(made)
    first, second = turns.turn(), turns.turn()
    assert first.take() is first.take()  # the next run of the job, after one that couldn't join
    order: list[str] = []

    def go_second() -> None:
        second.take()
        order.append("second")

    thread = threading.Thread(target=go_second)
    thread.start()
    order.append("first")
    first.give_back()
    thread.join()
    assert order == ["first", "second"]
    first.give_back()  # nothing to give back: more turns than there were would raise ValueError
    second.give_back()
    assert len(made) == 1, "the second run uses the connections of the first"
    turns.close()
    assert made[0].is_closed


def test_runs_that_hang_delay_others_only_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_turn, "TURN_S", 0.01)
    made: list[Index] = []
    turns = turns_of(made)
    hangs, late, next_one = turns.turn(), turns.turn(), turns.turn()
    hangs.take()
    late.take()
    late.give_back()  # it had no turn
    assert [one.is_closed for one in made] == [False, True], "as many connections as turns are kept"
    assert not turns._free.acquire(blocking=False), "the run that hangs still has its turn"
    hangs.give_back()
    assert next_one.take() is made[0]  # type: ignore[comparison-overlap]
