"""The account of each slice: what its checkpoint counts, and what there is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from tests.support.chaos.checking.cascade import Closers, Key, Result
from tests.support.chaos.checking.documents import Expected
from tests.support.chaos.checking.judging import ClassifiedRecord
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.dump import Row


def check_accounts(
    judged: list[ClassifiedRecord],
    results: dict[Key, Result],
    closers: Closers,
    checkpoints: dict[int, Row],
    stages: Collection[str],
    emitted: Iterable[Expected],
    verdict: JobVerdict,
) -> None:
    """`stages`: those of windows. `emitted`: the rows that are emitted without one."""
    records: Counter[int] = Counter()
    rejected: dict[int, Counter[str]] = defaultdict(Counter)
    latest_event: dict[int, int] = {}
    latest_log: dict[int, int] = {}
    for one in judged:
        number = one.slice
        records[number] += 1
        latest_log[number] = max(latest_log.get(number, 0), one.record.log_time_ms)
        if one.reason:
            rejected[number][one.reason] += 1
        if one.is_used and one.event_ms is not None:
            latest_event[number] = max(latest_event.get(number, 0), one.event_ms)
    closed: dict[int, Counter[str]] = defaultdict(Counter)
    for stage, end_ms, _ in results:
        if (closer := closers.of(end_ms)) is not None:
            closed[closer][stage] += 1
    for row in emitted:
        closed[row.closer][row.stage] += 1
    stages = [*stages, *{stage: None for of_slice in closed.values() for stage in of_slice if stage not in stages}]
    totals: dict[str, Any] = {"records": 0, "accepted": 0, "rejected": Counter(), "results": Counter()}
    event_ms, log_ms = 0, 0
    for number, row in sorted(checkpoints.items()):
        event_ms, log_ms = max(event_ms, latest_event.get(number, 0)), max(log_ms, latest_log.get(number, 0))
        refused = rejected[number]
        counted = {
            "records": records[number],
            "accepted": records[number] - refused.total(),
            "rejected": dict(refused),
            "results": {stage: closed[number][stage] for stage in stages},
            "latest_event_ms": event_ms or None,
            "latest_log_ms": log_ms or None,
        }
        totals["records"] += counted["records"]
        totals["accepted"] += counted["accepted"]
        totals["rejected"] += refused
        totals["results"] += closed[number]
        for name, value in totals.items():
            counted[f"{name}_total"] = {stage: value[stage] for stage in stages} if name == "results" else value
        for name, value in counted.items():
            if row[name] != (dict(value) if isinstance(value, Counter) else value):
                verdict.accounts.append(f"slice {number} has {name} {row[name]}, counted {value}")
    dead = sum(one.reason is not None and one.slice in checkpoints for one in judged)
    if totals["records"] != totals["accepted"] + dead:
        verdict.accounts.append(f"{totals['records']} records are not {totals['accepted']} accepted and {dead} refused")
