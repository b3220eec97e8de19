"""Every aggregate, alone and with others, with and without a filter, gives what a plain loop over the records gives.

The results are equal to the last bit, for any slices, buckets and chunks. They are checked for tumbling and sliding
windows, and for a second window that regroups.

The bounds are also tried with small values, so that windows exceed them.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.processing.aggregates import distinct
from strandline.processing.aggregates.cardinality.kernel import Cardinality
from strandline.processing.aggregates.chosen_rows import Chosen
from strandline.processing.aggregates.distinct import Distinct
from strandline.processing.aggregates.kernel import as_lists
from strandline.processing.aggregates.percentiles import kernel as percentiles
from strandline.processing.aggregates.percentiles.kernel import Percentile
from strandline.processing.columns.values import hashes
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from tests.property.test_window_operator import (
    END,
    Record,
    digest,
    histories,
    pipeline,
    run,
    some_records,
)
from tests.support.examples import examples

FIELDS = ["machine", "site", "power", "count", "cost"]
NUMBERS = ["power", "count", "cost"]
FILTERS: dict[str, Callable[[Record], bool]] = {
    "": lambda row: True,
    "power > 0": lambda row: row.power is not None and row.power > 0,
    "site is null or count < 0": lambda row: row.site is None or (row.count is not None and row.count < 0),
}
Rows = Sequence[Record]
"""The records of one window, in order: by partition, then in the order of arrival."""


def near_times(row: Record) -> Record:
    """Few times, so that many records have the same."""
    return row._replace(ts_ms=row.ts_ms // 4_000 * 4_000)


rows_with_ties = st.builds(
    lambda seed, count: [near_times(row) for row in some_records(seed, count)],
    st.integers(0, 2**32),
    st.integers(0, 200),
)


def of(rows: Rows, field: str) -> list[Any]:
    return [value for row in rows if (value := getattr(row, field)) is not None]


def first(rows: Rows, field: str) -> Any:
    return next((getattr(row, field) for row in sorted(some(rows, field), key=lambda row: row.ts_ms)), None)


def last(rows: Rows, field: str) -> Any:
    found = sorted(some(rows, field), key=lambda row: row.ts_ms)
    return getattr(found[-1], field) if found else None


def some(rows: Rows, field: str) -> list[Record]:
    return [row for row in rows if getattr(row, field) is not None]


def least_by(rows: Rows, field: str, by: str, sign: int = 1) -> Any:
    best: Record | None = None
    for row in sorted(some(rows, by), key=lambda row: row.ts_ms):
        mine = getattr(row, by)
        if best is None or (mine > getattr(best, by) if sign < 0 else mine < getattr(best, by)):
            best = row
    return None if best is None else getattr(best, field)


def exact_percentile(rows: Rows, field: str, share: float) -> float | None:
    values = sorted(map(float, of(rows, field)))
    if not values:
        return None
    if len(values) > percentiles.EXACT_MAX:
        return about_percentile(rows, field, share)
    place = (len(values) - 1) * share
    low, high = values[math.floor(place)], values[math.ceil(place)]
    if low == high:
        return low
    return (math.ceil(place) - place) * low + (place - math.floor(place)) * high


def about_percentile(rows: Rows, field: str, share: float) -> float | None:
    """By the definition of a bin; those below the greatest are one."""
    found = sorted(bin_of(float(value)) for value in of(rows, field))
    if not found:
        return None
    kept = sorted(set(found))[-percentiles.BINS_MAX :]
    rank = max(math.ceil(len(found) * Fraction(str(share))), 1)
    return middle_of(max(found[rank - 1], kept[0]))


def bin_of(value: float) -> tuple[int, int, int]:
    """Sign, power of two, and which of its parts; in the order of the values."""
    if value == 0:
        return (0, 0, 0)
    sign = 1 if value > 0 else -1
    exponent = math.floor(math.log2(abs(value)))
    exponent += (abs(value) >= 2.0 ** (exponent + 1)) - (abs(value) < 2.0**exponent)
    part = int((Fraction(abs(value)) / Fraction(2) ** exponent - 1) * percentiles.BINS_AN_OCTAVE)
    return (sign, sign * exponent, sign * part)


def middle_of(place: tuple[int, int, int]) -> float:
    sign, exponent, part = place
    share = (Fraction(abs(part)) + Fraction(1, 2)) / percentiles.BINS_AN_OCTAVE
    return sign * float((1 + share) * Fraction(2) ** (sign * exponent))


def distinct_values(rows: Rows, field: str) -> int | None:
    counted = len(set(of(rows, field)))
    return counted if counted <= distinct.DISTINCT_MAX else None


def near_variance(rows: Rows, field: str) -> float | None:
    values = [Fraction(float(value)) for value in of(rows, field)]
    return float(statistics.variance(values)) if len(values) > 1 else None


def in_time(rows: Rows, field: str) -> list[Any]:
    return [getattr(row, field) for row in sorted(some(rows, field), key=lambda row: row.ts_ms)]


def values_by(rows: Rows, field: str, by: str, sign: int = 1) -> list[Any]:
    """In the order of `by`, backwards if the sign is negative; of those that are alike the earliest first."""
    ordered = sorted(some(rows, by), key=lambda row: row.ts_ms)
    found: list[Record] = []
    for value in sorted({getattr(row, by) for row in ordered}, reverse=sign < 0):
        found += [row for row in ordered if getattr(row, by) == value]
    return [getattr(row, field) for row in found]


def most_frequent(rows: Rows, field: str) -> list[dict[str, Any]] | None:
    counted = Counter(of(rows, field))
    if len(counted) > distinct.DISTINCT_MAX:
        return None
    values = sorted(sorted(counted), key=lambda value: -counted[value])
    return [{"value": value, "count": counted[value]} for value in values[:2]]


def bins(rows: Rows, field: str, borders: Sequence[float]) -> list[int]:
    edges = [-math.inf, *borders, math.inf]
    return [sum(low <= float(value) < high for value in of(rows, field)) for low, high in pairwise(edges)]


FORMS: list[tuple[str, list[str], Callable[..., Any]]] = [
    ("collect_list({0}, 3)", FIELDS, lambda rows, field: in_time(rows, field)[:3]),
    ("top_n({0}, 2)", FIELDS, lambda rows, field: sorted(of(rows, field), reverse=True)[:2]),
    ("bottom_n({0}, 4)", FIELDS, lambda rows, field: sorted(of(rows, field))[:4]),
    ("top_n_by({0}, {1}, 3)", FIELDS, lambda rows, field, by: values_by(rows, field, by, -1)[:3]),
    ("bottom_n_by({0}, {1}, 1)", FIELDS, lambda rows, field, by: values_by(rows, field, by)[:1]),
    ("most_frequent({0}, 2)", FIELDS, most_frequent),
    ("histogram({0}, -100, 100, 4)", NUMBERS, lambda rows, field: bins(rows, field, [-100, -50, 0, 50, 100])),
    ("histogram({0}, array(0.5))", NUMBERS, lambda rows, field: bins(rows, field, [0.5])),
    ("count({0})", FIELDS, lambda rows, field: len(of(rows, field))),
    ("min({0})", FIELDS, lambda rows, field: min(of(rows, field), default=None)),
    ("first({0})", FIELDS, first),
    ("last({0})", FIELDS, last),
    ("min_by({0}, {1})", FIELDS, least_by),
    ("max_by({0}, {1})", FIELDS, lambda rows, field, by: least_by(rows, field, by, -1)),
    ("count(distinct {0})", FIELDS, distinct_values),
    ("median({0})", NUMBERS, lambda rows, field: exact_percentile(rows, field, 0.5)),
    ("percentile({0}, 0.9)", NUMBERS, lambda rows, field: exact_percentile(rows, field, 0.9)),
    ("percentile({0}, 0)", NUMBERS, lambda rows, field: exact_percentile(rows, field, 0.0)),
    ("approx_percentile({0}, 1)", NUMBERS, lambda rows, field: about_percentile(rows, field, 1.0)),
    ("approx_percentile({0}, 0.25)", NUMBERS, lambda rows, field: about_percentile(rows, field, 0.25)),
    ("variance({0})", NUMBERS, near_variance),
    ("approx_count_distinct({0})", FIELDS, lambda rows, field: len(set(of(rows, field)))),
]
NEARLY = {"variance": (1e-6, 1e-3), "approx_count_distinct": (0.06, 1.0)}
"""Function -> how far the value may be from the loop's: relative, absolute."""
Oracle = Callable[[Rows], Any]


