"""Thousands of histories of notices: no event without its notice, no notice without a cause, each end once, and the limit holds.

`make simulate-notices SEEDS=10000` runs more of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import pytest
import structlog

from strandline.ledger.notices import NoticeChanges, NoticeRow
from strandline.notices import machine, outbox, readings, service
from strandline.notices.conditions import disk_full
from strandline.notices.finding import Sight
from strandline.notices.readings import Reading
from strandline.notices.service import NoticeService
from tests.simulation.notices.check import check
from tests.simulation.notices.history import Condition, History
from tests.simulation.notices.twin import TwinNotices

HAPPENS = {
    "a call of the ledger failed",
    "a condition was blind",
    "a disk filled up or was emptied",
    "a failure between two looks",
    "a job failed",
    "a job was started",
    "a kill",
    "a kill at a call of the ledger",
    "a lag began or ended",
    "a machine was away for long",
    "a pause",
    "a pause before an attempt",
    "a receiver changed",
    "a receiver: false",
    "a receiver: hang",
    "a receiver: ok",
    "a receiver: refuse",
    "a receiver: slow",
    "all jobs failed",
    "an attempt was interrupted",
    "an outcome was not recorded",
    "the ledger was away",
    "the notice was muted",
}


@dataclass
class Found:
    """Sums over histories."""

    histories: int = 0
    events: int = 0
    messages: int = 0
    received: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    """Kind of a finding -> histories."""
    happened: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.histories:,} histories, {self.events:,} events, {self.messages:,} messages, {self.received:,} received; "
            f"wrong: {dict(self.wrong)}"
        )


def run_histories(
    first: int,
    count: int,
    mistake: Callable[[], AbstractContextManager[Any]] = nullcontext,
    *,
    shows: bool = False,
    stops: bool = False,
) -> Found:
    """`shows`: print the seed of each wrong history. `stops`: end with the first one."""
    found, began_s = Found(), time.monotonic()
    with mistake():
        for seed in range(first, first + count):
            history = History(seed)
            with mock.patch.object(service, "condition_of", lambda keyword, one=history: Condition(one.world, keyword)):
                history.run()
            findings = check(history)
            found.histories += 1
            found.events += len(history.world.causes)
            found.messages += len(history.ledger.messages)
            found.received += len(history.received)
            found.happened.update(history.happened)
            for kind in {finding.split(":")[0] for finding in findings}:
                found.wrong[kind] += 1
            if shows and findings:
                print(f"seed {seed}: {findings[0]}", flush=True)
            if shows and found.histories % 1_000 == 0:
                print(f"{found.histories:,} histories, {time.monotonic() - began_s:,.0f} s", flush=True)
            if stops and findings:
                break
    return found


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """The services log each kill."""
    with silence():
        yield


def silence() -> AbstractContextManager[Any]:
    return mock.patch.object(service, "logger", mock.Mock(spec=structlog.stdlib.BoundLogger))


@pytest.mark.guarantee(
    "G820",
    "Each event that matches a condition of a notice is reported. No kill of a control service, lost response of the "
    "ledger, cooldown, quiet time, or muting drops it. A receiver that refuses or hangs is retried for three days.",
    promise="failures-are-reported-with-their-remedy",
)
@pytest.mark.guarantee(
    "G821",
    "Each message of a notice has a cause, and the end of a problem is reported once.",
    promise="failures-are-reported-with-their-remedy",
)
@pytest.mark.guarantee("G970")
@pytest.mark.guarantee("G971")
@pytest.mark.guarantee(
    "G822",
    "A channel of a notice gets at most `limit` messages within a minute, also after kills. One summary replaces the "
    "others.",
    promise="failures-are-reported-with-their-remedy",
)
@pytest.mark.guarantee(
    "G823",
    "A confirmed message of a notice is repeated at most once per kill or pause of a control service, or outage of "
    "the ledger, between sending and recording it. The repetition has the same id.",
    promise="failures-are-reported-with-their-remedy",
)
def test_each_event_has_its_notice_each_notice_a_cause_and_the_limit_holds() -> None:
    found = run_histories(0, 150, shows=True)
    assert not found.wrong, found
    assert found.happened.keys() == HAPPENS
    assert found.events > 1_000 and found.received > 2_000


@pytest.mark.guarantee("G820")
@pytest.mark.long
def test_the_same_holds_in_ten_thousand_histories() -> None:
    assert not run_histories(150, 10_000, shows=True).wrong


def _patched(owner: Any, name: str, other: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(owner, name, other)


def _record_cursor_first(self: TwinNotices, epoch: int, row: NoticeRow, changes: NoticeChanges) -> None:
    """Forget the problems of every third look, as a kill between two transactions does."""
    if changes.problems and self.now_ms % 3 == 0:
        changes = replace(changes, problems=(), messages=(), memory=row.memory)
    _record(self, epoch, row, changes)


def _end_each_look(self: Any, kind: str, row: Any) -> int | None:
    if kind == "resolved" and row.ended_ms is not None and row.reported_ms is not None:
        return int(row.ended_ms)
    return _due_ms(self, kind, row)


def _drop_in_cooldown(self: Any, kind: str, row: Any) -> int | None:
    if kind == "problem" and row.reported_ms is None and row.ended_ms is not None:
        return None
    return _due_ms(self, kind, row)


def _count_starts(pending: Any, attempts: Any, limit: int, now_ms: int) -> Any:
    """The limit counts only attempts that have ended, from their start."""
    begun = [replace(one, ended_ms=one.begun_ms) for one in attempts if one.ended_ms is not None]
    running = {one.message for one in attempts if one.ended_ms is None}
    return _choose([one for one in pending if one.number not in running], begun, limit, now_ms)


def _no_merge(self: NoticeService, epoch: int, now_ms: int, row: NoticeRow, channel: str, merged: Any) -> None:
    """Mark the messages as merged, and forget the summary's problems."""
    kept, (first, *_) = self._ledger, merged
    summary = replace(first, number=int(row.memory["messages"]) + 1, problems=[])
    kept.merge_messages(epoch, summary, [one.number for one in merged])


