"""Emissions of records at the desk: the documents of the job, what the verbs show of them, previews, and sinks to which nothing
is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from strandline.core.record_headers import pack_header_values
from strandline.log.kafka_status import NewestRecords
from strandline.processing.desk.case_run import run_case
from strandline.processing.desk.cases import CaseSpec
from strandline.processing.desk.desk import Desk, DeskResult, Outcome
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.records import DeskRecords
from strandline.processing.operators.cascade import Cascade
from strandline.results.document import document_id
from strandline.results.records.record_document import record_document_id
from strandline.services.jobs import previews
from tests.integration.test_record_emissions import DOCUMENTS, WITH_WINDOW, expected, readings, shown
from tests.support.messages import avro_record
from tests.unit.test_command_line import Say, say
from tests.unit.test_desk import api

__all__ = ["api", "say"]

EXAMPLE = Path(__file__).parents[2] / "examples" / "records.yaml"
EVENTS = """\
stream: events
schema: {id: long, ts: {type: timestamp, unit: s}, load: double}
---
pipeline: events
input: {stream: events}
event_time: {field: ts, delay: 10s}
steps:
  - emit: [PLACE]
    name: raw
"""


def reading(device: str, ts: int, celsius: float) -> bytes:
    return json.dumps({"device": device, "ts": ts * 1000, "celsius": celsius}).encode()


@pytest.fixture
def climate(tmp_path: Path) -> str:
    file = tmp_path / "climate.ndjson"
    lines = [reading("a", 100, 20), reading("b", 101, 30), b"no", reading("a", 190, 40)]
    file.write_bytes(b"\n".join(lines))
    return str(file)


@pytest.mark.guarantee("G365")
def test_documents_are_those_of_the_job() -> None:
    """The test of a job with kills computes them the same way, with a window and without one."""
    lines = readings(0, 300)
    partitions = [number % 2 for number in range(300)]
    for window in ("", WITH_WINDOW.format(name="farm")):
        pipeline = read_pipeline((DOCUMENTS.format(name="farm", files="/nowhere") + window).encode(), "farm.yaml")
        for size in (7, None):
            desk = Desk(pipeline, size)
            found = [*desk.feed(DeskRecords(lines, partitions)), *desk.drain()]
            records = [one.document for one in found if isinstance(one, DeskResult) and one.stage == "all_records"]
            assert {one.id: shown(json.loads(one.source)) for one in records} == expected(lines, "farm")
            assert len({one.id for one in records}) == len(records) == desk.counts.results["all_records"]
            assert {one.index for one in records} == {"farm-records-2026.09"}
            assert (desk.counts.results["minutes"] > 0) == bool(window)


def test_run_shows_records_and_windows(say: Say, climate: str) -> None:
    run = ("pipeline", "run", str(EXAMPLE), "--input", climate)
    lines = [json.loads(line) for line in say(*run, "--json", "--ids", "--slice", "2").out.splitlines()]
    assert [(one["_source"]["strandline"]["stage"], one["_source"]["strandline"]["emission"]) for one in lines] == [
        ("readings", 1), ("readings", 1), ("readings", 2), ("minutes", 2), ("minutes", 2), ("minutes", 3),
    ]  # fmt: skip
    assert lines[0]["_id"] == record_document_id("climate", "readings", "climate", 0, 0)
    assert lines[0]["_index"] == "climate-readings-1970.01"
    assert lines[0]["_source"] == {
        "@timestamp": "1970-01-01T00:01:40.000Z",
        "device": "a",
        "ts": "1970-01-01T00:01:40.000Z",
        "celsius": 20.0,
        "fahrenheit": 68.0,
        "strandline": {
            "job": "climate", "stage": "readings", "version": 1, "epoch": 1, "emission": 1, "stream": "climate",
            "partition": 0, "offset": 0,
        },
    }  # fmt: skip
    assert lines[-1]["_id"] == document_id("climate", "minutes", 180_000, 240_000, ["a"])
    assert {"mean", "is_warm"} <= lines[-1]["_source"].keys()
    said = say(*run).out
    assert "EVENT TIME" in said
    assert "PARTITION/OFFSET" in said
    assert "4 records, 3 accepted, 1 decode; results: 3 of readings, 3 of minutes" in said
    only = say(*run, "--json", "--stage", "readings").out.splitlines()
    assert len(only) == 3
    assert "expected one of: minutes, readings" in say(*run, "--stage", "nothing").err


def test_what_was_printed_is_what_is_expected(say: Say, climate: str, tmp_path: Path) -> None:
    run = (str(EXAMPLE), "--input", climate)
    (tmp_path / "expected.ndjson").write_text(say("pipeline", "run", *run, "--json").out)
    assert say("pipeline", "test", *run, "--expect", str(tmp_path / "expected.ndjson")).code == 0
    text = (tmp_path / "expected.ndjson").read_text().replace('"fahrenheit":68.0', '"fahrenheit":1')
    (tmp_path / "expected.ndjson").write_text(text)
    said = say("pipeline", "test", *run, "--expect", str(tmp_path / "expected.ndjson"))
    assert said.code == 1
    assert "fahrenheit: expected 1, got 68.0" in said.out
    assert "missing" not in said.out


def test_a_case_names_records_by_their_place_and_a_restart_emits_none_again(tmp_path: Path) -> None:
    (tmp_path / "events.yaml").write_text(EVENTS.replace("PLACE", "{stream: loads}"))
    steps: list[dict[str, Any]] = [
        {"records": [{"id": at, "ts": 100, "load": 1} for at in range(3)]},
        {"restart": True},
        {"record": {"id": 3, "ts": 50, "load": 1}},
        {"record": {"id": 4, "ts": 101, "load": 1}},
    ]
    results = [
        {"id": 0, "event_time": "1970-01-01 00:01:40"},
        {"strandline.offset": 1, "id": 1},
        {"strandline": {"offset": 2}},
        {"id": 3, "strandline.emission": 4},
        {"id": 4, "strandline.emission": 5},
    ]
    given = {"test": "t", "file": "events.yaml", "steps": steps, "expect": {"results": results, "late": 0}}
    report = run_case(CaseSpec.from_document(given), tmp_path)
    assert report.passed, report


@pytest.mark.guarantee(
    "G367",
    "A local run writes to no sink and needs none: no database, no directory, and no package of the sink.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize(
    "place", ["{files: {path: PATH}}", "{sql: {table: loads}}", "{sink: {use: nobody_has_this, name: paper}}"]
)
def test_results_for_every_sink_are_shown_and_nothing_is_written(place: str, say: Say, tmp_path: Path) -> None:
    """No database, no package and no directory is needed."""
    (tmp_path / "events.yaml").write_text(EVENTS.replace("PLACE", place.replace("PATH", str(tmp_path / "written"))))
    (tmp_path / "input").write_bytes(b'{"id": 7, "ts": 100, "load": 1.5}\n{"id": 8, "ts": 100, "load": 1e308}')
    said = say("pipeline", "run", str(tmp_path / "events.yaml"), "--input", str(tmp_path / "input"), "--json")
    assert [json.loads(line)["id"] for line in said.out.splitlines()] == [7, 8], said.err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["events.yaml", "input"]


def test_columns_of_records_stand_beside_fields_of_any_name(say: Say, tmp_path: Path, climate: str) -> None:
    (tmp_path / "events.yaml").write_text(EVENTS.replace("PLACE", "{elasticsearch: loads}"))
    (tmp_path / "input").write_bytes(b'{"id": 7, "ts": 100, "load": 1.5}')
    kept = tmp_path / "results.parquet"
    said = say(
        "pipeline", "run", str(tmp_path / "events.yaml"), "--input", str(tmp_path / "input"), "--output", str(kept)
    )
    assert said.code == 0
    (row,) = pq.read_table(kept).to_pylist()
    assert (row["id"], row["strandline_id"]) == (7, record_document_id("events", "raw", "events", 0, 0))
    assert (row["strandline_partition"], row["strandline_offset"], row["strandline_element"]) == (0, 0, None)
    assert row["strandline_time"] == row["ts"]
    assert say("pipeline", "run", str(EXAMPLE), "--input", climate, "--output", str(kept)).code == 0
    table = pq.read_table(kept)
    places = [(row["strandline_offset"], row["strandline_window_start"] is None) for row in table.to_pylist()]
    assert places == [(0, True), (1, True), (3, True), (None, False), (None, False), (None, False)]
    text = EVENTS.replace("PLACE", "{elasticsearch: loads}").replace("load", "strandline_id")
    (tmp_path / "events.yaml").write_text(text)
    said = say(
        "pipeline", "run", str(tmp_path / "events.yaml"), "--input", str(tmp_path / "input"), "--output", str(kept)
    )
    assert "strandline_id is a field of the results" in said.err


def test_explain_tells_of_emissions_of_records(say: Say, tmp_path: Path) -> None:
    graph = pipeline_graph(read_pipeline(EXAMPLE.read_bytes(), "records.yaml"))
    (records,), (minutes,) = graph["record_stages"], graph["stages"]
    assert records["name"] == "readings"
    assert records["steps_before"][0] == "select device, ts, celsius"
    assert list(records["fields"]) == ["device", "ts", "celsius", "fahrenheit"]
    assert (minutes["steps_before"], minutes["emits"]) == ([], ["elasticsearch: climate-minutes"])
    assert [one.replace("`", "") for one in minutes["steps_after"]] == ["derive is_warm: mean > 25"]
    (tmp_path / "events.yaml").write_text(EVENTS.replace("PLACE", "{stream: loads}"))
    alone = say("pipeline", "explain", str(tmp_path / "events.yaml"), "--json").json
    assert (alone["stages"], alone["reach_ms"], alone["retention"]["needed_ms"]) == ([], 0, 0)
    assert alone["exchange"] == {"by": [], "exchanges": 1, "buckets": "as many as the run has shuffle partitions"}
    said = say("pipeline", "explain", str(tmp_path / "events.yaml"))
    assert (said.code, "with the record's slice" in said.out) == (0, True)
    assert "derive is_warm: mean > 25" in " ".join(say("pipeline", "explain", str(EXAMPLE)).out.split())


def test_a_preview_shows_records_and_hides_no_windows_behind_them(
    api: Any, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fields of HTTP headers are there, and so is a schema in a separate file."""
    monkeypatch.setattr(previews, "_RESULTS_MAX", 6)
    schema = {"type": "record", "name": "R", "fields": [{"name": "ts", "type": "long"}]}
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    text = EXAMPLE.read_text().replace("celsius: {type: double, min: -90, max: 90}", "celsius: double?")
    text = text.replace("partitions: 4\n", "format: avro\navro: {schema_file: r.avsc}\n")
    (tmp_path / "climate.yaml").write_text(text.replace("key: device", "http: {headers: {device: x-device}}"))
    asked = []

    def newest(*given: Any, **named: Any) -> NewestRecords:
        asked.append(named)
        times = [100_000 + at for at in range(20)]
        values: list[bytes | None] = [avro_record(schema, {"ts": one}) for one in times]
        headers: list[bytes | None] = [pack_header_values(None, {"http-x-device": b"a"})] * 20
        return NewestRecords([0] * 20, list(range(5, 25)), times, values, headers, False)

    monkeypatch.setattr(api.log, "newest_records", newest)
    answer = say("pipeline", "preview", str(tmp_path / "climate.yaml"), "--json").json
    assert asked[0]["headers_beside"] == ("http-x-device",)
    stages = [one["strandline"]["stage"] for one in answer["results"]]
    assert stages == ["readings"] * 3 + ["minutes"]
    assert answer["result_counts"] == {"readings": 20, "minutes": 1}
    assert answer["results"][0]["device"] == "a"
    assert answer["results"][0]["strandline"]["offset"] == 5
    assert "PARTITION/OFFSET" in say("pipeline", "preview", str(tmp_path / "climate.yaml")).out