@st.composite
def stages(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, tuple[str, Oracle]]]:
    """Some aggregates by name, and for each its function and what the loop computes."""
    aggregates, oracles = {}, {}
    for number in range(draw(st.integers(1, 8))):
        form, fields, loop = draw(st.sampled_from(FORMS))
        chosen = [draw(st.sampled_from(fields)), draw(st.sampled_from(FIELDS))][: 2 if "{1}" in form else 1]
        condition = draw(st.sampled_from(list(FILTERS)))
        name = f"value_{number}"
        aggregates[name] = form.format(*chosen) + (f" filter (where {condition})" if condition else "")
        oracles[name] = form.partition("(")[0], oracle(loop, chosen, FILTERS[condition])
    return aggregates, oracles


def oracle(loop: Callable[..., Any], fields: Sequence[str], passes: Callable[[Record], bool]) -> Oracle:
    return lambda rows: loop([row for row in rows if passes(row)], *fields)


@pytest.fixture(params=["as they are", "small"])
def bounds(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "small":
            patch.setattr(distinct, "DISTINCT_MAX", 3)
            patch.setattr(percentiles, "EXACT_MAX", 4)
            patch.setattr(percentiles, "BINS_MAX", 3)
        yield


@pytest.mark.guarantee("G400")
@pytest.mark.guarantee(
    "G480",
    "Aggregates that return arrays match their description, to the last bit, in any slices, chunks, and buckets, in "
    "sliding windows and cascades. The audit computes them with a different implementation.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.usefixtures("bounds")
@examples(40)
@given(stages(), rows_with_ties.flatmap(lambda rows: histories(st.just(rows))), st.integers(1, 4), st.integers(1, 7))
def test_each_is_what_a_loop_computes_in_whatever_pieces_records_come(
    chosen: tuple[dict[str, str], dict[str, tuple[str, Oracle]]],
    history: list[tuple[list[Record], int | None]],
    buckets: int,
    chunk_rows: int,
) -> None:
    aggregates, oracles = chosen
    checked = pipeline({"name": "per_ten", "tumbling": "10s", "by": ["machine", "site"], "aggregate": aggregates})
    merged = [row for rows, _ in history for row in rows]
    at_once = run(checked, [(merged, END)], 1, 10**6)
    assert digest(run(checked, history, buckets, chunk_rows)) == digest(at_once)
    windows: dict[tuple[int, str, str | None], list[Record]] = defaultdict(list)
    for row in sorted(merged, key=lambda row: row.partition):
        windows[row.ts_ms // 10_000 * 10_000, row.machine, row.site].append(row)
    assert len(at_once["per_ten"]) == len(windows)
    for result in at_once["per_ten"]:
        inside = windows[result["@window_start_ms"], result["machine"], result["site"]]
        check(result, inside, aggregates, oracles)


def check(
    result: dict[str, Any], inside: Rows, aggregates: dict[str, str], oracles: dict[str, tuple[str, Oracle]]
) -> None:
    has_problem = False
    for name, (function, expected) in oracles.items():
        wanted, found = expected(inside), result[name]
        has_problem = has_problem or (wanted is None and aggregates[name].startswith(("count(", "most_frequent(")))
        if function in NEARLY and wanted is not None:
            relative, absolute = NEARLY[function]
            largest = max(
                (abs(float(value)) for row in inside for value in (row.power, row.count, row.cost) if value), default=0
            )
            scale = largest**2 * 1e-14 if function == "variance" else absolute
            assert found == pytest.approx(wanted, rel=relative, abs=scale), (name, aggregates[name])
        else:
            assert (found, type(found)) == (wanted, type(wanted)), (name, aggregates[name])
    assert (result["@problem"] is not None) == has_problem


@pytest.mark.guarantee("G400")
@pytest.mark.guarantee("G480")
@pytest.mark.usefixtures("bounds")
@examples(20)
@given(
    stages(),
    rows_with_ties.flatmap(lambda rows: histories(st.just(rows))),
    st.sampled_from(["10s", "4s"]),
    st.integers(1, 5),
)
def test_sliding_windows_are_those_of_their_records(
    chosen: tuple[dict[str, str], dict[str, tuple[str, Oracle]]],
    history: list[tuple[list[Record], int | None]],
    every: str,
    buckets: int,
) -> None:
    """Panes are merged, and nothing shows of it."""
    aggregates, oracles = chosen
    shape = {"size": "20s", "every": every}
    checked = pipeline({"name": "slide", "sliding": shape, "by": ["machine"], "aggregate": aggregates})
    merged = [row for rows, _ in history for row in rows]
    at_once = run(checked, [(merged, END)], 1, 10**6)
    assert digest(run(checked, history, buckets, 3)) == digest(at_once)
    in_order = sorted(merged, key=lambda row: row.partition)
    for result in at_once["slide"]:
        start_ms, end_ms = result["@window_start_ms"], result["@window_end_ms"]
        inside = [row for row in in_order if row.machine == result["machine"] and start_ms <= row.ts_ms < end_ms]
        check(result, inside, aggregates, oracles)


LATER = {
    "opened": "first(mid)",
    "closed": "last(mid)",
    "busiest": "max_by(site, n)",
    "spread": "stddev(high)",
    "sites": "count(distinct site) filter (where n > 1)",
    "about": "approx_count_distinct(high)",
    "mid": "median(mid)",
}
CASCADES: list[CheckedPipeline] = [
    pipeline(
        {
            "name": "per_ten",
            "tumbling": "10s",
            "by": ["machine", "site"],
            "aggregate": {"n": "count(*)", "mid": "median(power)", "high": "approx_percentile(power, 0.9)"},
        },
        {"name": "per_minute", "tumbling": "1m", "by": by, "aggregate": LATER},
    )
    for by in (["machine"], ["site"], [])
]


@pytest.mark.guarantee("G400")
@pytest.mark.usefixtures("bounds")
@examples(25)
@given(
    rows_with_ties.flatmap(lambda rows: histories(st.just(rows))),
    st.sampled_from(CASCADES),
    st.integers(2, 5),
    st.integers(1, 7),
)
def test_later_windows_take_them_as_values_of_rows(
    history: list[tuple[list[Record], int | None]], checked: CheckedPipeline, buckets: int, chunk_rows: int
) -> None:
    merged = [row for rows, _ in history for row in rows]
    at_once = run(checked, [(merged, END)], 1, 10**6)
    assert digest(run(checked, history, buckets, chunk_rows)) == digest(at_once)
    by = checked.stages[1].by
    minutes: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for one in at_once["per_ten"]:
        minutes[one["@window_start_ms"] // 60_000 * 60_000, *(one[name] for name in by)].append(one)
    for result in at_once["per_minute"]:
        inside = minutes[result["@window_start_ms"], *(result[name] for name in by)]
        if result["@problem"] is None:
            counted = {one["site"] for one in inside if one["n"] > 1 and one["site"] is not None}
            assert result["sites"] == len(counted)
        values = [one["mid"] for one in inside if one["mid"] is not None]
        if 0 < len(values) <= percentiles.EXACT_MAX:
            assert result["mid"] == pytest.approx(statistics.median(values), rel=1e-12)
        assert result["busiest"] in {one["site"] for one in inside if one["n"] == max(one["n"] for one in inside)}


@pytest.mark.guarantee(
    "G401",
    "The memory of each aggregate is bounded. Beyond its bound, `count(distinct x)` makes the result a dead letter, "
    "never a silent null or a wrong count. `percentile` is within 0.8 %, and sketches are within their documented "
    "errors.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.parametrize("count", [0, 1, 7, 300, 5_000, 60_000, 400_000])
@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_the_estimate_of_distinct_values_is_within_its_error(count: int, kind: str) -> None:
    """Four times the standard error, over the whole range, and exact to one for a few."""
    values = pa.array(np.arange(count)) if kind == "numbers" else pa.array([f"device/{at:x}" for at in range(count)])
    twice = pa.concat_arrays([values, values])
    found = folded(Cardinality(), hashes(twice)).to_pylist()[0]
    assert found == pytest.approx(count, rel=4 * 0.0163, abs=1)


def folded(function: Cardinality | Distinct | Percentile, argument: pa.Array) -> pa.Array:
    """The value over all rows of one group, folded in pieces."""
    state, none = [pa.array([], kind) for kind in function.partial_types], np.zeros(0, np.int64)
    for first_row in range(0, max(len(argument), 1), 100_000):
        piece = argument[first_row : first_row + 100_000]
        codes = none if first_row == 0 else np.zeros(1, np.int64)
        if first_row == 0 and not len(piece):
            piece = pa.nulls(1, argument.type)
        state = function.fold(state, codes, [piece], np.zeros(len(piece), np.int64), 1)
    return function.finish(state).values


@pytest.mark.guarantee("G401")
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.95, 0.999, 1.0])
def test_an_approximate_percentile_is_within_its_error(share: float) -> None:
    values = np.random.default_rng(5).lognormal(3, 2, 200_000)
    exact = np.sort(values)[max(math.ceil(len(values) * Fraction(str(share))), 1) - 1]
    found = folded(Percentile(share, is_exact=False), pa.array(values))[0].as_py()
    assert found == pytest.approx(exact, rel=0.0079)
    assert folded(Percentile(share, is_exact=True), pa.array(values))[0].as_py() == found, "too many to be exact"


def test_what_is_no_number_is_the_greatest() -> None:
    values = pa.array([math.nan, math.inf, 5.0, -math.inf, -0.0])
    for is_exact in (True, False):
        found = [folded(Percentile(share, is_exact=is_exact), values)[0].as_py() for share in (0.0, 0.4, 0.75, 1.0)]
        assert found[:1] == [-math.inf]
        assert found[2] == math.inf
        assert math.isnan(found[3])
    assert folded(Distinct("double"), pa.array([0.0, -0.0, math.nan, -math.nan, 1.0, None]))[0].as_py() == 3
    greatest = Chosen("max_by", ["long", "double", "long"])
    rows = [pa.array([1, 2, 3]), pa.array([math.inf, math.nan, 1.0]), pa.array([1, 2, 3])]
    state = [pa.array([], kind) for kind in greatest.partial_types]
    found = greatest.fold(state, np.zeros(0, np.int64), rows, np.zeros(3, np.int64), 1)
    assert greatest.finish(found).values.to_pylist() == [2]


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize(
    "function",
    [Distinct("double"), Cardinality(), Percentile(0.4, is_exact=True), Percentile(0.1, is_exact=False)],
    ids=["distinct", "cardinality", "percentile", "approximate"],
)
def test_lists_follow_from_the_values_of_a_group_and_not_from_its_pieces(
    function: Distinct | Cardinality | Percentile,
) -> None:
    """Three groups with values in random pieces, which are folded and merged in a random order.

    Few and many, equal and distinct.
    """
    random = np.random.default_rng(7)
    for _ in range(60):
        count, spread = random.integers(0, 30), random.choice([2, 5, 1_000])
        groups, numbers = random.integers(0, 3, count), random.integers(-spread, spread, count).astype(np.float64)
        values = pa.array(numbers, mask=random.random(count) < 0.1)
        argument = hashes(values) if isinstance(function, Cardinality) else values
        whole = pieces_of(function, argument, groups, [np.arange(count)])
        cuts = np.sort(random.integers(0, count + 1, random.integers(0, 5)))
        shuffled = np.split(random.permutation(count), cuts)
        assert repr(pieces_of(function, argument, groups, shuffled).to_pylist()) == repr(whole.to_pylist())
        if isinstance(function, Distinct):
            found = [
                len(
                    {value for value, of_group in zip(values.to_pylist(), groups, strict=True) if of_group == at}
                    - {None}
                )
                for at in range(3)
            ]
            assert whole.to_pylist() == [one if one <= distinct.DISTINCT_MAX else None for one in found]


def pieces_of(
    function: Distinct | Cardinality | Percentile, argument: pa.Array, groups: np.ndarray, pieces: Sequence[np.ndarray]
) -> pa.Array:
    """The value of each of three groups: every other piece folded into one state, those between merged with it."""
    every = np.arange(3)
    none = [pa.array([], kind) for kind in function.partial_types]

    def folded_into(state: list[pa.Array], codes: np.ndarray, piece: np.ndarray) -> list[pa.Array]:
        # A null for each group, so that each has a row.
        rows = pa.concat_arrays([argument.take(pa.array(piece)), pa.nulls(3, argument.type)])
        return function.fold(state, codes, [rows], np.concatenate([groups[piece], every]), 3)

    state = folded_into(none, every[:0], pieces[0])
    for number, piece in enumerate(pieces[1:]):
        if number % 2:
            state = folded_into(state, every, piece)
        else:
            more = folded_into(none, every[:0], piece)
            joined = [pa.concat_arrays([one, other]) for one, other in zip(state, more, strict=True)]
            state = function.merge(joined, np.concatenate([every, every]), 3)
    return function.finish(state).values


def test_a_group_in_which_nothing_is_new_keeps_its_list() -> None:
    function = Distinct("long")
    state = [as_lists(pa.array([1, 2, 9, 7]), np.array([0, 0, 1, 2]), 3)]
    after = function.fold(state, np.array([2, 0, 3]), [pa.array([9, 9, 4])], np.array([0, 1, 0]), 4)
    assert [sorted(one) for one in after[0].to_pylist()] == [[4, 9], [9], [1, 2], [7]]
