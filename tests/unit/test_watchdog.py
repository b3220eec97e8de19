"""The watchdog ends a run that is superseded, stuck or without its ledger, and no other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from strandline.core.errors import InvalidSettings, LedgerUnavailable, NotFound, StrandlineError
from strandline.processing.run import watchdog as watchdog_module
from strandline.processing.run.watchdog import Watchdog
from tests.support.waiting import stretched, wait_until

LEASE_S = 0.3
Standing = tuple[int, int | None] | StrandlineError


class StandingLedger:
    """A ledger with scripted answers, which can hang."""

    def __init__(self) -> None:
        self.answer: Standing = (3, 7)
        self.looks = 0
        self.told: list[tuple[str, int, str, str]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def standing(self, job: str) -> tuple[int, int | None]:
        self.looks += 1
        self.may_answer.wait(stretched(10))
        if isinstance(self.answer, StrandlineError):
            raise self.answer
        return self.answer

    def end_run(self, job: str, epoch: int, outcome: str, message: str) -> None:
        self.may_answer.wait(stretched(10))
        self.told.append((job, epoch, outcome, message))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog_module, "LOOK_S", 0.01)
    monkeypatch.setattr(watchdog_module, "OBEY_S", 0.3)
    monkeypatch.setattr(watchdog_module, "_TICK_S", 0.02)


class Watched:
    """A watchdog over run 3 under lease 7, and whether it has ended the run."""

    def __init__(self, lease: int | None = 7, alive_fd: int | None = None) -> None:
        self.ledger = StandingLedger()
        self.ended = threading.Event()
        self.watchdog = Watchdog(self.ledger, "power", 3, lease, LEASE_S, alive_fd, self.ended.set)  # type: ignore[arg-type]
        self.watchdog.start()

    def look_often(self) -> None:
        looks = self.ledger.looks
        wait_until(lambda: self.ledger.looks, lambda count: count > looks + 20, "looked at often")


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def begin(**options: int | None) -> Watched:
        made.append(Watched(**options))
        return made[-1]

    yield begin
    for one in made:
        one.watchdog.close()
        one.ledger.may_answer.set()


def test_a_run_in_order_goes_on(watch: Callable[..., Watched]) -> None:
    watched = watch()
    for _ in range(5):
        watched.watchdog.beat()
        watched.look_often()
    assert watched.watchdog.fenced is None
    assert not watched.ended.is_set()


@pytest.mark.parametrize(
    ("answer", "why"),
    [((4, 7), "run by epoch 4"), ((3, 8), "led under lease 8"), (NotFound("There is no job power"), "no job power")],
)
def test_a_superseded_run_is_told_and_then_ended(watch: Callable[..., Watched], answer: Standing, why: str) -> None:
    watched = watch()
    watched.ledger.answer = answer
    fenced = wait_until(lambda: watched.watchdog.fenced, bool, "fenced")
    assert why in str(fenced)
    assert not watched.ended.is_set(), "it may end by itself first"
    assert watched.ended.wait(stretched(10))


def test_a_run_by_hand_has_no_leader_to_lose(watch: Callable[..., Watched]) -> None:
    watched = watch(lease=None)
    watched.ledger.answer = (3, 8)
    watched.look_often()
    assert watched.watchdog.fenced is None


@pytest.mark.guarantee("G637")
@pytest.mark.parametrize(
    "error", [LedgerUnavailable("away"), InvalidSettings("its password's file is just being replaced")], ids=str
)
def test_a_ledger_that_is_away_for_a_moment_is_waited_for(
    watch: Callable[..., Watched], error: StrandlineError
) -> None:
    watched = watch()
    watched.ledger.answer = error
    looks = watched.ledger.looks
    wait_until(lambda: watched.ledger.looks, lambda count: count > looks + 2, "asked again")
    watched.ledger.answer = (3, 7)
    watched.look_often()
    assert watched.watchdog.fenced is None
    assert not watched.ended.is_set()


@pytest.mark.guarantee(
    "G85",
    "A runner that makes no progress is replaced. A runner that can't reach the ledger ends itself.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.parametrize("way", ["refuses", "hangs"])
def test_a_run_that_can_not_reach_the_ledger_is_ended(watch: Callable[..., Watched], way: str) -> None:
    watched = watch()
    if way == "refuses":
        watched.ledger.answer = LedgerUnavailable("away")
    else:
        watched.ledger.may_answer.clear()
    assert watched.ended.wait(stretched(10))
    assert watched.watchdog.fenced is None


def test_silence_of_spark_counts_from_its_first_sign_of_life(watch: Callable[..., Watched]) -> None:
    watched = watch()
    assert not watched.ended.wait(4 * LEASE_S), "starting takes its time"
    watched.watchdog.beat()
    assert watched.ended.wait(stretched(10))


@pytest.mark.guarantee("G77")
def test_a_run_that_never_begins_is_ended_and_the_ledger_told_why(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example with a Java process that hangs while it starts."""
    monkeypatch.setattr(watchdog_module, "START_MAX_S", 0.1)
    hanging, begun, ended = watch(), watch(), watch()
    begun.watchdog.beat()
    ended.watchdog.disarm()
    assert hanging.ended.wait(stretched(10))
    assert hanging.ledger.told[0] == ("power", 3, "failed", "Spark's query did not begin within 0.1 s")
    for _ in range(5):
        begun.watchdog.beat()
        begun.look_often()
    assert not begun.ended.is_set() and not ended.ended.is_set()


def test_a_ledger_that_hangs_does_not_keep_a_run_from_its_end(
    watch: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog_module, "_TELL_S", 0.01)
    watched = watch()
    watched.ledger.may_answer.clear()
    assert watched.ended.wait(stretched(10))
    assert watched.ledger.told == []


def test_spark_that_was_told_to_stop_may_take_its_time(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.watchdog.beat()
    watched.watchdog.disarm()
    assert not watched.ended.wait(4 * LEASE_S)


def test_it_shows_signs_of_life_and_survives_a_listener_that_is_gone(watch: Callable[..., Watched]) -> None:
    listener, voice = os.pipe2(os.O_NONBLOCK)
    watched = watch(alive_fd=voice)
    watched.look_often()
    assert len(os.read(listener, 100)) > 1
    os.close(listener)
    watched.look_often()
    assert not watched.ended.is_set()
    watched.watchdog.close()
    os.close(voice)
