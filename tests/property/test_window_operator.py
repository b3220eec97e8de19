"""The window operator and the cascade: results don't depend on slicing, buckets or chunks, to the last bit, they are what a plain
loop over the records computes, each leaves in the slice that closes its window, and in order. (That they don't depend on
restarts either: `test_rewind_windows.py`.)"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.core.stream import StreamSpec
from strandline.processing.operators.cascade import Cascade, Chunk
from strandline.processing.operators.casting import arrow_type
from strandline.processing.operators.windows import Closing
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model import PipelineSpec

STREAM = StreamSpec.from_document(
    {
        "stream": "machines",
        "partitions": 3,
        "format": "json",
        "schema": {
            "machine": "string",
            "site": "string?",
            "ts": {"type": "timestamp", "unit": "ms"},
            "power": "double?",
            "count": "long?",
            "cost": "decimal(20,4)?",
        },
        "key": "machine",
        "retention": "7d",
    }
)
MINUTE = {
    "n": "count(*)",
    "seen": "count(power)",
    "power": "sum(power)",
    "mean": "round(avg(power), 2)",
    "least": "min(power)",
    "most": "max(power)",
    "spread": "stddev_pop(power)",
    "variance": "var_pop(power)",
    "total": "sum(count)",
    "half": "avg(count)",
    "swing": "stddev_pop(count)",
    "cost": "sum(cost)",
    "dear": "max(cost)",
    "rate": "avg(cost)",
    "range": "var_pop(cost)",
    "greatest_site": "max(site)",
    "span": "max(power) - min(power)",
}
HOUR = {"n": "sum(n)", "peak": "max(most)", "power": "sum(power)", "cost": "sum(cost)"}


def pipeline(
    *windows: dict[str, Any], steps: Sequence[dict[str, Any]] = (), between: Sequence[dict[str, Any]] = ()
) -> CheckedPipeline:
    """`steps` stand before the first window, `between` after each but the last."""
    document = {
        "pipeline": "health",
        "input": {"stream": "machines"},
        "event_time": {"field": "ts", "delay": "0s"},
        "steps": [
            *steps,
            *(
                step
                for number, window in enumerate(windows, 1)
                for step in (
                    {"window": window, "emit": [{"elasticsearch": window["name"].replace("_", "-")}]},
                    *(between if number < len(windows) else ()),
                )
            ),
        ],
    }
    return check(PipelineSpec.from_document(document), STREAM)


CASCADE = pipeline(
    {"name": "per_ten", "tumbling": "10s", "by": ["machine", "site"], "aggregate": MINUTE},
    {"name": "per_minute", "tumbling": "1m", "by": ["machine"], "aggregate": HOUR},
)


class Record(NamedTuple):
    partition: int
    ts_ms: int
    machine: str
    site: str | None
    power: float | None
    count: int | None
    cost: Decimal | None


POWERS = [0.1, 1e16, -1e16, 1.0, 3.3e-5, -0.7, -0.0, 1e-300, 12345.678]
"""Numbers of such different sizes that every other order of adding shows in the sum."""


def some_records(seed: int, count: int) -> list[Record]:
    """Many records of few keys, so that many fall into one window. By a seed: long lists of drawn values would be slow."""
    random = Random(seed)
    width_ms = random.choice([15_000, 40_000, 200_000])
    return [
        Record(
            partition=random.choice([0, 0, 1, 2]),
            ts_ms=random.randrange(width_ms),
            machine=random.choice("aaaé"),
            site=random.choice(["north", "north", None]),
            power=random.choice([None, random.choice(POWERS), random.uniform(-1e12, 1e12)]),
            count=random.choice([None, random.randrange(-(2**62), 2**62), random.randrange(-1000, 1000)]),
            cost=random.choice([None, Decimal(random.randrange(-(10**19), 10**19)).scaleb(-4)]),
        )
        for _ in range(count)
    ]


records = st.builds(some_records, st.integers(0, 2**32), st.integers(0, 200))


def chunk_columns(rows: Sequence[Record]) -> dict[str, pa.Array]:
    types = dict(STREAM.types)
    columns = {
        name: pa.array([getattr(row, name) for row in rows], arrow_type(types[name])) for name in types if name != "ts"
    }
    return columns | {"ts": pa.array([row.ts_ms * 1000 for row in rows], pa.int64()).cast(arrow_type("timestamp"))}


def run(
    checked: CheckedPipeline,
    slices: Sequence[tuple[Sequence[Record], int | None]],
    buckets: int,
    chunk_rows: int,
    before: int | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Every stage's results over slices, each with the watermark after it, and under `STAGE failed` those that the next stage
    can't use. Rows of a slice are cut into chunks. `before`: the watermark before the first of the slices. Each result must come
    in the slice that closes its window."""
    cascade = Cascade(checked.stages, checked.stream.types, buckets)
    states: dict[int, bytes | None] = dict.fromkeys(range(buckets))
    names = [name for stage in checked.stages for name in (stage.name, f"{stage.name} failed")]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    keys = {stage.name: stage.by for stage in checked.stages}
    for rows, watermark_ms in slices:
        closing = Closing(before, watermark_ms)
        chunks: dict[int, list[Chunk]] = defaultdict(list)
        for partition in range(3):
            mine = [row for row in rows if row.partition == partition]
            for sequence, first in enumerate(range(0, len(mine), chunk_rows)):
                part = mine[first : first + chunk_rows]
                columns = chunk_columns(part)
                stepped = cascade.record_steps.apply(columns, len(part))
                event_us = pa.array(np.array([row.ts_ms * 1000 for row in part], np.int64)[stepped.rows])
                for bucket, chunk in cascade.cut(partition, sequence, event_us, stepped.columns):
                    chunks[bucket].append(chunk)
        parts: dict[int, list[bytes]] = defaultdict(list)
        for bucket in range(buckets):
            stepped = cascade.step(states[bucket], list(reversed(chunks[bucket])), closing)
            states[bucket] = stepped.state
            for one in stepped.results:
                found[one.stage] += in_order(one.rows, keys[one.stage], closing)
                found[f"{one.stage} failed"] += one.failed.to_pylist()
            for target, part in stepped.parts:
                parts[target].append(part)
        for of_bucket in parts.values():
            merged = cascade.merge(list(reversed(of_bucket)))
            found[merged.stage] += in_order(merged.rows, keys[merged.stage], closing)
        before = watermark_ms
    for rows_of_stage in found.values():
        rows_of_stage.sort(
            key=lambda row: (
                row["@window_start_ms"],
                *(str(row.get(name)) for name in ("machine", "site")),
            )
        )
    return found


