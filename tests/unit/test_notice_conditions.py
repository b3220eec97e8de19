"""Conditions over watermarks and results: what they find, and what they tell the person who is woken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.core.documents import read_documents
from strandline.ledger.ledger import Ledger
from strandline.ledger.notices import ProblemRow
from strandline.ledger.states import Desired, EventTimeRule, JobState
from strandline.notices.conditions import restarts, results, watermark_stuck
from strandline.notices.conditions.lag import LagSpec
from strandline.notices.conditions.no_checkpoint import NoCheckpointSpec
from strandline.notices.conditions.restarts import RestartsSpec
from strandline.notices.conditions.results import ResultsSpec
from strandline.notices.conditions.table import condition_of
from strandline.notices.conditions.watermark_stuck import WatermarkStuckSpec
from strandline.notices.document import NoticeSpec
from strandline.notices.finding import Finding, Sight
from strandline.notices.rendering import render
from strandline.notices.result_filter import ExpressionError, filter_of
from strandline.notices.view import FoundResult, JobFacts, StuckWatermark, Surroundings, View
from strandline.services.jobs.explanation import slowest_partition
from strandline.services.jobs.notice_results import ConditionUnusable, matching_results, notes_of_conditions
from tests.support.control import BOTH, Api

EXISTS = {"exists": {"field": "peak"}}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    opened.put_stream("turbines", {"stream": "turbines", "retention": "7d"})
    opened.submit_job("power", "text", {"pipeline": "power", "input": {"stream": "turbines"}})
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("where", "query"),
    [
        ("peak > 100", {"range": {"peak": {"gt": 100}}}),
        ("-1.5 >= peak", {"range": {"peak": {"lte": -1.5}}}),
        ("not peak < 5", {"range": {"peak": {"gte": 5}}}),
        ("site = 'north'", {"term": {"site": "north"}}),
        ("is_down", {"term": {"is_down": True}}),
        ("not is_down", {"term": {"is_down": False}}),
        ("peak <> 3", {"bool": {"filter": [EXISTS], "must_not": [{"term": {"peak": 3}}]}}),
        ("peak is null", {"bool": {"must_not": [EXISTS]}}),
        ("peak is not null", EXISTS),
        ("peak > 1 and n = 2", {"bool": {"filter": [{"range": {"peak": {"gt": 1}}}, {"term": {"n": 2}}]}}),
        (
            "not (peak > 1 and n = 2)",
            {
                "bool": {
                    "should": [
                        {"range": {"peak": {"lte": 1}}},
                        {"bool": {"filter": [{"exists": {"field": "n"}}], "must_not": [{"term": {"n": 2}}]}},
                    ],
                    "minimum_should_match": 1,
                }
            },
        ),
    ],
)
def test_a_condition_over_results_is_a_query(where: str, query: dict[str, Any]) -> None:
    assert filter_of(where).query == query


@pytest.mark.parametrize(
    "where", ["peak > other", "peak + 1 > 2", "upper(site) = 'A'", "1 > 2", "peak >", "peak > true"]
)
def test_a_condition_that_needs_more_than_comparisons_is_refused(where: str) -> None:
    with pytest.raises(ExpressionError):
        filter_of(where)


def only(findings: Any) -> Finding:
    (finding,) = findings.holding.values()
    return finding


def test_a_result_that_meets_the_condition_names_the_key_the_value_and_the_window(ledger: Ledger) -> None:
    asked: list[tuple[Any, ...]] = []

    def find(*arguments: Any) -> list[FoundResult]:
        asked.append(arguments)
        return [FoundResult("turbine-hour", {"turbine": "T07"}, {"peak": 131.5}, 0, 3_600_000)]

    options = ResultsSpec.model_validate(
        {"of": "turbine-health.hourly", "where": "peak > 100", "for": "1m", "clear": "5m"}
    )
    sight = results.look(options, View(ledger, 0, [], surroundings=Surroundings(results=find)))
    assert asked == [("turbine-health", "hourly", "peak > 100", None)]
    assert (sight.hold_ms, sight.clear_ms) == (60_000, 300_000)
    finding = only(sight)
    assert finding.title == "turbine T07: peak = 131.5 (turbine-health.hourly where peak > 100, for 1m)"
    assert "from 1970-01-01 00:00:00Z to 1970-01-01 01:00:00Z" in finding.reason
    assert "strandline results turbine-hour" in finding.action


def test_a_stuck_watermark_names_the_partition_and_the_device(ledger: Ledger) -> None:
    ledger.move_job("power", JobState.STARTING)
    ledger.move_job("power", JobState.RUNNING)
    stuck = StuckWatermark(60_000, 61_000, 500, "turbines", 3, 62_000, 900_000, log_ms=90_000, devices=("T07",))
    asked: list[tuple[str, int]] = []

    def find(job: str, since_ms: int) -> StuckWatermark:
        asked.append((job, since_ms))
        return stuck

    view = View(ledger, 1_000_000, [], surroundings=Surroundings(stuck_watermark=find))
    finding = only(watermark_stuck.look(WatermarkStuckSpec(), view))
    assert asked == [("power", 700_000)]
    assert finding.title == (
        "The watermark of job power doesn't advance: partition 3 of stream turbines holds it back, device T07"
    )
    assert "500 records were read" in finding.reason and "arrived 15m ago, from T07" in finding.reason
    assert "event_time.idle_timeout" in finding.action
    ledger.move_job("power", JobState.FAILED, "gone")
    view = View(ledger, 1_000_000, [], surroundings=Surroundings(stuck_watermark=find))
    assert not watermark_stuck.look(WatermarkStuckSpec(), view).holding


@pytest.mark.guarantee("G972")
@pytest.mark.parametrize(
    ("keyword", "options"),
    [("lag", LagSpec(above=5)), ("no_checkpoint", NoCheckpointSpec()), ("watermark_stuck", WatermarkStuckSpec())],
)
def test_a_job_that_fails_or_is_stopped_leaves_its_problem_unresolved(
    ledger: Ledger, keyword: str, options: Any
) -> None:
    stuck = StuckWatermark(60_000, 61_000, 500, "turbines", 3, 62_000, 900_000)
    facts = JobFacts(lag_records=100)
    surroundings = Surroundings(job_facts=lambda job: facts, stuck_watermark=lambda job, since_ms: stuck)

    def state() -> str:
        view = View(ledger, ledger.job("power").created_ms + 3_600_000, [], surroundings=surroundings)
        sight = condition_of(keyword).look(options, view)
        found = [name for name in ("holding", "unknown", "lost") if "job power" in getattr(sight, name)]
        assert len(found) == 1
        return found[0]

    ledger.move_job("power", JobState.STARTING)
    ledger.move_job("power", JobState.RUNNING)
    assert state() == "holding"
    ledger.move_job("power", JobState.STARTING)
    assert state() in ("holding", "unknown")
    ledger.move_job("power", JobState.FAILED, "gone")
    assert state() in ("holding", "unknown")
    ledger.set_desired("power", Desired.STOPPED)
    assert state() == "lost"


@pytest.mark.guarantee("G972")
def test_a_job_that_fails_after_restarts_leaves_their_problem_open(ledger: Ledger) -> None:
    options = RestartsSpec(times=2)
    ledger.move_job("power", JobState.STARTING)
    for _ in range(2):
        ledger.record_event("runner_died", "killed", "power")

    def sight() -> Sight:
        return restarts.look(options, View(ledger, ledger.events()[-1].at_ms + 1_000, []))

    assert "job power" in sight().holding
    ledger.move_job("power", JobState.FAILED, "gone")
    assert not sight().holding and sight().unknown == {"job power"}


def test_the_end_of_dead_letters_says_that_they_still_exist() -> None:
    row = ProblemRow("night", 1, "dead_letters 2", "s", "power", 0, 1, 1, "Too many", "", "a", "d", ended_ms=9_000)
    text = render("night", "resolved", [row])["text"]
    assert "strandline dead-letters list power" in text and "nothing to do" not in text
    assert "nothing to do" in render("night", "resolved", [replace(row, condition="lag")])["text"]


def test_the_partition_that_holds_the_watermark_back_is_not_idle() -> None:
    rule = EventTimeRule(delay_ms=0, idle_timeout_ms=1_000)
    reached = {"turbines": {0: 500, 1: 100, 2: 300}}
    assert slowest_partition(rule, reached, {}) == ("turbines", 1)
    assert slowest_partition(rule, reached, {"turbines": {1: 1_000}}) == ("turbines", 2)
    assert slowest_partition(rule, reached, {"turbines": dict.fromkeys(range(3), 1_000)}) == ("turbines", 1)


def test_a_condition_over_results_that_cannot_be_evaluated_is_a_note_when_the_notice_is_applied(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/other.sqlite")
    api = Api(ledger)

    def note_of(of: str, where: str) -> list[str]:
        text = f"""notice: night
when: [{{results: {{of: {of}, where: "{where}"}}}}]
to: [{{webhook: {{url: "https://hooks.example/a"}}}}]
"""
        (document,) = read_documents(text, "night.yaml", ("notice",))
        return list(notes_of_conditions(ledger, NoticeSpec.parse(document)))

    assert api.outcomes(BOTH) == ["created", "created"]
    assert note_of("power.per_minute", "peak > 100 and turbine = 'a'") == []
    assert (
        "results of power.per_minute have no field peek; did you mean 'peak'?"
        in note_of("power.per_minute", "peek > 1")[0]
    )
    assert "emits no windows of a stage hourly to Elasticsearch" in note_of("power.hourly", "peak > 1")[0]
    assert "apply the job, or correct the notice" in note_of("other.hourly", "peak > 1")[0]
    with pytest.raises(ConditionUnusable):
        matching_results(ledger, "http://127.0.0.1:1", "power", "per_minute", "peek > 1", None)
    ledger.close()
