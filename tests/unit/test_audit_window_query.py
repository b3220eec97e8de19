"""The audit's query of one window stage: values for which an engine of its own needs care. That it agrees with the operators on
all else is a property (tests/property/test_audit_recomputation.py)."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strandline.core.errors import PermanentError
from strandline.processing.audit_queries.stage_query import query_of
from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.kinds.cumulative.shape import CumulativeShape
from strandline.processing.kinds.days.shape import DayShape
from strandline.processing.kinds.session.shape import SessionShape
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.windows import WindowOperator
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.row_step import Column
from strandline.processing.pipelines.stages import LEFT, RecordPath, Stage, StageInput
from tests.support.window_results import results_of_both

NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "spilled", 256)
    yield opened
    opened.close()


def stage_of(**aggregates: tuple[str, str]) -> Stage:
    columns = tuple(Column(name, sql, of) for name, (sql, of) in aggregates.items())
    return Stage("minute", WindowShape(60_000, 60_000), (), (), columns, (), (StageInput(()),), 0)


def result_of(
    database: Database, directory: Path, kind: str, values: list[Any], **aggregates: tuple[str, str]
) -> dict[str, Any]:
    """The result of the one window that holds these values of a column `x`. `aggregates`: name -> (expression, type)."""
    query = query_of(stage_of(**aggregates), LEFT, {"x": kind})
    table = Table(directory / "rows", query.row_schema)
    table.create()
    with table.writer("some") as rows:
        count = len(values)
        places = [pa.array([0] * count, pa.int32()), pa.array(range(count), pa.int64()), pa.nulls(count, pa.int32())]
        columns = {"x": pa.array(values, arrow_type(kind))}
        rows.append(query.rows(pa.array([1000] * count, pa.int64()), columns, places))
    (batch,) = query.results(database, table)
    (row,) = batch.to_pylist()
    return row


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KINDS = {
    "days of a zone": DayShape(DAY_MS, DAY_MS, zone="Europe/Berlin"),
    "days that begin at six": DayShape(2 * DAY_MS, 2 * DAY_MS, 6 * HOUR_MS, zone="America/New_York"),
    "windows that begin later": WindowShape(7 * HOUR_MS, 7 * HOUR_MS, 5 * HOUR_MS),
    "sliding ones that begin later": WindowShape(9 * HOUR_MS, 2 * HOUR_MS, HOUR_MS),
    "cumulative ones": CumulativeShape(12 * HOUR_MS, 2 * HOUR_MS),
    "cumulative ones that begin later": CumulativeShape(DAY_MS, 8 * HOUR_MS, 9 * HOUR_MS),
    "sessions": SessionShape(9 * HOUR_MS, HOUR_MS),
    "sessions that never pause": SessionShape(9 * HOUR_MS, 9 * HOUR_MS),
}


@pytest.mark.guarantee("G382")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_windows_of_each_kind_are_those_of_the_operators(database: Database, tmp_path: Path, kind: WindowShape) -> None:
    """Over days in which clocks are set, and a time without any record."""
    records = StageInput((("key", "string"),), (RecordPath(0, ()),))
    stage = Stage("some", kind, ("key",), ("string",), (Column("n", "count(*)", "long"),), (), (records,), 0)
    audited, computed = results_of_both(stage, {"key": "string"}, database, tmp_path)
    assert len(computed) > 10
    assert audited == computed


@pytest.mark.parametrize(
    "values", [[1e6, 1e6 + 2**-30], [12345.678] * 3, [-1e15, -1e15 + 1, -1e15 + 2], [0.1], [1e9, 0.0]]
)
def test_a_variance_of_near_numbers_loses_no_digits(database: Database, tmp_path: Path, values: list[float]) -> None:
    many = values * 10_000
    found = result_of(database, tmp_path, "double", many, v=("var_pop(x)", "double"), d=("stddev_pop(x)", "double"))
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    variance = float(sum((value - mean) ** 2 for value in exact) / len(exact))
    assert found["v"] == pytest.approx(variance, rel=1e-12, abs=0)
    assert found["d"] == pytest.approx(variance**0.5, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    "values", [[NAN], [INFINITY], [1.0, INFINITY], [-INFINITY, 1.0], [NAN, 1.0, None], [0.0, 1e300]]
)
def test_what_has_no_variance_is_no_number(database: Database, tmp_path: Path, values: list[float | None]) -> None:
    found = result_of(database, tmp_path, "double", values, v=("var_pop(x)", "double"))
    assert found["v"] in (INFINITY, -INFINITY) or found["v"] != found["v"]
    assert found["@problem"] is None, "the document refuses it"


def test_sums_are_exact_and_an_overflow_is_a_dead_letter(database: Database, tmp_path: Path) -> None:
    great = Decimal("9" * 34 + ".9999")
    sums = {"total": ("sum(x)", "decimal(38,4)"), "mean": ("avg(x)", "decimal(38,8)")}
    fits = result_of(
        database, tmp_path / "fits", "decimal(38,4)", [great, great.copy_negate(), Decimal("0.0001"), None], **sums
    )
    assert (fits["total"], fits["mean"], fits["@problem"]) == (Decimal("0.0001"), Decimal("0.00003333"), None)
    over = result_of(database, tmp_path / "over", "decimal(38,4)", [great] * 5_000, **sums)
    assert (over["total"], over["mean"]) == (None, None)
    assert "does not fit into a decimal(38,4)" in over["@problem"]
    whole = {"total": ("sum(x)", "long"), "mean": ("avg(x)", "double")}
    over = result_of(database, tmp_path / "long", "long", [2**63 - 1] * 3, **whole)
    assert (over["total"], over["mean"]) == (None, 2.0**63)
    assert "does not fit into a long" in over["@problem"]
    least = result_of(database, tmp_path / "least", "long", [-(2**63) + 1, -1, None], **whole)
    assert (least["total"], least["@problem"]) == (-(2**63), None)


@pytest.mark.guarantee("G401")
@pytest.mark.guarantee("G402")
def test_beyond_a_bound_it_agrees_with_the_operators(database: Database, tmp_path: Path) -> None:
    """More values, distinct values and bins than are kept."""
    wide = [-(1.01**at) for at in range(4_500, 0, -1)] + [1.01**at for at in range(4_500)] + [0.0] * 1_500
    aggregates = {
        "high": ("percentile(x, 0.9)", "double"),
        "low": ("approx_percentile(x, 0.1)", "double"),
        "about": ("approx_count_distinct(x)", "long"),
        "counted": ("count(distinct x)", "long"),
    }
    found = result_of(database, tmp_path / "wide", "double", wide, **aggregates)
    by_operator = operators_result("double", wide, **aggregates)
    assert found == by_operator
    assert (found["counted"], found["@problem"]) == (9_001, None)
    assert found["low"] > 0, "the lowest bins are one"
    many = result_of(database, tmp_path / "many", "long", list(range(10_001)), **aggregates)
    assert many == operators_result("long", list(range(10_001)), **aggregates)
    assert (many["counted"], "counts more than 10,000 distinct values" in many["@problem"]) == (None, True)


@pytest.mark.guarantee("G480")
@pytest.mark.guarantee("G481")
def test_arrays_are_those_of_the_operators(database: Database, tmp_path: Path) -> None:
    """Values that are alike, not a number, and more of them than are counted."""
    odd = [NAN, 5.0, INFINITY, None, -0.0, 5.0, 0.0, -INFINITY, 5.0]
    doubles = {
        "collected": ("collect_list(x, 5)", "array<double>"),
        "top": ("top_n(x, 3)", "array<double>"),
        "usual": ("most_frequent(x, 3)", "array<struct<value: double, count: long>>"),
        "bins": ("histogram(x, array(-1, 0, 5))", "array<long>"),
        "by": ("bottom_n_by(x, x, 9)", "array<double>"),
    }
    found = result_of(database, tmp_path / "odd", "double", odd, **doubles)
    of_operators = operators_result("double", odd, **doubles)
    assert repr(found).replace("-0.0", "0.0") == repr(of_operators).replace("-0.0", "0.0")
    assert (found["bins"], found["usual"][0]) == ([1, 0, 2, 5], {"value": 5.0, "count": 3})
    none = result_of(database, tmp_path / "none", "double", [None], **doubles)
    assert none == operators_result("double", [None], **doubles)
    assert [none[name] for name in doubles] == [[], [], [], [0, 0, 0, 0], []]
    many = list(range(10_001))
    usual = {"usual": ("most_frequent(x, 3)", "array<struct<value: long, count: long>>")}
    over = result_of(database, tmp_path / "many", "long", many, **usual)
    assert over == operators_result("long", many, **usual)
    assert (over["usual"], "more than 10,000 distinct values" in over["@problem"]) == (None, True)


def operators_result(kind: str, values: list[Any], **aggregates: tuple[str, str]) -> dict[str, Any]:
    operator = WindowOperator(stage_of(**aggregates), {"x": kind})
    rows = operator.rows(0, np.full(len(values), 1_000, np.int64), {"x": pa.array(values, arrow_type(kind))})
    row: dict[str, Any]
    (row,) = operator.step(operator.empty_state(), [rows], Closing(None, 60_000))[1].to_pylist()
    return row


def test_a_directory_may_have_any_name_and_what_duckdb_refuses_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "it's [a] *?"
    database = Database(directory / "spilled", 256)
    assert result_of(database, directory, "long", [1, 2], n=("count(*)", "long"))["n"] == 2
    with pytest.raises(PermanentError, match="DuckDB could not compute the audit"):
        list(database.query("SELECT * FROM nothing"))
    database.close()


def test_a_sort_larger_than_the_memory_goes_to_disk(database: Database, tmp_path: Path) -> None:
    spilled = False
    last = -1
    for batch in database.query(
        "SELECT hash(range) >> 1 AS h, range || repeat('x', 700) FROM range(500_000) ORDER BY h"
    ):
        spilled = spilled or any((tmp_path / "spilled").iterdir())
        assert last <= batch.column(0)[0].as_py()
        last = batch.column(0)[-1].as_py()
    assert spilled
