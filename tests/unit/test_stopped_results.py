"""Explanations of a job whose results came, and stopped: causes are counted over the last minutes, not over its history."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.ledger.ledger import Ledger
from strandline.ledger.progress import CountedCheckpoint
from strandline.ledger.states import JobState, Offsets, SliceStatus, Totals
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.services.jobs import job_status
from strandline.services.jobs.explanation import JobFacts, explain
from strandline.services.jobs.recent_counts import Recent
from tests.support.control import BOTH, HOUR, Api
from tests.support.ledgers import a_checkpoint, a_slice
from tests.unit.test_explanation import PIPELINE, READ, STREAM

MINUTE_MS = 60_000
NOW_MS = 100 * MINUTE_MS
HISTORY = Totals(100_000, 99_990, {"decode": 10}, {"per_minute": 500}, {})
"""Sums up to the newest result: yesterday, nearly every record was accepted."""


def worked_until(
    minutes_ago: float,
    *,
    since: Totals,
    reached_then: Offsets | None = None,
    reached_early: Offsets | None = None,
    history: Totals = HISTORY,
    **checkpoint: Any,
) -> JobFacts:
    """Facts of a job whose newest result was committed some minutes ago. `since`: what was counted after it."""
    totals = Totals(
        history.records + since.records,
        history.accepted + since.accepted,
        {
            reason: history.rejected.get(reason, 0) + since.rejected.get(reason, 0)
            for reason in history.rejected | since.rejected
        },
        {"per_minute": history.results["per_minute"] + since.results.get("per_minute", 0)},
        since.refused,
    )
    newest = {"turbines": {0: 5_990_000, 1: 5_985_000}} if reached_then is None else reached_then
    result = a_checkpoint(
        500,
        committed_ms=NOW_MS - int(minutes_ago * MINUTE_MS),
        reached=newest,
        accepted_in={"turbines": {0: 500, 1: 500}},
    )
    values: dict[str, Any] = {
        "reached": newest,
        "closes_ms": 5_970_000,
        "emitted": {"per_minute": 5_940_000},
        "latest_log_ms": NOW_MS,
    }
    row = a_checkpoint(900, **(values | checkpoint))
    before = (
        CountedCheckpoint(replace(result, slice=450), history)
        if minutes_ago < 15
        else CountedCheckpoint(result, history)
    )
    recent = Recent(CountedCheckpoint(result, history), before, totals, NOW_MS, reached_early or {})
    return replace(
        READ,
        checkpoint=row,
        last_slice=a_slice(900, silence_ms={}, status=SliceStatus.COMMITTED),
        totals=totals,
        now_ms=NOW_MS,
        recent=recent,
    )


@pytest.mark.guarantee(
    "G960",
    "`strandline job explain` counts the causes of a job with results over the last minutes. If results have stopped, "
    "it reports the current cause, whatever the history of the job is.",
    promise="failures-are-reported-with-their-remedy",
)
@pytest.mark.parametrize(
    ("since", "cause", "part"),
    [
        (
            Totals(500, 0, {"schema": 500}, {}, {}),
            "rejected",
            "500 of 500 records in the last 15m were rejected (schema 500)",
        ),
        (Totals(500, 10, {"late": 490}, {}, {}), "late", "490 of 500 records in the last 15m were late"),
        (
            Totals(500, 10, {"duplicate": 490}, {}, {}),
            "duplicates",
            "490 of 500 records in the last 15m were duplicates",
        ),
    ],
)
def test_a_new_cause_outweighs_the_history(since: Totals, cause: str, part: str) -> None:
    found = explain(worked_until(20, since=since))
    assert (found.cause, part in found.message) == (cause, True), found


def test_the_command_lists_the_dead_letters_of_the_period() -> None:
    found = explain(worked_until(5, since=Totals(500, 0, {"schema": 500}, {}, {})))
    assert "500 of 500 records since the last result, 5m ago, were rejected" in found.message
    assert found.next.endswith("strandline dead-letters list power --since 1970-01-01T01:35:00.000Z")


def test_an_old_cause_is_over_while_results_appear() -> None:
    """A schema error was repaired yesterday: most records of all time were rejected, and none of the last minutes."""
    history = Totals(100_000, 1_000, {"schema": 99_000}, {"per_minute": 500}, {})
    assert explain(worked_until(1, since=Totals(500, 500, {}, {}, {}), history=history)).cause == "results"


@pytest.mark.parametrize(("minutes_ago", "cause"), [(1, "results"), (3, "results"), (20, "window_open")])
def test_results_are_no_answer_for_longer_than_their_windows(minutes_ago: float, cause: str) -> None:
    """Windows of a minute, a delay of 10 s, and an idle timeout of a minute explain five minutes at most."""
    found = explain(worked_until(minutes_ago, since=Totals(500, 500, {}, {}, {})))
    assert found.cause == cause
    assert ("the newest result is 20m old" in found.message) == (minutes_ago == 20)


@pytest.mark.parametrize(("closed_ms", "cause"), [(6_000_000, "filtered"), (5_940_000, "window_open")])
def test_a_condition_that_drops_every_later_record_is_named(closed_ms: int, cause: str) -> None:
    facts = worked_until(
        20,
        since=Totals(500, 500, {}, {}, {}),
        reached_early={"turbines": {0: 5_945_000}},
        emitted={"per_minute": closed_ms},
    )
    found = explain(facts)
    assert found.cause == cause
    assert "drops all of them" not in found.message or "500 records since the last result, 20m ago," in found.message


def test_results_of_records_stop_by_a_condition() -> None:
    document = PIPELINE.spec.as_document() | {"steps": [{"emit": [{"elasticsearch": "turbines-all"}], "name": "all"}]}
    pipeline = check(PipelineSpec.from_document(document), STREAM)
    facts = replace(worked_until(20, since=Totals(500, 500, {}, {}, {})), pipeline=pipeline)
    assert explain(facts).cause == "filtered"
    assert explain(replace(worked_until(1, since=Totals(5, 5, {}, {}, {})), pipeline=pipeline)).cause == "results"


@pytest.mark.parametrize(
    ("refused_since", "refused_before", "cause"), [(40, 0, "refused"), (0, 0, "results"), (0, 5, "refused")]
)
def test_results_that_a_store_refuses_now_outweigh_the_history(
    refused_since: int, refused_before: int, cause: str
) -> None:
    since = Totals(500, 500, {}, {"per_minute": refused_since}, {"per_minute": refused_since})
    facts = worked_until(1, since=since)
    assert facts.recent is not None
    newest = facts.recent.result._replace(row=replace(facts.recent.result.row, refused={"per_minute": refused_before}))
    assert explain(replace(facts, recent=replace(facts.recent, result=newest))).cause == cause


def test_a_lag_is_compared_with_the_last_minutes() -> None:
    history = Totals(50_000_000, 50_000_000, {}, {"per_minute": 500}, {})
    facts = worked_until(1, since=Totals(100_000, 100_000, {}, {}, {}), history=history)
    assert explain(replace(facts, lag_records=900_000)).cause == "behind"
    assert explain(replace(facts, lag_records=9_000)).cause == "results"


@pytest.mark.guarantee(
    "G961",
    "`strandline job explain` names a partition whose event time stands still although its records are accepted, and "
    "how far these are ahead of the clock of the broker.",
    promise="failures-are-reported-with-their-remedy",
)
@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({}, "stalled"),
        ({"accepted_in": {"turbines": {0: 900, 1: 400}}}, "held_back"),  # no record of it is accepted
        ({"reached": {"turbines": {0: 6_100_000, 1: 5_991_000}}}, "held_back"),  # it advances
    ],
)
def test_a_clock_that_was_set_back_is_named(changed: dict[str, Any], cause: str) -> None:
    """Event time advances to the earlier one of event time and log time: it waits until the log time has caught up."""
    reached = {"turbines": {0: 6_100_000, 1: 5_985_000}}
    values = {"accepted_in": {"turbines": {0: 900, 1: 900}}, "ahead_ms": {"turbines": {1: 180_000}}} | changed
    facts = worked_until(20, since=Totals(500, 500, {}, {}, {}), reached_then=reached, **values)
    found = explain(facts)
    assert found.cause == cause
    if cause == "stalled":
        assert "event time of partition 1 of stream turbines has been 1970-01-01T01:39:45.000Z for 15m" in found.message
        assert "these are up to 3m ahead of their log time" in found.message
        assert "strandline doctor" in found.next


def test_a_stage_that_does_not_emit_filters_nothing() -> None:
    """Only hourly results are emitted: minutes that have closed don't show that a condition drops all records."""
    document = PIPELINE.spec.as_document()
    minutes = {"window": {"name": "per_minute", "tumbling": "1m", "aggregate": {"n": "count(*)"}}}
    hours = {
        "window": {"name": "per_hour", "tumbling": "1h", "aggregate": {"n": "sum(n)"}},
        "emit": [{"elasticsearch": "turbine-hour"}],
    }
    pipeline = check(PipelineSpec.from_document(document | {"steps": [minutes, hours]}), STREAM)
    row = a_checkpoint(
        1,
        reached={"turbines": {0: 130_000, 1: 131_000}},
        closes_ms=120_000,
        emitted={"per_minute": 120_000, "per_hour": 0},
    )
    facts = replace(READ, pipeline=pipeline, checkpoint=row, reached_early={"turbines": {0: 5_000}})
    assert explain(facts).cause == "window_open"


