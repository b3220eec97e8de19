"""Lookups follow a stream and a table of PostgreSQL while their readers are killed.

Versions are what the sources said, in their order, and each record is enriched by the version of its slice.

The contents of a version are read from the ledger as any client can. What the sources said is known here from what was
sent.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from strandline.core.documents import read_documents
from strandline.core.errors import Conflict, SourceUnavailable
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import unpack_rows
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.admin import KafkaAdmin
from strandline.log.topics import Topics
from strandline.processing.formats.lookups.documents import read_lookup
from strandline.processing.source.followed import query_rows as query_module
from strandline.processing.source.followed.query_rows import query_rows
from strandline.processing.source.followed.query_rows import reading as reading_of
from strandline.processing.source.followed.reading import SourceReader
from strandline.services.jobs.applying.lookup_changes import LookupChanges
from strandline.services.processes.pids import PidFile
from strandline.services.supervision.lookups.follower import LookupFollower
from tests.support.postgresql import new_database
from tests.support.steady_sender import SteadySender
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched, wait_until

JOB = "following"
DOCUMENTS = f"""
stream: {JOB}-registry
partitions: 1
key: device
schema: {{device: string, owner: "string?", gone: "boolean?"}}
---
stream: {JOB}-in
partitions: 2
key: device
schema: {{device: string, ts: timestamp, site: string, power: long}}
---
lookup: {JOB}-devices
schema: {{device: string, owner: string}}
key: device
source: {{stream: {JOB}-registry, deleted_if: gone, every: 5s}}
---
lookup: {JOB}-sites
schema: {{site: string, factor: long}}
key: site
source: {{sql: {{database: crm, query: "select site, factor from sites"}}, every: 5s}}
---
pipeline: {JOB}
input: {{stream: {JOB}-in}}
event_time: {{field: ts, delay: 5s, max_ahead: null, idle_timeout: null}}
steps:
  - enrich: {{lookup: {JOB}-devices, key: device, add: [owner], optional: true}}
  - enrich: {{lookup: {JOB}-sites, key: site, add: [factor]}}
  - window: {{name: short, tumbling: 10s, by: [owner], aggregate: {{n: count(*), total: sum(power * factor)}}}}
    emit: [{{elasticsearch: {JOB}-short}}]