def in_order(results: pa.RecordBatch, by: Sequence[str], closing: Closing) -> list[dict[str, Any]]:
    """The results of one step, after a look whether they are ordered by window, then key, and become final just now."""
    rows: list[dict[str, Any]] = results.to_pylist()
    places = [(row["@window_start_ms"], *((row[name] is None, row[name] or "") for name in by)) for row in rows]
    assert places == sorted(places), "by window, then key, nulls last"
    for row in rows:
        assert closing.up_to_ms is not None and row["@window_end_ms"] <= closing.up_to_ms, "it is still open"
        assert closing.after_ms is None or row["@window_end_ms"] > closing.after_ms, "an earlier slice has closed it"
    return rows


def digest(found: dict[str, list[dict[str, Any]]]) -> str:
    """Text in which every bit of a double shows, and not a number equals itself."""
    return repr(
        {
            stage: [{k: v.hex() if isinstance(v, float) else v for k, v in row.items()} for row in rows]
            for stage, rows in found.items()
        }
    )


END = 10**9


@st.composite
def histories(
    draw: st.DrawFn, some: st.SearchStrategy[list[Record]] = records
) -> list[tuple[list[Record], int | None]]:
    """Records in log order, cut into slices; the watermark grows, and no record is late."""
    rows = draw(some)
    slices: list[tuple[list[Record], int | None]] = []
    watermark: int | None = None
    while rows:
        count = draw(st.integers(1, 60))
        taken, rows = [row for row in rows[:count] if row.ts_ms >= (watermark or 0)], rows[count:]
        reached = max([row.ts_ms for row in taken], default=0)
        advance = draw(st.none() | st.integers(0, 30_000))
        if advance is not None:
            watermark = max(watermark or 0, reached - advance)
        slices.append((taken, watermark))
    return [*slices, ([], END)]


@settings(max_examples=60)
@given(histories(), st.integers(1, 4), st.integers(1, 7))
def test_results_do_not_depend_on_slices_buckets_or_chunks(
    history: list[tuple[list[Record], int | None]], buckets: int, chunk_rows: int
) -> None:
    merged = [row for rows, _ in history for row in rows]
    at_once = run(CASCADE, [(merged, END)], 1, 10**6)
    assert digest(run(CASCADE, history, buckets, chunk_rows)) == digest(at_once)


