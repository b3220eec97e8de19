"""Thousands of histories with wrong clocks and rejected records: no record is late without cause, and no window is stuck.

`make simulate-clocks SEEDS=100000` runs more of them. `RULES=all` compares the rule with its former form and with others.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.simulation.clocks.history import draw_history
from tests.simulation.clocks.job import simulate_clocks
from tests.simulation.clocks.rules import CURRENT, FORMER, MISTAKES, PROPOSED, Variant

FAULTS = {
    "Kafka is away",
    "a bulk upload of old data",
    "a clock is ahead",
    "a clock is behind",
    "a clock jumps",
    "a gateway buffers",
    "a partition is read-only",
    "a slice is slow",
    "all records of a partition are rejected",
    "producers write log times",
    "the job restarts",
}
SHOWN_FROM = {"all time between two looks counts": 4_150}
"""First seed for a mistake that few histories show."""


@dataclass
class Found:
    """Sums over histories."""

    histories: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    """Kind of a finding -> histories."""
    records: int = 0
    late: int = 0
    by_stated_limit: int = 0
    waits_ms: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        waits_s = [ms / 1_000 for ms in self.waits_ms] or [0.0, 0.0]
        percentiles = statistics.quantiles(waits_s, n=100)
        return (
            f"{self.histories:,} histories, {self.records:,} records, {self.late:,} late with or without cause "
            f"({self.by_stated_limit:,} by the limit of topics whose producers write the log times). Windows waited "
            f"{percentiles[49]:.1f} s (median), {percentiles[94]:.1f} s (95 %). Histories with records late without cause: "
            f"{self.wrong['late']:,}, with stuck windows: {self.wrong['stuck']:,}"
        )


def run_histories(variant: Variant, first: int, count: int, *, shows: bool = False, stops: bool = False) -> Found:
    """`shows`: print the seed of each wrong history. `stops`: end with the first one."""
    found, began_s = Found(), time.monotonic()
    with variant.patches():
        for seed in range(first, first + count):
            history = draw_history(seed)
            outcome = simulate_clocks(history, variant)
            found.histories += 1
            found.faults.update(history.faults)
            found.records += outcome.records
            found.late += outcome.late
            found.by_stated_limit += outcome.by_stated_limit
            found.waits_ms += outcome.waits_ms
            for kind in {finding.split(":")[0] for finding in outcome.findings}:
                found.wrong[kind] += 1
            if shows and outcome.findings:
                print(f"seed {seed}: {outcome.findings[0]}", flush=True)
            if shows and found.histories % 10_000 == 0:
                print(f"{found.histories:,} histories, {time.monotonic() - began_s:,.0f} s", flush=True)
            if stops and outcome.findings:
                break
    return found


@pytest.mark.guarantee(
    "G758",
    "In 300 seeded histories with wrong clocks, outages, buffering gateways, uploads of old data, rejected records, "
    "and restarts, no record is late without cause and no window is stuck. `make test-all` runs 10,000 histories, and "
    "`make simulate-clocks` more.",
    promise="no-record-is-late-without-cause",
)
def test_no_record_is_late_without_cause_and_no_window_is_stuck() -> None:
    found = run_histories(CURRENT, 0, 300, shows=True)
    assert not found.wrong, found
    assert found.faults.keys() == FAULTS
    assert found.records > 20_000 and found.late > 1_000 and len(found.waits_ms) > 1_000


@pytest.mark.long
def test_no_record_is_late_without_cause_in_ten_thousand_histories() -> None:
    assert not run_histories(CURRENT, 300, 10_000, shows=True).wrong


def test_by_the_former_rule_records_are_late_without_cause_and_windows_are_stuck() -> None:
    assert min(run_histories(FORMER, 0, 100).wrong[kind] for kind in ("late", "stuck")) > 1


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_rule_is_found(mistake: str) -> None:
    assert run_histories(MISTAKES[mistake], SHOWN_FROM.get(mistake, 0), 300, stops=True).wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run histories with wrong clocks; count late records and stuck windows."
    )
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rules", choices=["current", "all"], default="current")
    options = parser.parse_args()
    if options.rules == "all":
        for name, variant in PROPOSED.items():
            print(f"{name}: {run_histories(variant, options.first, options.seeds)}", flush=True)
        return 0
    found = run_histories(CURRENT, options.first, options.seeds, shows=True)
    print(found)
    for fault, histories in sorted(found.faults.items()):
        print(f"  {fault}: {histories:,}")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
