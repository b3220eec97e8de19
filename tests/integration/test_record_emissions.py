"""Emissions of records: one document for each record that comes so far, once, in an index and in a stream, through kills. Real
Kafka, Elasticsearch, Spark and ledger. What must be there is worked out here from what was sent, and by the audit."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from strandline.core.errors import Conflict
from strandline.processing.audit.index_reader import EndRange, StoredDocument, open_snapshot, read_documents
from strandline.results.records.record_document import record_document_id
from strandline.results.sinks.files.writer import committed_files
from tests.support.audit_lab import AuditLab
from tests.support.topic_reader import read_messages

BASE_MS = 1_788_220_800_000
"""2026-09-01T00:00:00Z."""
DOCUMENTS = """
stream: {name}-readings
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double, site: "string?"}}
key: device
---
pipeline: {name}
input: {{stream: {name}-readings}}
event_time: {{field: ts, delay: 1h, max_ahead: null}}
steps:
  - derive: {{fahrenheit: temp * 9 / 5 + 32}}
  - where: temp < 90
  - drop: [site]
  - emit: [{{elasticsearch: {name}-records}}, {{stream: {name}-records}},
           {{files: {{path: "{files}"}}}}, {{sql: {{table: {name}_records}}}}]
    name: all_records
"""
WITH_WINDOW = """
  - derive: {{rate: 1 / (temp - 7)}}
  - window: {{name: minutes, tumbling: 1m, by: [device], aggregate: {{n: count(*), mean: avg(temp)}}}}
  - derive: {{twice: 2 * n}}
  - where: n > 1
  - emit: [{{elasticsearch: {name}-minutes}}]
"""
KILLED_AT = ("slice.written", "commit.before_checkpoint", "checkpoint.committed")


def readings(first: int, last: int) -> list[bytes]:
    """A record of each number: five devices, a second apart; now and then one too hot, one broken, one that the `where` lacks."""
    found = []
    for number in range(first, last):
        temp: Any = 95.0 if number % 11 == 0 else "broken" if number % 13 == 0 else number % 50
        one = {"device": f"d{number % 5}", "ts": BASE_MS + number * 250, "temp": temp, "site": "north"}
        found.append(json.dumps(one).encode())
    return found


def expected(lines: list[bytes], name: str) -> dict[str, dict[str, Any]]:
    """Id -> document, of records that were sent to both partitions by turns."""
    found = {}
    for number, line in enumerate(lines):
        one = json.loads(line)
        if isinstance(one["temp"], str) or one["temp"] >= 90:
            continue
        place = (f"{name}-readings", number % 2, number // 2)
        text = datetime.fromtimestamp(one["ts"] / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        found[record_document_id(name, "all_records", *place)] = {
            "@timestamp": text,
            "device": one["device"],
            "ts": text,
            "temp": float(one["temp"]),
            "fahrenheit": one["temp"] * 9 / 5 + 32,
            "origin": place,
        }
    return found


def shown(document: dict[str, Any]) -> dict[str, Any]:
    """A document without the run that wrote it."""
    origin = document.pop("strandline")
    assert origin["stage"] == "all_records"
    return {**document, "origin": (origin["stream"], origin["partition"], origin["offset"])}


def indexed(lab: AuditLab, alias: str) -> list[StoredDocument]:
    """Every document behind the alias."""
    url = lab.settings.elasticsearch_url
    return [one for page in read_documents(url, open_snapshot(url, alias), EndRange(), 0, 1) for one in page]


def with_sinks(lab: AuditLab, directory: Path, url: str) -> str:
    """Let the job write to tables, too; return where its files go."""
    lab.settings = lab.settings.model_copy(update={"sql_sink_url": url})
    return str(directory / "files")


def check_sinks(files: str, url: str, name: str, wanted: dict[str, dict[str, Any]]) -> None:
    """Files and table hold each record once, with its value."""
    table = ds.dataset(list(committed_files(files, name, "all_records"))).to_table()
    rows = table.to_pylist()
    assert len(rows) == len(wanted)
    assert {row["strandline_id"]: row["fahrenheit"] for row in rows} == {
        key: one["fahrenheit"] for key, one in wanted.items()
    }
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(sa.text(f"SELECT strandline_id, device, fahrenheit FROM {name}_records")).all()
    engine.dispose()
    assert len(found) == len(wanted)
    assert {key: (device, value) for key, device, value in found} == {
        key: (one["device"], one["fahrenheit"]) for key, one in wanted.items()
    }


def check(lab: AuditLab, name: str, lines: list[bytes]) -> dict[str, dict[str, int]]:
    """Both stores hold exactly what the log leads to. Returns the audit's counts by store."""
    wanted = expected(lines, name)
    found = indexed(lab, f"{name}-records")
    assert len(found) == len(wanted)
    assert {one.id: shown(json.loads(one.body)) for one in found} == wanted
    assert {one.index for one in found} == {f"{name}-records-2026.09"}
    messages = read_messages(lab.settings.kafka_bootstrap, f"{name}-records", isolation="read_committed")
    streamed: dict[str, dict[str, Any]] = {}
    for message in messages:
        headers: dict[str, Any] = dict(message.headers() or ())
        document = json.loads(message.value() or b"")
        assert document.pop("event_time") == document["@timestamp"]
        streamed[headers["strandline-id"].decode()] = shown(document)
    assert len(messages) == len(streamed)
    assert streamed == wanted
    report = lab.audit(name)
    assert report["outcome"] == "clean", report
    counts: dict[str, dict[str, int]] = {one["store"]: one["counts"] for one in report["stores"]}
    assert counts[f"{name}-records"] == counts[f"stream:{name}-records"] == {"same": len(wanted)}
    return counts