class TestOverTheApi:
    """Explanations and checkpoints, through the ledger and the API."""

    @pytest.fixture
    def api(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
        api = Api(ledger)
        api.apply(BOTH + HOUR)
        for state in (JobState.STARTING, JobState.RUNNING):
            ledger.move_job("power", state)
        self.epoch = ledger.begin_run("power", 1).epoch
        yield api
        ledger.close()

    def commit(self, api: Api, numbers: range, **changed: Any) -> None:
        """Commit slices, one each minute."""
        for number in numbers:
            api.ledger.plan_slice(a_slice(number, self.epoch))
            row = a_checkpoint(number, self.epoch, committed_ms=number * MINUTE_MS, emitted={}, **changed)
            api.ledger.commit_checkpoint(row)

    @pytest.mark.parametrize("stopped", [1, 2, 3, 7, 11])
    def test_the_newest_result_is_found(self, api: Api, stopped: int) -> None:
        self.commit(api, range(1, 13 - stopped))
        self.commit(api, range(13 - stopped, 13), results={"per_minute": 0})
        found = api.ledger.last_result("power")
        assert found is not None
        assert (found.row.slice, found.totals.records) == (12 - stopped, 30 * (12 - stopped))
        before = api.ledger.checkpoints_at(["power", "none"], 9 * MINUTE_MS + 1)
        assert {job: found.row.slice for job, found in before.items()} == {"power": 9}

    def test_a_job_without_a_result_has_no_newest_one(self, api: Api) -> None:
        assert api.ledger.last_result("power") is None
        self.commit(api, range(1, 4), results={"per_minute": 0})
        assert api.ledger.last_result("power") is None
        assert api.ledger.checkpoints_at(["power"], MINUTE_MS - 1) == {}

    @pytest.mark.guarantee("G960")
    def test_rejections_since_twenty_minutes_are_the_cause(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commit(api, range(1, 11), records=30_000, accepted=29_998)
        last = a_checkpoint(10)
        self.commit(
            api,
            range(11, 31),
            accepted=0,
            rejected={"schema": 30},
            results={"per_minute": 0},
            latest_event_ms=last.latest_event_ms,
            reached=last.reached,
            closes_ms=last.closes_ms,
        )
        monkeypatch.setattr(job_status, "time", SimpleNamespace(time=lambda: 30 * 60.0 + 5))
        found = api.ask("GET", "/v1/jobs/power/explanation").json()
        assert found["cause"] == "rejected"
        assert found["message"] == "450 of 450 records in the last 15m were rejected (schema 450)"
