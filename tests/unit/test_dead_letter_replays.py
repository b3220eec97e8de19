"""Dead letters by reason, step and time, through the REST API and the command line's sums.

Also the outcome of replayed records in the current version.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode

import httpx
import pytest

from strandline.core import record_headers
from strandline.core.documents import read_documents
from strandline.core.errors import Conflict
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.lifecycle import Origin
from strandline.ledger.states import Desired, JobState
from strandline.log.kafka_status import StoredDeadLetter
from strandline.processing.lineage.dry_run import DryRun
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.services.cli.dead_letter_verbs import _sum
from strandline.services.cli.display import repair_summary, replay_notes
from strandline.services.jobs import dead_letters
from strandline.services.jobs.dead_letters import (
    DeadLetterFilter,
    DeadLetters,
    _classify,
    _Original,
    _runs,
    kind_of,
)
from tests.support.control import BOTH, Api

STREAM = """
stream: turbines
schema: {turbine: string, ts: {type: timestamp, unit: ms}, power: double, rated: double}
explode: $.items
"""
PIPELINE = """
pipeline: power
input: {stream: turbines}
event_time: {field: ts, delay: 10s, max_ahead: 1m}
steps:
  - derive: {load: power / rated}
  - where: load < 10
  - window: {name: minute, tumbling: 1m, by: [turbine], aggregate: {n: count(*)}}
    emit: [{elasticsearch: minute}]
"""
NOW_MS = 1_800_000_000_000


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


def letter(number: int, reason: str = "decode", step: str = "decode", **headers: str) -> StoredDeadLetter:
    place = {"stream": "turbines", "partition": "0", "offset": str(number), "reason": reason, "step": step}
    return StoredDeadLetter(number, 1_000 * number, place | headers, b"%d" % number)


def dry_run(explode: bool = False, pipeline_text: str = PIPELINE) -> DryRun:
    stream = STREAM if explode else STREAM.replace("explode: $.items\n", "")
    (document,) = read_documents(stream, "stream.yaml")
    (pipeline,) = read_documents(pipeline_text, "pipeline.yaml")
    return DryRun(check(PipelineSpec.parse(pipeline), StreamSpec.parse(document)), NOW_MS - 60_000)


def record(ts: int = NOW_MS, power: float = 1, rated: float = 2) -> bytes:
    return b'{"turbine":"a","ts":%d,"power":%g,"rated":%g}' % (ts, power, rated)


@pytest.mark.guarantee("G225")
def test_the_outcome_is_what_the_present_version_makes_of_the_record() -> None:
    values = [
        record(),
        record(power=100),  # filtered out: no dead letter
        b"no json",
        b'{"turbine":"a"}',
        record(rated=0),
        record(ts=NOW_MS - 60_001),
        record(ts=NOW_MS - 60_000),
        record(ts=NOW_MS + 60_001),
        None,
    ]
    found = dry_run().of_records(values, [{} for _ in values], NOW_MS)
    assert [one.outcome for one in found] == [
        "accepted",
        "accepted",
        "decode",
        "schema",
        "expression",
        "late",
        "accepted",
        "future_event",
        "decode",
    ]
    assert "watermark" in found[5].message


@pytest.mark.guarantee("G292")
def test_a_pipeline_without_a_window_judges_records_too() -> None:
    text = PIPELINE[: PIPELINE.index("  - window")] + "  - emit: [{elasticsearch: powers}]\n"
    found = dry_run(pipeline_text=text).of_records([record(), record(rated=0)], [{}, {}], NOW_MS)
    assert [one.outcome for one in found] == ["accepted", "expression"]


@pytest.mark.guarantee(
    "G292",
    "`dead-letters requeue --dry-run` and `repair` report the outcome that the pipeline's next slice gives to the "
    "record, by the current document of the stream, with or without a window.",
    promise="a-requeued-record-counts-once",
)
def test_records_are_judged_by_the_streams_present_document(api: Api) -> None:
    """Not by the one with which the job's run began: what is put back is in a slice to come."""
    api.apply(BOTH.replace("power: double", "power: {type: double, max: 10}"))
    epoch = api.ledger.begin_run("power", pid=1).epoch
    api.ledger.set_run_streams("power", epoch, {"turbines": 1})
    api.apply(BOTH.replace("power: double", "power: {type: double, max: 99}"))
    letters = DeadLetters(api.ledger, api.log, "127.0.0.1:1", 1_000_000)
    _, pipeline = letters._job("power")
    (outcome,) = letters._current_outcomes(
        pipeline, pipeline.inputs[0].stream.stream, [record(ts=NOW_MS - 50_000_000_000, power=50)], [{}]
    )
    assert outcome.outcome == "accepted"


