"""Windows of a record and the record before it. Results equal those of a plain loop and of the audit, for all slicings."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, assume, given
from hypothesis import strategies as st

from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from tests.property.test_audit_recomputation import STREAM, assert_both_agree, some_log, some_pipeline
from tests.property.test_rewind_windows import require_the_rest
from tests.property.test_window_operator import END, Record, digest, histories, pipeline, run
from tests.support.examples import examples

OF_TWO = {
    "power": "current(power)",
    "was": "lag(power)",
    "more": "delta(count)",
    "used": "increase(power)",
    "counted": "increase(count)",
    "rate": "rate(power)",
    "on": "duration(count > 1)",
}
ACROSS = {
    "n": "count(*)",
    "used": "increase(power)",
    "rate": "rate(count)",
    "on": "duration(count > 1)",
    "most": "max(power)",
    "some": "increase(count) filter (where power > 1) + count(*)",
}


def of_two(within_ms: int, by: Sequence[str] = ("machine",), then: dict[str, Any] | None = None) -> CheckedPipeline:
    window = {"name": "steps", "previous": {"within": f"{within_ms}ms"}, "by": list(by), "aggregate": OF_TWO}
    behind = {"name": "behind", "aggregate": {"used": "sum(used)", "last": "last(power)"}, **(then or {})}
    return pipeline(*([window, behind] if then else [window]))


def across(shape: dict[str, Any], by: Sequence[str] = ("machine",)) -> CheckedPipeline:
    return pipeline({"name": "steps", **shape, "by": list(by), "aggregate": ACROSS})


TUMBLING = {"tumbling": "40s", "by": ["machine"]}
PIPELINES = [of_two(within_ms) for within_ms in (1, 4_000, 60_000)]
PIPELINES += [of_two(20_000, by) for by in ([], ["machine", "site"])]
PIPELINES += [of_two(30_000, then=then) for then in (TUMBLING, {"tumbling": "17s", "by": []})]
PIPELINES += [
    across(shape)
    for shape in (
        {"tumbling": "10s"},
        {"sliding": {"size": "20s", "every": "5s"}},
        {"session": {"gap": "5s", "max": "30s"}},
        {"count": {"size": 3, "max": "30s"}},
    )
]
PIPELINES.append(across({"tumbling": "10s"}, ()))
PIPELINES.append(
    pipeline(
        {"name": "first", "tumbling": "5s", "by": ["machine", "site"], "aggregate": {"power": "max(power)"}},
        {"name": "steps", "tumbling": "20s", "by": ["machine"], "aggregate": {"used": "increase(power, '30s')"}},
    )
)


def expected(rows: Sequence[Record], within_ms: int) -> list[tuple[Any, ...]]:
    """(start, end, machine, count, count before, increase, seconds in which the count was above 1) of each record."""
    keys: dict[str, list[Record]] = defaultdict(list)
    for row in rows:
        keys[row.machine].append(row)
    found = []
    for machine, of_key in keys.items():
        in_order = sorted(of_key, key=lambda row: (row.ts_ms, row.partition))
        for before, row in zip([None, *in_order], in_order, strict=False):
            if before is None or row.ts_ms - before.ts_ms > within_ms:
                found.append((row.ts_ms, row.ts_ms + 1, machine, row.count, None, None, None))
                continue
            is_counted = None not in (before.count, row.count)
            more = row.count - (0 if row.count < before.count else before.count) if is_counted else None
            on = None if before.count is None else (row.ts_ms - before.ts_ms) / 1000 * (before.count > 1)
            found.append((before.ts_ms, row.ts_ms + 1, machine, row.count, before.count, more, on))
    return sorted(found, key=str)


@pytest.mark.guarantee(
    "G910",
    "`lag`, `delta`, `increase`, `rate`, and `duration` compare a record with the previous record of its key in "
    "event time, also across windows, slices, drains, and restarts. The results are the same to the last bit in any "
    "slices, and the audit computes the same.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(40)
@given(histories(), st.sampled_from([1, 3_000, 50_000]), st.integers(1, 4))
def test_each_record_has_the_one_before_it_for_all_slicings(
    history: list[tuple[list[Record], int | None]], within_ms: int, buckets: int
) -> None:
    window = {"name": "steps", "previous": {"within": f"{within_ms}ms"}, "by": ["machine"]}
    aggregate = {"now": "current(count)", "was": "lag(count)", "more": "increase(count)", "on": "duration(count > 1)"}
    found = run(pipeline({**window, "aggregate": aggregate}), history, buckets, 5)["steps"]
    names = ("@window_start_ms", "@window_end_ms", "machine", *aggregate)
    merged = [row for rows, _ in history for row in rows]
    assert sorted((tuple(row[name] for name in names) for row in found), key=str) == expected(merged, within_ms)


@pytest.mark.guarantee("G910")
@examples(60)
@given(histories(), st.sampled_from(PIPELINES), st.integers(1, 4), st.integers(1, 7))
def test_no_bit_depends_on_slices_buckets_or_chunks(
    history: list[tuple[list[Record], int | None]], checked: CheckedPipeline, buckets: int, chunk_rows: int
) -> None:
    merged = [row for rows, _ in history for row in rows]
    at_once = run(checked, [(merged, END)], 1, 10**6)
    assert digest(run(checked, history, buckets, chunk_rows)) == digest(at_once)


@pytest.mark.long
@examples(60)
@given(histories(), st.sampled_from(PIPELINES), st.data())
def test_a_rewind_computes_exactly_the_missing_results(
    history: list[tuple[list[Record], int | None]], checked: CheckedPipeline, data: Any
) -> None:
    assume(len(history) > 1)
    number = data.draw(st.integers(1, len(history) - 1), label="the last committed slice")
    require_the_rest(history, checked, checked, number)


def with_previous(checked: CheckedPipeline, random: Random) -> CheckedPipeline:
    """Return the pipeline with at least one window of the kind `previous`, or an aggregate that needs previous records."""
    document = json.loads(json.dumps(checked.spec.as_document()))
    windows = [step["window"] for step in document["steps"] if "window" in step]

    windows[0]["aggregate"] |= {"used": "increase(power)", "on": "duration(power > 1)", "rate": "rate(power)"}
    if random.random() < 0.5:
        for kind in ("tumbling", "session", "cumulative", "offset", "count", "sliding"):
            windows[0].pop(kind, None)
        windows[0]["previous"] = {"within": random.choice(["1ms", "7s", "2m"])}
        windows[0]["aggregate"] |= {"was": "lag(power)", "now": "current(power)"}

    for window in windows:  # so that windows after others fit them
        if "session" in window:
            window["session"] = {"gap": "121s", "max": "242s"}
    return check(PipelineSpec.from_document(document), STREAM)


@pytest.mark.guarantee("G910")
@examples(15, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_the_audit_computes_the_same_by_a_query(seed: int) -> None:
    random = Random(seed)
    assert_both_agree(with_previous(some_pipeline(random), random), some_log(random))
