"""Batches: jobs over a range of the log, which end. Real ledger, no servers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from strandline.core.documents import read_documents
from strandline.core.errors import Fenced, InvalidDocument, PermanentError
from strandline.core.times.durations import format_place, parse_place
from strandline.frontends.client.client import Client
from strandline.ledger.ledger import Ledger
from strandline.ledger.lifecycle import Origin
from strandline.ledger.states import Desired, JobState, SliceKind
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.upgrade import Effect, changes_between
from strandline.processing.run.ending import wanted_end
from strandline.processing.slices.planner import InputStream, PlannerSettings
from strandline.services import client as client_module
from strandline.services.cli import commands
from strandline.services.cli.batch_verbs import as_batch
from strandline.services.cli.display import batch_summary
from strandline.services.client import ControlClient
from strandline.services.jobs.apply_documents import check_documents
from strandline.services.supervision.supervisor import Supervisor
from tests.support.control import PIPELINE, STREAM, Api, ObedientSupervisor, serving
from tests.support.ledgers import a_checkpoint, a_slice
from tests.unit.test_planner import RULE, WINDOWS, FakeLog, Job

BATCH = PIPELINE.replace("{stream: turbines}", "{stream: turbines, end: latest}")
BOTH = f"{STREAM}---\n{BATCH}"


class Batch(Job):
    """A batch whose slices are planned and committed by hand."""

    def __init__(self, directory: Path, start: str | int = "earliest", end: str | int = "latest", rows: int = 100):
        super().__init__(directory, rows_max=rows)
        self.range: dict[str, Any] = {"start": start, "end": end}
        self.rows = rows

    def begin(self) -> Batch:
        """A run, as the process of a runner begins it."""
        self.run = self.ledger.begin_run("j", 1)
        start = self.range["start"]
        inputs = (InputStream("s", start, end=self.range["end"]),)
        settings = PlannerSettings("j", 1, self.run.epoch, inputs, self.rows, RULE, WINDOWS)
        self.planner = self.planner_of(settings)
        self.planner.record_range()
        return self

    def wanted_end(self) -> object:
        run = SimpleNamespace(job="j", version=1, ledger=self.ledger, pipeline=SimpleNamespace(windows=WINDOWS))
        return wanted_end(run)  # type: ignore[arg-type]


def filled(log: FakeLog, records: int, seed: int = 1) -> None:
    chance = Random(seed)
    for number in range(records):
        log.add(chance.randrange(2), 100 + 10 * number, 50 * number)


@pytest.mark.guarantee("G550")
def test_a_batch_reads_what_was_there_when_it_began_closes_all_windows_and_ends(tmp_path: Path) -> None:
    job = Batch(tmp_path)
    filled(job.log, 30)
    ends = {"s": job.log.ends("s")}
    job.begin()
    assert job.ledger.job("j").ends == ends
    filled(job.log, 5, seed=2)  # comes after it has begun
    assert [row.kind for row in job.commit_all(100)] == [SliceKind.LIVE, SliceKind.DRAIN]
    assert job.ledger.last_slice("j").offsets == ends
    assert job.wanted_end() is JobState.DRAINED
    assert job.closed_ms >= 60_000
    job.ledger.close()


def test_where_a_batch_ends_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Batch(tmp_path)
    filled(job.log, 30)
    job.begin()
    asked: list[str] = []
    monkeypatch.setattr(job.ledger, "job", asked.append)
    for _ in range(5):
        job.planner.record_range()
    assert asked == []
    job.ledger.close()


@pytest.mark.guarantee(
    "G550",
    "A batch reads each record of the range that is recorded before its first record once: after kills, in other "
    "slices, by other runs, and whatever arrives later. It closes every window and ends.",
    promise="results-depend-only-on-the-log",
)
@pytest.mark.parametrize("seed", range(3))
def test_a_range_is_the_same_in_whatever_runs_it_is_read(tmp_path: Path, seed: int) -> None:
    """By log time, cut into small slices, with a new run and new records after each of them."""
    job, chance = Batch(tmp_path, start=200, end=700, rows=7), Random(seed)
    filled(job.log, 100, seed)
    wanted = {
        (partition, offset)
        for partition, records in job.log.records.items()
        for offset, (log_ms, _) in enumerate(records)
        if 200 <= log_ms < 700
    }
    read: list[tuple[int, int]] = []
    job.begin()
    while job.wanted_end() is None:
        if (row := job.next(job.now_ms + 100)) is None:
            continue
        read += [(p, one) for p, end in row.offsets["s"].items() for one in range(row.offsets_first["s"][p], end)]
        if chance.random() < 0.3:  # a run that dies before it commits: the next one gets the same slice
            filled(job.log, 3, seed)
            assert job.begin().next(job.now_ms) == row
        job.commit(row)
        if chance.random() < 0.3:
            job.begin()
    assert sorted(read) == sorted(wanted) and len(read) > 40
    job.ledger.close()


@pytest.mark.guarantee(
    "G551",
    "A record of an open transaction that lies in the range of a batch belongs to it. The batch waits for the end of "
    "the transaction.",
    promise="results-depend-only-on-the-log",
)
def test_a_batch_waits_for_a_transaction_that_is_open_at_its_end_and_then_takes_it_in(tmp_path: Path) -> None:
    job = Batch(tmp_path, end=150)
    job.log.add(0, 100, 50)
    job.log.add(1, 110, 60)
    job.log.open_from[1] = 0
    job.begin()
    assert job.ledger.job("j").ends == {"s": {0: 1, 1: 1}}
    assert job.commit(job.next(100)).offsets == {"s": {0: 1, 1: 0}}
    assert job.next(200) is None and job.wanted_end() is None
    job.log.open_from.clear()
    assert [row.kind for row in job.commit_all(300)] == [SliceKind.LIVE, SliceKind.DRAIN]
    job.ledger.close()


def test_a_batch_over_nothing_ends_at_once(tmp_path: Path) -> None:
    job = Batch(tmp_path, start=5_000, end=6_000)
    filled(job.log, 10)
    assert [row.kind for row in job.begin().commit_all(100)] == [SliceKind.IDLE, SliceKind.DRAIN]
    assert job.wanted_end() is JobState.DRAINED and job.ledger.totals("j").records == 0
    job.ledger.close()


def test_where_a_batch_ends_is_recorded_once_a_life_and_by_the_present_run(ledger: Ledger) -> None:
    old, run = ledger.begin_run("power", 1), ledger.begin_run("power", 1)
    with pytest.raises(Fenced):
        ledger.record_ends("power", old.epoch, {"turbines": {0: 9}})
    assert ledger.record_ends("power", run.epoch, {"turbines": {0: 5}}) == {"turbines": {0: 5}}
    assert ledger.record_ends("power", run.epoch, {"turbines": {0: 7}}) == {"turbines": {0: 5}}
    ledger.plan_slice(a_slice(1, run.epoch))
    ledger.commit_checkpoint(a_checkpoint(1, run.epoch))
    complete(ledger)
    fence = ledger.end_runs("power", "reset")
    assert not ledger.reset_job(fence, Origin({"turbines": {0: 0}}, {})).has_completed
    assert ledger.job("power").ends is None


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    assert Api(ledger).outcomes(BOTH) == ["created", "created"]
    yield ledger
    ledger.close()


def complete(ledger: Ledger) -> None:
    """End the job as a runner ends a batch."""
    epoch = ledger.job("power").epoch
    for state in (JobState.STARTING, JobState.RUNNING, JobState.DRAINING, JobState.DRAINED):
        ledger.move_job("power", state, epoch=epoch)


def begun(ledger: Ledger) -> None:
    run = ledger.begin_run("power", 1)
    ledger.record_ends("power", run.epoch, {"turbines": {0: 20, 1: 45}})


@pytest.mark.guarantee(
    "G552",
    "No control service runs a completed batch again, and applying it again adds nothing. Another range, or another "
    "document for a completed batch, is refused with a remedy.",
    promise="results-depend-only-on-the-log",
)
def test_no_control_service_starts_a_batch_again_that_has_completed(ledger: Ledger, tmp_path: Path) -> None:
    begun(ledger)
    complete(ledger)
    job = ledger.job("power")
    assert (job.state, job.desired, job.has_completed) == (JobState.DRAINED, Desired.DRAINED, True)
    supervisor = Supervisor(ledger, tmp_path / "other")
    assert not supervisor._needs_runner(job)
    ledger.ask_restart("power")  # as for the reader of a stream whose emitter is new
    assert not supervisor._needs_runner(ledger.job("power"))
    assert ledger.job("power").state is JobState.DRAINED
    assert supervisor._needs_runner(replace(job, desired=Desired.RUNNING))


@pytest.mark.guarantee(
    "G553",
    "The status of a batch reports the completed share of its range, its speed, and the remaining time.",
    promise="failures-are-reported-with-their-remedy",
)
def test_the_status_says_how_far_a_batch_is_and_then_that_it_has_completed(ledger: Ledger) -> None:
    api = Api(ledger)
    assert api.ask("GET", "/v1/jobs/power").json()["batch"] is None
    begun(ledger)
    epoch = ledger.job("power").epoch
    ledger.plan_slice(a_slice(1, epoch, planned_ms=1_000))
    ledger.commit_checkpoint(a_checkpoint(1, epoch, records=30, committed_ms=3_000))
    row = ledger.last_slice("power")
    assert row is not None
    left = sum({0: 20, 1: 45}[p] - offset for p, offset in row.offsets["turbines"].items())
    shown = api.ask("GET", "/v1/jobs/power").json()
    assert shown["batch"] == {
        "records_read": 30, "records_left": left, "share": round(30 / (30 + left), 4), "records_per_s": 15.0,
        "seconds_left": round(left / 15, 1),
    }  # fmt: skip
    assert shown["lag_records"] == left > 0
    complete(ledger)
    shown = api.ask("GET", "/v1/jobs/power").json()
    assert (shown["state"], shown["desired"], shown["links"], shown["rewind"]) == ("completed", "drained", [], None)
    assert api.ask("GET", "/v1/jobs/power/explanation").json()["cause"] == "completed"
    assert 'strandline_job_state{job="power",state="completed"} 1.0' in api.ask("GET", "/metrics").text
    for verb in ("start", "restart", "drain"):
        answer = api.ask("POST", f"/v1/jobs/power/{verb}")
        assert answer.status_code == 409 and "has completed" in answer.json()["detail"]
        assert "strandline job reset power --to start" in answer.json()["detail"]
    assert api.ask("POST", "/v1/jobs/power/stop").json()["state"] == "completed"


@pytest.mark.guarantee("G552")
def test_applying_a_completed_batch_again_changes_nothing_and_another_document_is_refused(ledger: Ledger) -> None:
    begun(ledger)
    complete(ledger)
    api = Api(ledger)
    assert api.outcomes(BATCH) == ["unchanged"]
    other = api.apply(BATCH.replace("max(power)", "min(power)"))
    assert other.status_code == 409 and "has completed, so a changed document" in other.json()["detail"]
    assert "strandline job reset power --to start" in other.json()["detail"]
    assert ledger.job("power").state is JobState.DRAINED


def test_a_batch_that_would_end_in_the_future_is_refused(ledger: Ledger) -> None:
    text = PIPELINE.replace("{stream: turbines}", "{stream: turbines, end: 2999-01-01}").replace("power\n", "later\n")
    answer = Api(ledger).apply(text)
    assert (
        answer.status_code == 409
        and "2999-01-01T00:00:00Z of stream turbines is in the future" in answer.json()["detail"]
    )


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ("{stream: turbines, end: earliest}", "expected latest, or a time"),
        ("{stream: turbines, start: latest, end: latest}", "begins after the newest record reads nothing"),
        ("{stream: turbines, start: 2026-02-01, end: 2026-02-01}", "expected a time after the start, 2026-02-01T00:00"),
        ("{stream: turbines, end: tomorrow}", "is not a log position; write earliest, latest, or a time"),
        ("{stream: turbines, files: [a]}", "strandline batch run FILE --input DATA"),
    ],
)
def test_what_is_no_range_is_told_with_its_line(read: str, message: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        check_documents(f"{STREAM}---\n{PIPELINE.replace('{stream: turbines}', read)}", "farm.yaml", {})
    (problem,) = caught.value.problems
    assert message in problem.message and problem.line == 10


def test_of_several_streams_all_have_an_end_or_none() -> None:
    more = STREAM.replace("turbines", "others")
    inputs = "inputs: [{stream: turbines, end: latest, event_time: {field: ts, delay: 1s}}, {stream: others, "
    inputs += "event_time: {field: ts, delay: 1s}}]"
    text = PIPELINE.replace("input: {stream: turbines}\nevent_time: {field: ts, delay: 10s}", inputs)
    text = text.replace("  - window", "  - from: [turbines, others]\n    window")
    with pytest.raises(InvalidDocument, match="a batch ends in all streams"):
        check_documents(f"{STREAM}---\n{more}---\n{text}", "farm.yaml", {})


def test_a_time_in_a_stream_of_results_is_refused() -> None:
    text = BOTH.replace("end: latest", "start: 2026-01-01, end: 2026-02-01")
    with pytest.raises(InvalidDocument) as caught:
        check_documents(text, "farm.yaml", {}, emitted=["turbines"])
    assert [problem.path for problem in caught.value.problems] == ["input.start", "input.end"]
    check_documents(BOTH, "farm.yaml", {}, emitted=["turbines"])


@pytest.mark.guarantee("G552")
def test_the_range_of_a_job_can_not_change() -> None:
    def checked(read: str) -> Any:
        text = f"{STREAM}---\n{PIPELINE.replace('{stream: turbines}', read)}"
        return check_documents(text, "farm.yaml", {}).pipelines[0]

    batch, live = checked("{stream: turbines, end: latest}"), checked("{stream: turbines}")
    for before, after in ((batch, live), (live, batch), (batch, checked("{stream: turbines, end: 2026-01-01}"))):
        (change,) = changes_between(before, after)
        assert change.effect is Effect.FORBIDDEN and "range" in change.change
    assert changes_between(live, checked("{stream: turbines, start: latest}")) == []


@pytest.mark.guarantee(
    "G555",
    "Documents without an `end` keep their form and digest.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_a_document_without_an_end_is_stored_as_it_was() -> None:
    document = check_documents(f"{STREAM}---\n{PIPELINE}", "farm.yaml", {}).pipelines[0].spec.as_document()
    assert document["input"] == {"stream": "turbines", "start": "earliest"}
    spec = check_documents(BOTH.replace("end:", "start: 2026-03-01T10:00:00.250Z, end:"), "f", {}).pipelines[0].spec
    assert spec.as_document()["input"]["start"] == "2026-03-01T10:00:00.250Z"
    assert PipelineSpec.from_document(spec.as_document()) == spec and spec.is_batch
    assert all(parse_place(format_place(one)) == one for one in ("earliest", "latest", 0, 1, 1_790_812_800_123))


DISTINCT = """
stream: clicks
partitions: 1
retention: 60d
schema: {who: string, what: string, ts: timestamp}
---
pipeline: visitors
input: {stream: clicks, end: latest}
event_time: {field: ts, delay: 0s, max_ahead: null}
steps:
  - distinct: {by: [who, what]}
  - window: {name: months, tumbling: 30d, by: [what], aggregate: {visitors: count(*)}}
    emit: [{elasticsearch: visitors}]