def test_a_record_of_many_rows_is_accepted_if_all_are() -> None:
    good, bad = record()[:-1] + b"}", record(rated=0)
    values = [
        b'{"items":[%s,%s]}' % (good, good),
        b'{"items":[%s,%s,no]}' % (good, good),
        b'{"items":[%s,%s]}' % (good, bad),
    ]
    outcomes = [one.outcome for one in dry_run(explode=True).of_records(values, [{}, {}, {}], NOW_MS)]
    assert outcomes == ["accepted", "decode", "expression"]


def test_letters_are_listed_and_counted_by_reason_step_and_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_A_LOOK", 4)
    api.apply(BOTH)
    api.log.letters = [letter(n, ("decode", "late", "schema")[n % 3], f"step{n % 2}") for n in range(10)]

    def numbers(query: str) -> tuple[list[int], str | None]:
        page = api.ask("GET", f"/v1/jobs/power/dead-letters?{query}").json()
        return [one["number"] for one in page["dead_letters"]], page["next"]

    first, following = numbers("reason=late&limit=10")
    assert first == [1] and following is not None and "reason=late" in following
    assert numbers(following.partition("?")[2])[0] == [4, 7]
    assert numbers("step=step1&limit=1") == ([1], "/v1/jobs/power/dead-letters?after=1&limit=1&step=step1")
    assert numbers("since_ms=3000&until_ms=5000")[0] == [3, 4]
    for unknown in ("lates", "duplicate"):
        refused = api.ask("GET", f"/v1/jobs/power/dead-letters?reason={unknown}")
        assert refused.status_code == 422 and "'decode', 'schema'" in refused.text
    total = piece = api.ask("GET", "/v1/jobs/power/dead-letters/counts").json()
    while piece["next"]:
        piece = api.ask("GET", piece["next"]).json()
        total = _sum(total, piece)
    assert total["dead_letters"] == 10
    assert total["reasons"] == {"decode": 4, "late": 3, "schema": 3}
    assert total["steps"] == {"step0": 5, "step1": 5}
    assert api.ask("GET", "/v1/jobs/nobody/dead-letters/counts").status_code == 404


