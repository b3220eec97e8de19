"""The slices that are deleted from the ledger, and that readers of old slices report when they are gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import LogTruncated, LogUnavailable
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobRow
from strandline.log.admin import TopicDescription
from strandline.processing.emission.fencing import slots_of_older_runs
from strandline.processing.pipelines.stored import load_pipeline, streams_of_version
from strandline.processing.slices import old_runs
from strandline.processing.slices.old_slices import SlicesKept, floor_of_use
from strandline.processing.slices.rewind import RUN_BEGINS, plan_of_job, require_ledger_holds
from strandline.services.supervision import old_slices
from strandline.services.supervision.old_slices import SliceCleanup
from tests.support.control import BOTH, HOUR, Api
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.waiting import stretched

SLICES = 40
DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000
NOW_MS = SLICES * HOUR_MS
"""When the last slice was committed."""
READER = """\
pipeline: daily
input: {stream: turbine-minute}
event_time: {field: window_start, delay: 0s}
steps:
  - window: {name: per_day, tumbling: 1d, by: [turbine], aggregate: {n: sum(n)}}
    emit: [{elasticsearch: turbine-day}]
"""
ALL, NONE = {0: 0, 1: 0}, {0: 10 * SLICES, 1: 20 * SLICES}
"""Where the log starts: all is held, nothing is."""


class Lab:
    """A job of 40 slices, each a minute of event time that is closed by the next, one committed every hour."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.api = ledger, Api(ledger)
        self.api.apply(BOTH)
        self.api.log.ranges["turbines"].offset_first.update(ALL)
        ledger.begin_run("power", pid=1)
        self.starts, self.result_starts = dict(ALL), dict(ALL)
        for number in range(1, SLICES + 1):
            self.commit(number, closes_ms=(number - 1) * MINUTE_MS or None)

    def commit(self, number: int, closes_ms: int | None) -> None:
        self.ledger.plan_slice(a_slice(number))
        row = a_checkpoint(number, latest_event_ms=number * MINUTE_MS - 1, closes_ms=closes_ms)
        emitted = {"per_minute": closes_ms} if closes_ms else {}
        self.ledger.commit_checkpoint(replace(row, committed_ms=number * HOUR_MS, emitted=emitted))

    def log_starts(self, topic: str) -> dict[int, int]:
        if not self.starts:
            raise LogUnavailable("Kafka does not answer")
        return self.result_starts if topic.endswith("-minute") else self.starts

    def floor(self, days_min: int, days_max: int) -> int:
        return floor_of_use(self.ledger, "power", self.log_starts, SlicesKept(days_min, days_max), NOW_MS)

    def old_slices(self, leads: Callable[[str], bool] = lambda job: True) -> SliceCleanup:
        return SliceCleanup(self.ledger, leads, self.log_starts, SlicesKept(0, 1), lambda: NOW_MS, pause_s=0)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Lab(ledger)
    ledger.close()


@pytest.mark.guarantee(
    "G29",
    "Slices that no rewind and no reader of a stream of results needs are removed from the ledger with their records, "
    "or after a number of days. So the ledger is bounded by the retention of the streams. Runs without slices are "
    "removed, except the newest and informative ones. Requests that need removed slices are refused.",
    promise="stored-data-is-bounded",
)
def test_slices_go_with_their_records(lab: Lab) -> None:
    assert lab.floor(0, 31) == 0
    lab.starts = {0: 95, 1: 200}  # in the midst of slice 10 of one partition, at the beginning of slice 11 of the other
    assert lab.floor(0, 31) == 10
    lab.starts = NONE
    assert lab.floor(0, 31) == SLICES - 1, "only the last one is needed by a rewind"


def test_slices_stay_at_least_and_at_most_so_many_days(lab: Lab) -> None:
    assert (lab.floor(0, 1), lab.floor(1, 1)) == (15, 15), "although the log holds all records"
    lab.starts = NONE
    assert lab.floor(1, 31) == 15, "although the log holds none"


@pytest.mark.guarantee("G29")
def test_what_a_rewind_needs_stays_however_old_it_is(lab: Lab) -> None:
    lab.starts = NONE
    assert lab.api.apply(BOTH + HOUR).status_code == 200  # its first window has not ended, so it holds all records
    assert lab.floor(0, 1) == 0


@pytest.mark.guarantee("G29")
def test_what_a_reader_of_a_stream_of_results_is_cut_at_stays_however_old_it_is(lab: Lab) -> None:
    """Else it would take all that it has not read yet, up to the oldest checkpoint, as one slice."""
    streamed = BOTH.replace("turbine-minute}]", "turbine-minute}, {stream: turbine-minute}]")
    assert lab.api.apply(streamed).status_code == 200, lab.api.apply(streamed).text
    assert lab.floor(0, 1) == 0
    lab.result_starts = {0: 35, 1: 15}  # the end of emission 5
    assert lab.floor(0, 1) == 4
    lab.result_starts = {0: 7 * SLICES, 1: 3 * SLICES}
    assert lab.floor(0, 1) == 15, "audits need only this number of days"


