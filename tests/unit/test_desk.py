"""Pipelines at the desk: the examples, files of records, time, tests, and what the verbs say."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.core.errors import BadRecord, InvalidDocument, PermanentError
from strandline.core.files.text_rows import UnreadableFile
from strandline.example.fleet import Fleet
from strandline.ingest.files.rows import rows_of
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import NewestRecords
from strandline.processing.desk.case_run import CaseReport, read_expected, run_case
from strandline.processing.desk.cases import CaseSpec
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter, Outcome
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.expectations import compare
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.record_files import read_records
from strandline.processing.desk.records import DeskRecords, partition_of_key
from strandline.processing.formats.record_rows import record_format
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.services.cli.desk.case_reports import junit_xml
from strandline.services.jobs import previews
from tests.support.control import BOTH, Api, ObedientSupervisor, serving
from tests.unit.test_command_line import Say, say

__all__ = ["say"]

ROOT = Path(__file__).parents[2]
NAB = ROOT / "examples" / "nab.yaml"
READINGS = ROOT / "examples" / "readings.ndjson"
MINUTE_MS = 60_000
STREAM = """\
stream: tanks
schema: {tank: string, ts: {type: timestamp, unit: s}, level: double, note: "string?"}
key: tank
---
"""
PIPELINE = """\
pipeline: tank-levels
input: {stream: tanks}
event_time: {field: ts, delay: 10s}
steps:
  - window: {name: per_minute, tumbling: 1m, by: [tank], aggregate: {n: count(*), high: max(level)}}
    emit: [{elasticsearch: tank-minute}]