@pytest.mark.guarantee(
    "G1090",
    "The list of dead letters can begin with the newest: each page contains the newest matching ones before the page before, and "
    "pages together contain each matching dead letter once.",
    promise="each-rejected-record-is-one-dead-letter",
)
def test_the_newest_letters_can_be_listed_first(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_A_LOOK", 4)
    monkeypatch.setattr(dead_letters, "_LETTERS_BACK", 3)
    api.apply(BOTH)
    # Numbers have gaps, because transactions of a topic have offsets of their own.
    api.log.letters = [letter(2 * n, ("decode", "late", "schema")[n % 3]) for n in range(10)]

    def pages(query: str) -> list[list[int]]:
        found, path = [], f"/v1/jobs/power/dead-letters?order=newest&{query}"
        while path:
            page = api.ask("GET", path).json()
            found.append([one["number"] for one in page["dead_letters"]])
            path = page["next"]
        return found

    assert pages("limit=3") == [[18, 16, 14], [12, 10, 8], [6, 4, 2], [0]]
    assert pages("limit=2&since_ms=12000") == [[18, 16], [14, 12]]
    assert pages("limit=5&until_ms=9000") == [[], [8, 6, 4], [2, 0]], "a page reads at most 4 letters"
    assert [number for page in pages("limit=1&reason=late") for number in page] == [14, 8, 2]
    assert pages("limit=5&before=6&reason=decode") == [[0]]
    api.log.letters = []
    assert pages("limit=5") == [[]]
    assert api.ask("GET", "/v1/jobs/nobody/dead-letters?order=newest").status_code == 404


def test_a_requeue_of_several_parts_continues_at_the_path_of_each_response(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_A_REPLAY", 2)
    monkeypatch.setattr(DeadLetters, "_originals", lambda *_: {})
    api.apply(BOTH)
    api.log.letters = [letter(n, "late") for n in range(5)]
    piece = api.ask("POST", "/v1/jobs/power/dead-letters/requeue?since_ms=0&dry_run=true").json()
    matched = [piece["matched"]]
    while piece["next"]:
        answer = api.ask("POST", piece["next"])
        assert answer.status_code == 200, (piece["next"], answer.text)
        piece = answer.json()
        matched.append(piece["matched"])
    assert (sum(matched), len(matched) > 1, piece["dry_run"]) == (5, True, True)


def test_a_letter_of_an_earlier_life_is_not_repaired_by_its_number_either(api: Api) -> None:
    """The job that was reset reads the record again: repaired, it would count twice."""
    api.apply(BOTH)
    api.ledger.set_desired("power", Desired.STOPPED)
    api.ledger.move_job("power", JobState.STOPPED)
    api.log.letters = [letter(number) for number in range(4)]
    fence = api.ledger.end_runs("power", "reset")
    api.ledger.reset_job(fence, Origin({"turbines": {0: 0, 1: 5}}, {0: 4}))

    def repair(which: str) -> httpx.Response:
        path = f"/v1/jobs/power/dead-letters/repair?dead_letter={which}&dry_run=true"
        return api.ask("POST", path, content=record(), headers={"Content-Type": "application/octet-stream"})

    refused = repair("3")
    assert refused.status_code == 404 and "is from before the reset of job power" in refused.json()["detail"]
    for which in ("turbines/0/3", "4", "9" * 300):
        assert "no dead letter" in repair(which).json()["detail"]
    assert repair("9" * 5_000).status_code == 422, "too long for a number"


def test_letters_of_one_kind_differ_only_in_their_values(api: Api) -> None:
    same = ('power: expected double, got "ERR"', 'power: expected double, got "n/a"')
    others = ('t1: expected double, got "ERR"', 't2: expected double, got "ERR"')
    assert len({kind_of(one) for one in same}) == 1
    assert len({kind_of(one) for one in same + others}) == 3
    assert kind_of("field 'p1': expected double, got string 'a7'") == "field 'p1': expected double, got string …"
    assert kind_of("isn't JSON: it can't end at byte 38") == "isn't JSON: it can't end at byte …"
    api.apply(BOTH)
    api.log.letters = [letter(n, message=one) for n, one in enumerate(same + others)]
    first = api.ask("GET", "/v1/jobs/power/dead-letters").json()["dead_letters"][0]
    query = urlencode({"kind": first["kind"]})
    assert api.ask("GET", f"/v1/jobs/power/dead-letters/counts?{query}").json()["dead_letters"] == 2


@pytest.mark.guarantee("G1100")
def test_a_repair_requeues_only_records_that_are_then_accepted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeadLetters, "_originals", lambda *_: {})
    api.apply(STREAM.replace("explode: $.items\n", "") + "---" + PIPELINE)
    now_ms = time.time_ns() // 1_000_000
    values = [b'{"turbine":"a","ts":%d,"kW":%d,"rated":2}' % (now_ms, n) for n in range(3)] + [b"no json"]
    api.log.letters = [replace(letter(n, "schema", "decode"), value=value) for n, value in enumerate(values)]
    path = "/v1/jobs/power/dead-letters/repairs?reason=schema"

    def repair(edits: list[dict[str, object]], more: str = "&dry_run=true") -> dict[str, Any]:
        answer = api.ask("POST", path + more, json={"edits": edits})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    found = repair([{"edit": "rename", "field": "kW", "to": "power"}])
    assert (found["matched"], found["requeued"], found["skipped"]) == (4, 3, {"not_edited": 1})
    assert found["follow"] is None
    text = '{"turbine":"a","ts":NOW,"power":0,"rated":2}'.replace("NOW", str(now_ms))
    assert found["repairs"][0] == {"number": 0, "value": text, "outcome": "accepted", "message": ""}

    worse = [{"edit": "rename", "field": "kW", "to": "power"}, {"edit": "set", "field": "rated", "value": 0}]
    found = repair(worse)
    assert (found["requeued"], found["skipped"]) == (0, {"not_edited": 1, "rejected_again": 3})
    assert (found["outcomes"], found["repairs"][0]["outcome"]) == ({"expression": 3}, "expression")
    assert "zero" in found["repairs"][0]["message"]
    assert repair(worse, "&dry_run=true&force=true")["requeued"] == 3

    refused = api.ask("POST", path, json={"edits": [{"edit": "set", "field": "$["}]})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "body.edits.0")


