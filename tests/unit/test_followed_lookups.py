"""Lookups whose rows are followed: what a document can say, how sources are read, and how a failure is reported."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from strandline.core.errors import (
    Conflict,
    InvalidDocument,
    InvalidSettings,
    LogTruncated,
    PermanentError,
    SourceUnavailable,
)
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import unpack_rows
from strandline.core.lookups.source import LookupSource
from strandline.ledger.ledger import Ledger
from strandline.ledger.lookups.sources import SourceRows
from strandline.ledger.states import LookupRow, Offsets
from strandline.processing.desk.case_run import run_case
from strandline.processing.desk.cases import CaseSpec
from strandline.processing.desk.desk import Desk
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.source.followed import query_rows as query_module
from strandline.processing.source.followed import reading
from strandline.processing.source.followed.query_rows import query_rows
from strandline.processing.source.followed.reading import SourceReader, wait_ms
from strandline.services.jobs.apply_documents import check_documents
from strandline.services.jobs.checking import check_without_stack
from strandline.services.supervision.lookups import follower as follower_module
from strandline.services.supervision.lookups.follower import LookupFollower
from tests.support.control import Api
from tests.support.memory_log import MemoryLog
from tests.support.typed_sources import TypedSources
from tests.support.waiting import wait_until

REGISTRY = """\
stream: registry
partitions: 2
key: device
schema: {device: string, owner: "string?", gone: "boolean?", load: "double?"}
"""
LOOKUP = """\
lookup: devices
schema: {device: string, owner: "string?"}
key: device
source: {stream: registry, deleted_if: gone}
"""
QUERY = """\
lookup: devices
schema: {device: string, owner: "string?"}
key: device
source: {sql: {database: crm, query: "select * from devices"}, every: 30s}
"""
STREAM = "stream: turbines\nschema: {device: string, ts: timestamp}\n"
PIPELINE = """\
pipeline: j
input: {stream: turbines}
event_time: {field: ts, delay: 1s}
steps:
  - enrich: {lookup: devices, key: device, add: [owner]}
  - emit: [{elasticsearch: out}]
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "stream: registry, deleted_if: gone",
            "every: 1m",
            ":4: source: a source is a stream or a query of a database",
        ),
        ("source:", "rows: []\nsource:", "exactly one of rows, file, and source; this lookup has rows and source"),
        ("deleted_if: gone", "every: 1s", ":4: source.every: is 1s; expected at least 5s"),
        ("deleted_if: gone", "max_age: 1m", ":4: source.max_age: is 1m, but the source is read every 1m"),
        ("stream: registry", "stream: registri", ":4: source.stream: there is no stream 'registri'; did you mean"),
        ("deleted_if: gone", "deleted_if: gonne", ":4: source.deleted_if: unknown column 'gonne'"),
        ("deleted_if: gone", "deleted_if: owner", ":4: source.deleted_if: "),
        ("deleted_if: gone", "deleted_if: max(gone)", ":4: source.deleted_if: contains an aggregate"),
        ("owner:", "ovner:", ":2: schema.ovner: stream 'registry' has no field 'ovner'; did you mean 'owner'?"),
        ('owner: "string?"', "owner: long", ":2: schema.owner: is a long, but a string in stream 'registry'"),
        (
            "key: device",
            "key: owner",
            "records with one owner can be in several partitions, where their order is unknown",
        ),
        ("stream: registry, deleted_if: gone", "sql: {database: crm, query: x}, deleted_if: gone", "is for a stream"),
        ("stream: registry, deleted_if: gone", "sql: {database: crm}", ":4: source.sql.query: "),
    ],
)
def test_what_is_wrong_in_a_source_is_told_with_field_and_line(old: str, new: str, expected: str) -> None:
    text = LOOKUP.replace('"string?"', "string") if new == "key: owner" else LOOKUP
    assert old in text
    with pytest.raises(InvalidDocument) as refused:
        check_documents(text.replace(old, new, 1) + "---\n" + REGISTRY, "a.yaml", {})
    found = [str(one) for one in refused.value.problems]
    assert [line for line in found if expected in line], "\n".join(found)


