"""Joins of windows' results are the same to the last bit in other slices, buckets and chunks, and after a rewind.

They equal those of an oracle in plain Python, which joins the results that the windows emit.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, assume, given
from hypothesis import strategies as st

from tests.property.test_branches import checked
from tests.property.test_joins import History, at_the_desk, microseconds, seconds, some_log
from tests.property.test_rewind_windows import require_the_rest
from tests.property.test_window_operator import END, digest, histories, run
from tests.support.examples import examples
from tests.support.result_join_graphs import SHAPES, TIMES, some_result_join
from tests.support.step_graphs import document_of


@pytest.mark.guarantee(
    "G593",
    "Joins of results, and later windows and joins over them, are the same to the last bit in any slices, chunks, and "
    "buckets. The same holds after a rewind over the longer path and the join, also by another version.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(40)
@given(histories(), st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 7))
def test_they_do_not_depend_on_slices_buckets_or_chunks(
    history: History, seed: int, buckets: int, chunk_rows: int
) -> None:
    pipeline = checked(some_result_join(Random(seed)))
    at_once = run(pipeline, [([row for rows, _ in history for row in rows], END)], 1, 10**6)
    assert digest(run(pipeline, history, buckets, chunk_rows)) == digest(at_once)


@pytest.mark.guarantee("G593")
@examples(40)
@given(histories(), st.integers(0, 2**32), st.none() | st.integers(0, 2**32), st.data())
def test_a_rewind_computes_just_what_is_not_emitted(
    history: History, seed: int, new_seed: int | None, data: st.DataObject
) -> None:
    """Also by a version with another join under the same name."""
    assume(len(history) > 1)
    old = checked(some_result_join(Random(seed)))
    new = old if new_seed is None else checked(some_result_join(Random(new_seed)))
    number = data.draw(st.integers(1, len(history) - 1), label="the last committed slice")
    require_the_rest(history, old, new, number)


def by_hand(
    join: dict[str, Any], lefts: list[dict[str, Any]], rights: list[dict[str, Any]]
) -> Counter[tuple[Any, ...]]:
    """(start, end, key, left value, right value) of each joined row, over documents of windows."""

    def end_of(one: dict[str, Any]) -> int:
        return milliseconds(one["window"]["end"])

    def is_near(left: dict[str, Any], right: dict[str, Any]) -> bool:
        if "same_window" in join:
            return bool(left["window"] == right["window"])
        if "tumbling" in join:
            return (end_of(left) - 1) // 20_000 == (end_of(right) - 1) // 20_000
        before_ms, after_ms = (seconds(join["within"].get(name, "0s")) for name in ("before", "after"))
        return end_of(left) - before_ms <= end_of(right) <= end_of(left) + after_ms

    def window_of(some: list[dict[str, Any]], hold_ms: int) -> tuple[int, int]:
        ends = [end_of(one) for one in some]
        if "same_window" in join:
            return milliseconds(some[0]["window"]["start"]), ends[0]
        if "tumbling" in join:
            start_ms = (ends[0] - 1) // 20_000 * 20_000
            return start_ms, start_ms + 20_000
        return min(ends) - 1, max(ends) + hold_ms

    holds_ms = [seconds(join.get("within", {}).get(name, "0s")) for name in ("after", "before")]
    found: Counter[tuple[Any, ...]] = Counter()
    met: tuple[set[int], set[int]] = set(), set()
    for left in lefts:
        partners = [one for one in rights if one["machine"] == left["machine"] and is_near(left, one)]
        if join.get("latest"):  # of equal ends the last by start and key, as text
            partners = sorted(partners, key=lambda one: (end_of(one), text_of(one)))[-1:]
        for right in partners:
            met[0].add(id(left))
            met[1].add(id(right))
            found[*window_of([left, right], 0), left["machine"], left["n"], right["n"]] += 1
    for side, rows in enumerate((lefts, rights)):
        if join["type"] == "full" or (join["type"] == "left" and side == 0):
            for one in rows:
                if id(one) not in met[side]:
                    values = (one["n"], None) if side == 0 else (None, one["n"])
                    found[*window_of([one], holds_ms[side]), one["machine"], *values] += 1
    return found


def text_of(one: dict[str, Any]) -> tuple[str, str, str]:
    return str(milliseconds(one["window"]["start"])), one["machine"], one.get("site") or "%0"


def milliseconds(time: str) -> int:
    return microseconds(time) // 1000


@pytest.mark.guarantee(
    "G592",
    "Joins of window results and of joins equal a plain loop: in the same window, in a larger one, or within a time. "
    "One side can be records. Each joined row exists once, with the promised window.",
    promise="operators-compute-what-the-reference-describes",
)
@examples(60, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32), st.none() | st.sampled_from([3, 20]))
def test_results_are_joined_as_a_loop_joins_them(seed: int, slice_records: int | None) -> None:
    """Disorder, late and broken records; at once, in slices, and restarted all the time. The windows' results are taken as the
    job emits them; what they must be, other tests say."""
    random = Random(seed)
    shape = random.choice(SHAPES[:6])
    other = shape if random.random() < 0.5 else random.choice([one for one in SHAPES[:6] if "offset" not in one])
    near: list[dict[str, Any]] = [{"within": {"before": random.choice(TIMES), "after": random.choice(TIMES)}}]
    near.append({"within": {"before": random.choice(TIMES[1:])}, "latest": True})
    near += [{"same_window": True}] * 2 if shape == other and "session" not in shape else []
    near += [{"tumbling": "20s"}] if not {"offset"} & (shape.keys() | other.keys()) else []
    join = {"name": "met", "left": "lefts", "right": "rights", "on": ["machine"], **random.choice(near)}
    join |= {"type": random.choice(["inner", "left"] if "latest" in join else ["inner", "left", "full"])}
    join |= {"add": {"l_n": "left.n", "r_n": "right.n"}}
    steps = [
        {"where": "kind != 'r'"},
        {"window": {"name": "lefts", **shape, "by": ["machine"], "aggregate": {"n": "count(*)"}}},
        {"where": "kind != 'l'", "from": "shop"},
        {"window": {"name": "rights", **other, "by": ["machine", "site"], "aggregate": {"n": "count(*)"}}},
        {"join": join, "emit": [{"elasticsearch": "met"}]},
    ]
    for number in (1, 3):
        steps[number]["emit"] = [{"elasticsearch": str(steps[number]["window"]["name"])}]  # type: ignore[index]
    event_time = {"field": "ts", "delay": random.choice(["0s", "2s", "1m"]), "max_ahead": None}
    document = {**document_of(steps, "shop"), "event_time": event_time}
    lines = some_log(random)
    documents, rejected, unusable = at_the_desk(document, lines, slice_records)
    assert not unusable
    of_stage: dict[str, list[dict[str, Any]]] = {"lefts": [], "rights": [], "met": []}
    for source in documents.values():
        one = json.loads(source)
        of_stage[one["strandline"]["stage"]].append(one)
    joinable = {stage: [one for one in rows if one["machine"] is not None] for stage, rows in of_stage.items()}
    nulls = {stage: [one for one in rows if one["machine"] is None] for stage, rows in of_stage.items()}
    wanted = by_hand(join, joinable["lefts"], joinable["rights"])
    for side in ("lefts", "rights"):  # a null equals none
        wanted += by_hand(join, *(nulls[one] if one == side else [] for one in ("lefts", "rights")))
    shown = Counter(
        (
            milliseconds(one["window"]["start"]),
            milliseconds(one["window"]["end"]),
            one["machine"],
            one["l_n"],
            one["r_n"],
        )
        for one in of_stage["met"]
    )
    assert shown == wanted
    again = at_the_desk(document, lines, slice_records, restarts=True)
    assert again == (documents, rejected, unusable), "restarts change nothing"
    assert list(again[0]) == list(documents), "and nothing of the order"