"""


def tanks(old: str = "", new: str = "", stream: str = STREAM) -> CheckedPipeline:
    assert old in PIPELINE
    return read_pipeline((stream + PIPELINE.replace(old, new)).encode(), "tanks.yaml")


def run(pipeline: CheckedPipeline, *values: bytes, slice_records: int | None = None, **options: Any) -> list[Outcome]:
    desk = Desk(pipeline, slice_records, **options)
    return [*desk.feed(DeskRecords(values, [0] * len(values))), *desk.drain()]


def level(ts: float | str, high: float = 1.0, **more: Any) -> bytes:
    return json.dumps({"tank": "a", "ts": ts, "level": high, **more}).encode()


def documents(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    return [json.loads(one.document.source) for one in outcomes if isinstance(one, DeskResult)]


def letters(outcomes: list[Outcome]) -> list[LocalDeadLetter]:
    return [one for one in outcomes if isinstance(one, LocalDeadLetter)]


def counts_of(outcomes: list[Outcome]) -> dict[str, int]:
    """The start of each window -> its records."""
    return {one["window"]["start"]: one["n"] for one in documents(outcomes)}


# The examples


def test_the_readings_give_what_a_recomputation_gives_in_slices_of_any_size() -> None:
    values = READINGS.read_bytes().splitlines()
    hours: dict[datetime, list[float]] = defaultdict(list)
    for line in values:
        record = json.loads(line)
        hours[datetime.fromisoformat(record["timestamp"]).replace(minute=0, second=0)].append(record["value"])
    pipeline = read_pipeline(NAB.read_bytes(), "nab.yaml")
    first = [re.sub(r'"emission":\d+', "", str(one)) for one in run(pipeline, *values)]
    hourly = {one["window"]["start"]: one for one in documents(run(pipeline, *values)) if "total" in one}
    assert len(hourly) == len(hours) == 49
    for start, found in hours.items():
        one = hourly[f"{start:%Y-%m-%dT%H:%M:%S}.000Z"]
        total = 0.0
        for value in found:
            total += value
        assert (one["n"], one["total"], one["low"], one["high"]) == (len(found), total, min(found), max(found))
        assert math.isclose(one["mean"], total / len(found), rel_tol=1e-15)
    for size in (7, 600):
        again = run(pipeline, *values, slice_records=size)
        assert sorted(re.sub(r'"emission":\d+', "", str(one)) for one in again) == sorted(first)


def test_the_farm_gives_what_a_recomputation_gives_and_its_spoiled_reports_are_dead_letters() -> None:
    fleet, first = Fleet(), 1_764_000_000_000 // 10_000
    reports = [one for tick in range(first, first + 60) for one in fleet.reports(tick, late_allowed=False)]
    pipeline = read_pipeline((ROOT / "examples" / "turbines.yaml").read_bytes(), "turbines.yaml")
    # By its clock a turbine may be a year ahead. That is refused only where the time of arrival is known.
    reports = [one for one in reports if one.spoiled is None or one.spoiled.name != "FUTURE"]
    minutes: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one in reports:
        if one.spoiled is None and (reading := json.loads(one.line))["state"] != "service":
            minutes[reading["turbine"], reading["ts"] // 60_000].append(reading["power"] / 3000)
    outcomes = run(pipeline, *(one.line for one in reports), slice_records=100)
    found = {
        (one["turbine"], int(datetime.fromisoformat(one["window"]["start"]).timestamp()) // 60): (one["n"], one["load"])
        for one in documents(outcomes)
        if one["strandline"]["stage"] == "per_minute"
    }
    assert found.keys() == minutes.keys()
    for key, loads in minutes.items():
        assert found[key][0] == len(loads)
        assert math.isclose(found[key][1], math.fsum(loads) / len(loads), rel_tol=1e-12)
    spoiled = sorted(one.spoiled.reason for one in reports if one.spoiled)
    assert sorted(one.reason for one in letters(outcomes)) == spoiled


# Time


def test_a_record_is_late_by_those_before_it_however_slices_are_cut() -> None:
    values = [level(100), level(171), level(160), level(161), level(95)]
    for size in (1, 2, None):
        outcomes = run(tanks(), *values, slice_records=size)
        assert counts_of(outcomes) == {"1970-01-01T00:01:00.000Z": 1, "1970-01-01T00:02:00.000Z": 2}
        assert [(one.reason, one.place["offset"]) for one in letters(outcomes)] == [("late", 2), ("late", 4)]


def test_a_partition_that_is_behind_holds_the_others_back_until_it_is_silent() -> None:
    def late(*places: tuple[int, float]) -> list[int]:
        desk = Desk(tanks())
        records = DeskRecords([level(ts) for _, ts in places], [partition for partition, _ in places])
        return [int(one.place["offset"]) for one in letters([*desk.feed(records), *desk.drain()])]

    assert late((1, 100), (0, 100), (0, 150), (0, 101)) == []
    assert late((1, 100), (0, 100), (0, 165), (0, 101)) == [2]  # partition 1 is silent for a minute


def test_what_holds_no_time_has_the_log_time_of_the_record_before() -> None:
    stream = STREAM.replace("ts: {type: timestamp, unit: s}", "ts: {type: timestamp, unit: s, required: false}")
    pipeline = read_pipeline((stream + PIPELINE.replace("field: ts", "field: ts, else: log")).encode(), "tanks.yaml")
    lines = [
        b'{"tank": "a", "level": 1}',
        level(100),
        b'{"tank": "a", "level": 1}',
        level(170),
        b'{"tank": "a", "level": 1}',
    ]
    assert counts_of(run(pipeline, *lines)) == {"1970-01-01T00:01:00.000Z": 3, "1970-01-01T00:02:00.000Z": 2}


@pytest.mark.guarantee(
    "G207",
    "With event time from the log, each window contains the records that Kafka appended in its time, and an audit "
    "agrees.",
    promise="no-record-is-late-without-cause",
)
def test_a_pipeline_by_log_time_needs_to_be_told_it() -> None:
    pipeline = tanks("{field: ts, delay: 10s}", "{from: log}")
    with pytest.raises(PermanentError, match="--log-time FIELD"):
        run(pipeline, level(100))
    assert counts_of(run(pipeline, level(100), level(130), log_time="ts")) == {
        "1970-01-01T00:01:00.000Z": 1,
        "1970-01-01T00:02:00.000Z": 1,
    }
    with pytest.raises(InvalidDocument, match="the stream's timestamps are: ts"):
        Desk(pipeline, log_time="level")


def test_a_stream_without_a_timestamp_is_tried_by_a_test() -> None:
    text = (ROOT / "examples" / "times.yaml").read_bytes()
    pipeline = read_pipeline(text, "times.yaml", "machine-times")
    with pytest.raises(PermanentError, match="no field of type timestamp, so use the time of the run: --log-time now"):
        run(pipeline, b'{"id": "m1", "t": "02.12.2013 21:15:00", "v": 1}')
    with pytest.raises(
        InvalidDocument, match="can't read log time from 'v'; the stream has no field of type timestamp"
    ):
        Desk(pipeline, log_time="v")


def test_the_example_of_times_in_other_forms_does_what_its_test_says(say: Say) -> None:
    said = say("pipeline", "test", str(ROOT / "examples" / "tests" / "times.yaml"))
    assert (said.code, said.err) == (0, "")


def test_without_a_drain_windows_stay_open_and_waiting_closes_them() -> None:
    desk = Desk(tanks(), 1)
    assert documents([*desk.feed(DeskRecords([level(100)], [0]))]) == []
    assert counts_of([*desk.wait(MINUTE_MS)]) == {}, "the partition has just become idle"
    assert counts_of([*desk.wait(MINUTE_MS // 2)]) == {"1970-01-01T00:01:00.000Z": 1}


def test_what_event_time_has_reached_closes_at_the_end_of_the_file_without_a_drain(say: Say, tmp_path: Path) -> None:
    """Also where the last slice is not full."""
    (tmp_path / "tanks.yaml").write_text(STREAM + PIPELINE)
    (tmp_path / "levels").write_bytes(b"\n".join([level(100), level(300)]))
    files = (str(tmp_path / "tanks.yaml"), "--input", str(tmp_path / "levels"))
    for size in ("1", "10000", "all"):
        said = say("pipeline", "run", *files, "--json", "--no-drain", "--slice", size)
        assert [json.loads(line)["window"]["start"] for line in said.out.splitlines()] == ["1970-01-01T00:01:00.000Z"]


def test_a_job_that_crashes_ends_at_the_record() -> None:
    with pytest.raises(BadRecord, match="stream tanks, partition 0, offset 1"):
        run(tanks("steps:", "on_error: crash\nsteps:"), level(100), b"no")
    assert letters(run(tanks("steps:", "late: drop\nsteps:"), level(200), level(100))) == []


def test_keys_come_to_the_partitions_where_kafkas_clients_put_them() -> None:
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    assert {key: partition_of_key(key, 2**31) for key in hashes} == {
        key: one & 0x7FFFFFFF for key, one in hashes.items()
    }


# Files of records


def test_rows_of_csv_and_parquet_are_the_records_that_lines_are(tmp_path: Path) -> None:
    pipeline = tanks()
    rows = [{"tank": "a,b", "ts": 100 + at, "level": at / 7, "note": None if at % 2 else 'of "it"'} for at in range(20)]
    lines = tmp_path / "levels.ndjson"
    lines.write_text("\n\n".join(json.dumps(row) for row in rows) + "\r\n")
    with (tmp_path / "levels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "levels.parquet")
    with pa.output_stream(str(tmp_path / "levels.ndjson.gz"), compression="gzip") as packed:
        packed.write(lines.read_bytes())
    found = []
    for name in ("levels.ndjson", "levels.ndjson.gz", "levels.csv", "levels.parquet"):
        values = [
            one for piece in read_records(tmp_path / name, record_format(pipeline.inputs[0].stream)) for one in piece
        ]
        assert len(values) == 20
        found.append([str(one) for one in run(pipeline, *values)])
    assert found[1:] == found[:1] * 3
    assert len(found[0]) == 1


def test_times_of_parquet_with_nanoseconds_are_cut_to_microseconds(tmp_path: Path) -> None:
    """Without pandas, as on the command line, pyarrow has no Python value for them."""
    moment = pa.timestamp("ns", "UTC")
    nested = pa.struct(
        [("a", moment), ("l", pa.list_(pa.struct([("t", moment)]))), ("m", pa.map_(pa.string(), moment))]
    )
    ns = 1_700_000_000_123_456_789
    rows = [{"at": ns, "in": {"a": ns, "l": [{"t": ns}, None], "m": [("k", ns)]}}, {"at": None, "in": None}]
    table = pa.Table.from_pylist(rows, pa.schema([("at", moment), ("in", nested)]))
    pq.write_table(table, tmp_path / "a.parquet")
    (found,) = read_records(tmp_path / "a.parquet", record_format(tanks().inputs[0].stream))
    text = "2023-11-14T22:13:20.123456Z"
    first, second = map(json.loads, found)
    assert first == {"at": text, "in": {"a": text, "l": [{"t": text}, None], "m": [["k", text]]}}
    assert second == {"at": None, "in": None}
    size = (tmp_path / "a.parquet").stat().st_size
    ingested = rows_of(tmp_path / "a.parquet", tanks().inputs[0].stream, size, 1_000, lambda _: None)
    assert [row for row, _ in ingested] == found, "as it is ingested"
    program = (
        "import sys; from pathlib import Path; from strandline.services.cli.desk.desk_verbs import _NoPandas\n"
        "sys.meta_path.insert(0, _NoPandas())\n"
        "from strandline.processing.desk.record_files import read_records, RecordFormat\n"
        "print(*[row.decode() for rows in read_records(Path(sys.argv[1]), RecordFormat('json', (), {})) for row in rows])"
    )
    run_without = [sys.executable, "-c", program, str(tmp_path / "a.parquet")]
    shown = subprocess.run(run_without, capture_output=True, text=True, check=False)
    assert shown.stdout == " ".join(row.decode() for row in found) + "\n", shown.stderr


def test_what_is_no_record_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("tank,ts\na,1,2\n")
    (tmp_path / "a.parquet").write_text("no")
    for name, said in (
        ("a.csv", "row at line 2 has 3 values"),
        ("a.parquet", "can't be read"),
        ("none.ndjson", "can't be read"),
    ):
        with pytest.raises(PermanentError, match=said):
            list(read_records(tmp_path / name, record_format(tanks().inputs[0].stream)))
    packed = tanks(stream=STREAM.replace("key: tank", "format: cbor"))
    with pytest.raises(PermanentError, match="format cbor is not a line"):
        list(read_records(tmp_path / "a.lines", record_format(packed.inputs[0].stream)))


def test_lines_of_values_may_have_a_head(tmp_path: Path) -> None:
    pipeline = tanks(stream=STREAM.replace("key: tank", "format: csv"))
    (tmp_path / "a.csv").write_text("tank,ts,level,note\na,100,1.5,\n")
    assert list(read_records(tmp_path / "a.csv", record_format(pipeline.inputs[0].stream))) == [[b"a,100,1.5,"]]


def test_a_row_may_be_as_large_as_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = tanks(stream=STREAM.replace("key: tank", "format: csv")).inputs[0].stream
    row = b"a,100,1.5," + b"x" * 1_500_000
    (tmp_path / "a.csv").write_bytes(row)
    with pytest.raises(PermanentError, match=r"a row of more than 1,000,000 bytes.* STRANDLINE_RECORD_BYTES_MAX"):
        list(read_records(tmp_path / "a.csv", record_format(stream)))
    monkeypatch.setenv("STRANDLINE_RECORD_BYTES_MAX", "2000000")
    assert list(read_records(tmp_path / "a.csv", record_format(stream))) == [[row]]


@pytest.mark.guarantee("G623")
def test_rows_of_csv_run_over_lines_as_they_do_in_a_file_ingest(tmp_path: Path) -> None:
    text = '\nTank,TS,level,note\r\na,100,1.5,"x\r\n\r\ny"\r\n \nb,100,2,\n'
    (tmp_path / "a.csv").write_bytes(text.encode())
    stream = tanks(stream=STREAM.replace("key: tank", "format: csv")).inputs[0].stream
    (found,) = read_records(tmp_path / "a.csv", record_format(stream))
    assert found == [b'a,100,1.5,"x\r\n\r\ny"', b"b,100,2,"]
    assert found == [row for row, _ in rows_of(tmp_path / "a.csv", stream, len(text), 1_000, lambda _: None)]
    (tmp_path / "b.csv").write_bytes(text.lower().encode())
    (objects,) = read_records(tmp_path / "b.csv", record_format(tanks().inputs[0].stream))
    assert [json.loads(one) for one in objects] == [
        {"tank": "a", "ts": 100, "level": 1.5, "note": "x\r\n\r\ny"},
        {"tank": "b", "ts": 100, "level": 2},
    ]
    (tmp_path / "c.csv").write_bytes(b"ts,level,tank,note\n100,1,a,\n")
    with pytest.raises(UnreadableFile, match=r"set csv\.columns in the stream document"):
        list(read_records(tmp_path / "c.csv", record_format(stream)))


def test_the_pipeline_is_found_with_its_stream() -> None:
    both = STREAM + PIPELINE + "---\n" + PIPELINE.replace("tank-", "other-")
    with pytest.raises(InvalidDocument, match="choose one with --pipeline"):
        read_pipeline(both.encode(), "tanks.yaml")
    assert read_pipeline(both.encode(), "tanks.yaml", "other-levels").job == "other-levels"
    with pytest.raises(InvalidDocument, match="there is no stream 'tanks' here"):
        read_pipeline(PIPELINE.encode(), "tanks.yaml")
    chain = (
        STREAM
        + PIPELINE.replace("elasticsearch: tank-minute", "stream: minutes")
        + (
            "---\npipeline: hours\ninput: {stream: minutes}\nevent_time: {field: window_start, delay: 0s}\nsteps:\n"
            "  - window: {name: h, tumbling: 1h, by: [tank], aggregate: {n: sum(n)}}\n    emit: [{elasticsearch: hour}]\n"
        )
    )
    assert read_pipeline(chain.encode(), "x", stream="minutes").inputs[0].stream.types["window_end"] == "timestamp"


# Tests of pipelines


def case(tmp_path: Path, **document: Any) -> CaseReport:
    (tmp_path / "tanks.yaml").write_text(STREAM + PIPELINE)
    given = {"test": "tanks", "file": "tanks.yaml", "steps": [], "expect": {}} | document
    return run_case(CaseSpec.from_document(given), tmp_path)


@pytest.mark.guarantee(
    "G363",
    "`pipeline test` ends with 0 only if the documents equal the expected ones. It reports each missing, extra, or "
    "different document and each unexpected dead letter.",
    promise="all-forms-of-a-pipeline-agree",
)
def test_a_case_tells_what_is_missing_extra_and_different(tmp_path: Path) -> None:
    steps = [{"records": [{"tank": one, "ts": 100, "level": 1} for one in "abc"]}, {"restart": True}]
    expected = [{"tank": "a", "n": 1}, {"tank": "b", "n": 2}, {"tank": "d"}]
    report = case(tmp_path, steps=steps, expect={"results": expected})
    assert not report.passed
    assert [one["tank"] for one in report.results.missing] == ["d"]
    assert [one["tank"] for one in report.results.extra] == ["c"]
    assert [one.fields for one in report.results.different] == [{"n": (2, 1)}]
    (failure,) = ElementTree.fromstring(junit_xml([report])).iter("failure")
    assert "n: expected 2, got 1" in (failure.text or "")
    assert case(tmp_path, steps=steps, expect={"results": [{}, {"tank": "a"}, {"n": 1.0}]}).passed


@pytest.mark.guarantee("G363")
def test_a_dead_letter_that_nobody_expects_fails_a_case(tmp_path: Path) -> None:
    steps = [
        {"record": "no"},
        {"record": {"tank": "a", "ts": 200, "level": 1}},
        {"record": {"tank": "a", "ts": 90, "level": 1}},
    ]
    assert [one["reason"] for one in case(tmp_path, steps=steps).dead_letters.extra] == ["decode", "late"]
    assert case(tmp_path, steps=steps, expect={"late": 1, "dead_letters": [{"value": "no"}]}).passed
    assert case(tmp_path, steps=steps, expect={"dead_letters": "any"}).passed
    report = case(tmp_path, steps=steps, expect={"late": 2, "dead_letters": "any"})
    assert report.messages == ["1 records are late; expected 2"]
    assert "can't be read" in case(tmp_path, file="none.yaml").messages[0]


def test_a_case_says_where_records_come_from_and_when(tmp_path: Path) -> None:
    steps = [
        {"record": {"tank": "a", "level": 1}, "query": "ts=100"},
        {"record": {"tank": "a", "ts": 900, "level": 1}, "at": "1970-01-01T00:02:00Z", "partition": 3},
    ]
    report = case(
        tmp_path,
        steps=steps,
        expect={"results": [{"n": 1}], "dead_letters": [{"reason": "future_event", "partition": 3}]},
    )
    assert report.passed, report


HOME = (
    "stream: home\nformat: value\nschema: {room: string, celsius: double}\nkey: room\n"
    "mqtt: {topics: [home/+/temp, 'attic/#'], fields: {room: 1}}\n---\n"
    "pipeline: rooms\ninput: {stream: home}\nevent_time: {from: log}\nsteps:\n"
    "  - window: {name: five, tumbling: 5m, by: [room], aggregate: {n: count(*), mean: avg(celsius)}}\n"
    "    emit: [{elasticsearch: rooms}]\n"
)


def test_a_record_comes_to_a_stream_from_topics_that_it_takes_alone(tmp_path: Path) -> None:
    (tmp_path / "home.yaml").write_text(HOME)
    at = "2026-11-01T12:00:00Z"
    steps = [{"record": "21.5", "topic": topic, "at": at} for topic in ("home/kitchen/temp", "attic/east/left")]
    given = {"test": "home", "file": "home.yaml", "expect": {"results": [{"room": "kitchen"}, {"room": "east"}]}}
    assert run_case(CaseSpec.from_document(given | {"steps": steps}), tmp_path).passed
    for topic in ("garden/temp", "home/temp", "home/a/b/temp"):
        wrong = [*steps, {"record": "21.5", "topic": topic, "at": at}]
        assert run_case(CaseSpec.from_document(given | {"steps": wrong}), tmp_path).messages == [
            f"stream home gets no record of topic '{topic}', because it subscribes to home/+/temp, attic/#; "
            "correct the topic or mqtt.topics"
        ]
    (sentence,) = case(
        tmp_path, steps=[{"record": {"tank": "a", "ts": 1, "level": 1}, "topic": "home/kitchen"}]
    ).messages
    assert sentence == (
        "stream tanks gets no record of topic 'home/kitchen', because it subscribes to no topic; set its topics: "
        "mqtt: {topics: [home/kitchen]}"
    )


ENRICHED = (
    "lookup: tanks\nschema: {tank: string, site: string}\nkey: tank\nrows: [{tank: a, site: north}]\n---\n"
    "stream: levels\nschema: {tank: string, ts: timestamp}\n---\n"
    "pipeline: sites\ninput: {stream: levels}\nevent_time: {field: ts, delay: 10s}\nsteps:\n"
    "  - enrich: {lookup: tanks, key: tank, add: [site]}\n"
    "  - window: {name: minutes, tumbling: 1m, by: [site], aggregate: {n: count(*)}}\n"
    "    emit: [{elasticsearch: minutes}]\n"
)


@pytest.mark.guarantee(
    "G643",
    "In a local test, as in a job, each record is enriched by the rows of a lookup that are effective when it "
    "arrives. This holds also if the record is read again after a restart.",
    promise="all-forms-of-a-pipeline-agree",
)
def test_a_lookup_changes_between_the_records_of_a_case(tmp_path: Path) -> None:
    """Each record uses the rows that are in force when it arrives, also after a restart."""
    (tmp_path / "a.yaml").write_text(ENRICHED)
    (tmp_path / "before.csv").write_text("tank,site\na,north\n")
    (tmp_path / "after.csv").write_text("tank,site\na,south\nb,south\n")
    both = [{"tank": "a", "ts": 1}, {"tank": "b", "ts": 1}]
    given: dict[str, Any] = {
        "test": "changes",
        "file": "a.yaml",
        "steps": [
            {"records": both},
            {"lookups": {"tanks": "before.csv"}},  # the same rows are no new version
            {"records": both},
            {"lookups": {"tanks": "after.csv"}},
            {"records": both},
            {"restart": True},
            {"records": both},
            {"lookups": {"tanks": "before.csv"}},
            {"records": both},
            {"restart": True},
        ],
        "expect": {
            "results": [{"site": "north", "n": 3}, {"site": "south", "n": 4}],
            "dead_letters": [
                {
                    "offset": offset,
                    "message": f"steps[0].enrich: lookup tanks has no row for tank 'b' (version {version})",
                }
                for offset, version in ((1, 1), (3, 1), (9, 3))
            ],
        },
    }
    for slice_records in (1, 3, "all"):
        report = run_case(CaseSpec.from_document(given | {"slice": slice_records}), tmp_path)
        assert report.passed, report
    wrong = [{"lookups": {"tank": "after.csv"}}]
    report = run_case(CaseSpec.from_document(given | {"steps": wrong}), tmp_path)
    assert "holds no lookup 'tank'; did you mean 'tanks'" in report.messages[0]
    with pytest.raises(InvalidDocument, match="is only for records, but this step is a 'lookups'"):
        CaseSpec.from_document(given | {"steps": [{"lookups": {}, "at": 1}]})


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("rows.csv", "tank,site\na,north\na,south\n", "rows.csv:3: file: has the same key tank 'a' as line 2"),
        ("rows.csv", "tank\na\n", "rows.csv:2: file: site: required but missing"),
        ("rows.csv", "tank,site\na\n", "rows.csv: the row at line 2 has 1 values"),
        ("rows.json", '{"tank":"a","site":"n"}\n\n{"tank":"b","site":1}', "rows.json:3: file: site: "),
        ("rows.json", '[{"tank":"a","site":"n"},{"tank":"b","site":1}]', "rows.json: file: row 2: site: "),
        ("rows.json", '[\n{"tank":"a",\n"site":"n"},\n{"tank":"b","site":1}\n]', "rows.json: file: row 2: site: "),
        ("rows.json", '{\n"tank":"a","site":1}', "rows.json: file: row 1: site: "),
        (
            "rows.json",
            '[{"tank":"a","site":"n"},{"tank":"a","site":"s"}]',
            "rows.json: file: row 2: has the same key tank 'a' as row 1",
        ),
        ("rows.csv", None, "rows.csv can't be read"),
        ("rows.xlsx", "", "rows.xlsx: a file of rows must have one of the suffixes .csv, .tsv"),
    ],
)
def test_what_is_wrong_with_a_file_of_rows_names_that_file(
    tmp_path: Path, say: Say, name: str, content: str | None, expected: str
) -> None:
    """Not the pipeline's, whose lines have nothing to do with it."""
    (tmp_path / "a.yaml").write_text(ENRICHED)
    (tmp_path / "records.ndjson").write_text('{"tank": "a", "ts": 1}\n')
    if content is not None:
        (tmp_path / name).write_text(content)
    records, rows = str(tmp_path / "records.ndjson"), str(tmp_path / name)
    said = say("pipeline", "run", str(tmp_path / "a.yaml"), "--input", records, "--lookup", f"tanks={rows}")
    assert (said.code, said.err.startswith(f"{tmp_path}/{expected}")) == (1, True), said.err
    (tmp_path / "test.yaml").write_text(
        f"test: rows\nfile: a.yaml\nlookups: {{tanks: {name}}}\nsteps: [{{input: records.ndjson}}]\nexpect: {{}}\n"
    )
    assert f"  {tmp_path}/{expected}" in say("pipeline", "test", str(tmp_path / "test.yaml")).out