WIDE = [
    pipeline({"name": "all", "tumbling": "10s", "by": [], "aggregate": MINUTE}),
    pipeline(
        {"name": "per_ten", "tumbling": "10s", "by": ["machine", "site"], "aggregate": MINUTE},
        {"name": "all", "tumbling": "1m", "by": [], "aggregate": HOUR},
    ),
    pipeline(
        {"name": "per_five", "tumbling": "5s", "by": ["machine", "site"], "aggregate": MINUTE},
        {"name": "per_ten", "tumbling": "10s", "by": ["site"], "aggregate": HOUR},
        {"name": "all", "tumbling": "30s", "by": [], "aggregate": {"n": "sum(n)", "power": "sum(power)"}},
    ),
    pipeline(
        {"name": "per_five", "tumbling": "5s", "by": ["machine"], "aggregate": MINUTE},
        {"name": "per_ten", "tumbling": "10s", "by": [], "aggregate": HOUR},
        {"name": "all", "tumbling": "20s", "by": [], "aggregate": {"power": "sum(power)"}},
    ),
]
"""Last stages that group by none of the fields of the stages before; the last pipeline regroups twice."""


@settings(max_examples=60)
@given(histories(), st.sampled_from(WIDE), st.integers(2, 5), st.integers(1, 7))
def test_a_last_stage_that_regroups_widely_does_not_depend_on_buckets(
    history: list[tuple[list[Record], int | None]], checked: CheckedPipeline, buckets: int, chunk_rows: int
) -> None:
    """Its windows are merged from parts, and their sums of doubles are added in the same order all the same."""
    merged = [row for rows, _ in history for row in rows]
    at_once = run(checked, [(merged, END)], 1, 10**6)
    assert digest(run(checked, history, buckets, chunk_rows)) == digest(at_once)
    counted = sum(row["n"] for row in at_once[checked.stages[0].name])
    assert counted == len(merged), "each record is in a window of the first stage"


def test_which_last_stages_are_split() -> None:
    cascades = [Cascade(one.stages, one.stream.types, 4) for one in [CASCADE, *WIDE]]
    assert [cascade.is_split for cascade in cascades] == [False, True, True, True, False]
    assert not Cascade(WIDE[0].stages, WIDE[0].stream.types, 1).is_split


