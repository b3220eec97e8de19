"""The audit works out event times, watermarks and closes from the log by itself, and finds those that are recorded otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strandline.ledger.states import CheckpointRow, EventTimeRule, Offsets, SliceKind, SliceRow
from strandline.processing.audit.event_times import LatestEvents, LatestTimes, event_time_differences
from strandline.processing.slices.watermark import (
    accepted_partitions,
    bounded_ms,
    closes_after,
    new_records,
    reached_after,
    silence_without,
    watermark_after,
)
from tests.support.ledgers import a_checkpoint, a_slice

HOUR_MS = 3_600_000
RULE = EventTimeRule(delay_ms=100, idle_timeout_ms=5_000)
NEWEST = replace(RULE, watermark="newest")
EVENTS: list[dict[int, int]] = [{0: 1_000, 1: 1_500}, {0: 2_000}, {}, {0: 9_000, 1: 9_600}, {0: 9_900}, {}, {}]
"""For each slice, partition -> the latest accepted event."""
LOGGED: list[dict[int, int]] = [{0: 1_000, 1: 1_200}, {0: 2_000}, {}, {0: 7_000, 1: 8_000}, {0: 8_100}, {}, {}]
"""Latest accepted events if no event is later than its log time."""
REJECTED: list[set[int]] = [set(), {1}, set(), set(), set(), {1}, set()]
"""For each slice, the partitions with only rejected records."""
SILENCES: list[dict[int, int]] = [{}, {1: 6_000}, {0: 7_000, 1: 9_000}, {0: 7_500}, {}, {0: 12_000, 1: 13_000}, {}]
RULES = [RULE, RULE, RULE, RULE, NEWEST, RULE, NEWEST]
PLANNED = replace(RULE, bound="planned")

Done = list[tuple[SliceRow, CheckpointRow]]


def a_job(rules: list[EventTimeRule] = RULES) -> tuple[Done, LatestEvents]:
    """Return seven slices as the planner and the committer make them.

    They have an idle partition with rejected records, two idle partitions, and records ahead of their log time. They
    also have a rule that changes, two partitions that are idle for two timeouts, and a drain.
    """
    done: Done = []
    latest: LatestEvents = {}
    reached: Offsets = {}
    ends = {0: 0, 1: 0}
    for number, (events, silence_ms, rule) in enumerate(zip(EVENTS, SILENCES, rules, strict=True), 1):
        before = done[-1][1] if done else None
        silence: Offsets = {"turbines": silence_ms}
        firsts, ends = ends, {at: end + 10 * (at in events.keys() | REJECTED[number - 1]) for at, end in ends.items()}
        cut = {"offsets_first": {"turbines": firsts}, "offsets": {"turbines": ends}, "planned_ms": 8_500}
        row = a_slice(number, rule=rule, reached=reached, silence_ms=silence, **cut)
        known = silence_without(silence, new_records(row.offsets_first, row.offsets))
        row = replace(row, watermark_ms=watermark_after(rule, before, known))
        if number == len(EVENTS):
            row = replace(row, kind=SliceKind.DRAIN, watermark_ms=60_000)
        logged = LOGGED[number - 1]
        moved = {at: bounded_ms(rule, row, event_ms, logged[at]) for at, event_ms in events.items()}
        reached = reached_after(reached, {"turbines": moved} if moved else {})
        closes_ms = closes_after(row, reached, accepted_partitions(row, {"turbines": events}))
        done.append((row, a_checkpoint(number, closes_ms=closes_ms, reached=reached)))
        starts = row.offsets_first["turbines"]
        # The slice's part of a partition may be read in two ranges.
        for at, event_ms in events.items():
            latest["turbines", at, starts[at]] = LatestTimes(500, logged[at])
            latest["turbines", at, starts[at] + 3] = LatestTimes(event_ms, 400)
    return done, latest


def test_what_the_planner_records_is_what_the_log_gives() -> None:
    done, latest = a_job()
    assert list(event_time_differences(done, None, latest)) == []
    assert [row.watermark_ms for row, _ in done] == [None, 900, 3_100, 3_100, 7_900, 8_000, 60_000]
    assert [checkpoint.closes_ms for _, checkpoint in done] == [900, 1_900, 3_100, 6_900, 8_000, 14_900, 60_000]
    assert list(event_time_differences(done[2:], done[1][1], latest)) == []


@pytest.mark.guarantee("G760")
def test_if_producers_write_the_log_times_the_time_of_the_plan_bounds_event_time() -> None:
    done, latest = a_job([PLANNED] * len(EVENTS))
    assert list(event_time_differences(done, None, latest)) == []
    assert done[3][1].reached == {"turbines": {0: 8_500, 1: 8_500}}


def _row(number: int, **changes: Callable[[Any], Any]) -> Callable[[Done], None]:
    def plant(done: Done) -> None:
        row, checkpoint = done[number - 1]
        made = {name: change(getattr(row, name)) for name, change in changes.items()}
        done[number - 1] = replace(row, **made), checkpoint

    return plant


def _checkpoint(number: int, **changes: Callable[[Any], Any]) -> Callable[[Done], None]:
    def plant(done: Done) -> None:
        row, checkpoint = done[number - 1]
        made = {name: change(getattr(checkpoint, name)) for name, change in changes.items()}
        done[number - 1] = row, replace(checkpoint, **made)

    return plant


@pytest.mark.guarantee(
    "G151",
    "The audit computes from the log the event time of each partition, every watermark, and the end of the closed "
    "windows of each slice. It names each value that differs in the ledger.",
    promise="the-audit-finds-every-difference",
)
@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (_row(2, watermark_ms=lambda ms: ms + HOUR_MS), "slice 2: watermark 1970-01-01T00:00:00.900Z by the log"),
        (_row(3, watermark_ms=lambda ms: ms - 1), "slice 3: watermark"),
        (_row(4, watermark_ms=lambda _: None), "slice 4: watermark"),
        (_row(7, watermark_ms=lambda _: 1_000), "slice 7: watermark"),
        (_row(6, silence_ms=lambda _: {}), "slice 6: windows closed up to"),
        (_row(4, rule=lambda rule: replace(rule, bound="planned")), "slice 4: windows closed up to"),
        (_checkpoint(2, closes_ms=lambda ms: ms + HOUR_MS), "slice 2: windows closed up to"),
        (_checkpoint(4, closes_ms=lambda ms: ms + 1), "slice 4: windows closed up to"),
        (_checkpoint(5, closes_ms=lambda _: None), "slice 5: windows closed up to"),
        (_row(3, silence_ms=lambda _: {}), "slice 3: watermark"),
        (_row(2, rule=lambda rule: replace(rule, delay_ms=0)), "slice 2: watermark"),
        (_row(3, reached=lambda _: {"turbines": {0: 2_000}}), "slice 3: event time before it was turbines/0"),
        (_checkpoint(1, reached=lambda _: {"turbines": {0: 9_000, 1: 9_000}}), "slice 1: event time after it was"),
    ],
)
def test_what_is_recorded_otherwise_is_found(plant: Callable[[Done], None], says: str) -> None:
    done, latest = a_job()
    plant(done)
    found = list(event_time_differences(done, None, latest))
    assert any(sentence.startswith(says) for sentence in found), found


@pytest.mark.guarantee("G151")
def test_a_watermark_that_is_an_hour_too_high_ever_after_is_found_though_all_that_follows_agrees() -> None:
    """The slice that raises it: those after it are right by it, since a watermark never falls."""
    done, latest = a_job()
    raised = [
        (replace(row, watermark_ms=3_900 + HOUR_MS), replace(checkpoint, closes_ms=3_900 + HOUR_MS))
        for row, checkpoint in done[3:5]
    ]
    found = list(event_time_differences([*done[:3], *raised], None, latest))
    assert found == ["slice 4: watermark 1970-01-01T00:00:03.100Z by the log, 1970-01-01T01:00:03.900Z by the ledger"]