def test_a_wrong_test_is_told_with_its_line(tmp_path: Path, say: Say) -> None:
    (tmp_path / "t.yaml").write_text("test: t\nfile: x.yaml\nsteps:\n  - {wait: 1s, restart: true}\nexpect: {}\n")
    said = say("pipeline", "test", str(tmp_path / "t.yaml"))
    assert said.code == 1
    assert f"{tmp_path / 't.yaml'}:4: steps[0]: expected exactly one of" in said.err


@pytest.mark.guarantee("G363")
@pytest.mark.parametrize(
    ("expected", "found", "wrong"),
    [
        ([{"n": 1}, {"n": 1, "k": "a"}], [{"n": 1, "k": "a"}, {"n": 1, "k": "b"}], 0),
        ([{"n": 1}], [{"n": True}], 1),
        ([{"at": "2026-01-01"}], [{"at": "2026-01-01T00:00:00.000Z"}], 0),
        ([{"at": "2026-01-02"}], [{"at": "2026-01-01T00:00:00.000Z"}], 1),
        ([{"window": {"start": 1}}], [{"window": {"start": 1, "end": 2}}], 0),
        ([{"n": None}], [{"n": None}], 0),
        ([{"m": None}], [{"n": None}], 1),
        ([{}, {}], [{"n": 1}], 1),
        # The first could take either; the second only one.
        ([{"x": 1}, {"x": 1, "y": 1}, {"y": 1}], [{"x": 1, "y": 1}, {"x": 1, "y": 2}, {"x": 2, "y": 1}], 0),
    ],
)
def test_what_is_equal(expected: list[dict[str, Any]], found: list[dict[str, Any]], wrong: int) -> None:
    assert len(compare(expected, found, ("k",), ("at",))) == wrong


