"""Turns of runs to start."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strandline.processing.run import start_turn
from strandline.processing.run.start_turn import StartTurns
from tests.support.waiting import stretched


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


def test_runs_that_hang_delay_each_other_run_only_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_turn, "TURN_S", 0.01)
    made: list[Index] = []
    turns = turns_of(made)
    hangs, late, next_one = turns.turn(), turns.turn(), turns.turn()
    hangs.take()
    late.take()
    late.give_back()  # it had no turn
    assert [one.is_closed for one in made] == [False, True], "as many connections as turns are kept"
    hangs.give_back()
    assert next_one.take() is made[0]  # type: ignore[comparison-overlap]


def test_a_run_waits_as_long_as_others_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    waits: list[float] = []
    turns = turns_of([])
    held = turns.turn()

    def wait(timeout_s: float) -> None:
        """Another run gives back its turn and a third one takes it, 15 s after the one before. The fifth one keeps it."""
        nonlocal clock, held
        waits.append(timeout_s)
        if len(waits) > 4:
            clock += timeout_s
            return
        clock += 15
        held.give_back()
        held = turns.turn()
        held.take()

    monkeypatch.setattr(start_turn, "monotonic", lambda: clock)
    held.take()
    monkeypatch.setattr(turns._changed, "wait", wait)
    turns.turn().take()
    assert waits == [20.0, 20.0, 20.0, 20.0, 20.0]
    assert clock == 100.0 + 4 * 15 + 20


def test_a_run_that_is_stopped_does_not_wait() -> None:
    turns = turns_of([])
    turns.turn().take()
    stop = threading.Event()
    waits = threading.Thread(target=turns.turn(stop.is_set).take)
    waits.start()
    stop.set()
    turns.wake_up()
    waits.join(stretched(5.0))
    assert not waits.is_alive()
