"""Every sink does what `results/sinks/contract.py` says. A new sink needs a row in `STORES`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from strandline.core.errors import Conflict, Divergence, InvalidSettings, SinkUnavailable
from strandline.core.settings import Settings
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.pipelines.stages import Emit
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_client import request as ask
from strandline.results.sinks.contract import SinkUnderTest, batch_of, check_sink, record_shape, window_shape
from strandline.results.sinks.files.writer import FilesWriter, committed_files
from strandline.results.sinks.registry import PACKAGE, SINKS, kind_of_streams, sink_writer
from strandline.results.sinks.sql import writer as sql_writer
from strandline.results.sinks.sql.writer import SqlWriter, sql_url
from strandline.results.writer import WINDOW_END, WINDOW_START, CommittedWriter, StoreWriter
from tests.support.made_indices import writer_with_indices
from tests.support.plugins import forget_toys, install_toys
from tests.support.postgresql import new_database
from tests.support.sinks import write_and_commit


@dataclass
class Files:
    directory: Path

    @property
    def shape_changes(self) -> dict[str, object]:
        return {"emit_name": str(self.directory), "is_elsewhere": True}

    def writer(self, shape: DocumentShape) -> StoreWriter:
        return FilesWriter(str(self.directory), shape)

    def ids(self) -> list[str]:
        return [one for file in committed_files(str(self.directory)) for one in column(file, "strandline_id")]


def column(file: str, name: str) -> list[Any]:
    values: list[Any] = pq.ParquetFile(file).read([name]).column(0).to_pylist()
    return values


@dataclass
class Table:
    url: str
    name: str = "results"

    @property
    def shape_changes(self) -> dict[str, object]:
        return {"emit_name": self.name, "is_elsewhere": True}

    def writer(self, shape: DocumentShape) -> StoreWriter:
        return SqlWriter(sql_url(Settings(sql_sink_url=self.url)), self.name, shape)

    def ids(self) -> list[str]:
        return [row[0] for row in self.ask("SELECT strandline_id FROM results")]

    def ask(self, statement: str) -> list[Any]:
        engine = sa.create_engine(self.url)
        try:
            with engine.begin() as connection:
                found = connection.execute(sa.text(statement))
                return list(found) if found.returns_rows else []
        finally:
            engine.dispose()


@dataclass
class Index:
    url: str
    name: str

    @property
    def shape_changes(self) -> dict[str, object]:
        return {"emit_name": self.name}

    def writer(self, shape: DocumentShape) -> StoreWriter:
        return writer_with_indices(self.url, shape)

    def ids(self) -> list[str]:
        ask(self.url, "POST", f"/{self.name}-*/_refresh", timeout_s=30)
        found = ask(self.url, "POST", f"/{self.name}-*/_search", timeout_s=30, body={"size": 10_000, "_source": False})
        return [hit["_id"] for hit in found["hits"]["hits"]]


@dataclass
class OfPackage:
    directory: Path

    @property
    def shape_changes(self) -> dict[str, object]:
        return {"emit_name": "arrow:results", "is_elsewhere": True}

    def writer(self, shape: DocumentShape) -> StoreWriter:
        return sink_writer(Settings(), shape, Emit("sink", "arrow:results"))

    def ids(self) -> list[str]:
        from acme_sink.writer import read_file

        files = (self.directory / "results").glob("*.arrow")
        return [one for file in files for one in read_file(file).column("strandline_id").to_pylist()]


@contextmanager
def _files(request: pytest.FixtureRequest, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[SinkUnderTest]:
    yield Files(directory / "results")


@contextmanager
def _index(request: pytest.FixtureRequest, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[SinkUnderTest]:
    name = f"contract-{uuid.uuid4().hex}"
    url: str = request.getfixturevalue("elasticsearch")
    yield Index(url, name)
    ask(url, "DELETE", f"/{name}-2024.05", timeout_s=30, parameters={"ignore_unavailable": "true"})
    ask(url, "DELETE", f"/_index_template/strandline-{name}", timeout_s=30)


@contextmanager
def _sqlite(request: pytest.FixtureRequest, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[SinkUnderTest]:
    url = f"sqlite:///{directory / 'results.sqlite'}"
    patch.setenv("STRANDLINE_SQL_SINK_URL", url)
    yield Table(url)


@contextmanager
def _postgresql(request: pytest.FixtureRequest, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[SinkUnderTest]:
    with new_database(request.getfixturevalue("postgresql_url")) as url:
        patch.setenv("STRANDLINE_SQL_SINK_URL", url)
        yield Table(url)


@contextmanager
def _package(request: pytest.FixtureRequest, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[SinkUnderTest]:
    patch.setenv("ACME_ARROW_DIRECTORY", str(directory))
    install_toys(patch, "acme_sink")
    yield OfPackage(directory)
    forget_toys(patch)


STORES = {
    "files": ("files", _files),
    "sqlite": ("sql", _sqlite),
    "postgresql": ("sql", _postgresql),
    "elasticsearch": ("elasticsearch", _index),
    "package": (PACKAGE, _package),
}
"""Store -> its sink, and what opens a new, empty store."""


@pytest.fixture(params=STORES)
def sink(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SinkUnderTest]:
    _, opened = STORES[request.param]
    with opened(request, tmp_path, monkeypatch) as sink:
        yield sink


def test_each_sink_is_under_test() -> None:
    """The engine writes the records of a stream, so a stream has no writer that the suite could check."""
    assert {kind for kind, _ in STORES.values()} == set(SINKS) - {kind_of_streams()}


@pytest.mark.guarantee(
    "G243",
    "Results in Parquet files and PostgreSQL tables exist once, whatever is killed, for readers that follow the "
    "manifests or read the table. Another value under the same id stops the job. One test suite checks every sink.",
    promise="each-sink-contains-each-result-once",
)
@pytest.mark.parametrize("shape_of", [window_shape, record_shape])
def test_a_sink_keeps_the_contract(sink: SinkUnderTest, shape_of: Any) -> None:
    check_sink(sink, shape_of(sink))


def nested_shape(sink: SinkUnderTest) -> DocumentShape:
    """Return a shape with arrays and structs."""
    fields = (
        ("tops", "array<decimal(10,2)>"),
        ("usual", "array<struct<value: string, count: long>>"),
        ("at", "struct<t: timestamp>"),
    )
    shape = DocumentShape("contract", "job", "windows", 1, (("device", "string"),), fields)
    return replace(shape, **sink.shape_changes)  # type: ignore[arg-type]


def nested_batch(shape: DocumentShape, top: str) -> pa.RecordBatch:
    values: dict[str, Any] = {
        "device": "t-1",
        "tops": [Decimal(top), None],
        "usual": [{"value": "a\0'\"", "count": 2}, {"value": None, "count": 1}],
        "at": {"t": 1_700_000_000_000_001},
    }
    columns = {name: pa.array([values[name]], arrow_type(kind)) for name, kind in shape.fields}
    times = {WINDOW_START: pa.array([1_714_564_800_000]), WINDOW_END: pa.array([1_714_564_860_000])}
    return pa.RecordBatch.from_pydict(times | columns)


@pytest.mark.guarantee("G482")
def test_arrays_and_structs_are_written_once(sink: SinkUnderTest) -> None:
    """Writing the same values again changes nothing, and another value is an error."""
    shape = nested_shape(sink)
    writer = sink.writer(shape)
    writer.prepare(None)
    first = write_and_commit(writer, [nested_batch(shape, "1.50")], 1, 7)
    assert (first.created, first.refused) == (1, [])
    (id,) = sink.ids()
    again = write_and_commit(writer, [nested_batch(shape, "1.50")], 2, 7)
    assert again.already == (0 if isinstance(writer, CommittedWriter) else 1), (
        "a CommittedWriter compares in its commit"
    )
    with pytest.raises(Divergence):
        write_and_commit(writer, [nested_batch(shape, "2.50")], 3, 7)
    assert sink.ids() == [id]


@pytest.mark.guarantee("G482")
def test_files_contain_arrays_with_their_types(tmp_path: Path) -> None:
    files = Files(tmp_path / "results")
    shape = nested_shape(files)
    write_and_commit(files.writer(shape), [nested_batch(shape, "1.50")], 1, 7)
    (file,) = committed_files(str(files.directory))
    assert column(file, "tops") == [[Decimal("1.50"), None]]


@pytest.mark.guarantee("G482")
@pytest.mark.parametrize("sink", ["sqlite", "postgresql"], indirect=True)
def test_a_table_contains_arrays_and_structs_as_text(sink: Table) -> None:
    shape = nested_shape(sink)
    writer = sink.writer(shape)
    writer.prepare(None)
    write_and_commit(writer, [nested_batch(shape, "1.50")], 1, 7)
    assert sink.ask("SELECT tops, at FROM results") == [('["1.50",null]', '{"t":"2023-11-14T22:13:20.000001Z"}')]


@pytest.mark.guarantee("G243")
def test_files_lie_by_day_with_their_types(tmp_path: Path) -> None:
    files = Files(tmp_path / "results")
    writer = files.writer(record_shape(files))
    report = writer.write_batches([batch_of(record_shape(files), [1, 2, 3])], 4, 17)
    assert files.ids() == []
    assert isinstance(writer, FilesWriter)
    writer.commit(17, 4, report.parts)
    found = sorted(
        Path(file).relative_to(files.directory) for file in committed_files(str(files.directory), "job", "records")
    )
    assert [place.parent.name for place in found] == ["day=2024-05-01", "day=2024-05-02"]
    table = pq.ParquetFile(files.directory / found[1]).read()
    assert table.schema.field("cost").type == pa.decimal128(10, 2)
    assert table.schema.field("strandline_time").type == pa.timestamp("us", "UTC")
    assert table.to_pylist()[0]["strandline_emission"] == 17
    manifest = json.loads((files.directory / "_manifests/job/records/000000000/000000000017.json").read_text())
    assert (manifest["rows"], manifest["epoch"], len(manifest["files"])) == (3, 4, 2)
    parts = writer.write_batches([batch_of(record_shape(files), [1, 2])], 5, 17).parts
    with pytest.raises(Divergence, match="has 3 results of slice 17 of job job, but this run computed 2"):
        writer.commit(17, 5, parts)


def test_a_table_gets_new_columns_and_keeps_its_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(f"sqlite:///{tmp_path / 'results.sqlite'}")
    monkeypatch.setenv("STRANDLINE_SQL_SINK_URL", table.url)
    shape = DocumentShape("results", "job", "windows", 1, (), (("n", "long"),), is_elsewhere=True)
    table.writer(shape).prepare(None)
    wider = DocumentShape("results", "job", "windows", 2, (), (("n", "long"), ("peak", "double")), is_elsewhere=True)
    table.writer(wider).prepare(None)
    assert table.ask("SELECT n, peak FROM results") == []
    other = DocumentShape("results", "job", "windows", 3, (), (("n", "string"),), is_elsewhere=True)
    with pytest.raises(Conflict, match="column n of table results is BIGINT, and the results need TEXT"):
        table.writer(other).prepare(None)
    table.ask("CREATE TABLE foreign_one (a INTEGER)")
    with pytest.raises(Conflict, match="another program created it"):
        SqlWriter(table.url, "foreign_one", shape).prepare(None)


@pytest.mark.guarantee("G244")
def test_what_one_row_does_to_a_table_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text with NUL, and a row that the table itself refuses."""
    table = Table(f"sqlite:///{tmp_path / 'results.sqlite'}")
    monkeypatch.setenv("STRANDLINE_SQL_SINK_URL", table.url)
    shape = window_shape(table)
    writer = table.writer(shape)
    writer.prepare(None)
    table.ask(
        "CREATE TRIGGER no_seven BEFORE INSERT ON results WHEN NEW.n = 9 BEGIN SELECT RAISE(ABORT, 'no nine'); END"
    )
    batch = batch_of(shape, list(range(1, 21)))
    texts = batch.column("device").to_pylist()
    texts[4] = "a\0b"
    batch = batch.set_column(batch.schema.get_field_index("device"), "device", pa.array(texts))
    report = writer.write_batches([batch], 1, 1)
    assert (report.created, len(report.refused)) == (18, 2)
    assert {one.index for one in report.refused} == {"results"}
    assert any("no nine" in one.reason for one in report.refused)