"""


@pytest.mark.guarantee(
    "G554",
    "`distinct` counts records with equal fields once in the whole range of a batch. It is refused in a job without "
    "an end.",
    promise="operators-compute-what-the-reference-describes",
)
def test_distinct_counts_each_once_in_the_whole_range_and_sort_orders_results(tmp_path: Path) -> None:
    chance, file, data = Random(5), tmp_path / "visitors.yaml", tmp_path / "clicks.ndjson"
    file.write_text(DISTINCT)
    clicks = [
        {
            "who": f"w{chance.randrange(9)}",
            "what": f"p{chance.randrange(4)}",
            "ts": 1_700_000_000_000 + n * 86_400_000 * 9,
        }
        for n in range(80)  # two years
    ]
    data.write_text("".join(f"{json.dumps(one)}\n" for one in clicks))
    asked = ["pipeline", "run", str(file), "--input", str(data), "--json", "--sort", "visitors desc", "--sort", "what"]
    done = CliRunner().invoke(commands.app, asked)
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(one["visitors"] for one in found) == len({(one["who"], one["what"]) for one in clicks}) < 40
    shown = [(one["visitors"], one["what"]) for one in found]
    assert shown == sorted(shown, key=lambda one: (-one[0], one[1]))


@pytest.mark.guarantee("G554")
@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("distinct: {by: [who]}", "only a batch can use it; add an end"),
        ("sort: [who]", "Sort them where they are read, or in a local run with pipeline run --sort"),
        ("cogroup: [a, b]", "unite them with 'from: [a, b]'"),
    ],
)
def test_what_is_no_step_of_a_job_is_refused_with_what_to_do(step: str, message: str) -> None:
    text = DISTINCT.replace("distinct: {by: [who, what]}", step).replace(", end: latest", "")
    with pytest.raises(InvalidDocument) as caught:
        check_documents(text, "visitors.yaml", {})
    assert any(message in problem.message for problem in caught.value.problems)


def test_distinct_does_not_count_in_the_reach() -> None:
    (pipeline,) = check_documents(DISTINCT, "visitors.yaml", {}).pipelines
    assert pipeline.reach_ms == 30 * 86_400_000


class Completing(ObedientSupervisor):
    """Runs each batch that should run to its end, at once."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.ledger, self.runs = ledger, 0

    def wake(self) -> None:
        if (job := self.ledger.job("power")).desired is Desired.RUNNING and not job.has_completed:
            self.runs += 1
            begun(self.ledger)
            complete(self.ledger)