@pytest.mark.guarantee("G392")
def test_why_a_letter_is_not_put_back() -> None:
    def why(one: StoredDeadLetter, *, reason: str | None = None, force: bool = False) -> str:
        originals = {(0, 5): _Original(b"x", b"k", {"strandline-replay-of": b"turbines/0/1"}, 0)}
        return _classify(one, "turbines", "power", originals, DeadLetterFilter(reason), force=force)[0]

    assert why(letter(1)) == ""
    assert why(letter(1, "late")) == "late"
    assert why(letter(1, "late"), reason="late") == ""
    assert why(letter(5)) == "failed_again"
    assert why(letter(5), force=True) == ""
    assert why(letter(1, **{"taken-by": "minutes"})) == "accepted_elsewhere"
    assert why(letter(1, **{"taken-by": "minutes"}), force=True) == ""
    assert why(letter(1, stream="others")) == "other_stream"
    assert why(letter(1, **{"payload-bytes": "9", "payload-sha256": "0"})) == "no_bytes"
    assert why(StoredDeadLetter(1, 0, {"reason": "result", "index": "x-2026.01", "document": "id"}, b"")) == "result"


BESIDE = """
pipeline: beside
inputs:
  - {stream: turbines, event_time: {field: ts, delay: 10s}}
  - {stream: turbine-minute, event_time: {field: window_end, delay: 0s}}
steps:
  - join:
      name: beside
      left: turbines
      right: turbine-minute
      on: [turbine]
      within: {before: 5m}
      latest: true
      type: inner
      add: {power: left.power, usual: right.n}
    emit: [{elasticsearch: beside}]
"""


def test_only_letters_of_another_jobs_results_are_never_put_back(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job can read such results together with a stream of records, which can be replayed."""
    monkeypatch.setattr(DeadLetters, "_originals", lambda *_: {})
    emits = PIPELINE.replace("minute}]", "minute}, {stream: turbine-minute}]")
    applied = api.apply("---".join((STREAM.replace("explode: $.items\n", ""), emits, BESIDE)))
    assert applied.status_code == 200, applied.text
    api.log.letters = [letter(0), letter(1, stream="turbine-minute"), letter(2, "late", stream="turbine-minute")]
    letters = DeadLetters(api.ledger, api.log, "127.0.0.1:1", 1_000_000)
    report = letters.replay("beside", DeadLetterFilter(), -1, None, force=False, dry_run=True)
    assert (report.requeued, report.skipped) == (1, {"result_stream": 2})
    assert letters.repair("beside", "0", record(ts=1), force=False, dry_run=True).dry_run.outcome == "accepted"
    with pytest.raises(Conflict, match="contains only results of job power"):
        letters.repair("beside", "1", record(), force=True, dry_run=True)


def test_records_that_stand_near_each_other_are_read_together() -> None:
    assert list(_runs([])) == []
    assert list(_runs([0, 5, 2_005, 9_000])) == [(0, 2_005), (9_000, 9_000)]


def test_what_a_replay_cannot_help_is_said_with_what_can() -> None:
    report = {"skipped": {"late": 2, "result": 1, "result_stream": 4}, "outcomes": {"late": 3}, "unknown": 0}
    notes = replay_notes("power", report)
    assert any("4 belong to results of another job" in note for note in notes)
    assert any("strandline job backfill power" in note for note in notes)
    assert any("5" in note and "strandline job reset power" in note for note in notes)
    one = {"number": 7, "requeued_before": False, "outcome": "late", "message": "why", "dry_run": True}
    assert repair_summary(one) == "dead letter 7 would be requeued; in the current version, it is rejected again (why)"
    assert "was requeued before" in repair_summary({**one, "requeued_before": True})


def test_the_reasons_are_all_those_that_are_given_and_the_docs_say_what_helps() -> None:
    given = {value for name, value in vars(record_headers).items() if name.startswith("REASON_")}
    assert {*get_args(record_headers.DeadLetterReason)} == given - {"duplicate"}
    page = (Path(__file__).parents[2] / "docs" / "dead-letters.md").read_text()
    assert all(f"| `{reason}` |" in page for reason in get_args(record_headers.DeadLetterReason))
