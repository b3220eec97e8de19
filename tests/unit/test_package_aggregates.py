"""Aggregate functions that packages add: those of `tests/plugins/acme_aggregates` are defined outside of Strandline.

Each one keeps the contract as a function of Strandline does: the check, the operators in any slices, the audit, and its docs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from strandline.core.errors import FunctionUnusable, InvalidDocument
from strandline.processing.aggregates.registry import (
    BUILT_IN,
    function_of,
    package_functions,
    packages_of,
    require_packages,
)
from strandline.processing.audit_queries.stage_query import query_of
from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.operators.cascade import Cascade
from strandline.processing.operators.closing import Closing
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.expressions import ExpressionError, parse_expression
from strandline.processing.pipelines.row_step import Column
from strandline.processing.pipelines.stages import LEFT, RecordPath, Stage, StageInput
from tests.support.plugins import forget_toys, install_toys
from tests.unit.test_aggregate_reference import STREAM, document

TOYS = ("product", "weighted_mean")


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install_toys(monkeypatch, "acme_aggregates")
    yield
    forget_toys(monkeypatch)


def install(directory: Path, package: str, entry_points: str, module: str = "") -> None:
    """Put a package with these entry points there."""
    metadata = directory / f"{package}-2.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
    (metadata / "entry_points.txt").write_text(f"[strandline.aggregates]\n{entry_points}\n")
    (directory / f"{package.replace('-', '_')}.py").write_text(module)


@pytest.mark.parametrize("name", TOYS)
def test_the_example_of_its_docs_has_its_value(name: str) -> None:
    for docs in function_of(name).docs:
        assert document({"value": docs.example})["value"] == pytest.approx(docs.value)
        assert document({"value": docs.example}, slice_records=1)["value"] == pytest.approx(docs.value), (
            "a record a slice"
        )


@pytest.mark.parametrize("sql", ["product(x)", "weighted_mean(x, n)", "product(x) filter (where n > 0) + count(*)"])
def test_the_audit_computes_what_the_operators_compute(sql: str, tmp_path: Path) -> None:
    chance = Random(7)
    count = 400
    times = pa.array([chance.randrange(40 * 60_000) * 1_000 for _ in range(count)], pa.int64())
    columns = {
        "key": pa.array([chance.choice("aab") for _ in range(count)]),
        "x": pa.array([chance.choice([None, 0.5, 1.5, -2.0]) for _ in range(count)], pa.float64()),
        "n": pa.array([chance.choice([None, 0, 3, -1]) for _ in range(count)], pa.int64()),
    }
    types = {"key": "string", "x": "double", "n": "long"}
    read = StageInput(tuple(types.items()), (RecordPath(0, ()),))
    stage = Stage(
        "some", WindowShape(60_000, 60_000), ("key",), ("string",), (Column("v", sql, "double"),), (), (read,), 0
    )
    query = query_of(stage, LEFT, types)
    table = Table(tmp_path / "rows", query.row_schema)
    table.create()
    with table.writer("some") as rows:
        rows.append(query.rows(times, columns))
    database = Database(tmp_path / "spilled", 256)
    try:
        audited = {
            (row["@window_end_ms"], row["key"]): row["v"]
            for batch in query.results(database, table)
            for row in batch.to_pylist()
        }
    finally:
        database.close()
    cascade = Cascade([stage], 1)
    chunks = [chunk for _, chunk in cascade.cut(0, 0, times, columns)]
    found = cascade.step(None, chunks, Closing(None, 10**13)).results[0].rows.to_pylist()
    assert len(found) > 50
    assert sum(row["v"] is None for row in found) < len(found) / 2
    for row in found:
        other = audited.pop((row["@window_end_ms"], row["key"]))
        assert row["v"] is other is None or math.isclose(row["v"], other, rel_tol=1e-9), row
    assert not audited


def test_its_package_is_a_part_of_what_results_depend_on() -> None:
    text = STREAM.replace("AGGREGATES", "{v: product(flow), n: count(*)}")
    pipeline = read_pipeline(text.encode(), "pumps.yaml")
    assert pipeline.packages == {"product": "acme-aggregates 1.0"}
    assert pipeline.stages[0].identity["packages"] == [["product", "acme-aggregates 1.0"]]
    without = read_pipeline(text.replace("v: product(flow), ", "").encode(), "pumps.yaml")
    assert "packages" not in without.stages[0].identity


def test_another_release_than_where_the_job_was_started_stops_it() -> None:
    require_packages(packages_of(["product", "count"]))
    with pytest.raises(FunctionUnusable) as stopped:
        require_packages({"product": "acme-aggregates 0.9"})
    assert "product belongs to acme-aggregates 1.0 here, but to acme-aggregates 0.9 where the job was started" in str(
        stopped.value
    )
    with pytest.raises(FunctionUnusable, match="gone belongs to no package here, but to acme 1 where"):
        require_packages({"gone": "acme 1"})


def test_a_call_of_another_form_is_refused_as_one_of_strandline_is() -> None:
    with pytest.raises(InvalidDocument, match=r"v: WEIGHTED_MEAN\(flow\): expected weighted_mean\(x, w\)"):
        read_pipeline(STREAM.replace("AGGREGATES", "{v: weighted_mean(flow)}").encode(), "pumps.yaml")
    with pytest.raises(InvalidDocument, match="expected a number, got a string"):
        read_pipeline(STREAM.replace("AGGREGATES", "{v: product(state)}").encode(), "pumps.yaml")
    with pytest.raises(ExpressionError, match=r"unknown function 'produkt'.*did you mean 'product'"):
        parse_expression("produkt(x)")


def test_no_package_replaces_a_function_of_strandline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "acme-sums", "sum = acme_sums:SUM\nupper = acme_sums:UPPER")
    monkeypatch.syspath_prepend(tmp_path)
    install_toys(monkeypatch)
    assert "sum" not in package_functions()
    assert document({"value": "sum(level)"})["value"] is not None
    assert function_of("sum") in BUILT_IN
    assert not parse_expression("upper(x)").is_aggregate


@pytest.mark.parametrize(
    ("entry_point", "module", "said"),
    [
        (
            "product = acme_more:P",
            "P = 1",
            "is in acme-aggregates 1.0 and in acme-more 2.0; uninstall all except one of them",
        ),
        (
            "other = acme_more:P",
            "P = 1",
            "the aggregate function other of acme-more 2.0 is a int, not a AggregateFunction",
        ),
        ("other = acme_more:P", "1 / 0", "can't be imported: ZeroDivisionError: division by zero"),
        (
            "other = acme_more:P",
            "from acme_aggregates.product import PRODUCT as P",
            "the aggregate function other of acme-more 2.0 calls itself product",
        ),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_where_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry_point: str, module: str, said: str
) -> None:
    install(tmp_path, "acme-more", entry_point, module)
    monkeypatch.syspath_prepend(tmp_path)
    install_toys(monkeypatch)
    name = entry_point.partition(" ")[0]
    with pytest.raises(InvalidDocument) as refused:
        read_pipeline(STREAM.replace("AGGREGATES", f"{{v: {name}(flow)}}").encode(), "pumps.yaml")
    assert said in str(refused.value)
    read_pipeline(STREAM.replace("AGGREGATES", "{v: sum(flow)}").encode(), "pumps.yaml")
