"""One cause for each way in which a job can have no output, the first that holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired, JobRow, JobState, SliceStatus, Totals
from strandline.log.kafka_status import LogRange
from strandline.processing.kinds.session.shape import SessionShape
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.services.jobs import job_status
from strandline.services.jobs.explanation import JobFacts, explain
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice

STREAM = StreamSpec.from_document({"stream": "turbines", "schema": {"ts": "timestamp", "load": "double"}})
PIPELINE = check(
    PipelineSpec.from_document(
        {
            "pipeline": "power",
            "input": {"stream": "turbines"},
            "event_time": {"field": "ts", "delay": "10s", "idle_timeout": "1m"},
            "steps": [
                {"where": "load > 0"},
                {
                    "window": {"name": "per_minute", "tumbling": "1m", "aggregate": {"n": "count(*)"}},
                    "emit": [{"elasticsearch": "turbine-minute"}],
                },
            ],
        }
    ),
    STREAM,
)
JOB = JobRow("power", 1, Desired.RUNNING, JobState.RUNNING, "", 1, 0, 0, 0)
READ = JobFacts(
    job=JOB,
    pipeline=PIPELINE,
    held={"turbines": LogRange({0: 0, 1: 0}, {0: 10, 1: 20})},
    lag_records=0,
    last_slice=a_slice(1, silence_ms={}, status=SliceStatus.COMMITTED),
    checkpoint=a_checkpoint(1, reached={"turbines": {0: 65_000, 1: 50_000}}, closes_ms=None, emitted={}),
    totals=Totals(30, 28, {"late": 1, "decode": 1}, {}),
    reached_early={},
    now_ms=10_000,
)
UNREAD = replace(READ, checkpoint=None, last_slice=None, totals=Totals(0, 0, {}, {}))
BOTH_PAST = a_checkpoint(
    1, reached={"turbines": {0: 130_000, 1: 131_000}}, closes_ms=120_000, emitted={"per_minute": 120_000}
)
QUIET = replace(READ, checkpoint=replace(BOTH_PAST, records=0, latest_log_ms=1_000), now_ms=1_201_000)
"""All senders stopped 20 minutes ago."""
ONE_AHEAD = a_checkpoint(1, reached={"turbines": {0: 90_000, 1: 50_000}}, closes_ms=None, emitted={})


CASES = [
    (
        replace(READ, job=replace(JOB, state=JobState.FAILED, message="disk full")),
        "failed",
        "has failed: disk full",
    ),
    (replace(READ, job=replace(JOB, state=JobState.CREATED)), "not_started", "was never started"),
    (replace(READ, job=replace(JOB, state=JobState.STOPPED)), "stopped", "is stopped"),
    (replace(READ, job=replace(JOB, state=JobState.DRAINED)), "drained", "is drained"),
    (replace(READ, job=replace(JOB, state=JobState.STARTING)), "starting", "is starting"),
    (replace(READ, held={"turbines": None}, lag_records=None), "log_away", "Kafka does not answer"),
    (
        replace(READ, unavailable_store="Elasticsearch"),
        "writer",
        "slice 1 is not committed, and Elasticsearch does not respond",
    ),
    (replace(READ, unavailable_store="Elasticsearch", lag_records=50_000), "writer", "Elasticsearch does not respond"),
    (
        replace(READ, unavailable_store="Elasticsearch", job=replace(JOB, state=JobState.STARTING)),
        "writer",
        "Elasticsearch",
    ),
    (
        replace(READ, unavailable_store="Elasticsearch", job=replace(JOB, state=JobState.STOPPED)),
        "stopped",
        "is stopped",
    ),
    (replace(READ, unavailable_store="Elasticsearch", held={"turbines": None}), "log_away", "Kafka does not answer"),
    (
        replace(READ, last_slice=a_slice(2, planned_ms=10_000), now_ms=610_000),
        "slow_slice",
        "slice 2 was planned 10m ago and is not committed, although Kafka and the store of the results respond",
    ),
    (replace(READ, last_slice=a_slice(2, planned_ms=10_000), now_ms=129_000), "window_open", "is still open"),
    (replace(UNREAD, held={"turbines": LogRange({0: 0}, {0: 0})}), "no_input", "stream turbines has no record"),
    (replace(UNREAD, lag_records=0), "no_input", "starts after the records of stream turbines"),
    (replace(UNREAD, lag_records=30), "first_slice", "is being read"),
    (replace(READ, totals=Totals(30, 5, {"late": 24, "decode": 1}, {})), "late", "24 of 30 records were late"),
    (
        replace(READ, totals=Totals(30, 5, {"late": 1, "schema": 23, "decode": 1}, {})),
        "rejected",
        "25 of 30 records were rejected (schema 23, late 1, decode 1)",
    ),
    (replace(READ, totals=Totals(30, 5, {"duplicate": 25}, {})), "duplicates", "25 of 30 records were duplicates"),
    (replace(READ, lag_records=50_000), "behind", "50000 records are still to be read"),
    (
        replace(READ, totals=Totals(30, 28, {}, {"per_minute": 5}, {"per_minute": 4})),
        "refused",
        "4 of 5 results were refused",
    ),
    (replace(READ, checkpoint=BOTH_PAST), "window_open", "that ends at 1970-01-01T00:03:00.000Z is still open"),
    (
        replace(READ, checkpoint=BOTH_PAST, reached_early={"turbines": {0: 50_000}}),
        "filtered",
        "28 records were accepted, but have no results",
    ),
    (
        replace(READ, checkpoint=ONE_AHEAD),
        "held_back",
        "partition 1 of stream turbines holds the watermark back: its event time is 1970-01-01T00:00:50.000Z, that of "
        "others 1970-01-01T00:01:30.000Z; the window of stage per_minute that ends at 1970-01-01T00:01:00.000Z is open",
    ),
    (
        READ,
        "window_open",
        "the window of stage per_minute that ends at 1970-01-01T00:01:00.000Z is still open: it closes when event time "
        "reaches 1970-01-01T00:01:10.000Z (its end, and the delay of 10s), or after 1m of silence; event time is "
        "1970-01-01T00:00:50.000Z in partition 1",
    ),
    (
        replace(READ, checkpoint=BOTH_PAST, totals=Totals(30, 28, {}, {"per_minute": 5}, {})),
        "results",
        "the job emits results (per_minute 5); next is the window of stage per_minute that ends at 1970-01-01T00:03:00.000Z",
    ),
    (
        replace(QUIET, totals=Totals(30, 28, {}, {"per_minute": 5}, {})),
        "no_input",
        "the newest record of stream turbines is 20m old, and all records are read; results so far: per_minute 5",
    ),
]


@pytest.mark.parametrize(("facts", "cause", "part"), CASES)
def test_the_first_cause_that_holds_is_told(facts: JobFacts, cause: str, part: str) -> None:
    found = explain(facts)
    assert found.cause == cause
    assert part in found.message
    assert found.next


def test_every_cause_is_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "no-output.md").read_text(encoding="utf-8")
    told = text.partition("## Causes")[2].partition("## ")[0]
    causes = {cause for _, cause, _ in CASES} | {"completed", "stalled", "missing"}
    assert {cause for cause in causes if f"`{cause}`" not in told} == set()


def test_an_idle_partition_holds_nobody_back() -> None:
    assert READ.last_slice is not None
    facts = replace(
        READ,
        checkpoint=ONE_AHEAD,
        last_slice=a_slice(1, silence_ms={"turbines": {1: 60_000}}, status=SliceStatus.COMMITTED),
    )
    assert explain(facts).cause == "window_open"


def test_a_job_without_a_window_waits_for_none() -> None:
    """The answer says that its results are emitted with each slice, or that a `where` omits every record."""
    document = PIPELINE.spec.as_document() | {"steps": [{"emit": [{"elasticsearch": "turbines-all"}], "name": "all"}]}
    facts = replace(READ, pipeline=check(PipelineSpec.from_document(document), STREAM))
    assert explain(replace(facts, totals=Totals(30, 28, {}, {"all": 28}))).message.endswith(
        "each slice emits results (all 28)"
    )
    steps = [{"where": "load > 5"}, *document["steps"]]
    filtering = replace(facts, pipeline=check(PipelineSpec.from_document(document | {"steps": steps}), STREAM))
    found = explain(replace(filtering, totals=Totals(30, 28, {}, {"all": 0})))
    assert found.cause == "filtered"
    assert found.next.endswith("with one of the records: steps[0].where (where `load` > 5)")


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({}, "no_input"),
        ({"now_ms": 120_000}, "results"),  # 119 s: windows can still close without records
        ({"lag_records": 1}, "results"),
        ({"lag_records": None}, "results"),
        ({"job": replace(JOB, ends={"turbines": {0: 10, 1: 20}})}, "results"),
        ({"checkpoint": replace(QUIET.checkpoint, records=5, committed_ms=1_200_000)}, "results"),  # old CreateTime
    ],
)
def test_results_without_new_records_are_a_stopped_input(changed: dict[str, Any], cause: str) -> None:
    facts = replace(QUIET, totals=Totals(30, 28, {}, {"per_minute": 5}, {}))
    assert explain(replace(facts, **changed)).cause == cause


def test_a_stopped_input_of_records_is_reported_too() -> None:
    document = PIPELINE.spec.as_document() | {"steps": [{"emit": [{"elasticsearch": "turbines-all"}], "name": "all"}]}
    facts = replace(QUIET, pipeline=check(PipelineSpec.from_document(document), STREAM))
    assert explain(replace(facts, totals=Totals(30, 28, {}, {"all": 28}))).cause == "no_input"


def test_an_open_window_names_the_time_without_records() -> None:
    assert explain(QUIET).message.endswith("; no record has arrived for 20m")


def test_without_an_idle_timeout_a_stopped_input_leaves_windows_open() -> None:
    event_time = {"field": "ts", "delay": "10s", "idle_timeout": None}
    pipeline = check(PipelineSpec.from_document(PIPELINE.spec.as_document() | {"event_time": event_time}), STREAM)
    found = explain(replace(QUIET, pipeline=pipeline, totals=Totals(30, 28, {}, {"per_minute": 5}, {})))
    assert found.cause == "no_input"
    assert "idle_timeout of stream turbines is null" in found.next


def test_a_session_ends_unless_records_follow() -> None:
    window = replace(PIPELINE.stages[0], name="visits", windows=SessionShape(3_600_000, 30_000))
    told = explain(replace(READ, pipeline=replace(PIPELINE, stages=(window,))))
    assert told.cause == "window_open"
    assert told.message.startswith(
        "the session of stage visits that ends at 1970-01-01T00:01:35.000Z unless records follow is still open: it closes when "
        "event time reaches 1970-01-01T00:01:45.000Z"
    )


@pytest.mark.parametrize(
    ("waits_s", "index_is_away", "cause"), [(11, True, "writer"), (11, False, "first_slice"), (5, True, "first_slice")]
)
def test_a_store_is_asked_where_a_slice_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_s: int, index_is_away: bool, cause: str
) -> None:
    """While it is away the records behind the slice only wait for it: more cores would not help."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    api = Api(ledger)
    api.apply(BOTH)
    for state in (JobState.STARTING, JobState.RUNNING):
        ledger.move_job("power", state)
    row = ledger.begin_run("power", 1)
    ledger.plan_slice(a_slice(1, row.epoch, planned_ms=1_000_000))
    api.index_is_away = index_is_away
    monkeypatch.setattr(job_status, "time", SimpleNamespace(time=lambda: 1_000 + waits_s))
    assert api.ask("GET", "/v1/jobs/power/explanation").json()["cause"] == cause
    ledger.close()
