"""Event time over entire topics: for any slices, no record is added to a closed window.

A recorded decision about a record stays the same when slices are merged, and for any start of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.ledger.states import CheckpointRow, EventTimeRule, SliceRow
from strandline.processing.slices.watermark import (
    accepted_partitions,
    closes_after,
    new_records,
    reached_after,
    silence_without,
    watermark_after,
)
from tests.support.examples import examples
from tests.support.ledgers import a_checkpoint, a_slice

STREAM = "s"
BEFORE_ALL_MS = -1_000


@dataclass(frozen=True)
class Done:
    """A committed slice, and its late records: partition and offset."""

    row: SliceRow
    checkpoint: CheckpointRow
    late: frozenset[tuple[int, int]]


def commit(
    topic: list[list[int]], ends: list[int], before: Done | None, rule: EventTimeRule, silent: list[int]
) -> Done:
    """Plan and process the next slice, up to `ends`. `topic`: the event times of each partition, in order of offsets."""
    firsts = before.row.offsets[STREAM] if before else dict.fromkeys(range(len(topic)), 0)
    done = before.checkpoint if before else None
    silence_ms = {STREAM: dict(enumerate(silent))}
    new = new_records({STREAM: firsts}, {STREAM: dict(enumerate(ends))})
    row = a_slice(
        before.row.number + 1 if before else 1,
        offsets_first={STREAM: firsts},
        offsets={STREAM: dict(enumerate(ends))},
        watermark_ms=watermark_after(rule, done, silence_without(silence_ms, new)),
        rule=rule,
        reached=done.reached if done else {},
        silence_ms=silence_ms,
    )
    late, reached, accepted = judge(topic, [row])
    return Done(row, a_checkpoint(row.number, reached=reached, closes_ms=closes_after(row, reached, accepted)), late)


def judge(
    topic: list[list[int]], rows: list[SliceRow]
) -> tuple[frozenset[tuple[int, int]], dict[str, dict[int, int]], dict[str, set[int]]]:
    """The late records of slices that are read together, how far event time has come after them, and which partitions have an
    accepted record in the last of them."""
    late = set()
    accepted: dict[str, set[int]] = {}
    reached = rows[0].reached
    for row in rows:
        latest: dict[int, int] = {}
        for partition, end in row.offsets[STREAM].items():
            for offset in range(row.offsets_first[STREAM][partition], end):
                event_ms = topic[partition][offset]
                if row.watermark_ms is not None and event_ms < row.watermark_ms:
                    late.add((partition, offset))
                else:
                    latest[partition] = max(event_ms, latest.get(partition, event_ms))
        reached = reached_after(reached, {STREAM: latest})
        accepted = accepted_partitions(row, {STREAM: latest})
    return frozenset(late), reached, accepted


def known(threshold_ms: int | None) -> int:
    return BEFORE_ALL_MS if threshold_ms is None else threshold_ms


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[int]], list[Done]]:
    """A topic and its slices, cut anywhere, by rules that change, with silences that only need to be recorded."""
    count = draw(st.integers(1, 3))
    topic = [draw(st.lists(st.integers(0, 400), max_size=40)) for _ in range(count)]
    rules = st.builds(
        EventTimeRule,
        delay_ms=st.sampled_from([0, 20, 100]),
        idle_timeout_ms=st.sampled_from([None, 30]),
        watermark=st.sampled_from(["partitions", "newest"]),
    )
    slices: list[Done] = []
    ends = [0] * count
    for _ in range(draw(st.integers(1, 12))):
        ends = [draw(st.integers(end, len(events))) for end, events in zip(ends, topic, strict=True)]
        silent = [draw(st.sampled_from([0, 0, 29, 30, 95])) for _ in range(count)]
        slices.append(commit(topic, ends, slices[-1] if slices else None, draw(rules), silent))
    return topic, slices


@pytest.mark.guarantee("G23")
@examples(300)
@given(histories())
def test_one_threshold_after_the_other_and_nothing_comes_to_what_is_closed(
    history: tuple[list[list[int]], list[Done]],
) -> None:
    topic, slices = history
    closed_ms = BEFORE_ALL_MS
    for done in slices:
        watermark_ms, closes_ms = done.row.watermark_ms, done.checkpoint.closes_ms
        assert closed_ms <= known(watermark_ms) <= known(closes_ms)
        for partition, end in done.row.offsets[STREAM].items():
            for offset in range(done.row.offsets_first[STREAM][partition], end):
                assert (partition, offset) in done.late or topic[partition][offset] >= closed_ms
        closed_ms = known(closes_ms)


@pytest.mark.guarantee(
    "G25",
    "`delay`, `watermark`, `idle_timeout`, and `max_ahead` may change while windows are open: each recorded slice "
    "keeps the rule that was recorded with it.",
    promise="no-record-is-late-without-cause",
)
@examples(300)
@given(histories(), st.data())
def test_recorded_slices_are_judged_the_same_however_they_are_merged_and_wherever_a_run_begins(
    history: tuple[list[list[int]], list[Done]], data: st.DataObject
) -> None:
    topic, slices = history
    at = data.draw(st.integers(0, len(slices) - 1))
    while at < len(slices):
        end = data.draw(st.integers(at + 1, len(slices)))
        late, reached, accepted = judge(topic, [done.row for done in slices[at:end]])
        assert late == frozenset().union(*(done.late for done in slices[at:end]))
        assert reached == slices[end - 1].checkpoint.reached
        assert closes_after(slices[end - 1].row, reached, accepted) == slices[end - 1].checkpoint.closes_ms
        at = end


@pytest.mark.guarantee("G23")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("watermark", "loses"), [("partitions", False), ("newest", True)])
def test_a_topic_that_fills_fast_loses_nothing_to_partitions_that_fill_at_different_speeds(watermark, loses, seed):
    """60,000 records a second, each 5 ms of event time after the one before: 300 s of event time a second. A producer sends each
    partition in batches of its own, so at any instant the partitions differ by more than the delay. Slices are cut at any time,
    the first one when each partition holds something."""
    chance = Random(seed)
    rule = EventTimeRule(10_000, None, None, watermark)
    records, partitions = 600_000, 4
    events = [[number * 5 for number in range(partition, records, partitions)] for partition in range(partitions)]
    lags = [0, 4_000, 12_000, 20_000]  # records that a partition is behind the newest: up to 100 s of event time
    done: Done | None = None
    late = 0
    written = 30_000
    while done is None or sum(done.row.offsets[STREAM].values()) < records:
        written += chance.randint(3_000, 40_000)  # what 50 to 700 ms bring
        ends = [
            min(len(events[p]), max(0, written - lags[p] - chance.randint(0, 6_000)) // partitions)
            for p in range(partitions)
        ]
        if done is not None:
            ends = [max(end, done.row.offsets[STREAM][p]) for p, end in enumerate(ends)]
        done = commit(events, ends, done, rule, [0] * partitions)
        late += len(done.late)
    assert (late > 0) is loses, f"{late} of {records} records are late"
