"""A rewind from any checkpoint, by the same version or one with other windows: what it computes are just the windows that are not
emitted, each whole. Real are the plan, the arithmetic of time and the operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, product
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import WindowShape, open_until
from strandline.processing.slices.rewind import RewindPlan, plan_rewind
from strandline.processing.slices.watermark import emitted_up_to
from tests.property.test_window_operator import (
    END,
    Record,
    by_time,
    digest,
    histories,
    in_slices,
    pipeline,
    run,
    some_days,
)
from tests.support.examples import examples
from tests.support.ledgers import a_checkpoint

FIRST = ["10s", "15s", "30s", "20s/5s", "25s/10s", "15s/10s", "30s/10s"]
SECOND = ["", "1m", "30s", "1m/30s", "90s/30s"]
FIRST_SESSIONS, SECOND_SESSIONS = ["2s..8s", "1s..20s", "5s..7s"], ["31s..100s"]
"""gap..max."""
LATER = [("10s+3s", ""), ("30s/10s+7s", ""), ("10s+3s", "1m+33s"), ("10s+3s", "31s..100s")]
"""With offsets."""
GROWING = [("30s by 5s", ""), ("10s", "1m by 20s"), ("20s by 10s+3s", "30s+3s"), ("2s..8s", "60s by 15s")]
"""Cumulative ones."""


OF_DAYS = [
    {"tumbling": "1d"},
    {"sliding": {"size": "3d", "every": "1d"}},
    {"cumulative": {"size": "2d", "step": "30m"}},
]
"""Windows of days of a time zone, for records of some days."""


def windows_of(name: str, text: str, by: list[str], aggregate: dict[str, str]) -> dict[str, Any]:
    text, _, offset = text.partition("+")
    size, _, every = text.partition("/")
    gap, _, longest = text.partition("..")
    shape: dict[str, Any] = {"sliding": {"size": size, "every": every}} if every else {"tumbling": size}
    shape = {"session": {"gap": gap, "max": longest}} if longest else shape
    whole, _, step = text.partition(" by ")
    shape = {"cumulative": {"size": whole, "step": step}} if step else shape
    return {"name": name, **shape, "offset": offset or "0s", "by": by, "aggregate": aggregate}


@cache
def version(first: str, second: str, by: tuple[str, ...]) -> CheckedPipeline:
    stages = [windows_of("first", first, ["machine"], {"n": "count(*)", "power": "sum(power)"})]
    if second:
        stages.append(windows_of("second", second, list(by), {"n": "sum(n)", "power": "sum(power)"}))
    return pipeline(*stages)


VERSIONS = st.sampled_from(list(product(FIRST + FIRST_SESSIONS, SECOND + SECOND_SESSIONS, [("machine",), ()]))).map(
    lambda shapes: version(*shapes)
)
Found = dict[str, list[dict[str, Any]]]
History = list[tuple[list[Record], int | None]]


def later(found: Found, than_ms: dict[str, int]) -> Found:
    """The results of windows that end later."""
    return {
        stage: [row for row in rows if row["@window_end_ms"] > than_ms.get(stage, 0)] for stage, rows in found.items()
    }


def with_a_pause(history: History, at: int, windows: Sequence[WindowShape], beyond_ms: int) -> History:
    """Add a pause after slice `at`, as silence and a drain make it.

    No record arrives until event time is `beyond_ms` after the end of the last of these windows that is open. The first
    record afterwards has this time.
    """
    before, after = history[:at], history[at:]
    latest_ms = max((row.ts_ms for rows, _ in before for row in rows), default=None)
    ends_ms = open_until(windows, latest_ms)
    closed_ms = max(before[-1][1] or 0, 0 if ends_ms is None else ends_ms + beyond_ms)
    later_ms = closed_ms - min((row.ts_ms for rows, _ in after for row in rows), default=0)
    moved = [
        (
            [row._replace(ts_ms=row.ts_ms + later_ms) for row in rows],
            closed_ms if closes_ms is None else max(closed_ms, closes_ms + later_ms),
        )
        for rows, closes_ms in after
    ]
    return [*before[:-1], (before[-1][0], closed_ms), *moved]


def rewound(
    history: History, old: CheckedPipeline, new: CheckedPipeline, number: int
) -> tuple[RewindPlan, History, int | None]:
    """The plan by which the new version goes on after slice `number`, the slices as it sees them, and the watermark before the
    first of those."""
    closed_ms = [closes for _, closes in history]
    stages = [(stage.name, stage.shape) for stage in old.stages]
    reached = list(accumulate((max((row.ts_ms for row in rows), default=-1) for rows, _ in history[:number]), max))
    checkpoint = a_checkpoint(
        number,
        closes_ms=closed_ms[number - 1],
        emitted=emitted_up_to(stages, closed_ms[number - 1]),
        latest_event_ms=None if reached[-1] < 0 else reached[-1],
    )

    def first_slice_reaching(event_ms: int) -> int | None:
        return next((at for at, latest_ms in enumerate(reached, 1) if latest_ms >= max(event_ms, 0)), None)

    plan = plan_rewind(checkpoint, first_slice_reaching, {stage.name: stage.shape for stage in new.stages})
    closes_ms = [plan.closed_ms(a_checkpoint(at, closes_ms=one)) for at, one in enumerate(closed_ms, 1)]
    slices = list(zip((rows for rows, _ in history), closes_ms, strict=True))
    return plan, slices, closes_ms[plan.slice_first - 2] if plan.slice_first > 1 else None


def require_the_rest(
    history: History,
    old: CheckedPipeline,
    new: CheckedPipeline,
    number: int,
    end_ms: int = END,
) -> None:
    """Require that the new version, from slice `number` on, computes of each stage exactly what is not emitted.

    Also when all windows of either version are just closed by then, or nearly.
    """
    _require_the_rest(history, old, new, number, end_ms)
    for windows, beyond_ms in product((old.windows, new.windows), (-1, 0)):
        _require_the_rest(with_a_pause(history, number, windows, beyond_ms), old, new, number, end_ms * 2)


def _require_the_rest(history: History, old: CheckedPipeline, new: CheckedPipeline, number: int, end_ms: int) -> None:
    plan, slices, before = rewound(history, old, new, number)
    found = later(run(new, slices[plan.slice_first - 1 :], 2, 7, before, number - plan.slice_first + 1), plan.emitted)
    at_once = run(new, [([row for rows, _ in history for row in rows], end_ms)], 1, 10**6)
    wanted = later(at_once, plan.emitted)
    for stage in new.stages:
        assert digest({"": found[stage.name]}) == digest({"": wanted[stage.name]}), (
            f"each of {stage.name} that is left, and whole"
        )


@pytest.mark.long
@pytest.mark.guarantee("G18")
@pytest.mark.guarantee("G381")
@pytest.mark.guarantee("G383")
@pytest.mark.guarantee("G669")
@examples(150)
@given(histories(), VERSIONS, st.none() | VERSIONS, st.data())
def test_a_rewind_computes_just_what_is_not_emitted(
    history: History, old: CheckedPipeline, upgrade: CheckedPipeline | None, data: Any
) -> None:
    new, whole = upgrade or old, [([row for rows, _ in history for row in rows], END)]
    assume(len(history) > 1)
    number = data.draw(st.integers(1, len(history) - 1), label="the last committed slice")
    plan, slices, before = rewound(history, old, new, number)
    replayed = run(new, slices[plan.slice_first - 1 : number], 2, 7, before)
    assert not any(later(replayed, plan.emitted).values()), "a replay emits nothing"
    silent = run(new, slices[plan.slice_first - 1 : number], 2, 7, before, number)
    assert silent[new.stages[-1].name] == [], "nor does it compute what no stage takes"
    emitted = run(old, history[:number], 1, 100)
    found = later(run(new, slices[plan.slice_first - 1 :], 2, 7, before, number - plan.slice_first + 1), plan.emitted)
    at_once = run(new, whole, 1, 10**6)
    assert digest(found) == digest(later(at_once, plan.emitted)), "each window that is left, and whole"
    if upgrade is None:
        both = {stage: by_time(emitted[stage] + rows) for stage, rows in found.items()}
        assert digest(both) == digest(at_once), "and no other"
    for was, now in zip(old.stages, new.stages, strict=False):
        # A reader of the results as a stream can use the ends of windows, or their starts if these are in order.
        begin_in_order = all(one.windows.kind in ("windows", "days") for one in (was, now))
        goes_by_starts = begin_in_order and now.size_ms <= was.size_ms
        for edge in ("@window_end_ms", "@window_start_ms") if goes_by_starts else ("@window_end_ms",):
            last = max((row[edge] for row in emitted.get(was.name, [])), default=-END)
            assert all(row[edge] > last for row in found.get(now.name, [])), "no result is late for readers"
    require_the_rest(history, old, new, number)


@pytest.mark.long
@examples(60)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["Europe/Berlin", "Asia/Kolkata", "America/Sao_Paulo"]),
    st.sampled_from(OF_DAYS),
    st.sampled_from(OF_DAYS),
    st.sampled_from(["", "30m"]),
)
def test_a_rewind_computes_just_what_is_not_emitted_of_days(
    seed: int, zone: str, was: dict[str, Any], now: dict[str, Any], before: str
) -> None:
    """An upgrade from days to others, alone or behind smaller windows."""
    random = Random(seed)
    history = in_slices(some_days(seed), random)
    assume(len(history) > 1)

    def version(days: dict[str, Any]) -> CheckedPipeline:
        own = {"tz": zone, "offset": "6h", "by": ["machine"], "aggregate": {"n": "sum(n)" if before else "count(*)"}}
        first = {"name": "first", "tumbling": before, "by": ["machine"], "aggregate": {"n": "count(*)"}}
        return pipeline(*([first] if before else []), {"name": "days", **days, **own})

    require_the_rest(history, version(was), version(now), random.randint(1, len(history) - 1), 10**13)