@pytest.mark.guarantee("G244")
def test_a_row_that_exceeds_a_limit_of_the_database_spoils_no_other(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database refuses a text that is too long for an index, and a row that a trigger rejects.

    For both, the classes of the driver's errors say that the database is unavailable, or that the statement is wrong.
    """
    with new_database(postgresql_url) as url:
        monkeypatch.setenv("STRANDLINE_SQL_SINK_URL", url)
        table = Table(url)
        shape = window_shape(table)
        writer = table.writer(shape)
        writer.prepare(None)
        table.ask("CREATE INDEX devices ON results (device)")
        table.ask(
            "CREATE FUNCTION no_nine() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN IF NEW.n = 9 THEN RAISE EXCEPTION ''no nine''; END IF; RETURN NEW; END'"
        )
        table.ask("CREATE TRIGGER no_nine BEFORE INSERT ON results FOR EACH ROW EXECUTE FUNCTION no_nine()")
        batch = batch_of(shape, list(range(1, 21)))
        texts = batch.column("device").to_pylist()
        texts[4] = "".join(sha256(b"%d" % number).hexdigest() for number in range(60))
        batch = batch.set_column(batch.schema.get_field_index("device"), "device", pa.array(texts))
        report = writer.write_batches([batch], 1, 1)
        assert (report.created, len(report.refused)) == (18, 2)
        assert all(any(part in one.reason for one in report.refused) for part in ("exceeds btree", "no nine"))


@pytest.mark.guarantee("G798")
def test_a_table_that_another_client_locks_ends_the_write_in_time(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_writer, "_STATEMENT_S_MAX", 1)
    with new_database(postgresql_url) as url:
        monkeypatch.setenv("STRANDLINE_SQL_SINK_URL", url)
        table = Table(url)
        shape = window_shape(table)
        writer = replace(SqlWriter(url, table.name, shape), deadline_s=0.5)
        writer.prepare(None)
        with psycopg.connect(url.replace("+psycopg", "")) as other:
            other.execute("LOCK TABLE results IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(SinkUnavailable, match=r"accepts no results now: .*statement timeout"):
                writer.write_batches([batch_of(shape, [1])], 1, 1)
        assert writer.write_batches([batch_of(shape, [1])], 1, 1).created == 1


@pytest.mark.guarantee(
    "G244",
    "A pickled writer of a table contains no password. A row that the database refuses is a dead letter and affects "
    "no other row.",
    promise="each-sink-contains-each-result-once",
)
def test_no_password_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql+psycopg://writer:sesame@db/results"
    monkeypatch.setenv("STRANDLINE_SQL_SINK_URL", url)
    writer = Table(url).writer(DocumentShape("results", "job", "w", 1, (), (("n", "long"),), is_elsewhere=True))
    assert "sesame" not in repr(writer)
    with pytest.raises(InvalidSettings, match="is not set"):
        sql_url(Settings(sql_sink_url=None))