def test_the_command_line_runs_a_batch_until_it_has_completed_and_never_twice(ledger: Ledger, tmp_path: Path) -> None:
    file, supervisor = tmp_path / "farm.yaml", Completing(ledger)
    file.write_text(f"{STREAM}---\n{PIPELINE}")  # without an end
    ledger.move_job("power", JobState.STOPPED)
    ledger.set_desired("power", Desired.STOPPED)
    with serving(Api(ledger, supervisor).app) as url:
        for _ in range(2):
            done = CliRunner().invoke(commands.app, ["batch", "run", str(file), "--url", url, "--json"])
            assert done.exit_code == 0, (done.output, done.exception)
            assert json.loads(done.stdout)["state"] == "completed"
        assert supervisor.runs == 1
        other = CliRunner().invoke(commands.app, ["batch", "run", str(file), "--url", url, "--start", "2026-01-01"])
        assert "can't change the range" in str(other.exception)
        file.write_text(f"{STREAM}---\n{PIPELINE}".replace("max(power)", "max(pwoer)"))
        wrong = CliRunner().invoke(commands.app, ["batch", "run", str(file), "--url", url])
        assert f"{file}:13: steps[0].window.aggregate.peak: unknown column 'pwoer'" in str(wrong.exception)


def test_who_waits_for_a_batch_is_told_when_another_client_stops_it(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, looks = tmp_path / "farm.yaml", []
    file.write_text(BOTH)

    def look(client: ControlClient, name: str) -> Any:
        looks.append(name)
        assert len(looks) < 20, "it waits for a batch that is stopped"
        if len(looks) == 3:
            client.order(name, "stop")
        return client.get(f"/v1/jobs/{name}")

    monkeypatch.setattr(client_module, "POLL_S", 0)
    monkeypatch.setattr(ControlClient, "job", look)
    with serving(Api(ledger, ObedientSupervisor(ledger)).app) as url:
        done = CliRunner().invoke(commands.app, ["batch", "run", str(file), "--url", url])
        assert isinstance(done.exception, PermanentError), (done.output, done.exception)
        assert ledger.job("power").state is JobState.STOPPED
        assert "batch power was stopped before it had completed" in str(done.exception)
        assert "strandline job start power" in str(done.exception)
        with Client(url) as client:
            with pytest.raises(PermanentError, match="was stopped before it had completed"):
                client.wait_completed("power")


def test_options_of_the_command_line_go_over_those_of_the_document() -> None:
    (document,) = read_documents(PIPELINE, "farm.yaml")
    assert as_batch(document.data, None, None, None)["input"] == {"stream": "turbines", "end": "latest"}
    batch = as_batch(document.data, "2026-01-01", "2026-02-01", "january")
    assert batch["input"] == {"stream": "turbines", "start": "2026-01-01", "end": "2026-02-01"}
    assert batch["pipeline"] == "january" and document.data["pipeline"] == "power"
    sentence = batch_summary({"share": 0.25, "records_per_s": 1234.5, "records_left": 30, "seconds_left": 90.0})
    assert sentence == "25.0 % read, 1,234 records/s, about 1m30s left"
