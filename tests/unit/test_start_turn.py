"""Turns of runs to start."""

from __future__ import annotations

import threading

import pytest

from strandline.processing.run import start_turn
from strandline.processing.run.start_turn import StartTurn


def test_a_run_holds_one_turn_until_it_gives_it_back() -> None:
    turns = threading.BoundedSemaphore(1)
    first, second = StartTurn(turns), StartTurn(turns)
    first.take()
    first.take()  # the next run of the job, after one that couldn't join
    order: list[str] = []
    thread = threading.Thread(target=lambda: (second.take(), order.append("second")))
    thread.start()
    order.append("first")
    first.give_back()
    thread.join()
    assert order == ["first", "second"]
    first.give_back()  # nothing to give back: more turns than there were would raise ValueError
    second.give_back()


def test_runs_that_hang_delay_others_only_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_turn, "TURN_S", 0.01)
    turns = threading.BoundedSemaphore(1)
    hangs, late = StartTurn(turns), StartTurn(turns)
    hangs.take()
    late.take()
    late.give_back()  # it had none
    assert not turns.acquire(blocking=False), "the run that hangs still has its turn"
    hangs.give_back()
    assert turns.acquire(blocking=False)


def test_a_run_alone_in_its_process_needs_no_turn() -> None:
    turn = StartTurn(None)
    turn.take()
    turn.give_back()
