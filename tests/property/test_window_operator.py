"""The results of the window operator and the cascade don't depend on slices, buckets or chunks, to the last bit.

They equal those of a plain loop over the records. Each is emitted in the slice that closes its window, and in order.
(`test_rewind_windows.py` tests that they don't depend on restarts either.)
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.kinds.cumulative.operator import CumulativeOperator
from strandline.processing.kinds.days.shape import DayShape
from strandline.processing.kinds.session.shape import SessionShape
from strandline.processing.operators.cascade import Cascade, Chunk
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.record_chain import RecordChain
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.operators.segments import MemorySegments
from strandline.processing.operators.windows import GroupIndex, WindowOperator
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.results.names import ROWS_JOINED, WINDOW_NUMBER
from strandline.results.writer import ELEMENT, OFFSET
from tests.support.examples import examples

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
    """Return a pipeline. `steps` are before the first window, `between` after each window except the last."""
    document = {
        "pipeline": "health",
        "input": {"stream": "machines"},
        "event_time": {"field": "ts", "delay": "0s", "idle_timeout": None},
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
    offset: int = 0


POWERS = [0.1, 1e16, -1e16, 1.0, 3.3e-5, -0.7, -0.0, 1e-300, 12345.678]
"""Numbers of such different sizes that nearly every other order of adding shows in the sum."""


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
            offset=number,
        )
        for number in range(count)
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
    replayed: int = 0,
    stores: SegmentsOfBuckets | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Return every stage's results, and under `STAGE failed` those that the next stage can't use.

    Each slice has the watermark after it. The rows of a slice are cut into chunks. Each result must be emitted in the
    slice that closes its window.

    - `before`: watermark before the first slice.
    - `replayed`: number of slices that emit nothing, and leave the same state as if they did.
    - `stores`: segments of the state. A bucket takes each slice twice there, as when Spark repeats a task.
    """
    cascade = Cascade(checked.stages, buckets)
    chain = RecordChain((), checked.stages, checked.inputs[0].stream.types)
    states: dict[int, bytes | None] = dict.fromkeys(range(buckets))
    names = [name for stage in checked.stages for name in (stage.name, f"{stage.name} failed")]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    keys = {stage.name: stage.by for stage in checked.stages}
    for number, (rows, watermark_ms) in enumerate(slices):
        closing, emits = Closing(before, watermark_ms), number >= replayed
        chunks: dict[int, list[Chunk]] = defaultdict(list)
        for partition in range(3):
            mine = [row for row in rows if row.partition == partition]
            for sequence, first in enumerate(range(0, len(mine), chunk_rows)):
                part = mine[first : first + chunk_rows]
                columns = chunk_columns(part)
                columns |= {OFFSET: pa.array([row.offset for row in part]), ELEMENT: pa.nulls(len(part), pa.int32())}
                for first, came, side in chain.apply(columns, len(part)).at_windows:
                    event_us = pa.array(np.array([row.ts_ms * 1000 for row in part], np.int64)[came.rows])
                    for bucket, chunk in cascade.cut(partition, sequence, event_us, came.columns, first, side=side):
                        chunks[bucket].append(chunk)
        parts: dict[tuple[int, int], list[bytes]] = defaultdict(list)
        for bucket in range(buckets):
            store = None if stores is None else partial(stores, bucket)
            given = states[bucket], list(reversed(chunks[bucket])), closing, store
            if stores is not None:
                cascade.step(*given, emits=emits)
            stepped = cascade.step(*given, emits=emits)
            assert emits or stepped.state == cascade.step(*given).state
            states[bucket] = stepped.state
            for one in stepped.results:
                found[one.stage] += in_order(one.rows, keys[one.stage], closing)
                found[f"{one.stage} failed"] += one.failed.to_pylist()
            for target, stage, part in stepped.parts:
                parts[target, stage].append(part)
        for (_, stage), of_bucket in parts.items():
            merged = cascade.merge(stage, list(reversed(of_bucket)))
            found[merged.stage] += in_order(merged.rows, keys[merged.stage], closing)
        before = watermark_ms
    return {stage: by_time(rows_of_stage) for stage, rows_of_stage in found.items()}


