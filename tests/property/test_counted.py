"""Windows that count records: what a plain loop computes, whatever the slices, buckets and rewinds; and the audit agrees."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
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

AGGREGATE = {
    "n": "count(*)",
    "power": "sum(power)",
    "first": "first(power)",
    "most": "max(power)",
    "total": "sum(count)",
    "list": "collect_list(count, 5)",
}


def counted(
    size: int, max_ms: int, by: Sequence[str] = ("machine",), then: dict[str, Any] | None = None
) -> CheckedPipeline:
    window = {"name": "batch", "count": {"size": size, "max": f"{max_ms}ms"}, "by": list(by), "aggregate": AGGREGATE}
    behind = {"name": "behind", "aggregate": {"n": "sum(n)", "power": "sum(power)"}, **(then or {})}
    return pipeline(*([window, behind] if then else [window]))


TUMBLING = {"tumbling": "40s", "by": ["machine"]}
WIDE = {"tumbling": "17s", "by": []}
AGAIN = {"count": {"size": 2, "max": "1m"}, "by": ["machine"]}
PIPELINES = [counted(size, max_ms) for size, max_ms in product([1, 2, 7], [10_000, 70_000])]
PIPELINES += [counted(3, 20_000, by) for by in ([], ["machine", "site"])]
PIPELINES += [counted(3, 30_000, then=then) for then in (TUMBLING, WIDE, AGAIN)]
PIPELINES.append(
    pipeline(
        {"name": "per_five", "tumbling": "5s", "by": ["machine", "site"], "aggregate": AGGREGATE},
        {
            "name": "behind",
            "count": {"size": 3, "max": "40s"},
            "by": ["machine"],
            "aggregate": {"n": "sum(n)", "power": "sum(power)"},
        },
    )
)


def expected(rows: Sequence[Record], size: int, max_ms: int) -> list[tuple[Any, ...]]:
    """(start, end, machine, n, first power that is not null, counts) of each window."""
    groups: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for row in rows:
        groups[row.machine, row.ts_ms // max_ms].append(row)
    found = []
    for (machine, period), of_group in groups.items():
        in_order = sorted(of_group, key=lambda row: (row.ts_ms, row.partition))
        for first in range(0, len(in_order), size):
            part = in_order[first : first + size]
            end_ms = part[-1].ts_ms + 1 if len(part) == size else (period + 1) * max_ms
            powers = [row.power for row in part if row.power is not None]
            counts = [row.count for row in part if row.count is not None][:5]
            found.append((part[0].ts_ms, end_ms, machine, len(part), powers[0] if powers else None, counts))
    return sorted(found, key=str)


@pytest.mark.guarantee(
    "G535",
    "A count window contains exactly its number of records of its key, in the order of event time, and the last "
    "window of a period the remaining ones. It equals a plain loop in any slices.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(40)
@given(histories(), st.sampled_from([1, 2, 5]), st.sampled_from([8_000, 50_000]), st.integers(1, 4))
def test_windows_hold_as_many_as_they_say_however_the_log_is_cut(
    history: list[tuple[list[Record], int | None]], size: int, max_ms: int, buckets: int
) -> None:
    found = run(counted(size, max_ms), history, buckets, 5)["batch"]
    names = ("@window_start_ms", "@window_end_ms", "machine", "n", "first", "list")
    merged = [row for rows, _ in history for row in rows]
    assert sorted((tuple(row[name] for name in names) for row in found), key=str) == expected(merged, size, max_ms)


@pytest.mark.guarantee(
    "G536",
    "Results of count windows, and of windows after them, are the same to the last bit in any slices and after a "
    "rewind to the beginning of the count. Several windows in one millisecond have different ids.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(40)
@given(histories(), st.sampled_from(PIPELINES), st.integers(1, 4), st.integers(1, 7))
def test_no_bit_depends_on_slices_buckets_or_chunks(
    history: list[tuple[list[Record], int | None]], checked: CheckedPipeline, buckets: int, chunk_rows: int
) -> None:
    merged = [row for rows, _ in history for row in rows]
    at_once = run(checked, [(merged, END)], 1, 10**6)
    assert digest(run(checked, history, buckets, chunk_rows)) == digest(at_once)


@pytest.mark.guarantee("G536")
@pytest.mark.long
@examples(40)
@given(histories(), st.sampled_from(PIPELINES), st.data())
def test_a_rewind_computes_just_what_is_not_emitted(
    history: list[tuple[list[Record], int | None]], checked: CheckedPipeline, data: Any
) -> None:
    assume(len(history) > 1)
    number = data.draw(st.integers(1, len(history) - 1), label="the last committed slice")
    require_the_rest(history, checked, checked, number)


def with_counts(checked: CheckedPipeline, random: Random) -> CheckedPipeline:
    """The pipeline with at least one of its windows counting."""
    document = json.loads(json.dumps(checked.spec.as_document()))
    windows = [step["window"] for step in document["steps"] if "window" in step]
    for window in random.sample(windows, random.randint(1, len(windows))):
        for kind in ("tumbling", "session", "cumulative", "offset"):
            window.pop(kind, None)
        window["count"] = {"size": random.choice([1, 2, 9]), "max": random.choice(["7s", "30s", "2m"])}
    for window in windows:  # so that the steps behind other windows fit them
        if "session" in window:
            window["session"] = {"gap": "121s", "max": "242s"}
    return check(PipelineSpec.from_document(document), STREAM)


@pytest.mark.guarantee(
    "G537",
    "An audit computes count windows by a query over the records, without the operator.",
    promise="the-audit-finds-every-difference",
)
@examples(25, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_the_audit_counts_the_same_by_a_query(seed: int) -> None:
    random = Random(seed)
    assert_both_agree(with_counts(some_pipeline(random), random), some_log(random))