def test_changes_of_a_table_say_what_deletes_a_row() -> None:
    of_changes = REGISTRY.replace("partitions: 2\nkey: device", "partitions: 1\nformat: debezium")
    with pytest.raises(InvalidDocument, match="has changes of a table, which include deletions"):
        check_documents(LOOKUP.replace(", deleted_if: gone", "") + "---\n" + of_changes, "a.yaml", {})
    assert check_documents(LOOKUP + "---\n" + of_changes, "a.yaml", {}).lookups


def test_a_check_without_a_stack_needs_the_stream_that_a_lookup_follows() -> None:
    assert check_without_stack((LOOKUP + "---\n" + STREAM + "---\n" + PIPELINE).encode(), "a") is None
    for known in (LOOKUP + "---\n" + REGISTRY, QUERY):
        judged = check_without_stack("---\n".join((known, STREAM, PIPELINE)).encode(), "a")
        assert judged is not None
        assert judged.problems == []


# Applying, following, and reports about it


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    yield Api(ledger)
    ledger.close()


def applied(control: Api, *texts: str) -> list[tuple[str, int]]:
    answer = control.apply("---\n".join(texts))
    assert answer.status_code == 200, answer.text
    return [(one["outcome"], one["version"]) for one in answer.json()["applied"] if one["kind"] == "lookup"]


def look(control: Api) -> int:
    """Read what is due; everything is, since `TypedSources` begins without a pause."""
    return LookupFollower(control.ledger, control.sources, "me").look()


def owners(control: Api) -> dict[str, Any]:
    return control.ask("GET", "/v1/lookups/devices").json()


def test_a_lookup_begins_with_what_its_source_says_and_goes_with_it(control: Api) -> None:
    control.sources.rows = [{"device": "b"}, {"device": "a", "owner": "x"}]
    assert applied(control, REGISTRY, LOOKUP, STREAM, PIPELINE) == [("created", 1)]
    assert control.sources.readings == 1
    assert applied(control, LOOKUP) == [("unchanged", 1)]
    assert control.sources.readings == 1, "the same document reads nothing"
    control.sources.rows.reverse()
    assert (look(control), owners(control)["version"]) == (0, 1)
    assert control.ledger.due_lookups() == [], "it is read again after a minute"
    assert applied(control, LOOKUP.replace("deleted_if: gone", "every: 30s")) == [("changed", 2)]
    control.sources.rows.pop()
    assert look(control) == 1
    shown = owners(control)
    assert (shown["version"], shown["rows"], shown["jobs"]) == (3, 1, ["j"])
    assert [one["version"] for one in shown["versions"]] == [1, 2, 3]
    source = shown["source"]
    assert (source["description"], source["state"], source["every_ms"], source["max_age_ms"]) == (
        "stream registry", "current", 30_000, 300_000,
    )  # fmt: skip
    assert control.ledger.present_lookups(("devices",)) == {"devices": 3}