@pytest.mark.guarantee("G771")
def test_what_a_lagging_reader_of_a_former_emitter_is_cut_at_stays_however_old_it_is(lab: Lab) -> None:
    """The emitter's current version omits the stream; the reader has read up to the end of emission 5."""
    streamed = BOTH.replace("turbine-minute}]", "turbine-minute}, {stream: turbine-minute}]")
    assert lab.api.apply(f"{streamed}---\n{READER}").status_code == 200
    assert lab.api.apply(BOTH).status_code == 200
    unread = lab.floor(0, 1)
    lab.ledger.begin_run("daily", pid=1)
    read = {"turbine-minute": {0: 7 * SLICES, 1: 3 * SLICES}}
    lab.ledger.plan_slice(a_slice(1, job="daily", offsets_first={}, offsets=read))
    assert (unread, lab.floor(0, 1)) == (0, 15), "audits need only this number of days"


def test_a_job_without_a_checkpoint_has_nothing_to_clear(lab: Lab) -> None:
    lab.api.apply(BOTH.replace("pipeline: power", "pipeline: fresh").replace("turbine-minute", "fresh-minute"))
    assert floor_of_use(lab.ledger, "fresh", lab.log_starts, SlicesKept(0, 1), NOW_MS) == 0


def test_clearing_leaves_the_job_as_it_was(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_slices, "SLICES_A_TRANSACTION", 4)
    checkpoint, totals = lab.ledger.last_checkpoint("power"), lab.ledger.totals("power")
    assert lab.old_slices().clear() == 14
    assert lab.old_slices().clear() == 0
    assert lab.ledger.floor("power") == 15
    assert (lab.ledger.last_checkpoint("power"), lab.ledger.totals("power")) == (checkpoint, totals)
    found = lab.api.ask("GET", "/v1/jobs/power/slices?limit=2").json()
    assert [row["number"] for row in found["slices"]] == [15, 16]
    lab.commit(SLICES + 1, SLICES * MINUTE_MS)


