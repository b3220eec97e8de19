"""The meter of costs: sums over runs, and notes at a bounded rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from strandline.core.errors import LedgerUnavailable
from strandline.ledger.costs import Costs
from strandline.ledger.states import JobCost, RunCost
from strandline.processing.emission.cost_meter import NOTE_S, RECENT_S, CostMeter, RecentCpu
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.source.slice_rows import SourceFacts
from strandline.services.jobs.job_status import cost_view


class NotedCosts:
    """A ledger that keeps each note, or doesn't respond."""

    def __init__(self) -> None:
        self.notes: list[list[RunCost]] = []
        self.is_away = False

    def note_costs(self, costs: Sequence[RunCost]) -> None:
        if self.is_away:
            raise LedgerUnavailable("no answer")
        self.notes.append(list(costs))


class Metered:
    def __init__(self) -> None:
        self.now_s = 50.0
        self.ledger = NotedCosts()
        self.meter = CostMeter(cast(Costs, self.ledger), lambda: self.now_s)

    def add(self, job: str = "a", cpu_us: int = 1_000, epoch: int = 1) -> None:
        self.meter.add(job, epoch, cpu_us, 10, 3)

    def note_after(self, seconds: float) -> list[RunCost]:
        """Return what was noted after this time."""
        self.now_s += seconds
        self.ledger.notes.clear()
        self.meter.note_if_due()
        return [one for note in self.ledger.notes for one in note]


def test_changed_sums_are_noted_at_a_bounded_rate() -> None:
    one = Metered()
    one.add("a")
    one.add("b")
    assert one.note_after(NOTE_S - 0.1) == []
    one.add("a")
    assert one.note_after(0.1) == [RunCost("a", 1, 2_000, 20, 3, 400), RunCost("b", 1, 1_000, 10, 3, 200)]
    one.add("a")
    assert one.note_after(1) == []
    assert [found.job for found in one.note_after(NOTE_S)] == ["a"]


def test_sums_that_the_ledger_did_not_confirm_are_noted_later() -> None:
    one = Metered()
    one.add()
    one.ledger.is_away = True
    assert one.note_after(NOTE_S) == []
    one.ledger.is_away = False
    assert [found.cpu_us for found in one.note_after(NOTE_S)] == [1_000]


def test_the_sums_of_a_run_that_ended_are_noted_and_forgotten() -> None:
    one = Metered()
    one.add()
    one.meter.forget("a")
    assert [[found.cpu_us for found in note] for note in one.ledger.notes] == [[1_000]]
    one.add(epoch=2, cpu_us=5)
    assert [(found.epoch, found.cpu_us) for found in one.note_after(NOTE_S)] == [(2, 5)]


def test_recent_cpu_time_covers_the_last_seconds() -> None:
    recent = RecentCpu(0.0)
    for second in range(1, 101):
        recent.add(second, 500_000)
    assert recent.us_per_s(100) == 500_000
    assert recent.us_per_s(100 + RECENT_S / 2) == 250_000
    assert recent.us_per_s(101 + RECENT_S) == 0


def test_the_tasks_of_buckets_are_added() -> None:
    one = Metered()
    facts = [SourceFacts(cpu_us=5, bytes=70), SourceFacts(cpu_us=6, bytes=30)]
    buckets = [BucketOutcome(facts=facts, cpu_us=100, state_bytes=8), BucketOutcome(cpu_us=200, state_bytes=9)]
    one.meter.add_buckets("a", 1, buckets)
    assert one.note_after(NOTE_S) == [RunCost("a", 1, 311, 100, 17, 62)]


def test_an_old_note_shows_no_use_of_cores() -> None:
    cost = JobCost(cpu_us=2_500_000, bytes=7, state_bytes=3, cpu_us_recent=250_000, noted_ms=10_000)
    now, later = cost_view(cost, 20_000), cost_view(cost, 10_000 + int(RECENT_S * 1_000))
    assert (now.cores, later.cores) == (0.25, 0.0)
    assert (later.cpu_s, later.bytes_read, later.state_bytes) == (2.5, 7, 3)
