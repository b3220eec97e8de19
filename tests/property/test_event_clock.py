"""The watermarks of many rows at once are those of the rule, row by row: to the last bit, in whatever pieces the rows come."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.ledger.states import EventTimeRule
from strandline.processing.desk import event_clock
from strandline.processing.desk.event_clock import EventClock
from strandline.results.records.partition_labels import label_of
from tests.support.examples import examples

STREAMS = ("a", "b", "c")
SILENT_MS = 50
"""Time of the clock that is tested, which no machine makes longer."""


class OneByOne(EventClock):
    """Asks the rule for each row."""

    def _together(self, rows: Any, found: Any) -> int:
        return 0


def some_rule(random: Random) -> EventTimeRule:
    return EventTimeRule(
        random.choice([0, 5, 40]),
        random.choice([None, 3, 20, 100]),
        watermark=random.choice(["partitions", "newest"]),
        revise_ms=random.choice([0, 0, 15, 100]),
    )


@pytest.mark.guarantee(
    "G604",
    "The watermarks that a local run computes for many records at once equal the rule applied record by record, to "
    "the last bit.",
    promise="all-forms-of-a-pipeline-agree",
)
@examples(80)
@given(st.integers(0, 2**32))
def test_rows_together_are_rows_one_by_one(seed: int) -> None:
    random = Random(seed)
    streams = STREAMS[: random.choice([1, 1, 2, 3])]
    rules = [(stream, some_rule(random)) for stream in streams]
    rule = rules[0][1]
    if len(streams) > 1:
        rule = replace(rule, by_stream=tuple(rules))
    labels = [label_of(place, at) for place in range(len(streams)) for at in range(random.randint(1, 3))]
    fast, slow = EventClock(rule, streams), OneByOne(rule, streams)
    base_ms = random.choice([-50, 0, 10**12])
    log_is_event = random.random() < 0.4
    spread, step = random.choice([0, 3, 30, 200]), random.choice([0, 1, 10])
    for _ in range(random.randint(1, 6)):
        count = random.randint(0, 80)
        here = random.sample(labels, random.randint(1, len(labels)))
        partitions = [random.choice(here) for _ in range(count)]
        events = (
            base_ms + np.arange(count) * step + np.array([random.randint(-spread, spread) for _ in range(count)], int)
        )
        log_times = (
            None if log_is_event else base_ms + np.cumsum([random.choice([-1, 0, 1, 2, 30]) for _ in range(count)])
        )
        usable = np.array([random.random() < 0.9 for _ in range(count)], np.bool_)
        marks = [one.watermarks(partitions, events, usable, log_times) for one in (fast, slow)]
        assert marks[0].tolist() == marks[1].tolist()
        assert vars(fast) == vars(slow)
        base_ms += step * count
        if random.random() < 0.2:
            for one in (fast, slow):
                one.wait(SILENT_MS)
            assert vars(fast) == vars(slow)
    if random.random() < 0.5:
        for one in (fast, slow):
            one.close(base_ms)
        assert fast.watermark_ms == slow.watermark_ms


def test_rows_in_order_are_never_looked_at_one_by_one() -> None:
    """Only the first row of each partition is looked at alone."""
    looked_at: list[int] = []

    class Counting(EventClock):
        def _one_by_one(self, rows: Any, found: Any) -> None:
            looked_at.append(len(rows))
            super()._one_by_one(rows, found)

    clock, count = Counting(EventTimeRule(10, 100)), 20_000
    partitions = [at % 4 for at in range(count)]
    clock.watermarks(partitions, np.arange(count) * 7, np.ones(count, np.bool_))
    assert sum(looked_at) <= 16


def cost() -> None:
    """`python -m tests.property.test_event_clock`: seconds for 200,000 rows, at once and one by one."""
    random, count = np.random.default_rng(1), 200_000
    partitions = random.integers(0, 4, count).tolist()
    events = np.arange(count) + random.integers(-50, 50, count)
    for kind in (OneByOne, EventClock, OneByOne, EventClock):
        clock, began = kind(EventTimeRule(100, 30_000)), time.process_time()
        for first in range(0, count, 10_000):
            here = slice(first, first + 10_000)
            clock.watermarks(partitions[here], events[here], np.ones(10_000, np.bool_))
        print(f"{kind.__name__:<12} {time.process_time() - began:6.2f} s", flush=True)


if __name__ == "__main__":
    assert event_clock.BEFORE == 0
    cost()