def test_expected_documents_come_as_lines_as_an_array_and_as_yaml(tmp_path: Path) -> None:
    for name, text in (
        ("a.ndjson", '{"n": 1}\n\n{"n": 2}\n'),
        ("a.json", '[{"n": 1}, {"n": 2}]'),
        ("a.yaml", "- {n: 1}\n- {n: 2}\n"),
    ):
        (tmp_path / name).write_text(text)
        assert read_expected(tmp_path / name) == [{"n": 1}, {"n": 2}]
    (tmp_path / "b.ndjson").write_text("{}\n{")
    with pytest.raises(InvalidDocument, match=r"b\.ndjson:2: is not JSON"):
        read_expected(tmp_path / "b.ndjson")


# What it costs, and previews


def test_the_graph_tells_state_reach_and_retention() -> None:
    graph = pipeline_graph(tanks())
    assert (graph["reach_ms"], graph["retention"]) == (60_000, {"needed_ms": 70_000, "of_stream_ms": 604_800_000})
    (stage,) = graph["stages"]
    # 70 s reach over three minutes; pane, key, partition, count, and the greatest level.
    assert stage["state"]["panes_open"] == 3
    assert stage["state"]["bytes_a_pane_and_key"] == 8 + 8 + 4 + 8 + 8
    assert graph["inputs"][0]["columns_read"] == ["tank", "ts", "level"]
    assert graph["hints"] == ["not read: note; these fields are checked anyway"]
    alone = pipeline_graph(tanks("by: [tank]", "by: []"))
    assert alone["exchange"]["exchanges"] == 2


