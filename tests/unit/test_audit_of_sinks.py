"""The audit of files and tables: what their writers wrote agrees, and each planted difference is found and named. Real Parquet
files and SQLite; what must be there is made here from the rows that were written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from strandline.core.errors import Conflict
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import Totals
from strandline.processing.audit.findings import find
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.parts import Account
from strandline.processing.audit.plan import AuditPlan, VersionSpan
from strandline.processing.audit.reconciliation import ComparisonResult, DeadLetterScope, Reconciler
from strandline.processing.audit.report import AuditReport, make_report, store_scopes
from strandline.processing.audit.sinks.audited_sinks import removed_before
from strandline.processing.audit.sinks.reading import sink_parts
from strandline.processing.audit.sinks.rows import computed_row
from strandline.processing.audit.stores import ROWS_SCHEMA
from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.emission.result_shapes import document_shape
from strandline.processing.operators.blobs import batch_of
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.results.document import DocumentShape
from strandline.results.sinks.files import reader as files
from strandline.results.sinks.files.writer import committed_files
from strandline.results.sinks.registry import form_of, sink_of, sink_writer, store_of
from strandline.results.sinks.sql import reader as tables
from strandline.results.writer import ELEMENT, EVENT_US, OFFSET, PARTITION, WINDOW_END, WINDOW_START, CommittedWriter
from tests.support.ledgers import a_slice
from tests.support.sinks import OWN_STORES

DAY_MS = 86_400_000
FIRST_MS = 1_714_521_600_000
"""2024-05-01T00:00:00Z; slice n holds a day."""
SLICES, ROWS = 3, 7
END_MS = FIRST_MS + SLICES * DAY_MS
STREAM = StreamSpec.from_document(
    {"stream": "farm", "schema": {"device": "string", "ts": "timestamp", "temp": "double", "cost": "decimal(10,2)?"}}
)


class Lab:
    """A job of two emissions, of records and of a window, each to files and to a table; and its audit.

    `use`: also to this sink of a package."""

    def __init__(self, directory: Path, use: str = "") -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'results.sqlite'}"
        self.settings = Settings(sql_sink_url=self.url)
        emits = {
            name: [
                {"files": {"path": str(directory / name)}},
                {"sql": {"table": name}},
                *([{"sink": {"use": use, "name": name}}] if use else []),
            ]
            for name in ("all", "minutes")
        }
        aggregate = {"n": "count(*)", "mean": "avg(temp)", "dear": "max(cost)", "tops": "top_n(temp, 2)"}
        window = {"name": "minutes", "tumbling": "1m", "by": ["device"], "aggregate": aggregate}
        document: dict[str, object] = {
            "pipeline": "power",
            "input": {"stream": "farm"},
            "event_time": {"field": "ts", "delay": "0s", "max_ahead": None, "idle_timeout": None},
            "steps": [{"emit": emits["all"], "name": "all"}, {"window": window, "emit": emits["minutes"]}],
        }
        self.pipeline = check(PipelineSpec.from_document(document), STREAM)
        self.wanted: list[Any] = []
        for number in range(1, SLICES + 1):
            self._write_slice(number)

    def _write_slice(self, number: int) -> None:
        for stage in self.pipeline.all_stages:
            for emit in stage.emits:
                shape = document_shape(self.pipeline, stage, emit, 1)
                batch, writer = a_batch(shape, number), sink_writer(self.settings, shape, emit)
                writer.prepare(None)
                report = writer.write_batches([batch], 1, number)
                assert report.created == ROWS
                if isinstance(writer, CommittedWriter):
                    writer.commit(number, 1, report.parts)
                self.wanted += [
                    computed_row(store_of(emit), sink_of(emit), one, time_of(number, row), is_good=True)
                    for row, one in enumerate(shape.documents(batch, 0, 0))
                ]

    def audit(self, requested: EndRange = EndRange(), **changed: Any) -> AuditReport:  # noqa: B008
        scope = {"minutes": EndRange(requested.after_ms, requested.up_to_ms or END_MS)}
        span = VersionSpan(1, self.pipeline, 1, 1, SLICES, scope)
        facts: dict[str, Any] = {"slice_first": 1, "slice_last": SLICES, "slice_committed": SLICES, "scope": scope}
        plan = AuditPlan("power", requested, (span,), **{**facts, **changed})
        directory = self.directory / "scratch"
        shutil.rmtree(directory, ignore_errors=True)
        compared = Table(directory / "compared", ROWS_SCHEMA)
        compared.create()
        with compared.writer("computed") as rows:
            rows.append(batch_of([row for row in self.wanted if requested.holds(row.end_ms)], ROWS_SCHEMA))
        parts, absent = sink_parts(self.settings, plan, compared)
        account = Account()
        for part in parts:
            account.add(part.run())
        scopes = store_scopes(plan, a_slice(SLICES + 1), removed_before(account.standing, absent))
        reconciler = Reconciler(scopes, DeadLetterScope({}, {}, None))
        database = Database(directory / "spilled", 64)
        try:
            found = find(database, compared, reconciler)
        finally:
            database.close()
        return make_report(plan, Totals(0, 0, {}, {}), [], found, reconciler, 0.0)

    def counts(self, **changed: Any) -> dict[str, dict[str, int]]:
        return {one.store.removeprefix(f"files:{self.directory}/"): one.counts for one in self.audit(**changed).stores}

    def files(self, stage: str) -> list[Path]:
        return sorted(Path(one) for one in committed_files(str(self.directory / stage)))

    def change(self, file: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        table = pq.ParquetFile(file).read()
        pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), table.schema), file)

    def ask(self, statement: str) -> list[Any]:
        engine = sa.create_engine(self.url)
        try:
            with engine.begin() as connection:
                found = connection.execute(sa.text(statement))
                return list(found) if found.returns_rows else []
        finally:
            engine.dispose()


def time_of(number: int, row: int) -> int:
    return FIRST_MS + (number - 1) * DAY_MS + row * 60_000


def a_batch(shape: DocumentShape, number: int) -> pa.RecordBatch:
    times_ms = [time_of(number, row) for row in range(ROWS)]
    values: dict[str, list[Any]] = {
        "device": [f'd{row}"\n' for row in range(ROWS)],
        "ts": [time_ms * 1000 for time_ms in times_ms],
        "temp": [row / 7 for row in range(ROWS)],
        "cost": [None if row % 3 == 0 else Decimal(row).scaleb(-1) for row in range(ROWS)],
        "n": [2**53 + row for row in range(ROWS)],
        "mean": [row / 3 if row else None for row in range(ROWS)],
        "dear": [Decimal(row).scaleb(-1) for row in range(ROWS)],
        "tops": [[1.0, row / 9] for row in range(ROWS)],
    }
    own: dict[str, Any] = {
        WINDOW_START: pa.array([time_ms - 60_000 for time_ms in times_ms], pa.int64()),
        WINDOW_END: pa.array(times_ms, pa.int64()),
        EVENT_US: pa.array([time_ms * 1000 + 7 for time_ms in times_ms], pa.int64()),
        PARTITION: pa.array([1] * ROWS, pa.int32()),
        OFFSET: pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()),
        ELEMENT: pa.array([row if row % 2 else None for row in range(ROWS)], pa.int32()),
    }
    return pa.RecordBatch.from_pydict(
        own | {name: pa.array(values[name], arrow_type(kind)) for name, kind in shape.fields}
    )


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(tables, "TABLE_PART_ROWS", 5)
    monkeypatch.setattr(files, "_MANIFESTS_A_PART", 2)
    monkeypatch.setenv("STRANDLINE_SQL_SINK_URL", f"sqlite:///{tmp_path / 'results.sqlite'}")
    return Lab(tmp_path)


def test_the_lab_writes_to_each_compared_sink(lab: Lab) -> None:
    """The sink of a package is in `test_package_sinks.py`."""
    kinds = {emit.kind for stage in lab.pipeline.all_stages for emit in stage.emits}
    assert kinds == {kind for kind in OWN_STORES if form_of(kind).is_compared}


@pytest.mark.guarantee(
    "G600",
    "In Parquet files and tables, the audit finds and names each row that is missing, extra, changed, in the name of "
    "another job, or repeated, and nothing else. It works for any range of time and while the job runs.",
    promise="the-audit-finds-every-difference",
)
def test_what_was_written_agrees_in_each_place_and_in_any_range(lab: Lab) -> None:
    report = lab.audit()
    assert report.outcome == "clean", report
    assert {one.counts.get("same") for one in report.stores if one.stage == "all"} == {SLICES * ROWS}
    assert [one.store for one in report.stores if one.stage] == sorted(
        [f"files:{lab.directory}/all", f"files:{lab.directory}/minutes", "table:all", "table:minutes"]
        + [one.store for one in report.stores if one.store.startswith("letters:")]
    )
    middle = EndRange(time_of(2, 2), time_of(2, 5))
    assert lab.audit(middle).outcome == "clean"
    assert {one.counts["same"] for one in lab.audit(middle).stores if one.stage} == {3}


@pytest.mark.guarantee("G600")
def test_each_planted_difference_in_files_is_found_and_named(lab: Lab) -> None:
    """A row that is gone, one that is changed, one twice, one that nothing leads to; and two values within rounding."""
    for stage, value in (("all", "temp"), ("minutes", "mean")):
        ids: list[str] = []

        def change(rows: list[dict[str, Any]], ids: list[str] = ids, value: str = value) -> list[dict[str, Any]]:
            ids += [row["strandline_id"] for row in rows]
            rows[2][value] += 0.5
            rows[4][value] *= 1 + 1e-11
            rows[5]["strandline_job"] = "another"
            return [*rows[1:], rows[3], {**rows[1], "strandline_id": "by-hand"}]

        lab.change(lab.files(stage)[1], change)
        report = lab.audit()
        of_stage = [one for one in report.sample if one.store == f"files:{lab.directory}/{stage}"]
        assert {(one.kind, one.id) for one in of_stage} == {
            ("missing", ids[0]),
            ("different", ids[2]),
            ("duplicate", ids[3]),
            ("different", ids[5]),
            ("extra", "by-hand"),
        }
        details = {one.id: one.detail for one in of_stage}
        assert details[ids[0]] == "belongs in day=2024-05-02"
        assert details[ids[2]].startswith(f"{value} is ") and "in the file, this run computed" in details[ids[2]]
        assert details[ids[5]].startswith("strandline.job is 'another' in the file")
        assert "power." in next(one.location for one in of_stage if one.id == "by-hand")
    assert {store for store, counts in lab.counts().items() if counts.keys() & {"missing", "extra"}} == {
        "all",
        "minutes",
    }


@pytest.mark.guarantee("G600")
def test_each_planted_difference_in_a_table_is_found_and_named(lab: Lab) -> None:
    ids = [row[0] for row in lab.ask("SELECT strandline_id FROM minutes ORDER BY strandline_id")]
    lab.ask(f"DELETE FROM minutes WHERE strandline_id = '{ids[4]}'")
    lab.ask(f"UPDATE minutes SET n = n + 1 WHERE strandline_id = '{ids[5]}'")
    lab.ask(f"UPDATE minutes SET tops = '[1.0]' WHERE strandline_id = '{ids[9]}'")
    lab.ask(f"UPDATE minutes SET strandline_emission = 9, device = NULL WHERE strandline_id = '{ids[10]}'")
    lab.ask("INSERT INTO minutes (strandline_id, n) VALUES ('by-hand', 3)")
    lab.ask("INSERT INTO minutes (strandline_id, strandline_job) VALUES ('of another job', 'other')")
    report = lab.audit()
    assert {(one.kind, one.store, one.id) for one in report.sample} == {
        ("missing", "table:minutes", ids[4]),
        ("different", "table:minutes", ids[5]),
        ("different", "table:minutes", ids[9]),
        ("different", "table:minutes", ids[10]),
        ("extra", "table:minutes", "by-hand"),
    }
    assert report.differences == 5
    assert "in the table, this run computed" in next(one.detail for one in report.sample if one.id == ids[5])


@pytest.mark.guarantee("G601")
def test_days_that_their_owner_has_removed_are_said_and_are_neither_missing_nor_clean(lab: Lab) -> None:
    (lab.directory / "all" / "day=2024-05-01").rename(lab.directory / "old")
    report = lab.audit()
    assert (report.outcome, report.differences) == ("incomplete", 0), report
    assert report.incomplete == (
        f"files:{lab.directory}/all has no files of days before 2024-05-02T00:00:00.000Z, so 7 results were not compared; "
        "to audit only later results, add --from 2024-05-02T00:00:00.000Z"
    )
    assert lab.counts()["all"] == {"same": 14, "removed": 7}
    from_ms = int(datetime(2024, 5, 2, tzinfo=UTC).timestamp() * 1000)
    assert lab.audit(EndRange(from_ms)).outcome == "clean"


@pytest.mark.guarantee(
    "G601",
    "The audit names lost or unreadable files and manifests. It reports sinks that don't exist, and files that their "
    "owner removed by days, oldest first. These are neither missing nor called clean.",
    promise="the-audit-finds-every-difference",
)
def test_a_file_between_others_is_lost_and_its_results_are_missing(lab: Lab) -> None:
    gone, broken = lab.files("all")[1], lab.files("minutes")[2]
    gone.unlink()
    broken.write_bytes(b"no Parquet")
    report = lab.audit()
    lost = {one.id: one.detail for one in report.sample if one.kind == "lost"}
    assert [Path(one or "").name for one in lost] == [gone.name, broken.name]
    assert [one for one in lost.values() if "with 7 results" in one] and [
        one for one in lost.values() if "can't" in one
    ]
    assert lab.counts()["all"] == lab.counts()["minutes"] == {"same": 14, "missing": 7, "lost": 1}


@pytest.mark.guarantee("G601")
def test_a_manifest_that_is_gone_or_none_is_found(lab: Lab) -> None:
    manifests = lab.directory / "all" / "_manifests" / "power" / "all" / "000000000"
    (manifests / "000000000002.json").unlink()
    (manifests / "000000000003.json").write_text("{}")
    assert lab.counts()["all"] == {"same": 7, "missing": 14, "lost": 1}


@pytest.mark.guarantee("G601")
def test_a_manifest_that_names_the_files_of_another_one_repeats_their_results(lab: Lab) -> None:
    manifests = lab.directory / "all" / "_manifests" / "power" / "all" / "000000000"
    shutil.copy(manifests / "000000000002.json", manifests / "000000000009.json")
    assert lab.counts()["all"] == {"same": 14, "duplicate": 7}


@pytest.mark.guarantee("G601")
def test_a_place_that_is_not_there_is_said(lab: Lab) -> None:
    shutil.rmtree(lab.directory / "minutes")
    lab.ask("DROP TABLE 'all'")
    report = lab.audit()
    assert (report.outcome, report.differences) == ("incomplete", 0)
    assert (
        "minutes does not exist, or the control service can't access it, so 21 results were not compared"
        in report.incomplete
    )
    assert "table:all does not exist" in report.incomplete


def test_a_table_without_the_platforms_columns_is_refused(lab: Lab) -> None:
    lab.ask("ALTER TABLE minutes DROP COLUMN strandline_time")
    with pytest.raises(Conflict, match="has no column strandline_time"):
        lab.audit()


@pytest.mark.guarantee("G600")
def test_what_later_slices_and_an_earlier_life_have_written_is_no_difference(lab: Lab) -> None:
    """Also where a table keeps what the earlier life has written under the same id."""
    window_ends = {"minutes": EndRange(None, time_of(2, ROWS))}
    lab.wanted = [row for row in lab.wanted if row.end_ms < time_of(3, 0)]
    counts = lab.counts(slice_last=2, slice_committed=2, scope=window_ends)
    assert counts["all"] == counts["table:all"] == counts["minutes"] == {"same": 14, "later": 7}
    lab.wanted = [row for row in lab.wanted if row.end_ms >= time_of(2, 0)]
    counts = lab.counts(slice_last=2, slice_committed=2, slice_first=2, slice_whole=2, scope=window_ends)
    assert counts["all"] == counts["minutes"] == {"same": 7, "later": 7}
    assert counts["table:all"] == counts["table:minutes"] == {"same": 7, "later": 7, "outside": 7}
    lab.ask("UPDATE minutes SET strandline_emission = 1")
    counts = lab.counts(slice_first=2, slice_whole=2)
    assert counts["table:minutes"] == {"same": 7, "outside": 14}


def test_what_a_sink_of_a_package_refuses_is_in_no_recomputation() -> None:
    document: dict[str, object] = {
        "pipeline": "power",
        "input": {"stream": "farm"},
        "event_time": {"field": "ts", "delay": "0s", "max_ahead": None, "idle_timeout": None},
        "steps": [{"emit": [{"sink": {"use": "paper", "name": "pad"}}], "name": "all"}],
    }
    span = VersionSpan(1, check(PipelineSpec.from_document(document), STREAM), 1, 1, SLICES, {})
    told = Totals(5, 5, {}, {"all": 5}, {"all": 1})
    plan = AuditPlan("power", EndRange(), (span,), 1, SLICES, SLICES, totals=told)
    judge = Reconciler(store_scopes(plan, a_slice(SLICES + 1)), DeadLetterScope({}, {}, None))
    report = make_report(plan, Totals(5, 5, {}, {"all": 5}), [], ComparisonResult({}, []), judge, 0.0)
    assert (report.outcome, report.totals_differences) == ("clean", [])