class SegmentsOfBuckets:
    """Stores of the segments of all buckets."""

    def __init__(self) -> None:
        self.stores: defaultdict[tuple[int, int], MemorySegments] = defaultdict(MemorySegments)

    def __call__(self, bucket: int, number: int) -> MemorySegments:
        return self.stores[bucket, number]


def by_time(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results in one order, whichever slices closed them."""
    times = ("@window_start_ms", "@window_end_ms")
    return sorted(
        rows,
        key=lambda row: (
            *(row[one] for one in times),
            *(str(row.get(one)) for one in ("machine", "site", "site_right", "n", ROWS_JOINED, WINDOW_NUMBER)),
        ),
    )


def in_order(results: pa.RecordBatch, by: Sequence[str], closing: Closing) -> list[dict[str, Any]]:
    """The results of one step, after a look whether they are ordered by window, then key, and become final just now."""
    rows: list[dict[str, Any]] = results.to_pylist()
    # Those with which a step behind the window finds fault come last.
    good = [row for row in rows if row["@problem"] is None]
    places = [(row["@window_end_ms"], *((row[name] is None, row[name] or "") for name in by)) for row in good]
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
    """Records in log order, cut into slices; the watermark grows, and records that would be late are left out."""
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


@pytest.mark.guarantee(
    "G6",
    "Disorder within the delay, bad records, and restarts of the job change no result.",
    promise="results-depend-only-on-the-log",
)
@examples(60)
@given(histories(), st.integers(1, 4), st.integers(1, 7))
def test_results_do_not_depend_on_slices_buckets_or_chunks(
    history: list[tuple[list[Record], int | None]], buckets: int, chunk_rows: int
) -> None:
    merged = [row for rows, _ in history for row in rows]
    at_once = run(CASCADE, [(merged, END)], 1, 10**6)
    assert digest(run(CASCADE, history, buckets, chunk_rows)) == digest(at_once)


KEPT = {
    "first": "first(site)",
    "last": "last(power)",
    "sites": "count(distinct site)",
    "about": "approx_count_distinct(count)",
    "typical": "percentile(power, 0.5)",
    "all": "collect_list(count, 5)",
    "often": "most_frequent(site, 2)",
    "dearest": "max_by(site, cost)",
}


@pytest.mark.long
@examples(60)
@given(histories(), st.sampled_from([1, 60]), st.booleans())
def test_results_do_not_depend_on_how_many_rows_are_folded_at_once(
    history: list[tuple[list[Record], int | None]], fold_bytes: int, is_session: bool
) -> None:
    shape: dict[str, Any] = {"session": {"gap": "5s", "max": "20s"}} if is_session else {"tumbling": "10s"}
    checked = pipeline({"name": "a", **shape, "by": ["machine"], "aggregate": {**MINUTE, **KEPT}})
    merged = [row for rows, _ in history for row in rows]
    at_once = run(checked, [(merged, END)], 1, 10**6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strandline.processing.operators.windows._FOLD_BYTES", fold_bytes)
        assert digest(run(checked, [(merged, END)], 1, 3)) == digest(at_once)
        assert digest(run(checked, history, 2, 2)) == digest(at_once)


def test_texts_of_more_than_an_array_has_room_for_are_folded() -> None:
    """Two chunks, each with a string of 1.2 GB that no step reads, so no memory is used for it."""
    checked = pipeline({"name": "a", "tumbling": "10s", "by": ["machine"], "aggregate": {"n": "count(site)"}})
    operator = WindowOperator(checked.stages[0], checked.inputs[0].stream.types)
    size = 1_200_000_000
    offsets, text = np.array([0, size], np.int32), np.zeros(size, np.uint8)
    column = pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(text))
    rows = operator.rows(0, np.array([1_000]), {"machine": pa.array(["a"]), "site": column})
    _, results = operator.step(operator.empty_state(), [rows, rows], Closing(None, 10_000))
    assert [row["n"] for row in results.to_pylist()] == [2]


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
    pipeline(
        {"name": "per_five", "tumbling": "5s", "by": ["machine"], "aggregate": {**MINUTE, "site": "max(site)"}},
        {"name": "per_site", "tumbling": "30s", "by": ["site"], "aggregate": HOUR},
    ),
    pipeline(
        {"name": "per_five", "tumbling": "5s", "by": ["machine"], "aggregate": {**MINUTE, "site": "max(site)"}},
        {"name": "per_site", "tumbling": "10s", "by": ["site"], "aggregate": HOUR},
        {
            "name": "per_count",
            "tumbling": "30s",
            "by": ["n"],
            "aggregate": {"power": "sum(power)", "times": "count(*)"},
        },
    ),
]
"""Last stages that group by no field of the stages before.

The fourth pipeline regroups twice, and the fifth and the sixth group by what the stage before has computed.
"""


@pytest.mark.guarantee(
    "G384",
    "A later window can group by a value that an earlier window computed. The number of buckets changes no bit of its "
    "results.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(60)
@given(histories(), st.sampled_from(WIDE), st.integers(2, 5), st.integers(1, 7))
def test_a_last_stage_that_regroups_widely_does_not_depend_on_buckets(
    history: list[tuple[list[Record], int | None]], checked: CheckedPipeline, buckets: int, chunk_rows: int
) -> None:
    """The windows are merged from parts, and their sums of doubles are still added in the same order."""
    merged = [row for rows, _ in history for row in rows]
    at_once = run(checked, [(merged, END)], 1, 10**6)
    assert digest(run(checked, history, buckets, chunk_rows)) == digest(at_once)
    counted = sum(row["n"] for row in at_once[checked.stages[0].name])
    assert counted == len(merged), "each record is in a window of the first stage"


def test_which_last_stages_are_split() -> None:
    cascades = [Cascade(one.stages, 4) for one in [CASCADE, *WIDE]]
    assert [cascade.is_split for cascade in cascades] == [False, True, True, True, False, True, False]
    assert not Cascade(WIDE[0].stages, 1).is_split


@examples(40)
@given(
    histories(),
    st.sampled_from([(60_000, 10_000), (30_000, 30_000), (25_000, 10_000), (10_000, 25_000), (20_000, 7_001)]),
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
    return replace(checked, stages=(replace(checked.stages[0], windows=WindowShape(size_ms, every_ms)),))


@pytest.mark.parametrize("window", ["sliding: {size: SIZE, every: 1001ms}", "cumulative: {size: SIZE, step: 11ms}"])
@pytest.mark.parametrize("revise", [False, True])
def test_a_window_costs_what_it_holds_however_many_panes_it_could_hold(window: str, revise: bool) -> None:
    """Counted in calls. Panes of the sliding ones are 1 ms long."""

    def calls(size: str) -> int:
        aggregate = {"n": "count(*)", "power": "sum(power)", "spread": "stddev_pop(power)"}
        shape = yaml.safe_load(window.replace("SIZE", size))
        checked = pipeline({"name": "wide", **shape, "by": ["machine"], "aggregate": aggregate})
        operator = WindowOperator if "sliding" in shape else CumulativeOperator
        wide = operator(replace(checked.stages[0], revise_ms=10**9 if revise else 0), checked.inputs[0].stream.types)
        rows = [Record(0, 1001 * 1000 + ms, "a", None, 1.5, 1, None) for ms in range(10)]
        made = wide.rows(0, np.array([row.ts_ms * 1000 for row in rows]), chunk_columns(rows))
        end_ms = wide.stage.shape.first_end(rows[-1].ts_ms)
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            _, closed = wide.step_in_part(
                wide.empty_state(), [made], Closing(end_ms - 1, end_ms, end_ms if revise else None)
            )
        finally:
            sys.setprofile(None)
        assert [one.is_revision for one in closed] == [False, True][: 1 + revise]
        assert wide.finish(closed[:1])["n"].to_pylist() == [10]
        return counted

    assert calls("100100ms") < 1.1 * calls("10010ms")


@pytest.mark.parametrize("labels", [[4096, 4097], [0, 1]], ids=["of a second stream", "of a single stream"])
@pytest.mark.parametrize("key_count", [2, 130_000, 10**9])
def test_places_far_apart_are_numbered_alike(labels: list[int], key_count: int) -> None:
    """One record of 1970 together with today's, in panes of 100 ms."""
    random = Random(key_count)
    distinct = [(pane, key, label) for pane in (0, 17_900_000_000) for key in (0, key_count - 1) for label in labels]
    rows = [random.choice(distinct) for _ in range(100)] + distinct
    columns = [np.array(one, np.int64) for one in zip(*rows, strict=True)]
    places = GroupIndex.of(columns[0], columns[1], columns[2], key_count)
    found = list(zip(places.panes.tolist(), places.keys.tolist(), places.partitions.tolist(), strict=True))
    assert found == distinct
    assert [found[code] for code in places.codes.tolist()] == rows


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


SESSIONS = [(5_000, 20_000), (3_000, 10_000), (2_000, 600_000), (7_000, 7_000), (900, 3_601), (40_000, 40_000)]
"""(gap, max)."""


def sessions(gap_ms: int, max_ms: int) -> dict[str, Any]:
    return {"session": {"gap": f"{gap_ms}ms", "max": f"{max_ms}ms"}}


def of_sessions(gap_ms: int, max_ms: int, by: Sequence[str] = ("machine",)) -> CheckedPipeline:
    aggregate = {"n": "count(*)", "most": "max(power)", "total": "sum(count)", "power": "sum(power)"}
    return pipeline({"name": "visit", **sessions(gap_ms, max_ms), "by": list(by), "aggregate": aggregate})


@pytest.mark.guarantee(
    "G380",
    "Sessions equal a plain loop over the records, to the last bit, in any slices, chunks, and buckets. None is "
    "longer than `max`, and each is emitted by the slice that closes it.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(60)
@given(histories(), st.sampled_from(SESSIONS), st.integers(1, 4), st.integers(1, 7))
def test_sessions_are_what_a_plain_loop_computes_however_the_log_is_cut(
    history: list[tuple[list[Record], int | None]], shape: tuple[int, int], buckets: int, chunk_rows: int
) -> None:
    """The records that a later slice brings are as early as its watermark allows, so they prolong sessions and join them."""
    checked = of_sessions(*shape)
    merged = [row for rows, _ in history for row in rows]
    at_once = run(checked, [(merged, END)], 1, 10**6)
    assert digest(run(checked, history, buckets, chunk_rows)) == digest(at_once)
    found = [(row["@window_end_ms"], *one) for row, one in zip(at_once["visit"], plain(at_once["visit"]), strict=True)]
    assert found == expected_sessions(merged, *shape)
    assert all(row["@window_end_ms"] - row["@window_start_ms"] <= shape[1] for row in at_once["visit"])
    without_key = of_sessions(*shape, by=())
    assert digest(run(without_key, history, buckets, chunk_rows)) == digest(run(without_key, [(merged, END)], 1, 10**6))


def expected_sessions(rows: Sequence[Record], gap_ms: int, max_ms: int) -> list[tuple[Any, ...]]:
    """By one walk over each machine's records in the order of time."""
    pane_ms = SessionShape(max_ms, gap_ms).pane_ms
    max_ms = max_ms // pane_ms * pane_ms
    found: dict[tuple[str, int, int], list[Record]] = {}
    for machine in {row.machine for row in rows}:
        last_ms = first_cut = -END
        for row in sorted((row for row in rows if row.machine == machine), key=lambda row: row.ts_ms):
            if row.ts_ms - last_ms >= gap_ms:
                first_cut = row.ts_ms // pane_ms * pane_ms + max_ms
            cut = first_cut if row.ts_ms < first_cut else (row.ts_ms // max_ms + 1) * max_ms
            found.setdefault((machine, first_cut, cut), []).append(row)
            last_ms = row.ts_ms
    results = []
    for (machine, _, cut), inside in found.items():
        of_session = set(map(id, inside))
        in_log_order = [row for row in rows if id(row) in of_session]
        counts = [row.count for row in inside if row.count is not None]
        results.append(
            (
                min(inside[-1].ts_ms + gap_ms, cut),
                inside[0].ts_ms,
                machine,
                len(inside),
                max((row.power for row in inside if row.power is not None), default=None),
                sum(counts) if counts and -(2**63) <= sum(counts) < 2**63 else None,
                folded_by_panes(in_log_order, pane_ms),
            )
        )
    return sorted(results, key=lambda one: (one[1], one[0], one[2]))  # by window, then key


@pytest.mark.guarantee("G380")
def test_a_session_ends_where_a_record_comes_the_gap_later_or_at_a_cut() -> None:
    """Less than the gap apart is one session, the gap apart are two. One that never pauses is cut the greatest length after its
    first record (counted from its pane), then at multiples of that since 1970, and where it really ends."""

    def found(*times_ms: int) -> list[tuple[int, int, int]]:
        rows = [Record(0, at_ms, "a", None, 1.0, 1, None) for at_ms in times_ms]
        results = run(of_sessions(5_000, 20_000), [(rows, END)], 1, 100)["visit"]
        return [(row["@window_start_ms"], row["@window_end_ms"], row["n"]) for row in results]

    assert found(1_000, 5_999, 10_999, 15_998) == [(1_000, 10_999, 2), (10_999, 20_998, 2)]
    assert found(*range(7_000, 81_000, 1_000)) == [
        (7_000, 25_000, 18),
        (25_000, 40_000, 15),
        (40_000, 60_000, 20),
        (60_000, 80_000, 20),
        (80_000, 85_000, 1),
    ]
    assert found(7_000, 11_000, 15_000, 19_000, 23_000) == [(7_000, 25_000, 5)], "no longer than allowed"
    assert found(7_000, 11_000, 15_000, 19_000, 23_000, 27_000) == [(7_000, 25_000, 5), (27_000, 32_000, 1)]


@pytest.mark.guarantee(
    "G381",
    "Sessions depend on no record before their reach, so a start, an audit, and a backfill read a bounded part of the "
    "log. Each session is emitted once through rewinds, upgrades, and kills.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(100)
@given(st.integers(0, 2**32), st.sampled_from(SESSIONS))
def test_sessions_depend_on_nothing_before_their_reach(seed: int, shape: tuple[int, int]) -> None:
    """So a rewind, an audit and a backfill may begin there: which older records they happen to have makes no difference. The
    machine hardly ever pauses, so nearly all of its sessions end at cuts."""
    random, (gap_ms, max_ms) = Random(seed), shape
    steps = [
        random.choice([gap_ms - 1, gap_ms // 2, gap_ms // 3, *[gap_ms] * (random.random() < 0.05)]) for _ in range(150)
    ]
    rows = [Record(0, at_ms, "a", None, 1.0, 1, None) for at_ms in accumulate(steps, initial=random.randrange(max_ms))]
    checked = of_sessions(*shape)
    after_ms = random.randrange(rows[-1].ts_ms)
    back_to_ms = checked.stages[0].shape.first_start(after_ms)
    share = random.choice([0, 0.5, 0.9])
    some = [row for row in rows if row.ts_ms >= back_to_ms or random.random() < share]

    def later(rows: list[Record]) -> list[dict[str, Any]]:
        found = run(checked, [(rows, END)], 1, 10**6)["visit"]
        return [row for row in found if row["@window_end_ms"] > after_ms]

    assert digest({"": later(some)}) == digest({"": later(rows)})


@pytest.mark.guarantee(
    "G383",
    "A cumulative window contains the records since its beginning and emits one result per step from a key's first "
    "record. It is the same to the last bit in any slices.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(25)
@given(histories(), st.sampled_from([("60s", "10s"), ("30s", "5s"), ("20s", "20s")]), st.sampled_from([1, 50, 10**6]))
def test_cumulative_windows_grow_step_by_step_and_depend_neither_on_slices_nor_on_how_many_are_merged_at_once(
    history: list[tuple[list[Record], int | None]], shape: tuple[str, str], merged_rows_max: int
) -> None:
    size_ms, step_ms = (int(one[:-1]) * 1000 for one in shape)
    aggregate = {"n": "count(*)", "most": "max(power)", "total": "sum(count)", "power": "sum(power)"}
    growing = {"cumulative": dict(zip(("size", "step"), shape, strict=True))}
    for by in (["machine"], []):
        checked = pipeline({"name": "so_far", **growing, "by": by, "aggregate": aggregate})
        merged = [row for rows, _ in history for row in rows]
        at_once = run(checked, [(merged, END)], 1, 10**6)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("strandline.processing.operators.windows._MERGED_ROWS_MAX", merged_rows_max)
            assert digest(run(checked, history, 3, 5)) == digest(at_once)
        if by:
            found = [
                (row["@window_end_ms"], *one)
                for row, one in zip(at_once["so_far"], plain(at_once["so_far"]), strict=True)
            ]
            assert sorted(found) == expected_cumulative(merged, size_ms, step_ms)


def expected_cumulative(rows: Sequence[Record], size_ms: int, step_ms: int) -> list[tuple[Any, ...]]:
    """Return the results of each entire window and machine, one for each step from the first record on."""
    found = []
    for start_ms in {row.ts_ms // size_ms * size_ms for row in rows}:
        for end_ms in range(start_ms + step_ms, start_ms + size_ms + 1, step_ms):
            for machine in {row.machine for row in rows}:
                inside = [row for row in rows if row.machine == machine and start_ms <= row.ts_ms < end_ms]
                if inside:
                    counts = [row.count for row in inside if row.count is not None]
                    total = sum(counts) if counts and -(2**63) <= sum(counts) < 2**63 else None
                    most = max((row.power for row in inside if row.power is not None), default=None)
                    power = folded_by_panes(inside, step_ms)
                    found.append((end_ms, start_ms, machine, len(inside), most, total, power))
    return sorted(found)


ZONES = [
    "Europe/Berlin",
    "Asia/Kolkata",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "America/New_York",
    "Antarctica/Troll",
    "UTC",
]
CLOCKS_ARE_SET = ["2026-03-28", "2026-10-24", "2011-12-28", "2018-11-03"]


def some_days(seed: int) -> list[Record]:
    """Records of some days in which clocks are set somewhere, and Samoa leaves out one."""
    random = Random(seed)
    first_ms = int(datetime.fromisoformat(f"{random.choice(CLOCKS_ARE_SET)}T00:00Z").timestamp() * 1000)
    rows = some_records(seed, random.randrange(200))
    return [row._replace(ts_ms=first_ms + random.randrange(5 * 86_400_000)) for row in rows]


def in_slices(rows: Sequence[Record], random: Random) -> list[tuple[list[Record], int | None]]:
    """Records in the order of time, some of each slice a little behind; the watermark follows."""
    delay_ms = random.choice([0, 3_600_000, 90_000_000])
    left = sorted(rows, key=lambda row: row.ts_ms + random.randrange(delay_ms + 1))
    slices: list[tuple[list[Record], int | None]] = []
    reached_ms = 0
    while left:
        count = random.randint(1, 40)
        taken, left = left[:count], left[count:]
        reached_ms = max(reached_ms, *[row.ts_ms for row in taken])
        slices.append((taken, reached_ms - delay_ms))
    return [*slices, ([], 10**13)]


@pytest.mark.guarantee(
    "G382",
    "Days of a time zone begin and end by the local clock, with 23, 24, or 25 hours, by the rules of the locked "
    "package. Windows with an offset equal windows without it over shifted records. The audit agrees, in any slices.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(40)
@given(st.integers(0, 2**32), st.sampled_from(ZONES), st.sampled_from(["1d", "2d", "3d"]), st.sampled_from([0, 6, 13]))
def test_days_of_a_time_zone_are_what_its_clocks_show(seed: int, zone: str, size: str, hour: int) -> None:
    """Days of 23, 24 and 25 hours, for any start of the day. The oracle asks the clock for each record's date."""
    rows, random = some_days(seed), Random(seed)
    aggregate = {"n": "count(*)", "most": "max(power)", "total": "sum(count)", "power": "sum(power)"}
    window = {
        "name": "day",
        "tumbling": size,
        "tz": zone,
        "offset": f"{hour}h",
        "by": ["machine"],
        "aggregate": aggregate,
    }
    checked = pipeline(window)
    at_once = run(checked, [(rows, 10**13)], 1, 10**6)
    slices = in_slices(rows, random)
    in_order = [row for taken, _ in slices for row in taken]
    assert digest(run(checked, slices, 3, 5)) == digest(run(checked, [(in_order, 10**13)], 1, 10**6))
    days = int(size[:-1])
    expected: dict[tuple[int, str], list[Record]] = defaultdict(list)
    for row in rows:
        shown = datetime.fromtimestamp(row.ts_ms / 1000, ZoneInfo(zone)).replace(tzinfo=None) - timedelta(hours=hour)
        expected[(shown.date() - date(1970, 1, 1)).days // days, row.machine].append(row)
    assert [(row["machine"], row["n"]) for row in at_once["day"]] == [
        (machine, len(inside)) for (_, machine), inside in sorted(expected.items())
    ]
    for row, ((number, _), inside) in zip(at_once["day"], sorted(expected.items()), strict=True):
        assert row["@window_start_ms"] <= min(one.ts_ms for one in inside)
        assert max(one.ts_ms for one in inside) < row["@window_end_ms"]
        for edge, of_number in (("@window_start_ms", number), ("@window_end_ms", number + 1)):
            before, at = (
                datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone)).replace(tzinfo=None)
                for at_ms in (row[edge] - 1, row[edge])
            )
            begins = datetime(1970, 1, 1, hour, tzinfo=UTC) + timedelta(days=of_number * days)
            assert before < begins.replace(tzinfo=None) <= at


OF_DAYS = [("sliding", 1), ("sliding", 2), ("sliding", 5), ("cumulative", 1), ("cumulative", 2)]


@pytest.mark.long
@examples(60)
@given(st.integers(0, 2**32), st.sampled_from(ZONES), st.sampled_from(OF_DAYS), st.sampled_from([0, 6]))
def test_windows_that_overlap_or_grow_are_made_of_the_days_of_a_zone(
    seed: int, zone: str, kind: tuple[str, int], hour: int
) -> None:
    """A window of some days starts on each day, or covers some days and grows by half an hour."""
    # Where Samoa left out a day, two of them end together, and `in_order` tells windows by their ends.
    assume((zone, kind[0]) != ("Pacific/Apia", "sliding"))
    rows, random, (name, days) = some_days(seed), Random(seed), kind
    fields = {"sliding": {"size": f"{days}d", "every": "1d"}, "cumulative": {"size": f"{days}d", "step": "30m"}}
    aggregate = {"n": "count(*)", "power": "sum(power)"}
    window = {"name": "w", name: fields[name], "tz": zone, "offset": f"{hour}h", "by": ["machine"]}
    checked = pipeline({**window, "aggregate": aggregate})
    at_once = run(checked, [(rows, 10**13)], 1, 10**6)
    slices = in_slices(rows, random)
    in_order = [row for taken, _ in slices for row in taken]
    assert digest(run(checked, slices, 3, 5)) == digest(run(checked, [(in_order, 10**13)], 1, 10**6))
    day = DayShape(86_400_000, 86_400_000, hour * 3_600_000, zone=zone)
    known = sorted(day.number_at(row.ts_ms) for row in rows)
    expected = []
    for number in range(known[0] - days + 1, known[-1] + 1) if known else ():
        start_ms, end_ms = day.start_ms(number), day.start_ms(number + days)
        ends = [end_ms]
        if name == "cumulative":
            ends = [] if number % days else list(range(start_ms + 1_800_000, end_ms + 1, 1_800_000))
        for one in ends:
            inside = Counter(row.machine for row in rows if start_ms <= row.ts_ms < one)
            expected += [(start_ms, one, machine, count) for machine, count in inside.items()]
    found = [(row["@window_start_ms"], row["@window_end_ms"], row["machine"], row["n"]) for row in at_once["w"]]
    assert sorted(found) == sorted(expected)


@pytest.mark.guarantee("G382")
@pytest.mark.long
@examples(40)
@given(
    histories(), st.sampled_from([("10s", "", "3s"), ("10s", "", "9999ms"), ("30s", "10s", "7s"), ("25s", "10s", "1s")])
)
def test_windows_that_begin_later_are_those_of_earlier_records(
    history: list[tuple[list[Record], int | None]], shape: tuple[str, str, str]
) -> None:
    """With an offset, windows are what windows without one are of records that are as much earlier."""
    size, every, offset = shape
    kind = {"sliding": {"size": size, "every": every}} if every else {"tumbling": size}
    aggregate = {"n": "count(*)", "most": "max(power)", "total": "sum(count)", "power": "sum(power)"}
    window = {"name": "w", **kind, "by": ["machine"], "aggregate": aggregate}
    offset_ms = pipeline({**window, "offset": offset}).stages[0].windows.offset_ms
    merged = [row for rows, _ in history for row in rows]
    found = run(pipeline({**window, "offset": offset}), history, 3, 5)
    earlier = [row._replace(ts_ms=row.ts_ms - offset_ms) for row in merged]
    expected = run(pipeline(window), [(earlier, END)], 1, 10**6)
    for row in expected["w"]:
        row["@window_start_ms"] += offset_ms
        row["@window_end_ms"] += offset_ms
    assert digest(found) == digest(expected)


@examples(40)
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


@pytest.mark.parametrize(
    "checked",
    [
        pytest.param(CASCADE, id="cascade", marks=pytest.mark.long),
        pytest.param(sliding(60_000, 10_000), id="sliding"),
        pytest.param(of_sessions(5_000, 20_000), id="short sessions"),
        pytest.param(of_sessions(9_000, 60_000), id="sessions that never pause", marks=pytest.mark.long),
        pytest.param(
            pipeline(
                {"name": "a", "cumulative": {"size": "60s", "step": "10s"}, "by": ["machine"], "aggregate": MINUTE}
            ),
            id="cumulative",
            marks=pytest.mark.long,
        ),
    ],
)
def test_state_holds_no_more_than_what_is_open(checked: CheckedPipeline) -> None:
    """Forty minutes of one record a second: the state is as large at the end as after the first minutes."""
    cascade = Cascade(checked.stages, 1)
    state: bytes | None = None
    sizes = []
    for second in range(0, 2_400, 10):
        rows = [Record(0, (second + at) * 1000, f"m{(second + at) % 7}", "north", 1.0, 1, None) for at in range(10)]
        event_us = pa.array([row.ts_ms * 1000 for row in rows], pa.int64())
        chunks = [chunk for _, chunk in cascade.cut(0, 0, event_us, chunk_columns(rows))]
        state = cascade.step(state, chunks, Closing(second * 1000 - 10_000, second * 1000)).state
        sizes.append(len(state))
    assert max(sizes[len(sizes) // 2 :]) <= max(sizes[: len(sizes) // 10])


def test_a_derived_value_that_fails_is_a_problem_and_not_a_row() -> None:
    checked = pipeline(
        {"name": "rates", "tumbling": "10s", "by": ["machine"], "aggregate": {"n": "count(*)", "rate": "max(rate)"}},
        steps=[{"derive": {"rate": "power / count"}}, {"where": "rate > 1 or power is null"}],
    )
    steps = RowSteps(checked.stages[0].inputs[0].first_steps, checked.inputs[0].stream.types)
    rows = [Record(0, 1, "a", None, power, count, None) for power, count in ((4.0, 2), (4.0, 0), (1.0, 2), (None, 2))]
    stepped = steps.apply(chunk_columns(rows), len(rows))
    assert stepped.rows.tolist() == [0, 3]
    assert [(problem.row, problem.step) for problem in stepped.problems] == [(1, "steps[0].derive.rate")]
