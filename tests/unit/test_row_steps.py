"""The steps between windows, with a row for which an expression has no value."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.processing.kinds.derive.step import Derive
from strandline.processing.kinds.where.step import Where
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.pipelines.row_step import Column

TYPES = {"power": "double", "count": "long", "text": "string"}
ROWS = {
    "power": pa.array([6.0, 6.0, 6.0, None, 0.0]),
    "count": pa.array([2, 0, None, 0, 0], pa.int64()),
    "text": pa.array(["1.5", "none", None, "4", "9"]),
}


def stepped(*steps: Derive | Where) -> tuple[list[int], list[tuple[int, str]]]:
    """The rows that are left, and the problems: row and step."""
    found = RowSteps(steps, TYPES).apply(ROWS, 5)
    return found.rows.tolist(), [(one.row, one.step) for one in found.problems]


@pytest.mark.guarantee(
    "G142",
    "A result for which a `derive` or `where` before the next window has no value, although all its inputs exist, has "
    "one dead letter and is in no later window. This holds in every stage and through kills. A backfill writes such "
    "dead letters only for stages that emit to Elasticsearch.",
    promise="each-rejected-record-is-one-dead-letter",
)
@pytest.mark.parametrize(
    ("condition", "left", "problems"),
    [
        ("power / count > 1", [0], [1, 4]),
        ("power / count > 1 and power > 1", [0], [1]),
        ("power / count > 1 or power > 1", [0, 1, 2], [4]),
        ("power / count > 1 or count is null", [0, 2], [1, 4]),
        ("coalesce(power / count, 1.0) >= 1", [0, 1, 2, 3, 4], []),
        ("cast(text as double) > 1", [0, 3, 4], [1]),
        ("count * 9223372036854775807 > 1", [], [0]),
        ("power > 1", [0, 1, 2], []),
        ("try_cast(text as double) > 1", [0, 3, 4], []),
        ("power / nullif(count, 0) > 1", [0], []),
        ("case when count > 0 then power > 1 end", [0], []),
        ("power > null", [], []),
        ("power is not null", [0, 1, 2, 4], []),
        ("10 / count > 1 and coalesce(nullif(text, 'none'), 'x') <> 'q'", [0], [1, 3, 4]),
        ("10 / nullif(power, 6.0) > 1 or 10 / count > 1", [0], [4]),
        ("nullif(10 / count, 5) > 1", [], [1, 3, 4]),
        ("case when power > 0 then power / count > 1 end", [0], [1]),
        ("case when power = 0 then null else power / count > 1 end", [0], [1]),
        ("if(power = 0, null, power / count > 1)", [0], [1]),
        ("if(power = 0, 1 / count, 1.0) > 1", [], [4]),
        ("try_cast(if(text = 'none', null, text) as double) / count > 0", [0], [3, 4]),
        ("nullif(10 / count, nullif(count, 0)) > 1", [0], [1, 3, 4]),
    ],
)
def test_a_filter_without_a_value_is_a_problem_unless_it_lacks_something_or_says_so(
    condition: str, left: list[int], problems: list[int]
) -> None:
    assert stepped(Where(3, condition)) == (left, [(row, "steps[3].where") for row in problems])


@pytest.mark.parametrize(
    ("text", "kind", "values", "problems"),
    [
        ("nullif(count, 0)", "long", [2, None, None, None, None], []),
        ("try_cast(text as double)", "double", [1.5, None, None, 4.0, 9.0], []),
        ("case when count > 0 then power end", "double", [6.0, None, None, None, None], []),
        ("cast(text as double)", "double", [1.5, None, 4.0, 9.0], [1]),
        ("nullif(10 / count, 1)", "double", [5.0, None], [1, 3, 4]),
        ("10 / count + nullif(power, 6.0)", "double", [None, None, None, None], [4]),
        ("10 / count + coalesce(nullif(power, 6.0), 0.0)", "double", [5.0, None, None], [1, 4]),
        ("case when power > 0 then power / count end", "double", [3.0, None, None, None], [1]),
        ("case when power = 0 then null else power / count end", "double", [3.0, None, None, None], [1]),
        ("case count when 2 then null when 0 then 1 / count end", "double", [None, None], [1, 3, 4]),
        ("coalesce(null, 10 / count)", "double", [5.0, None], [1, 3, 4]),
        ("coalesce(10 / count, null)", "double", [5.0, None, None, None, None], []),
        ("least(null, 10 / count)", "double", [5.0, None], [1, 3, 4]),
        ("greatest(nullif(count, 2), null)", "long", [None, 0, None, 0, 0], []),
        ("element_at(array(nullif(count, 2), 10), 1)", "long", [None, 0, None, 0, 0], []),
        ("element_at(array(nullif(count, 2), 10), 3)", "long", [None], [0, 1, 3, 4]),
        ("named_struct('n', nullif(count, 2)).n", "long", [None, 0, None, 0, 0], []),
        ("try_element_at(array(1, 2), count div count)", "integer", [1, None], [1, 3, 4]),
        ("nullif(nullif(count, 2), 0)", "long", [None, None, None, None, None], []),
        ("nullif(10 / count, nullif(count, 0))", "double", [5.0, None], [1, 3, 4]),
        ("nullif(10 / count, case when text = 'q' then 0 end)", "double", [5.0, None], [1, 3, 4]),
        ("nullif(nullif(count, 0), 10 / count)", "long", [2, None, None, None, None], []),
        ("nanvl(10 / count, cast(nullif(count, 0) as double))", "double", [5.0, None], [1, 3, 4]),
        ("nanvl(nullif(count, 0), 1.0)", "double", [2.0, None, None, None, None], []),
        ("nanvl(cast('NaN' as double), nullif(count, 0))", "double", [2.0, None, None, None, None], []),
        ("named_struct('x', nullif(count, 0), 'y', 10 / count).y", "double", [5.0, None], [1, 3, 4]),
        ("element_at(array(nullif(count, 0), 10 / count), 2)", "double", [5.0, None], [1, 3, 4]),
        ("element_at((array(10 / count, nullif(count, 0))), -1)", "double", [2.0, None, None, None, None], []),
        ("element_at(array(nullif(count, 0), 1), count div count)", "long", [2, None], [1, 3, 4]),
        ("element_at(array(1, 2), nullif(count, 0))", "integer", [2, None, None, None, None], []),
        ("try_element_at(array(nullif(count, 0), 10 / count), 2)", "double", [5.0, None], [1, 3, 4]),
        ("try_element_at(array(nullif(count, 0), 10 / count), 3)", "double", [None, None, None, None, None], []),
        ("array_min(array(nullif(count, 0), 10 / count))", "double", [2.0, None], [1, 3, 4]),
        ("array_max(array(nullif(count, 0), null))", "long", [2, None, None, None, None], []),
        ("array_position(array(nullif(count, 0), 5), 10 div count)", "long", [2, None], [1, 3, 4]),
        ("coalesce(nullif(1, 1), 1) * cast('NaN' as double)", "double", [], [0, 1, 2, 3, 4]),
    ],
)
def test_a_derived_column_is_null_where_its_expression_says_so(
    text: str, kind: str, values: list[object], problems: list[int]
) -> None:
    """An expression that fails gives no failure in a row in which the result doesn't use it."""
    found = RowSteps([Derive(0, (Column("new", text, kind),))], TYPES).apply(ROWS, 5)
    assert [one.row for one in found.problems] == problems
    assert found.columns["new"].to_pylist() == values


def test_a_row_has_one_problem_and_goes_no_further() -> None:
    rate = Derive(0, (Column("rate", "power / count", "double"), Column("inverse", "1 / count", "double")))
    after = Where(1, "count = 0 or 10 / count > 1")
    also = Where(2, "power / count > 1")
    # The fourth row lacks a power, so its rate is no problem; its inverse is.
    failed = [(1, "steps[0].derive.rate"), (3, "steps[0].derive.inverse"), (4, "steps[0].derive.rate")]
    assert stepped(rate, after, also) == ([0], failed)
    assert stepped(also, rate) == ([0], [(1, "steps[2].where"), (4, "steps[2].where")])


def test_the_message_names_the_step_and_the_expression() -> None:
    (first, _) = RowSteps([Where(3, "power / count > 1")], TYPES).apply(ROWS, 5).problems
    assert first.message == (
        "steps[3].where: no value from power / count > 1 (a division by zero, an overflow or a null)"
    )