@pytest.mark.guarantee("G29")
def test_a_version_that_reaches_further_back_keeps_its_slices_from_when_it_is_applied(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two transactions, and between the look at what is needed and the transaction that removes the rest."""
    monkeypatch.setattr(old_slices, "SLICES_A_TRANSACTION", 4)
    lab.starts = NONE
    steps = iter(["30m", "20m"])
    raise_floor = lab.ledger.raise_floor

    def raise_and_apply(*asked: Any) -> int:
        """The first version comes after a transaction, the second one within the next look."""
        if lab.ledger.floor("power"):
            apply(next(steps, None))
            return raise_floor(*asked)
        gone = raise_floor(*asked)
        apply(next(steps))
        return gone

    def apply(size: str | None) -> None:
        assert size is None or lab.api.apply(BOTH + HOUR.replace("1h", size)).status_code == 200

    monkeypatch.setattr(lab.ledger, "raise_floor", raise_and_apply)
    assert lab.old_slices().clear() == 4, "nothing after the second version"
    lab.old_slices().clear()
    assert lab.ledger.floor("power") == 20
    for version in (2, 3):
        plan = plan_of_job(lab.ledger, load_pipeline(lab.ledger, "power", version))
        require_ledger_holds(lab.ledger, "power", plan)


@pytest.mark.guarantee("G29")
def test_runs_of_an_outage_go_with_their_events(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka is away: a run in ten seconds, each with two events, and none comes so far that it could write."""
    monkeypatch.setattr(old_runs, "RUNS_KEPT", 3)
    monkeypatch.setattr(old_slices, "RUNS_A_TRANSACTION", 4)
    ledger, began = lab.ledger, {"slice_first": 40, "slice_committed": 40, "records": 0}
    ledger.record_event(RUN_BEGINS, "run 1 begins", "power", 1, began)
    for epoch in range(2, 22):
        ledger.begin_run("power", pid=1)
        ledger.set_run_streams("power", epoch, {"turbines": 1})
        if epoch in (5, 6):
            ledger.set_run_slots("power", epoch, 2)
        for kind in ("run_failed", "runner_died"):
            ledger.record_event(kind, "Kafka does not answer", "power", epoch)
    ledger.begin_run("power", pid=1)
    ledger.set_run_slots("power", 22, 2)
    shown = ledger.last_event("power", RUN_BEGINS)
    of_use = slots_of_older_runs(ledger, ledger.runs("power")[-1]), streams_of_version(ledger, "power", 1)
    lab.starts = {}
    lab.old_slices().clear()
    # The first left slices, the next two may have left results in Kafka, and the last ones are for people.
    assert [run.epoch for run in ledger.runs("power")] == [1, 5, 6, 20, 21, 22]
    assert {event.epoch for event in ledger.events("power")} == {None, 1, 5, 6, 20, 21}
    assert ledger.last_event("power", RUN_BEGINS) == shown
    assert of_use == (slots_of_older_runs(ledger, ledger.runs("power")[-1]), streams_of_version(ledger, "power", 1))
    ledger.plan_slice(a_slice(SLICES + 1, 22))
    ledger.commit_checkpoint(
        a_checkpoint(SLICES + 1, 22, latest_event_ms=SLICES * MINUTE_MS, closes_ms=SLICES * MINUTE_MS)
    )
    lab.old_slices().clear()
    assert [run.epoch for run in ledger.runs("power")] == [1, 20, 21, 22], (
        "the attempt before the commit was fenced by then"
    )


@pytest.mark.guarantee("G29")
def test_of_a_version_the_newest_run_stays(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run records the versions of its streams' documents with which the pipeline is compiled.

    A run that ended before that records none.
    """
    monkeypatch.setattr(old_runs, "RUNS_KEPT", 3)
    ledger = lab.ledger
    for epoch in range(2, 6):
        ledger.begin_run("power", pid=1)
        if epoch < 5:
            ledger.set_run_streams("power", epoch, {"turbines": 1})
    lab.api.apply(BOTH.replace("max(power)", "max(power), least: min(power)"))
    for _ in range(6, 11):
        ledger.begin_run("power", pid=1)
    lab.old_slices().clear()
    assert [run.epoch for run in ledger.runs("power")] == [1, 4, 5, 8, 9, 10]
    assert streams_of_version(ledger, "power", 1) == {"turbines": 1}


def test_a_service_that_leads_the_job_no_more_clears_no_more(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_slices, "SLICES_A_TRANSACTION", 4)
    leads = iter([True, True])
    assert lab.old_slices(lambda job: next(leads, False)).clear() == 8


def test_a_mistake_of_ours_in_one_job_stops_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.api.apply(BOTH.replace("pipeline: power", "pipeline: fresh").replace("turbine-minute", "fresh-minute"))

    def leads(job: str) -> bool:
        if job == "fresh":
            raise IndexError("list index out of range")
        return True

    assert [job.name for job in lab.ledger.jobs()] == ["fresh", "power"]
    assert lab.old_slices(leads).clear() > 0


def test_the_thread_outlives_a_mistake_of_ours(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_slices, "POLL_INTERVAL_S", 0)
    looks, second = iter([1, 2]), threading.Event()

    def jobs() -> list[JobRow]:
        if next(looks, None) == 2:
            second.set()
        raise IndexError("list index out of range")

    monkeypatch.setattr(lab.ledger, "jobs", jobs)
    clearing = lab.old_slices()
    clearing.start()
    try:
        assert second.wait(stretched(20))
    finally:
        clearing.close()


def test_one_job_that_cannot_be_looked_at_stops_nothing(lab: Lab) -> None:
    lab.starts = {}
    assert lab.old_slices().clear() == 0
    lab.starts = NONE
    assert lab.old_slices().clear() > 0


@pytest.mark.guarantee("G29")
def test_a_version_that_reaches_back_behind_the_floor_is_refused(lab: Lab) -> None:
    lab.old_slices().clear()
    plan = plan_of_job(lab.ledger, load_pipeline(lab.ledger, "power", 1))
    require_ledger_holds(lab.ledger, "power", plan)
    refused = lab.api.apply(BOTH + HOUR)
    assert refused.status_code == 409 and "needs slices up to 15" in refused.json()["detail"]
    with pytest.raises(LogTruncated, match="removed from the ledger"):
        require_ledger_holds(lab.ledger, "power", replace(plan, slice_first=15))


def test_a_version_that_was_checked_against_another_state_of_the_job_is_refused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check and the submission old slices go that it needs, or another application comes in between."""

    def apply_while(meanwhile: Callable[[], object]) -> str:
        with monkeypatch.context() as patch:

            def ensure(job: str) -> TopicDescription:
                patch.undo()
                meanwhile()
                return lab.api.topics.ensure_dead_letter_topic(job)

            patch.setattr(lab.api.topics, "ensure_dead_letter_topic", ensure)
            answer = lab.api.apply(BOTH + HOUR.replace("1h", "2h"))
        assert answer.status_code == 409, answer.text
        return str(answer.json()["detail"])

    other = BOTH + HOUR
    assert "has just got version 2 by another application" in apply_while(lambda: lab.api.apply(other))
    lab.api.apply(BOTH)
    assert "Old slices of job power have just been removed" in apply_while(lambda: lab.old_slices().clear())
    assert lab.ledger.job("power").version == 3
    assert lab.api.apply(BOTH).json()["applied"][1]["outcome"] == "unchanged"