def newest_of(values: list[bytes]) -> NewestRecords:
    count = len(values)
    times = [1_600_000 + at for at in range(count)]
    return NewestRecords(
        [at % 2 for at in range(count)], [7 + at // 2 for at in range(count)], times, values, [None] * count, True
    )


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> Any:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    api = Api(ledger, ObedientSupervisor(ledger))
    values = [json.dumps({"turbine": "t", "ts": 1_600_000 + at, "power": at}).encode() for at in range(6)]
    monkeypatch.setattr(api.log, "newest_records", lambda *_, **__: newest_of([*values, b"no"]))
    with serving(api.app) as url:
        monkeypatch.setenv("STRANDLINE_URL", url)
        yield api
    ledger.close()


@pytest.mark.guarantee(
    "G364",
    "A preview writes nothing, and its reads, memory, and response are bounded.",
    promise="no-client-can-exhaust-a-service",
)
def test_a_preview_shows_results_and_dead_letters_of_a_job_and_of_a_file(
    api: Api, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "farm.yaml").write_text(BOTH)
    assert say("apply", str(tmp_path / "farm.yaml")).code == 0
    for what in ("power", str(tmp_path / "farm.yaml")):
        answer = say("pipeline", "preview", what, "--records", "7", "--json").json
        assert (answer["records"], answer["accepted"], answer["is_cut"]) == (7, 6, True)
        assert [(one["n"], one["peak"]) for one in answer["results"]] == [(6, 5.0)]
        assert [(one["partition"], one["offset"]) for one in answer["dead_letters"]] == [(0, 10)]
    with monkeypatch.context() as bounded:
        bounded.setattr(previews, "_RESULTS_MAX", 0)
        bounded.setattr(previews, "_LETTERS_MAX", 0)
        answer = say("pipeline", "preview", "power", "--records", "7", "--json").json
        assert (answer["results"], answer["dead_letters"], answer["records"]) == ([], [], 7)
        assert answer["result_counts"], "what is not shown is counted"
    said = say("pipeline", "preview", "power")
    assert "nothing was written" in said.out
    assert say("pipeline", "explain", "power", "--json").json["pipeline"] == "power"
    assert say("pipeline", "preview", "nothing").code == 1


@pytest.mark.guarantee("G364")
def test_a_preview_takes_its_turn(api: Api, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "farm.yaml").write_text(BOTH)
    asked = []
    monkeypatch.setattr(api.log, "newest_records", lambda *given, **_: asked.append(given) or newest_of([]))
    monkeypatch.setattr(previews, "_WAIT_S", 0.01)
    with previews.preview_turn():
        said = say("pipeline", "preview", str(tmp_path / "farm.yaml"))
        with previews._places, monkeypatch.context() as no_wait:  # one waits already
            no_wait.setattr(previews, "_one_at_a_time", None)
            assert say("pipeline", "preview", str(tmp_path / "farm.yaml")).err == said.err
    assert (said.code, said.err) == (1, "another preview is running; try again in some seconds\n")
    assert say("pipeline", "preview", str(tmp_path / "farm.yaml")).code == 0
    assert asked == [("turbines", 1_000, 32 << 20, ("strandline-query",))], "bounded in records and bytes"
    assert api.ledger.streams() == [], "the file's stream is not registered"


# The verbs


def test_run_prints_results_to_stdout_and_dead_letters_to_stderr(say: Say, tmp_path: Path) -> None:
    (tmp_path / "tanks.yaml").write_text(STREAM + PIPELINE)
    (tmp_path / "levels").write_bytes(b"\n".join([level(100), b"\xff", level(200), level(20)]))
    said = say("pipeline", "run", str(tmp_path / "tanks.yaml"), "--input", str(tmp_path / "levels"), "--json")
    assert said.code == 0
    assert [json.loads(line)["n"] for line in said.out.splitlines()] == [1, 1]
    assert json.loads(said.err.splitlines()[0]) | {"message": ""} == {
        "reason": "decode", "message": "", "step": "decode", "stream": "tanks", "partition": 0, "offset": 1, "value": "\\xff",
    }  # fmt: skip
    shown = say("pipeline", "run", str(tmp_path / "tanks.yaml"), "--input", str(tmp_path / "levels"))
    assert "4 records, 2 accepted, 1 decode, 1 late; results: 2 of per_minute" in shown.out
    assert say("pipeline", "run", str(NAB), "--input", str(READINGS), "--slice", "0").code == 2


@pytest.mark.parametrize("steps", [[100, 171, 160, 95], [50_000, 100, 90_000, 49_000], [3_000_000, 100]])
@pytest.mark.parametrize("revise", ["", "late: {revise: 1m}\n"])
def test_run_names_the_delay_with_which_no_row_is_late(say: Say, tmp_path: Path, steps: list[int], revise: str) -> None:
    document = (STREAM.replace("key:", "retention: forever\nkey:") + PIPELINE).replace("steps:", f"{revise}steps:")
    (tmp_path / "tanks.yaml").write_text(document)
    (tmp_path / "levels").write_bytes(b"\n".join(map(level, steps)))
    arguments = ("pipeline", "run", str(tmp_path / "tanks.yaml"), "--input", str(tmp_path / "levels"))
    shown = say(*arguments)
    assert (shown.code, " late;" in shown.out) == (0, True)
    (delay,) = re.findall(r"late rows of tanks: with event_time: delay: (\w+), no row", " ".join(shown.out.split()))
    (tmp_path / "tanks.yaml").write_text(document.replace("delay: 10s", f"delay: {delay}"))
    shown = say(*arguments)
    assert (shown.code, " late" in shown.out, f"{len(steps)} accepted" in shown.out) == (0, False, True)


def test_results_are_written_as_columns(say: Say, tmp_path: Path) -> None:
    kept = tmp_path / "results.parquet"
    assert say("pipeline", "run", str(NAB), "--input", str(READINGS), "--output", str(kept)).code == 0
    table = pq.read_table(kept)
    assert (table.num_rows, table.schema.field("strandline_window_end").type) == (52, pa.timestamp("us", "UTC"))
    rows = [row for row in table.to_pylist() if row["strandline_stage"] == "daily"]
    assert [row["n"] for row in rows] == [33, 288, 255]
    assert all(row["strandline_window_end"] - row["strandline_window_start"] == timedelta(days=1) for row in rows)


def test_a_stage_that_emits_nothing_has_no_part_in_results(say: Say, tmp_path: Path) -> None:
    """Neither columns and types in a file, nor a way to be chosen or sorted by."""
    (tmp_path / "levels.yaml").write_text(
        STREAM + "pipeline: tank-levels\ninput: {stream: tanks}\nevent_time: {field: ts, delay: 10s}\nsteps:\n"
        "  - derive: {cents: 'cast(level as decimal(10,2))'}\n"
        "  - window: {name: minutes, tumbling: 1m, by: [tank], aggregate: {n: count(*), cents: sum(cents)}}\n"
        "  - window: {name: hours, tumbling: 1h, by: [tank], aggregate: {cents: sum(cents)}}\n"
        "    emit: [{elasticsearch: tank-hour}]\n"
    )
    (tmp_path / "r.ndjson").write_text('{"tank": "a", "ts": 1764230400, "level": 1.5}\n')
    run_it = ("pipeline", "run", str(tmp_path / "levels.yaml"), "--input", str(tmp_path / "r.ndjson"))
    said = say(*run_it, "--output", str(tmp_path / "results.parquet"), "--sort", "cents")
    assert (said.code, said.err) == (0, "")
    assert said.out.endswith(f"results: 1 of hours; {tmp_path}/results.parquet is written\n")
    table = pq.read_table(tmp_path / "results.parquet")
    assert [name for name in table.column_names if not name.startswith("strandline_")] == ["tank", "cents"]
    said = say(*run_it, "--json", "--stage", "minutes")
    assert said.code == 2
    assert (
        "stage 'minutes' emits nothing, so it has no results; add an 'emit' to it, or choose one of: hours" in said.err
    )


def test_every_command_of_the_page_runs(api: Api, say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "desk.md").read_text()
    assert say("apply", str(NAB)).code == 0
    readings = READINGS.read_bytes().splitlines()[:7]
    monkeypatch.setattr(api.log, "newest_records", lambda *_, **__: newest_of(readings))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 14
    for command in commands:
        line, _, target = command.partition(" > ")
        said = say(*shlex.split(line)[1:])
        assert said.code == 0, (command, said.err)
        if target:
            Path(target).write_text(said.out)


@pytest.mark.parametrize("section", ["Branches", "Join two branches", "Join two streams"])
def test_an_example_of_the_reference_runs(say: Say, monkeypatch: pytest.MonkeyPatch, section: str) -> None:
    """The commands, and the displayed pipeline, which is that of the example."""
    page = "steps.md" if section == "Branches" else "joins.md"
    text = (ROOT / "docs" / page).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    monkeypatch.chdir(ROOT)
    (pipeline,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    file = {"Branches": "branches", "Join two branches": "joins", "Join two streams": "stream-joins"}[section]
    assert (ROOT / "examples" / f"{file}.yaml").read_text().endswith(f"---\n{pipeline}")
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    commands = block.splitlines()
    assert [command.split()[2] for command in commands] == ["run", "explain", "test"]
    run, explain, test = (say(*shlex.split(command)[1:]) for command in commands)
    assert (run.code, explain.code, test.code) == (0, 0, 0), (run.err, explain.err, test.err)
    wanted = {
        "Branches": "results: 7 of alarms, 23 of per_turbine, 3 of turbine_hour, 4 of per_site",
        "Join two branches": "results: 4 of shipped, 4 of hourly",
        "Join two streams": "results: 4 of shipped, 4 of hourly",
    }
    assert wanted[section] in " ".join(run.out.split())
    told = {"Branches": "by turbine and site_id", "Join two branches": "orders", "Join two streams": "orders has 1w"}
    assert told[section] in " ".join(explain.out.split())


def test_the_test_on_the_page_is_the_one_of_the_example() -> None:
    (block,) = re.findall(r"```yaml\n(test:.*?)```", (ROOT / "docs" / "desk.md").read_text(), re.DOTALL)
    example = (ROOT / "examples" / "tests" / "nab.yaml").read_text().partition("---")[0]
    assert re.sub(r" *#.*", "", example).split() == block.split()