def _blind_is_well(self: NoticeService, notice: str, label: str, condition: Any, view: Any) -> Sight:
    sight = _sight(self, notice, label, condition, view)
    return replace(sight, is_blind=False)


def _unknown_is_well(self: NoticeService, notice: str, label: str, condition: Any, view: Any) -> Sight:
    return replace(_sight(self, notice, label, condition, view), unknown=frozenset())


def _own_disk(view: Any) -> list[Reading]:
    return [one for one in _disks(view) if one.service == view.ledger._process._service]


def _lead_all(self: TwinNotices, holder: str, length_ms: int) -> tuple[int, int]:
    self.lease = (holder, self.lease[1], self.now_ms + length_ms, length_ms)
    self.end_interrupted()
    return self.lease[1], self.now_ms


def _at_once(self: NoticeService, work: Any) -> None:
    return None


_record, _due_ms, _choose = TwinNotices.record_notice, machine._State._due_ms, outbox.choose
_sight, _disks = NoticeService._sight, readings.disks
MISTAKES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "the events are marked as handled before the problems are recorded": _patched(
        TwinNotices, "record_notice", _record_cursor_first
    ),
    "a new leader doesn't end interrupted attempts": _patched(TwinNotices, "end_interrupted", lambda self: None),
    "each service leads": _patched(TwinNotices, "lead_notices", _lead_all),
    "an end is reported again": _patched(machine._State, "_due_ms", _end_each_look),
    "a problem that ended before its report is dropped": _patched(machine._State, "_due_ms", _drop_in_cooldown),
    "attempts count from their start": _patched(service, "choose", _count_starts),
    "the summary forgets what it replaces": _patched(NoticeService, "_summarize", _no_merge),
    "a blind condition counts as well": _patched(NoticeService, "_sight", _blind_is_well),
    "the leader knows only its own disk": _patched(disk_full, "disks", _own_disk),
    "a disk with an unknown state counts as well": _patched(NoticeService, "_sight", _unknown_is_well),
    "a paused process sends": _patched(NoticeService, "_refusal", _at_once),
    "an attempt without an end stays so": _patched(NoticeService, "_end_orphan", lambda self, attempt: None),
}
SHOWN_FROM = {"an attempt without an end stays so": 500, "a new leader doesn't end interrupted attempts": 4_300}
"""First seed for a mistake that few histories show."""


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_notices_is_found(mistake: str) -> None:
    assert run_histories(SHOWN_FROM.get(mistake, 0), 150, MISTAKES[mistake], stops=True).wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Run histories of notices; count what is wrong.")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    with ExitStack() as stack:
        stack.enter_context(silence())
        found = run_histories(options.first, options.seeds, shows=True)
    print(found)
    for what, times in sorted(found.happened.items()):
        print(f"  {what}: {times:,}")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