"""
BASE_MS = 1_700_000_000_000 // 60_000 * 60_000
KILLS = 2


SOURCES = """
lookup: devices
schema: {device: string, owner: string}
key: device
source: {stream: registry, every: 5s}
---
lookup: sites
schema: {site: string, factor: long}
key: site
source: {sql: {database: crm, query: "select site, factor from sites order by factor;"}, every: 5s}
"""
NONE = {"sql": {"database": "crm", "query": "select site, factor from none"}}


def record(number: int) -> bytes:
    made = {"device": f"d{number % 4}", "ts": BASE_MS + number * 100, "site": "AB"[number % 2], "power": number % 50}
    return json.dumps(made).encode()


def kill_control(platform: Any) -> None:
    control = psutil.Process(PidFile(platform.stack.data_dir).all()["control"])
    control.kill()
    control.wait(stretched(60))
    platform.stack.start_control()


@pytest.mark.guarantee("G521")
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_lookups_follow_a_stream_and_a_database_through_a_kill_of_who_reads_them(
    platform: Any, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(62)
    with new_database(postgresql_url) as url:
        monkeypatch.setenv("STRANDLINE_SQL_SOURCES", json.dumps({"crm": url}))
        engine = sa.create_engine(url)
        tables = [{"A": 1, "B": 1}]
        with engine.begin() as connection:
            connection.execute(sa.text("create table sites (site text primary key, factor bigint)"))
            connection.execute(sa.text("insert into sites values ('A', 1), ('B', 1)"))
        kill_control(platform)  # the next one knows the database
        platform.apply(DOCUMENTS)
        ledger = Ledger.open(platform.stack.addresses.ledger_url)
        registry: list[dict[str, Any]] = []
        sender = SteadySender(platform, f"{JOB}-in", record)
        sender.start()
        try:
            platform.wait_for(JOB, lambda state: state["slice"] is not None, "at work by the first versions")
            for number in range(KILLS * 4):
                change = {"device": f"d{chance.randrange(4)}", "owner": f"o{number}"}
                registry.append({**change, "gone": True} if chance.random() < 0.3 else change)
                platform.send(f"{JOB}-registry", [json.dumps(registry[-1]).encode()])
                with engine.begin() as connection:
                    connection.execute(sa.text("update sites set factor = :factor"), {"factor": number + 2})
                tables.append({"A": number + 2, "B": number + 2})
                time.sleep(chance.random() * 4)  # sleeps: the instant of the kill
                if number % 4 == 3:
                    kill_control(platform)

            wait_until(
                lambda: (rows_of(ledger, f"{JOB}-devices"), rows_of(ledger, f"{JOB}-sites")),
                lambda rows: rows == (after(registry), tables[-1]),
                "as their sources",
                timeout_s=120,
            )
            present = ledger.present_lookups((f"{JOB}-devices", f"{JOB}-sites"))

            def goes_by_the_newest(state: dict[str, Any]) -> bool:
                last = ledger.last_slice(JOB)
                return last is not None and last.lookup_versions == present

            platform.wait_for(JOB, goes_by_the_newest, "at work by the newest versions")
        finally:
            sender.end()
        platform.stop(JOB, drain=True)
        assert in_order(ledger, f"{JOB}-devices", [after(registry[:end]) for end in range(len(registry) + 1)])
        assert in_order(ledger, f"{JOB}-sites", tables)
        assert wrong(platform, ledger) == []
        report = platform.audit(JOB)
        assert (report["outcome"], report["differences"]) == ("clean", 0), report
        engine.dispose()
    told = wait_until(lambda: state_of(platform), lambda state: state["state"] == "failing", "failing", timeout_s=60)
    assert told["error"].startswith("database crm ")
    ledger.close()


def follow_until_killed(ledger_url: str, kafka: str, url: str, has_begun: Event) -> None:
    """Do what a control service does for lookups, in a separate process."""
    ledger = Ledger.open(ledger_url)
    sources = SourceReader(ledger, KafkaAdmin(kafka, timeout_s=30), lambda: {"crm": url})
    LookupFollower(ledger, sources, "reader").start()
    has_begun.set()
    while True:
        time.sleep(60)  # sleeps: until it is killed


@pytest.mark.guarantee("G521")
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_who_reads_is_killed_and_the_next_goes_on_where_the_last_version_ends(
    kafka: str, postgresql_url: str, tmp_path: Path
) -> None:
    """Without a job: real records, tombstones among them, and a real table."""
    chance = random.Random(62)
    registry = StreamSpec.from_document(
        {"stream": "registry", "partitions": 3, "key": "device", "schema": {"device": "string", "owner": "string"}}
    )
    ledger_url = f"sqlite:///{tmp_path}/ledger.sqlite"
    ledger = Ledger.open(ledger_url)
    topic = Topics(kafka, replication=1, record_bytes_max=1_000_000).ensure_stream_topic(registry)
    ledger.put_stream("registry", registry.as_document())
    ledger.set_topic_id("registry", topic.topic_id)
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    sent: list[tuple[str, str | None]] = []

    def send(count: int) -> None:
        for _ in range(count):
            device = f"d{chance.randrange(6)}"
            owner = None if chance.random() < 0.3 else f"o{len(sent)}"
            value = None if owner is None else json.dumps({"device": device, "owner": owner}).encode()
            producer.produce("registry", value, device, partition=int(device[1:]) % 3)
            sent.append((device, owner))
        assert producer.flush(60) == 0

    def expected() -> dict[str, Any]:
        return {device: owner for device, owner in dict(sent).items() if owner is not None}

    with new_database(postgresql_url) as url:
        engine = sa.create_engine(url)
        tables = [{"A": 1}]
        with engine.begin() as connection:
            connection.execute(sa.text("create table sites (site text primary key, factor numeric)"))
            connection.execute(sa.text("insert into sites values ('A', 1)"))
        send(20)
        sources = SourceReader(ledger, KafkaAdmin(kafka, timeout_s=30), lambda: {"crm": url})
        changes = LookupChanges(ledger, sources)
        for document in read_documents(SOURCES, "test.yaml"):
            lookup = read_lookup(document)
            changes.apply(lookup, changes.check(lookup, ()), None)
        assert rows_of(ledger, "devices") == expected()
        assert rows_of(ledger, "sites") == tables[-1]
        for life in range(KILLS + 1):
            # Not forked: what Kafka's client has made here must not be collected as garbage there.
            spawn = multiprocessing.get_context("spawn")
            has_begun = spawn.Event()
            reading = spawn.Process(target=follow_until_killed, args=(ledger_url, kafka, url, has_begun))
            reading.start()
            assert has_begun.wait(stretched(120))
            for number in range(3):
                send(5)
                tables.append({"A": tables[-1]["A"] + 1, f"B{number}": 7})
                with engine.begin() as connection:
                    connection.execute(sa.text("delete from sites"))
                    for site, factor in tables[-1].items():
                        row = {"site": site, "factor": factor}
                        connection.execute(sa.text("insert into sites values (:site, :factor)"), row)
                time.sleep(chance.random() * 6)  # sleeps: the instant of the kill
            if life < KILLS:
                reading.kill()
                reading.join(stretched(60))
        try:
            wait_until(
                lambda: (rows_of(ledger, "devices"), rows_of(ledger, "sites")),
                lambda rows: rows == (expected(), tables[-1]),
                "as their sources",
                timeout_s=300,
            )
        finally:
            reading.kill()
            reading.join(stretched(60))
        assert in_order(ledger, "sites", tables)
        assert ledger.lookup_sources()["devices"].skipped == 0
        assert ledger.lookup("devices").version > 2
        with pytest.raises(Conflict, match='relation "none" does not exist'):
            query_rows(LookupSpec.described({**ledger.lookup("sites").document, "source": NONE}), url)
        with pytest.raises(Conflict, match="read-only transaction"), reading_of("crm", url) as connection:
            connection.exec_driver_sql("delete from sites")
        engine.dispose()
    ledger.close()


def state_of(platform: Any) -> dict[str, Any]:
    found: dict[str, Any] = platform.control.lookup(f"{JOB}-sites")["source"]
    return found


def after(registry: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for one in registry:
        rows.pop(one["device"], None)
        if not one.get("gone"):
            rows[one["device"]] = one["owner"]
    return rows


def rows_of(ledger: Ledger, name: str, version: int | None = None) -> dict[str, Any]:
    row = ledger.lookup(name) if version is None else ledger.lookup_version(name, version)
    lines = unpack_rows(ledger.lookup_table(row.digest)).splitlines()
    return dict(tuple(json.loads(line).values()) for line in lines)


def in_order(ledger: Ledger, name: str, states: list[dict[str, Any]]) -> bool:
    """Whether the versions are states of the source, each a later one than the version before, up to the last."""
    at = 0
    for version in ledger.lookup_history(name):
        rows = rows_of(ledger, name, version)
        while at < len(states) and states[at] != rows:
            at += 1
        if at == len(states):
            return False
    return rows_of(ledger, name) == states[-1]


def wrong(platform: Any, ledger: Ledger) -> list[str]:
    """Return each deviation from the versions of the slices, as a sentence."""
    stream = f"{JOB}-in"
    slices = ledger.slices(JOB, 1, ledger.slice_count(JOB))
    kept: dict[tuple[str, int], dict[str, Any]] = {}
    versions = [tuple(one.lookup_versions[f"{JOB}-{name}"] for name in ("devices", "sites")) for one in slices]
    findings = [] if versions == sorted(versions) else ["a slice uses an older version than the one before it"]
    findings += ["all slices use one version"] * (len(set(versions)) < KILLS)
    windows: dict[tuple[int, str | None], list[int]] = defaultdict(list)
    for message in read_messages(platform.stack.addresses.kafka_bootstrap, stream, isolation="read_committed"):
        partition, offset = message.partition(), message.offset()
        (said,) = [
            one.lookup_versions
            for one in slices
            if one.offsets_first[stream].get(partition, 0) <= offset < one.offsets[stream][partition]
        ]
        for name, version in said.items():
            if (name, version) not in kept:
                kept[name, version] = rows_of(ledger, name, version)
        value = json.loads(message.value())
        owner = kept[f"{JOB}-devices", said[f"{JOB}-devices"]].get(value["device"])
        factor = kept[f"{JOB}-sites", said[f"{JOB}-sites"]][value["site"]]
        windows[value["ts"] // 10_000 * 10_000, owner].append(value["power"] * factor)
    expected = {key: (len(totals), sum(totals)) for key, totals in windows.items()}
    found = {}
    for one in platform.documents(f"{JOB}-short").values():
        begins_ms = _millis(one["window"]["start"])
        found[begins_ms, one.get("owner")] = (one["n"], one["total"])
    return findings + [
        f"{key}: {found.get(key)} should be {expected.get(key)}"
        for key in sorted(expected.keys() | found.keys(), key=repr)
        if found.get(key) != expected.get(key)
    ]


def _millis(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


@pytest.mark.guarantee("G798")
def test_a_database_that_stops_during_a_query_is_given_up(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "ANSWER_S_MAX", 1.0)
    paused: list[int] = []

    def query_a_paused_database() -> None:
        with reading_of("crm", postgresql_url) as connection:
            paused.append(connection.exec_driver_sql("select pg_backend_pid()").scalar_one())
            os.kill(paused[0], signal.SIGSTOP)
            connection.exec_driver_sql("select 1")

    try:
        with pytest.raises(SourceUnavailable, match="database crm did not answer"):
            query_a_paused_database()
    finally:
        os.kill(paused[0], signal.SIGCONT)