@settings(max_examples=40)
@given(
    histories(),
    st.sampled_from([(60_000, 10_000), (30_000, 30_000), (25_000, 10_000), (10_000, 25_000)]),
    st.sampled_from([1, 20, 300]),
)
def test_sliding_windows_depend_neither_on_slices_nor_on_how_many_are_merged_at_once(
    history: list[tuple[list[Record], int | None]], shape: tuple[int, int], merged_rows_max: int
) -> None:
    checked = sliding(*shape)
    merged = [row for rows, _ in history for row in rows]
    at_once = run(checked, [(merged, END)], 1, 10**6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strandline.processing.operators.windows._MERGED_ROWS_MAX", merged_rows_max)
        assert digest(run(checked, [(merged, END)], 1, 10**6)) == digest(at_once)
        assert digest(run(checked, history, 3, 5)) == digest(at_once)
    assert plain(at_once["slide"]) == expected_sliding(merged, *shape)


def sliding(size_ms: int, every_ms: int) -> CheckedPipeline:
    checked = pipeline(
        {
            "name": "slide",
            "tumbling": f"{size_ms}ms",
            "by": ["machine"],
            "aggregate": {"n": "count(*)", "most": "max(power)", "total": "sum(count)", "power": "sum(power)"},
        }
    )
    # A document may not say windows with gaps between them; the operator takes them.
    return replace(checked, stages=(replace(checked.stages[0], slide_ms=every_ms),))


def plain(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (row["@window_start_ms"], row["machine"], row["n"], row["most"], row["total"], row["power"]) for row in rows
    ]


def expected_sliding(rows: Sequence[Record], size_ms: int, every_ms: int) -> list[tuple[Any, ...]]:
    windows: dict[tuple[int, str], list[Record]] = defaultdict(list)
    for row in rows:
        start = row.ts_ms // every_ms * every_ms
        while start > row.ts_ms - size_ms:
            windows[start, row.machine].append(row)
            start -= every_ms
    found = []
    for (start, machine), inside in sorted(windows.items()):
        most = max((row.power for row in inside if row.power is not None), default=None)
        counts = [row.count for row in inside if row.count is not None]
        total = sum(counts) if counts and -(2**63) <= sum(counts) < 2**63 else None
        power = folded_by_panes(inside, math.gcd(size_ms, every_ms))
        found.append((start, machine, len(inside), most, total, power))
    return found


def folded_by_panes(inside: Sequence[Record], pane_ms: int) -> float | None:
    """Each partition's panes added in the order of time, then the partitions in theirs."""
    total = 0.0
    for partition in range(3):
        mine = [row for row in inside if row.partition == partition and row.power is not None]
        of_partition = 0.0
        for pane in sorted({row.ts_ms // pane_ms for row in mine}):
            of_pane = 0.0
            for row in mine:
                if row.ts_ms // pane_ms == pane and row.power is not None:
                    of_pane += row.power
            of_partition += of_pane
        total += of_partition
    return total if any(row.power is not None for row in inside) else None


@settings(max_examples=40)
@given(records)
def test_results_are_what_a_plain_loop_computes(rows: list[Record]) -> None:
    found = run(CASCADE, [(rows, END)], 2, 4)
    windows: dict[tuple[int, str, str | None], list[Record]] = defaultdict(list)
    for row in rows:
        windows[row.ts_ms // 10_000 * 10_000, row.machine, row.site].append(row)
    assert len(found["per_ten"]) == len(windows)
    for result in found["per_ten"]:
        inside = windows[result["@window_start_ms"], result["machine"], result["site"]]
        assert result["@window_end_ms"] == result["@window_start_ms"] + 10_000
        check_window(result, inside)
    minutes: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for result in found["per_ten"]:
        if result["@problem"] is None:
            minutes[result["@window_start_ms"] // 60_000 * 60_000, result["machine"]].append(result)
    assert len(found["per_minute"]) == len(minutes)
    for result in found["per_minute"]:
        inside_minute = minutes[result["@window_start_ms"], result["machine"]]
        assert result["n"] == sum(one["n"] for one in inside_minute)
        assert result["peak"] == max((one["most"] for one in inside_minute if one["most"] is not None), default=None)


def check_window(result: dict[str, Any], inside: list[Record]) -> None:
    powers = [row.power for row in sorted(inside, key=lambda row: row.partition) if row.power is not None]
    counts = [row.count for row in inside if row.count is not None]
    costs = [row.cost for row in inside if row.cost is not None]
    assert (result["n"], result["seen"]) == (len(inside), len(powers))
    assert result["power"] == left_folds(inside)
    assert result["least"] == min(powers, default=None)
    assert result["most"] == max(powers, default=None)
    assert result["greatest_site"] == inside[0].site
    fits = -(2**63) <= sum(counts) < 2**63
    assert result["total"] == (sum(counts) if counts and fits else None)
    assert (result["@problem"] is not None) == (not fits)
    assert result["half"] == (float(sum(counts)) / len(counts) if counts else None)
    assert result["cost"] == (sum(costs) if costs else None)
    assert result["dear"] == max(costs, default=None)
    if powers:
        mean = math.fsum(powers) / len(powers)
        exact = math.fsum((value - mean) ** 2 for value in powers) / len(powers)
        assert result["variance"] == pytest.approx(exact, rel=1e-6, abs=1e-9 * max(1.0, max(map(abs, powers)) ** 2))
        assert result["spread"] == math.sqrt(result["variance"])
        assert result["span"] == result["most"] - result["least"]


def left_folds(inside: list[Record]) -> float | None:
    """One sum a partition, value by value; then the partitions in their order."""
    sums: dict[int, float] = {}
    for row in inside:
        if row.power is not None:
            sums[row.partition] = sums.get(row.partition, 0.0) + row.power
    total = 0.0
    for partition in sorted(sums):
        total += sums[partition]
    return total if sums else None


@pytest.mark.parametrize("checked", [CASCADE, sliding(60_000, 10_000)], ids=["cascade", "sliding"])
def test_state_holds_no_more_than_what_is_open(checked: CheckedPipeline) -> None:
    """Forty minutes of one record a second: the state is as large at the end as after the first minutes."""
    cascade = Cascade(checked.stages, checked.stream.types, 1)
    state: bytes | None = None
    sizes = []
    for second in range(0, 2_400, 5):
        rows = [Record(0, (second + at) * 1000, f"m{(second + at) % 7}", "north", 1.0, 1, None) for at in range(5)]
        event_us = pa.array([row.ts_ms * 1000 for row in rows], pa.int64())
        chunks = [chunk for _, chunk in cascade.cut(0, 0, event_us, chunk_columns(rows))]
        state = cascade.step(state, chunks, Closing(second * 1000 - 5000, second * 1000)).state
        sizes.append(len(state))
    assert max(sizes[len(sizes) // 2 :]) <= max(sizes[: len(sizes) // 10])


def test_a_derived_value_that_fails_is_a_problem_and_not_a_row() -> None:
    checked = pipeline(
        {"name": "rates", "tumbling": "10s", "by": ["machine"], "aggregate": {"n": "count(*)", "rate": "max(rate)"}},
        steps=[{"derive": {"rate": "power / count"}}, {"where": "rate > 1 or power is null"}],
    )
    steps = Cascade(checked.stages, checked.stream.types, 1).record_steps
    rows = [Record(0, 1, "a", None, power, count, None) for power, count in ((4.0, 2), (4.0, 0), (1.0, 2), (None, 2))]
    stepped = steps.apply(chunk_columns(rows), len(rows))
    assert stepped.rows.tolist() == [0, 3]
    assert [(problem.row, problem.step) for problem in stepped.problems] == [(1, "steps[0].derive.rate")]