@pytest.mark.guarantee("G521")
def test_a_changed_document_brings_no_older_rows_back(control: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that reads the source meanwhile brings nothing, so one reading is enough, however often the rows change."""
    control.sources.rows = [{"device": "a", "owner": "old"}]
    applied(control, REGISTRY, LOOKUP)
    read_all, readings, brought = control.sources.read_all, list[Any](), list[int]()
    changed = LOOKUP.replace("deleted_if: gone", "every: 30s")

    def slowly(spec: LookupSpec) -> Any:
        readings.append(read_all(spec))
        control.sources.rows = [{"device": "a", "owner": f"new {len(readings)}"}]
        control.ledger.release_lookups("")  # as if its time had come again
        brought.append(look(control))
        return readings[-1]

    monkeypatch.setattr(control.sources, "read_all", slowly)
    assert applied(control, changed) == [("changed", 2)]
    assert brought == [0]
    assert look(control) == 1
    assert b"new 1" in unpack_rows(control.ledger.lookup_table(control.ledger.lookup("devices").digest))
    control.sources.error = SourceUnavailable("away")
    assert control.apply(changed.replace("30s", "40s")).status_code == 503
    assert control.ledger.due_lookups() == ["devices"], (
        "followers need not wait until a reading that failed would be too long"
    )


@pytest.mark.guarantee("G522")
def test_a_lookup_whose_source_can_not_be_read_is_not_applied(control: Api) -> None:
    control.sources.error = SourceUnavailable("database crm did not answer: refused")
    answer = control.apply(QUERY)
    assert (answer.status_code, "database crm did not answer" in answer.text) == (503, True)
    assert control.ledger.lookups() == []


@pytest.mark.guarantee(
    "G522",
    "A source that can't be read is refused when it is applied. If it fails later, its rows stay effective, and "
    "status, `/readyz`, metrics, and events report the failure and the age of the rows.",
    promise="a-failing-store-costs-no-result",
)
def test_a_source_that_can_not_be_read_is_told_loudly_and_its_rows_stay_in_force(
    control: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.sources.rows = [{"device": "a"}]
    applied(control, QUERY, STREAM, PIPELINE)
    control.sources.error = SourceUnavailable("database crm did not answer: refused")
    look(control)
    shown = owners(control)["source"]
    assert (shown["state"], shown["error"]) == ("failing", "database crm did not answer: refused")
    monkeypatch.setattr(LookupSource, "age_ms_max", 0)
    time.sleep(0.005)  # sleeps: so that the rows are older than the limit of 0 ms
    control.ledger.release_lookups("")
    look(control)
    assert owners(control)["source"]["state"] == "old"
    (warning,) = control.ask("GET", "/v1/jobs/j").json()["warnings"]
    told = r"lookup devices has the content of .* of \d+s ago, but must not be older than 0s: database crm did not"
    assert re.match(told, warning)
    ready = control.ask("GET", "/readyz")
    assert ready.status_code == 200
    assert re.match(told, ready.json()["checks"]["lookups"])
    metrics = control.ask("GET", "/metrics").text
    for line in (
        'strandline_lookup_is_old{lookup="devices"} 1.0',
        'strandline_lookup_is_failing{lookup="devices"} 1.0',
    ):
        assert line in metrics
    assert control.ledger.present_lookups(("devices",)) == {"devices": 1}
    control.sources.error = None
    control.ledger.release_lookups("")
    monkeypatch.undo()
    look(control)
    assert owners(control)["source"]["state"] == "current"
    kinds = [event.kind for event in control.ledger.events() if "lookup" in event.kind]
    assert kinds == ["lookup_failing", "lookup_read_again"], "once each, however often it is read"


def test_a_reading_whose_thread_can_not_be_started_takes_no_reader_for_ever(
    control: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(follower_module, "POLL_INTERVAL_S", 0.001)
    control.sources.rows = [{"device": "a"}]
    applied(control, QUERY)
    failures = [RuntimeError("can't start new thread")] * 2
    start = threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if "_follow_beside" in thread.name and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    follower = LookupFollower(control.ledger, control.sources, "me")
    control.sources.rows = [{"device": "b"}]
    follower.start()
    try:
        wait_until(lambda: control.ledger.present_lookups(("devices",)), {"devices": 2}.__eq__, "read")
    finally:
        follower.close()
    errors = [line.getMessage() for line in caplog.records if line.levelname == "ERROR"]
    assert len([error for error in errors if "start new thread" in error]) == 2, errors
    assert not follower._reading


class _SourcesWithSilentDatabase(TypedSources):
    """A reading of database `crm` doesn't return before `ends` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = threading.Event()

    def read_on(self, present: LookupRow, position: Offsets | None) -> SourceRows:
        source = LookupSpec.described(present.document).source
        assert source is not None
        if source.sql is not None and source.sql.database == "crm":
            self.ends.wait()
        return super().read_on(present, position)


@pytest.mark.guarantee(
    "G798",
    "A database that doesn't respond delays no lookup of another source. A job that writes to it reports the outage: "
    "a read ends after 35 s, and a transaction of a sink after two minutes.",
    promise="a-failing-store-costs-no-result",
)
def test_a_database_that_does_not_respond_leaves_readers_for_other_lookups(
    control: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "POLL_INTERVAL_S", 0.001)
    control.sources.rows = [{"device": "a"}]
    silent = [QUERY.replace("lookup: devices", f"lookup: a{number}") for number in range(follower_module.READERS)]
    applied(control, *silent, QUERY.replace("database: crm", "database: erp"))
    sources = _SourcesWithSilentDatabase()
    sources.rows = [{"device": "b"}]
    follower = LookupFollower(control.ledger, sources, "me")
    follower.start()
    try:
        wait_until(lambda: control.ledger.present_lookups(("devices",)), {"devices": 2}.__eq__, "read")
        assert control.ledger.present_lookups(("a0",)) == {"a0": 1}
    finally:
        sources.ends.set()
        follower.close()


def test_a_stream_that_a_lookup_follows_stays_and_keeps_what_it_needs(control: Api) -> None:
    applied(control, REGISTRY, LOOKUP)
    refused = control.apply(REGISTRY.replace("string?", "long?"))
    assert (refused.status_code, "lookup devices follows it, and" in refused.text) == (409, True)
    deleted = control.ask("DELETE", "/v1/streams/registry")
    assert (deleted.status_code, "lookup devices follows it" in deleted.text) == (409, True)


@pytest.mark.guarantee("G525")
def test_large_versions_come_no_faster_than_the_ledger_is_to_grow() -> None:
    source = LookupSource.from_document({"stream": "s", "every": "5s"})
    assert (wait_ms(source, None), wait_ms(source, 4_096)) == (5_000, 5_000)
    assert wait_ms(source, 450_000) == 450_000 * 1_000 // 4_096
    seldom = LookupSource.from_document({"stream": "s", "every": "1h"})
    assert (wait_ms(seldom, 1), wait_ms(seldom, 1, is_current=False)) == (3_600_000, 5_000)


# Streams


def reader_of(tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> tuple[Api, SourceReader]:
    control = Api(Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite"))
    monkeypatch.setattr(reading, "LogReader", log.reader)
    memory: Any = log
    sources = SourceReader(control.ledger, memory, dict)
    control.sources.read_all, control.sources.read_on = sources.read_all, sources.read_on  # type: ignore[method-assign]
    return control, sources


@pytest.mark.guarantee(
    "G523",
    "A lookup that follows a stream doesn't continue if records were removed before it read them, or if the topic was "
    "recreated under the same name.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_a_stream_that_lost_records_before_they_were_read_is_read_anew_only_when_somebody_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog("registry", 2)
    control, _ = reader_of(tmp_path, log, monkeypatch)
    log.append(0, b'{"device":"a","owner":"x"}', b"a")
    log.append(1, b'{"device":"b"}', b"b")
    assert applied(control, REGISTRY, LOOKUP) == [("created", 1)]
    reads = log.reads
    control.ledger.release_lookups("")
    assert (look(control), log.reads) == (0, reads), "nothing has come, so nothing is read"
    log.append(0, b'{"device":"a","gone":true}', b"a")
    log.append(0, b'{"device":"c"}', b"c")
    log.lose_up_to(0, 2)
    for _ in range(2):
        control.ledger.release_lookups("")
        assert look(control) == 0
        shown = owners(control)
        assert (shown["rows"], shown["source"]["state"]) == (2, "failing")
        assert "apply the lookup's document again" in shown["source"]["error"]
    assert applied(control, LOOKUP) == [("changed", 2)]
    assert (owners(control)["rows"], owners(control)["source"]["state"]) == (2, "current"), "b and c"
    control.ledger.close()


@pytest.mark.guarantee("G523")
def test_a_topic_that_was_made_anew_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog("registry", 2)
    control, sources = reader_of(tmp_path, log, monkeypatch)
    applied(control, REGISTRY, LOOKUP)
    log.topic_id = "id-2"
    with pytest.raises(Conflict, match="topic registry was deleted and recreated"):
        sources.read_on(control.ledger.lookup("devices"), {"registry": {0: 0, 1: 0}})
    log.topic_id = "id-1"
    log.append(0, b'{"device":"a"}')
    with pytest.raises(LogTruncated, match="holds offsets 0 to 1, but must be read from 7 on"):
        sources.read_on(control.ledger.lookup("devices"), {"registry": {0: 7, 1: 0}})
    for number in range(3):
        log.append(0, json.dumps({"device": f"d{number}"}).encode())
    monkeypatch.setattr(reading, "ROWS_MAX", 2)
    with pytest.raises(Conflict, match="stream registry has more than 2 keys"):
        sources.read_on(control.ledger.lookup("devices"), {"registry": {0: 0, 1: 0}})
    control.ledger.close()


# Databases


def database(directory: Path, *statements: str) -> str:
    with sqlite3.connect(directory / "crm.sqlite") as connection:
        for statement in statements:
            connection.execute(statement)
    return f"sqlite:///{directory / 'crm.sqlite'}"


def spec_of(query: str, schema: str = "device: string, owner: 'string?'") -> LookupSpec:
    document = {
        "lookup": "devices",
        "schema": dict(one.strip().split(": ", 1) for one in schema.replace("'", "").split(", ")),
        "key": "device",
        "source": {"sql": {"database": "crm", "query": query}},
    }
    return LookupSpec.from_document(document)


DEVICES = (
    "create table devices (device text, owner text, on_ integer, load numeric, since text)",
    "insert into devices values ('b', null, 1, 1.5, '2026-01-01T00:00:00Z'), ('a', 'x:y %', 0, 2, null)",
)


def test_the_rows_of_a_query_have_the_types_of_the_schema_and_the_order_of_their_keys(tmp_path: Path) -> None:
    url = database(tmp_path, *DEVICES)
    query = (
        "select device, owner, on_, load, since from devices where owner like '%:y \\%' escape '\\' or 1 = 1 -- all;"
    )
    spec = spec_of(query, "device: string, owner: string?, on_: boolean, load: double, since: timestamp?")
    rows = query_rows(spec, url)
    assert sorted(rows) == [("a",), ("b",)]
    assert rows["a",] == {"device": "a", "owner": "x:y %", "on_": False, "load": 2.0, "since": None}
    assert rows["b",]["since"] == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.guarantee(
    "G524",
    "A query of a lookup changes nothing in its database, is one statement, ends in time, and returns a bounded "
    "number of rows. No error shows the database's password.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize(
    ("query", "kind", "expected"),
    [
        ("select device from devices", Conflict, "the query's columns must be the lookup's fields, and it lacks owner"),
        ("select device, owner, load from devices", Conflict, "it has also load; select them by these names"),
        ("select nowhere as device from devices", Conflict, "database crm refuses the query: no such column: nowhere"),
        ("select null as device, owner from devices", Conflict, "device: expected a string, got null"),
        ("select 'a' as device, owner from devices", Conflict, "has the same key device 'a' as another row"),
        ("select device, 1 as owner from devices", Conflict, "owner: expected a string"),
        ("select device, x'00' as owner from devices", Conflict, "a bytes for owner, which is no value of a lookup"),
        ("select 1) as x; drop table devices; select * from (select 2", Conflict, "refuses the query: "),
        ("delete from devices returning device, owner", Conflict, "refuses the query: "),
    ],
)
def test_a_query_that_can_not_give_the_rows_is_refused(
    query: str, kind: type[Exception], expected: str, tmp_path: Path
) -> None:
    url = database(tmp_path, *DEVICES)
    with pytest.raises(kind) as refused:
        query_rows(spec_of(query), url)
    assert expected in str(refused.value)
    with sqlite3.connect(tmp_path / "crm.sqlite") as connection:
        assert connection.execute("select count(*) from devices").fetchone() == (2,)


@pytest.mark.guarantee("G524")
def test_what_reads_a_database_can_not_write_there(tmp_path: Path) -> None:
    url = database(tmp_path, *DEVICES)
    with pytest.raises(Conflict, match="readonly"), query_module.reading("crm", url) as connection:
        connection.exec_driver_sql("delete from devices")


@pytest.mark.guarantee("G524")
def test_a_query_ends_in_time_and_gives_no_more_rows_than_a_lookup_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = database(tmp_path)
    count = (
        "with recursive n(i) as (select 1 union all select i + 1 from n {}) select i as device, null as owner from n"
    )
    monkeypatch.setattr(query_module, "ROWS_MAX", 5)
    with pytest.raises(Conflict, match="gives more than the 5 rows"):
        query_rows(spec_of(count.format("limit 9"), "device: long, owner: string?"), url)
    monkeypatch.setattr(query_module, "QUERY_S_MAX", 0)
    with pytest.raises(SourceUnavailable, match="database crm did not answer: interrupted"):
        query_rows(spec_of(count.format("") + " where i < 0", "device: long, owner: string?"), url)


def test_a_server_that_accepts_and_sends_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "CONNECT_S_MAX", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://reader@127.0.0.1:{silent.getsockname()[1]}/crm"
        with pytest.raises(SourceUnavailable, match=r"database crm did not answer: .*timeout"):
            query_rows(spec_of("select 1"), url)


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.guarantee("G524")
def test_no_error_of_a_database_shows_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of("select 1")
    with pytest.raises(SourceUnavailable, match="database crm did not answer: ") as away:
        query_rows(spec, "postgresql+psycopg://reader:hush-hush@127.0.0.1:1/hush-hush")
    assert "hush-hush" not in str(away.value)
    for url, kind in (("mysql://u:hush-hush@h/db", InvalidSettings), ("hush-hush", InvalidSettings)):
        with pytest.raises(kind) as refused:
            query_rows(spec, url)
        assert "hush-hush" not in str(refused.value)
    told = sa.exc.OperationalError("select", {}, Exception("no login for reader with hush%2Fhush or hush/hush"))
    with monkeypatch.context() as patch:
        patch.setattr(query_module, "_connected", lambda url: _raise(told))
        with pytest.raises(SourceUnavailable) as refused:
            query_rows(spec, "postgresql+psycopg://reader:hush%2Fhush@127.0.0.1/db")
    assert str(refused.value) == "database crm did not answer: no login for reader with *** or ***"
    with pytest.raises(SourceUnavailable, match="there is no file"):
        query_rows(spec, f"sqlite:///{tmp_path}/none.sqlite")
    ledger: Any = None
    with pytest.raises(InvalidSettings, match=r"STRANDLINE_SQL_SOURCES names no database 'crm' \(it names: erp\)"):
        SourceReader(ledger, ledger, lambda: {"erp": "sqlite:///x"}).read_all(spec)


# At the desk


def test_at_the_desk_the_rows_come_from_a_file(tmp_path: Path) -> None:
    text = "---\n".join((LOOKUP, REGISTRY, STREAM, PIPELINE)).encode()
    with pytest.raises(
        PermanentError, match="lookup devices has no rows here, because it follows a stream or a database"
    ):
        Desk(read_pipeline(text, "a"))
    (tmp_path / "a.yaml").write_bytes(text)
    (tmp_path / "devices.csv").write_text("device,owner\na,x\n")
    checked = read_pipeline(text, "a", rows={"devices": tmp_path / "devices.csv"})
    assert checked.tables["devices"].rows.to_pylist() == [{"device": "a", "owner": "x"}]
    with pytest.raises(InvalidDocument, match="holds no lookup 'device'; did you mean 'devices'"):
        read_pipeline(text, "a", rows={"device": tmp_path / "devices.csv"})
    case = {
        "test": "owners",
        "file": "a.yaml",
        "lookups": {"devices": "devices.csv"},
        "steps": [{"record": {"device": "a", "ts": 1}}, {"record": {"device": "b", "ts": 2}}],
        "expect": {"results": [{"owner": "x"}], "dead_letters": [{"reason": "lookup", "offset": 1}]},
    }
    report = run_case(CaseSpec.from_document(case), tmp_path)
    assert report.passed, report