@pytest.mark.guarantee("G241")
@pytest.mark.guarantee("G242")
@pytest.mark.long
def test_each_record_is_emitted_once_through_a_kill_beside_a_window(audit_lab: AuditLab, tmp_path: Path) -> None:
    """The slice that was interrupted finds what it wrote; a replay emits no record again. The audit notices a lost one."""
    lab, name = audit_lab, "windowed"
    url = f"sqlite:///{tmp_path / 'results.sqlite'}"
    files = with_sinks(lab, tmp_path, url)
    lab.apply((DOCUMENTS + WITH_WINDOW).format(name=name, files=files))
    lines = readings(0, 3_000)
    lab.send(f"{name}-readings", lines[:1_500])
    lab.run_killed_at(name, "slice.written")
    lab.send(f"{name}-readings", lines[1_500:])
    lab.drain(name)
    counts = check(lab, name, lines)
    check_sinks(files, url, name, expected(lines, name))
    assert counts[f"{name}-minutes"]["same"] > 0
    assert all(one["twice"] == 2 * one["n"] for one in lab.documents(f"{name}-minutes").values())
    lost = indexed(lab, f"{name}-records")[0]
    assert lab.index.delete(f"/{lost.index}/_doc/{lost.id}?refresh=true").status_code == 200
    report = lab.audit(name)
    assert (report["outcome"], report["differences"]) == ("differences", 1)
    assert report["sample"][0]["id"] == lost.id


@pytest.mark.guarantee("G241")
@pytest.mark.guarantee("G243")
@pytest.mark.long
def test_a_pipeline_without_a_window_emits_each_record_once_through_kills(
    audit_lab: AuditLab, tmp_path: Path, postgresql_url: str
) -> None:
    lab, name = audit_lab, "plain"
    files = with_sinks(lab, tmp_path, postgresql_url)
    lab.apply(DOCUMENTS.format(name=name, files=files))
    lines = readings(0, 8_000)
    for number, failpoint in enumerate(KILLED_AT):
        lab.send(f"{name}-readings", lines[number * 2_000 : (number + 1) * 2_000])
        lab.run_killed_at(name, failpoint)
    lab.send(f"{name}-readings", lines[6_000:])
    lab.drain(name)
    check(lab, name, lines)
    check_sinks(files, postgresql_url, name, expected(lines, name))
    with pytest.raises(Conflict, match="emits no windows to an index"):
        lab.request_backfill(name, BASE_MS)