TWO_STREAMS = b"""\
stream: tanks
schema: {tank: string, ts: {type: timestamp, unit: s}, level: double}
key: tank
---
stream: pumps
schema: {tank: string, ts: {type: timestamp, unit: s}, level: double}
key: tank
---
pipeline: levels
inputs:
  - {stream: tanks, event_time: {field: ts, delay: 10s}}
  - {stream: pumps, event_time: {field: ts, delay: 10s}}
steps:
  - window: {name: per_minute, tumbling: 1m, by: [tank], aggregate: {n: count(*), all: sum(level)}}
    from: [tanks, pumps]
    emit: [{elasticsearch: {name: tank-minute, updates: 10s}}]
"""


@pytest.mark.guarantee(
    "G581",
    "In a local run, records of several streams that arrive alternately are processed together. The display of open "
    "windows and the rebuild after a restart include them.",
    promise="all-forms-of-a-pipeline-agree",
)
def test_records_of_several_streams_in_turn_are_taken_in_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no slice ends, there is one step for all.

    What is shown, and what a restart rebuilds, includes the records that wait.
    """
    steps, step = list[Any](), Cascade.step

    def counted(*some: Any, **named: Any) -> Any:
        steps.append(some)
        return step(*some, **named)

    monkeypatch.setattr(Cascade, "step", counted)
    values = [json.dumps({"tank": "a", "ts": at, "level": 0.1 * at}).encode() for at in range(40)]

    def fed(size: int, stops: bool) -> tuple[list[Outcome], list[Any], int]:
        desk, found, shown = (
            Desk(read_pipeline(TWO_STREAMS, "levels.yaml"), restarts=True),
            list[Outcome](),
            list[Any](),
        )
        steps.clear()
        for first in range(0, 40, size):
            here = values[first : first + size]
            found += desk.feed(DeskRecords(here, [0] * len(here), stream=("tanks", "pumps")[first // size % 2]))
            if stops and first == 20:
                shown += [json.loads(one.document.source)["n"] for one in desk.open_windows()]
                desk.restart()
        taken = len(steps)
        return [*found, *desk.drain()], shown, taken

    (at_once, _, taken), (stopped, shown, _) = fed(1, False), fed(1, True)
    assert [json.loads(one.document.source)["n"] for one in at_once if isinstance(one, DeskResult)] == [40]
    assert (stopped, shown, taken) == (at_once, [21], 0)
