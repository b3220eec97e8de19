"""The REST API without a network: real ledger, doubles for Kafka, Elasticsearch and the supervisor."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import sqlalchemy as sa
from pydantic import TypeAdapter
from starlette.routing import Match

from strandline.core.errors import InvalidSettings, LogUnavailable, StrandlineError
from strandline.ledger.database import Database
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired, EventRow, JobState, RunCost
from strandline.log.kafka_status import LogRange, StoredDeadLetter
from strandline.results.elasticsearch_client import RequestRefused
from strandline.services.rest import event_watch
from strandline.services.rest.api import _build_routes, create_app
from strandline.services.rest.event_watch import EventWatch
from strandline.services.rest.guards.host_guard import BODY_BYTES_MAX
from strandline.services.rest.routes import events
from strandline.services.rest.routes.events import event_frames
from strandline.services.supervision.supervisor import _is_taken_back
from tests.support.control import BOTH, HOUR, PIPELINE, STREAM, Api, api_description
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.waiting import stretched, wait_until_async

OPENAPI = Path(__file__).parents[2] / "docs" / "openapi.json"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


def problem_of(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The answer's problem, after making sure that it is one."""
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem.keys() == {"type", "title", "status", "detail", "instance", "code", "errors"}
    assert isinstance(problem, dict)
    return problem


def test_no_request_waits_for_routes_to_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    app, adapters = create_app(None), list[object]()
    _build_routes(app)
    create = TypeAdapter.__init__

    def counted(self: TypeAdapter[Any], *values: Any, **options: Any) -> None:
        adapters.append(self)
        create(self, *values, **options)

    monkeypatch.setattr(TypeAdapter, "__init__", counted)
    request = {"type": "http", "method": "GET", "path": "/v1/nothing", "root_path": "", "headers": []}
    assert not any(route.matches(request)[0] is Match.FULL for route in app.routes)
    assert adapters == []


def test_apply_registers_stream_and_job(api: Api) -> None:
    answer = api.apply(BOTH)
    assert answer.json()["applied"] == [
        {"kind": "stream", "name": "turbines", "outcome": "created", "version": 1, "notes": []},
        {"kind": "pipeline", "name": "power", "outcome": "created", "version": 1, "notes": []},
    ]
    assert api.ledger.stream("turbines").topic_id == "id-1"
    job = api.ledger.job("power")
    assert (job.desired, job.state) == (Desired.RUNNING, JobState.CREATED)
    assert api.ledger.job_version("power").text == BOTH
    assert (api.topics.dead_letters, api.templates) == (["power"], ["turbine-minute"])
    assert api.supervisor.wakes == 1


def test_apply_twice_changes_nothing(api: Api) -> None:
    api.apply(BOTH)
    assert api.outcomes(BOTH) == ["unchanged", "unchanged"]
    assert [event.kind for event in api.ledger.events("power")] == ["job_created"]


def test_order_of_documents_does_not_matter(api: Api) -> None:
    assert api.outcomes(f"{PIPELINE}---\n{STREAM}") == ["created", "created"]


def test_apply_changes_what_may_change(api: Api) -> None:
    api.apply(BOTH)
    wider = BOTH.replace("retention: 7d", "retention: 8d").replace("max(power)", "max(power), least: min(power)")
    assert api.outcomes(wider) == ["changed", "changed"]
    assert api.ledger.job("power").version == 2


def test_broken_document_names_file_line_and_field_and_applies_nothing(api: Api) -> None:
    broken = BOTH.replace("max(power)", "max(pwer)").replace("{stream: turbines}", "{stream: turbine}")
    problem = problem_of(api.apply(broken), 422, "invalid_document")
    [error] = problem["errors"]
    assert (error["source"], error["line"], error["pointer"]) == ("farm.yaml", 10, "input.stream")
    assert "did you mean 'turbines'" in error["detail"]
    assert api.ledger.streams() == []


def test_problems_of_all_documents_are_reported_together(api: Api) -> None:
    broken = BOTH.replace("turbine: string", "turbine: strin").replace("tumbling: 1m", "tumbling: 1y")
    errors = problem_of(api.apply(broken), 422, "invalid_document")["errors"]
    assert {error["line"] for error in errors} == {4, 13}


def test_unknown_column_is_found_against_the_registered_stream(api: Api) -> None:
    api.apply(STREAM)
    problem = problem_of(api.apply(PIPELINE.replace("max(power)", "max(pwer)")), 422, "invalid_document")
    assert "pwer" in problem["detail"]


def test_same_name_twice_is_refused(api: Api) -> None:
    assert "twice" in problem_of(api.apply(f"{STREAM}---\n{STREAM}"), 422, "invalid_document")["detail"]


@pytest.mark.parametrize(
    "change",
    [("tumbling: 1m", "tumbling: 2m"), ("by: [turbine]", "by: []"), ("per_minute", "each_minute"), ("", HOUR)],
    ids=["size", "by", "name", "added"],
)
def test_other_windows_are_another_version(api: Api, change: tuple[str, str]) -> None:
    api.apply(BOTH)
    changed = PIPELINE.replace(*change) if change[0] else PIPELINE + HOUR
    (plan,) = plan_of(api, changed)
    assert (plan["outcome"], plan["version"]) == ("changed", 2)
    assert "rewind" in {one["effect"] for one in plan["changes"]}
    assert api.ledger.job("power").version == 1
    assert api.outcomes(changed) == ["changed"]
    assert api.ledger.job("power").version == 2


def plan_of(api: Api, text: str) -> list[dict[str, Any]]:
    headers = {"Content-Type": "application/yaml"}
    answer = api.ask("POST", "/v1/documents/plan", content=text, params={"source": "farm.yaml"}, headers=headers)
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


def test_plan_of_what_is_there_and_of_what_is_new(api: Api) -> None:
    assert [plan["outcome"] for plan in plan_of(api, BOTH)] == ["created"]
    assert api.ledger.jobs() == []
    api.apply(BOTH)
    (plan,) = plan_of(api, BOTH)
    assert (plan["outcome"], plan["version"], plan["changes"]) == ("unchanged", 1, [])


def test_another_type_of_a_result_field_is_refused_with_the_reason(api: Api) -> None:
    api.apply(BOTH)
    other = PIPELINE.replace("n: count(*)", "n: avg(power)")
    assert other != PIPELINE
    (plan,) = plan_of(api, other)
    assert [one["effect"] for one in plan["changes"]] == ["forbidden", "rewind"]
    problem = problem_of(api.apply(other), 409, "conflict")
    assert "field n in elasticsearch turbine-minute from long to double" in problem["detail"]
    assert "under another name" in problem["detail"]
    assert api.ledger.job("power").version == 1


def test_windows_that_reach_behind_what_the_log_holds_are_refused(api: Api) -> None:
    api.apply(BOTH)
    run = api.ledger.begin_run("power", 1)
    api.ledger.plan_slice(
        a_slice(1, run.epoch, "power", offsets_first={"turbines": {0: 5}}, offsets={"turbines": {0: 9}})
    )
    api.log.ranges["turbines"] = LogRange({0: 6}, {0: 9})
    longer = PIPELINE.replace("tumbling: 1m", "tumbling: 2m")
    (plan,) = plan_of(api, longer)
    assert plan["rewind"]["records"] == 4
    assert "the log starts at 6" in plan["changes"][0]["reason"]
    problem_of(api.apply(longer), 409, "conflict")
    api.log.ranges["turbines"] = LogRange({0: 5}, {0: 9})
    assert api.outcomes(longer) == ["changed"]


def test_change_of_input_is_refused(api: Api) -> None:
    api.apply(BOTH)
    other = BOTH.replace("stream: turbines", "stream: mills")
    assert "input" in problem_of(api.apply(other), 409, "conflict")["detail"]
    assert [row.name for row in api.ledger.streams()] == ["turbines"]


def test_change_of_a_schema_that_a_job_reads_is_refused_where_what_it_read_would_not_fit(api: Api) -> None:
    api.apply(BOTH)
    problem = problem_of(api.apply(STREAM.replace("power: double", "power: long")), 409, "conflict")
    assert "power from double to long" in problem["detail"]
    api.apply(STREAM.replace("turbines", "unread"))
    assert api.outcomes(STREAM.replace("turbines", "unread").replace("power: double", "power: long")) == ["changed"]


MQTT = f"{STREAM}mqtt: {{topics: [farm/+/+], fields: {{turbine: 1}}}}\n"


def test_a_field_that_comes_from_the_mqtt_topic_keeps_coming_from_there_while_a_job_reads_it(api: Api) -> None:
    api.apply(f"{MQTT}---\n{PIPELINE}")
    assert "mqtt.fields.turbine was removed" in problem_of(api.apply(STREAM), 409, "conflict")["detail"]
    keyed = f"{MQTT}key: turbine\n"
    assert "key from None to turbine" in problem_of(api.apply(keyed), 409, "conflict")["detail"]
    assert api.outcomes(MQTT.replace("farm/+/+", "park/+/+")) == ["changed"], "topics tell where records come from only"
    assert api.outcomes(MQTT.replace("turbine: 1", "turbine: 2, power: 1")) == ["changed"], "from the next slice on"


def test_a_field_that_became_optional_does_not_become_required_again(api: Api) -> None:
    api.apply(BOTH)
    assert api.outcomes(STREAM.replace("power: double", "power: double?")) == ["changed"]
    detail = problem_of(api.apply(STREAM), 409, "conflict")["detail"]
    assert "field power becomes required, but records in the log can lack it; write double? for it" in detail


@pytest.mark.guarantee(
    "G141",
    "A job doesn't start over a compacted topic: apply refuses it, and every start checks it.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_a_pipeline_over_a_topic_that_became_compacted_is_refused(api: Api) -> None:
    api.apply(STREAM)
    api.topics.policy = "compact,delete"
    assert "cleanup.policy=compact,delete" in problem_of(api.apply(PIPELINE), 409, "conflict")["detail"]
    assert api.ledger.jobs() == []


def test_index_of_another_job_is_refused(api: Api) -> None:
    api.apply(BOTH)
    problem = problem_of(api.apply(PIPELINE.replace("pipeline: power", "pipeline: force")), 409, "conflict")
    assert "turbine-minute" in problem["detail"]
    assert [job.name for job in api.ledger.jobs()] == ["power"]


def test_topic_made_anew_is_refused(api: Api) -> None:
    api.apply(BOTH)
    api.topics.id_of["turbines"] = "id-2"
    assert "deleted and recreated" in problem_of(api.apply(BOTH), 409, "conflict")["detail"]


def test_failure_in_the_middle_is_finished_by_applying_again(api: Api) -> None:
    api.index_is_away = True
    answer = api.apply(BOTH)
    problem_of(answer, 503, "index_unavailable")
    assert answer.headers["retry-after"]
    assert api.ledger.jobs() == []
    api.index_is_away = False
    assert api.outcomes(BOTH) == ["unchanged", "created"]


def test_kafka_away_is_503_and_nothing_is_registered(api: Api) -> None:
    api.topics.is_away = True
    problem_of(api.apply(BOTH), 503, "log_unavailable")
    assert api.ledger.streams() == []


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff\xfe", b"stream: [", b"a: &x 1\nb: *x", b"lookup: sites", b"- 1", b"\0"],
    ids=["empty", "not utf-8", "not yaml", "alias", "lookup", "list", "nul"],
)
def test_bad_yaml_is_a_problem(api: Api, text: bytes) -> None:
    errors = problem_of(api.apply(text), 422, "invalid_document")["errors"]
    assert errors[0]["source"] == "farm.yaml"


def test_body_over_the_limit_is_refused(api: Api) -> None:
    problem_of(api.apply(b"#" * (BODY_BYTES_MAX + 1)), 413, "too_large")


def test_undeclared_body_over_the_limit_is_refused(api: Api) -> None:
    async def chunks() -> Any:
        for _ in range(BODY_BYTES_MAX // 100_000 + 1):
            yield b"#" * 100_000

    problem_of(api.ask("POST", "/v1/documents", content=chunks()), 413, "too_large")


def test_a_payload_may_be_as_large_as_a_record(api: Api) -> None:
    """A client that sends a larger one is not advised to split documents."""
    app = create_app(api.app.state.dependencies, record_bytes_max=BODY_BYTES_MAX + 10)

    async def ask(path: str, size: int) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            return await client.post(path, content=b"#" * size)

    repair = "/v1/jobs/none/dead-letters/repair?dead_letter=0"
    problem_of(asyncio.run(ask(repair, BODY_BYTES_MAX + 10)), 404, "not_found")
    detail = problem_of(asyncio.run(ask(repair, BODY_BYTES_MAX + 11)), 413, "too_large")["detail"]
    assert "STRANDLINE_RECORD_BYTES_MAX" in detail and "documents" not in detail
    detail = problem_of(asyncio.run(ask("/v1/documents", BODY_BYTES_MAX + 10)), 413, "too_large")["detail"]
    assert "several requests" in detail


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidSettings("STRANDLINE_ELASTICSEARCH_URL can't be read; correct it"), 409, "invalid_settings"),
        (RequestRefused("Elasticsearch refused it: too many shards", 400, "x"), 502, "index_request_refused"),
    ],
    ids=["settings", "elasticsearch"],
)
def test_what_an_operator_has_to_mend_is_no_failure_of_the_service(
    api: Api, monkeypatch: pytest.MonkeyPatch, error: StrandlineError, status: int, code: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(api.ledger, "job", fail)
    assert problem_of(api.ask("GET", "/v1/jobs/power"), status, code)["detail"] == str(error)


def test_other_media_type_is_refused(api: Api) -> None:
    answer = api.ask("POST", "/v1/documents", json={"stream": "turbines"})
    problem_of(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[::1", "@"])
def test_foreign_host_name_is_refused(api: Api, host: str) -> None:
    problem_of(api.ask("GET", "/v1/jobs", headers={"Host": host}), 421, "misdirected_request")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080"])
def test_own_host_name_is_welcome(api: Api, host: str) -> None:
    assert api.ask("GET", "/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_answers_under_any_host_name(api: Api, path: str) -> None:
    for headers in ({"Host": "10.1.2.3:8080"}, {"Host": ""}, {"Host": "pod", "Origin": "http://elsewhere"}):
        assert api.ask("GET", path, headers=headers).status_code == 200
    problem_of(api.ask("GET", "/metrics", headers={"Host": "10.1.2.3:8080"}), 421, "misdirected_request")


def test_names_of_the_setting_are_welcome(api: Api) -> None:
    answer = api.ask("GET", "/metrics", headers={"Host": "Strandline.example:80"})
    problem_of(answer, 421, "misdirected_request")
    assert "STRANDLINE_CONTROL_NAMES" in answer.text
    named = Api(api.ledger, names=("strandline.EXAMPLE",))
    for host in ("Strandline.example:80", "localhost"):
        assert named.ask("GET", "/metrics", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:3000", "null"])
def test_page_of_another_origin_is_refused(api: Api, origin: str) -> None:
    api.apply(BOTH)
    problem_of(api.ask("POST", "/v1/jobs/power/stop", headers={"Origin": origin}), 403, "forbidden")
    assert api.ledger.job("power").desired is Desired.RUNNING


@pytest.mark.parametrize("path", ["/v1/jobs/a%00b", "/v1/streams/a%00b", "/v1/events?job=a%00b"])
def test_a_name_that_can_not_be_one_is_not_found_without_the_ledger(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """PostgreSQL refuses to look for a NUL, which is no conflict."""

    def refuse(*_: object) -> None:
        raise AssertionError("the ledger was asked")

    monkeypatch.setattr(Database, "reading", refuse)
    detail = problem_of(api.ask("GET", path), 404, "not_found")["detail"]
    assert detail == "there is no object with the name 'a\\x00b': names can't contain a NUL character"


def test_unknown_route_method_job_and_parameter(api: Api) -> None:
    problem_of(api.ask("GET", "/v1/nothing"), 404, "not_found")
    answer = api.ask("DELETE", "/v1/jobs")
    assert "GET" in problem_of(answer, 405, "method_not_allowed")["detail"]
    assert answer.headers["allow"] == "GET"
    for path in (
        "/v1/jobs/none",
        "/v1/jobs/none/kibana",
        "/v1/jobs/none/slices",
        "/v1/jobs/none/dead-letters",
        "/v1/events?job=none",
    ):
        problem_of(api.ask("GET", path), 404, "not_found")
    problem_of(api.ask("POST", "/v1/jobs/none/start"), 404, "not_found")
    problem_of(api.ask("GET", "/v1/streams/none"), 404, "not_found")
    api.apply(BOTH)
    problem = problem_of(api.ask("GET", "/v1/jobs/power/slices?limit=0"), 422, "invalid_request")
    assert problem["errors"][0]["pointer"] == "query.limit"


def test_unforeseen_error_tells_nothing_of_its_inside(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(api.ledger, "jobs", fail)
    assert "secret" not in json.dumps(problem_of(api.ask("GET", "/v1/jobs"), 500, "internal"))


def test_the_watermark_of_a_job_is_not_below_the_windows_that_it_has_emitted(api: Api) -> None:
    """A slice records the watermark at its beginning; its records advance it."""
    api.apply(BOTH)
    epoch = api.ledger.begin_run("power", 1).epoch
    api.ledger.plan_slice(a_slice(1, epoch))
    assert api.ask("GET", "/v1/jobs/power").json()["watermark_ms"] == 900
    api.ledger.commit_checkpoint(a_checkpoint(1, epoch, closes_ms=60_500))
    job = api.ask("GET", "/v1/jobs/power").json()
    assert (job["watermark_ms"], job["last_emission"]) == (60_500, {"per_minute": 60_000})
    # A slice without records can begin later, after the silence of all partitions.
    api.ledger.plan_slice(a_slice(2, epoch, watermark_ms=90_000))
    assert api.ask("GET", "/v1/jobs/power").json()["watermark_ms"] == 90_000


def test_job_shows_position_lag_counts_and_legal_verbs(api: Api) -> None:
    api.apply(BOTH)
    assert api.ask("GET", "/v1/jobs/power").json()["lag_records"] == 300
    epoch = api.ledger.begin_run("power", 1).epoch
    api.ledger.plan_slice(a_slice(1, epoch))
    api.ledger.commit_checkpoint(a_checkpoint(1, epoch))
    api.ledger.plan_slice(a_slice(2, epoch))
    job = api.ask("GET", "/v1/jobs/power").json()
    # Slice 1 ends at offsets 10 and 20; slice 2 is only planned.
    assert (job["slice"], job["lag_records"]) == (1, 90 + 185)
    assert (job["watermark_ms"], job["last_emission"]) == (1_800, {"per_minute": 60_000})
    assert job["counts"] == {
        "records": 30,
        "accepted": 28,
        "rejected": {"late": 1, "decode": 1},
        "results": {"per_minute": 5},
        "refused": {},
    }
    assert {link["rel"] for link in job["links"]} == {"start", "stop"}
    assert job["cost"] is None and job["last_start"] is None
    api.ledger.note_costs([RunCost("power", epoch, 1_500_000, 900, 70, 20_000)])
    cost = {"cores": 0.02, "cpu_s": 1.5, "bytes_read": 900, "state_bytes": 70}
    assert api.ask("GET", "/v1/jobs/power").json()["cost"] == cost
    assert 'strandline_job_cpu_seconds_total{job="power"} 1.5' in api.ask("GET", "/metrics").text
    for method in ("rewind", "snapshot"):
        facts = {"epoch": epoch, "records": 7, "slice_first": 1, "slice_committed": 1}
        event = api.ledger.record_event("run_begins", "run 1 begins", "power", epoch, facts | {"way": method})
        shown = facts | {"method": method, "at_ms": event.at_ms}
        assert api.ask("GET", "/v1/jobs/power").json()["last_start"] == shown
    slices = api.ask("GET", "/v1/jobs/power/slices?limit=1").json()
    assert [one["number"] for one in slices["slices"]] == [1]
    slices = api.ask("GET", slices["next"]).json()
    assert [(one["number"], one["status"]) for one in slices["slices"]] == [(2, "planned")]


def test_what_shows_a_job_in_kibana_follows_its_present_version(api: Api) -> None:
    api.apply(BOTH)
    objects = api.ask("GET", "/v1/jobs/power/kibana").json()["objects"]
    assert [one["type"] for one in objects][-1] == "dashboard"
    titles = {one["attributes"]["title"] for one in objects if one["type"] == "index-pattern"}
    assert titles == {row.name for row in api.ledger.places("power") if row.kind == "elasticsearch"}


def test_what_results_can_be_drawn_is_said(api: Api) -> None:
    api.apply(BOTH)
    alias = next(row.name for row in api.ledger.places("power") if row.kind == "elasticsearch")
    asked = {
        "none": "no job emits to an alias none",
        f"{alias}?value=none": "has no number none",
        f"{alias}?by=none": "has no key none",
    }
    for path, said in asked.items():
        assert said in problem_of(api.ask("GET", f"/v1/results/{path}"), 404, "not_found")["detail"]
    problem_of(api.ask("GET", f"/v1/results/{alias}"), 503, "index_unavailable")  # its store is away
    problem_of(api.ask("GET", f"/v1/results/{alias}?points=0"), 422, "invalid_request")


def test_job_shows_all_but_lag_while_kafka_is_away(api: Api) -> None:
    api.apply(BOTH)
    api.log.ranges = {}
    assert api.ask("GET", "/v1/jobs").json()["jobs"][0]["lag_records"] is None
    assert "lag_records{" not in api.ask("GET", "/metrics").text
    ready = api.ask("GET", "/readyz")
    assert (ready.status_code, ready.json()["checks"]["log"]) == (200, "Kafka does not answer")


PUMPS = BOTH.replace("turbines", "pumps").replace("pipeline: power", "pipeline: flow").replace("turbine-", "pump-")


@pytest.fixture
def two_jobs(api: Api) -> Api:
    """Return an API with jobs over two streams. `flow` is first."""
    api.log.ranges["pumps"] = api.log.ranges["turbines"]
    assert api.outcomes(BOTH) == api.outcomes(PUMPS) == ["created", "created"]
    return api


def test_kafka_is_waited_for_once_an_answer_and_for_less_than_a_probe_waits(two_jobs: Api) -> None:
    """Prometheus waits 5 s for a scrape, Kubernetes 1 s for a probe."""
    two_jobs.log.ranges = {}
    waits_s: dict[str, list[float | None]] = {}
    for path in ("/v1/jobs", "/metrics", "/readyz"):
        two_jobs.log.waits_s.clear()
        assert two_jobs.ask("GET", path).status_code == 200
        waits_s[path] = [*two_jobs.log.waits_s]
    assert waits_s["/v1/jobs"] == [None]
    assert waits_s["/readyz"] == [0.5]
    (metrics_s,) = waits_s["/metrics"]
    assert metrics_s is not None
    assert 1 < metrics_s <= 2


def test_a_stream_without_a_topic_hides_the_lag_of_no_other(two_jobs: Api) -> None:
    del two_jobs.log.ranges["pumps"]
    assert [job["lag_records"] for job in two_jobs.ask("GET", "/v1/jobs").json()["jobs"]] == [None, 300]


@pytest.mark.parametrize(
    ("state", "verb", "desired", "shown"),
    [
        (JobState.RUNNING, "stop", Desired.STOPPED, JobState.STOPPING),
        (JobState.RUNNING, "drain", Desired.DRAINED, JobState.DRAINING),
        (JobState.RUNNING, "start", Desired.RUNNING, JobState.RUNNING),
        (JobState.STARTING, "stop", Desired.STOPPED, JobState.STARTING),
        (JobState.FAILED, "start", Desired.RUNNING, JobState.STARTING),
        (JobState.FAILED, "drain", Desired.DRAINED, JobState.STARTING),
        (JobState.FAILED, "stop", Desired.STOPPED, JobState.FAILED),
        (JobState.RUNNING, "restart", Desired.RUNNING, JobState.RUNNING),
    ],
    ids=lambda value: str(value),
)
def test_verbs(api: Api, state: JobState, verb: str, desired: Desired, shown: JobState) -> None:
    api.apply(BOTH)
    api.ledger.move_job("power", JobState.STARTING)
    if state is not JobState.STARTING:
        api.ledger.move_job("power", state)
    answer = api.ask("POST", f"/v1/jobs/power/{verb}")
    assert (answer.status_code, answer.headers["location"]) == (202, "/v1/jobs/power")
    job = api.ledger.job("power")
    assert (job.desired, job.state) == (desired, shown)
    assert api.ledger.job("power").restarts == (1 if verb == "restart" else 0)
    assert api.supervisor.wakes == 2


@pytest.mark.parametrize("verb", ["stop", "drain"])
def test_no_look_between_the_writes_of_an_order_takes_it_as_taken_back(
    api: Api, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The supervisor would end the runner at once, in the middle of its slice."""
    api.apply(BOTH)
    for state in (JobState.STARTING, JobState.RUNNING):
        api.ledger.move_job("power", state)
    writing, looks = Database.writing, []

    @contextmanager
    def looked_at(self: Database, action: str) -> Iterator[sa.Connection]:
        with writing(self, action) as connection:
            yield connection
        looks.append(api.ledger.job("power"))

    monkeypatch.setattr(Database, "writing", looked_at)
    assert api.ask("POST", f"/v1/jobs/power/{verb}").status_code == 202
    assert looks and not any(map(_is_taken_back, looks))


def test_job_shows_who_leads_it(api: Api) -> None:
    api.apply(BOTH)
    assert api.ask("GET", "/v1/jobs/power").json()["leader"] is None
    api.ledger.announce_service("here", "http://here:8080", "/data", 60_000)
    lease, _ = api.ledger.claim_lease("power", "here", 60_000) or pytest.fail("not free")
    leader = {"name": "here", "address": "http://here:8080", "lease_epoch": 1, "lease_until_ms": lease.until_ms}
    assert api.ask("GET", "/v1/jobs/power").json()["leader"] == leader
    api.ledger.release_leases("here", {"power": 1})
    assert api.ask("GET", "/v1/jobs/power").json()["leader"] is None


def test_stream_shows_offsets_and_registration(api: Api) -> None:
    api.apply(STREAM)
    stream = api.ask("GET", "/v1/streams/turbines").json()
    assert stream["records"] == 300
    assert stream["partitions"][1] == {"partition": 1, "offset_first": 5, "offset_next": 205}
    assert stream["document"]["schema"].keys() == {"turbine", "ts", "power"}
    assert [one["name"] for one in api.ask("GET", "/v1/streams").json()["streams"]] == ["turbines"]


def test_dead_letters_are_paged_and_shown_whole(api: Api) -> None:
    api.apply(BOTH)
    headers = {"stream": "turbines", "partition": "1", "offset": "7", "reason": "decode", "message": "m", "step": "s"}
    value = b'{"broken": \xff' + b"x" * 1_000
    api.log.letters = [StoredDeadLetter(offset, 5, headers, value) for offset in (3, 4, 9)]
    page = api.ask("GET", "/v1/jobs/power/dead-letters?limit=2").json()
    assert [one["number"] for one in page["dead_letters"]] == [3, 4]
    first = page["dead_letters"][0]
    assert (first["stream"], first["partition"], first["offset"], first["reason"]) == ("turbines", 1, 7, "decode")
    assert (len(first["value"]), first["value_bytes"]) == (200, len(value))
    assert [one["number"] for one in api.ask("GET", page["next"]).json()["dead_letters"]] == [9]
    whole = api.ask("GET", "/v1/jobs/power/dead-letters/9").json()
    assert whole["value"] == value.decode("utf-8", "replace")
    problem_of(api.ask("GET", "/v1/jobs/power/dead-letters/5"), 404, "not_found")


def test_check_judges_and_changes_nothing(api: Api) -> None:
    def check(text: str) -> Any:
        answer = api.ask("POST", "/v1/pipelines/check", content=text, params={"source": "p.yaml"})
        assert answer.status_code == 200
        return answer.json()

    good = check(BOTH + HOUR)
    assert (good["valid"], good["reach_ms"]) == (True, 3_660_000)
    assert (good["stages"][0]["size_ms"], good["stages"][0]["every_ms"]) == (60_000, 60_000)
    assert good["stages"][0]["by"] == {"turbine": "string"}
    assert good["stages"][0]["aggregates"] == {"n": "long", "peak": "double"}
    bad = check(PIPELINE)
    assert (bad["valid"], bad["problems"][0]["line"], bad["stages"]) == (False, 2, [])
    assert (api.ledger.streams(), api.ledger.jobs()) == ([], [])


def test_events_come_as_server_sent_events(api: Api) -> None:
    """Behind the number that the client has seen last, or from now on; each once, also one whose number was given out before
    that of one which is there already."""
    api.apply(BOTH)
    for number in range(3):
        api.ledger.record_event("note", str(number))
    hidden: list[EventRow] = []

    class Late:
        """The ledger, which shows one event late."""

        def events(self, job: str | None, after: int, limit: int, *, newest: bool = False) -> list[EventRow]:
            return [row for row in api.ledger.events(job, after, limit, newest=newest) if row not in hidden]

    async def follow(job: str | None, after: int | None) -> list[str]:
        late: Any = Late()
        frames = event_frames(late, EventWatch(late), job, after, lambda: False, 60)
        assert await anext(frames) == "retry: 3000\n\n"
        waiting = asyncio.ensure_future(anext(frames))
        found = []
        if after is None:
            done, _ = await asyncio.wait([waiting], timeout=0.2)
            assert not done, "earlier events are not reported"
            hidden.append(api.ledger.record_event("note", "late"))
            api.ledger.record_event("note", "soon")
        found.append(await waiting)
        if after is None:
            hidden.clear()
        found += [await anext(frames) for _ in range(1 if after is None else 2)]
        await frames.aclose()
        return [json.loads(frame.partition("data: ")[2])["message"] for frame in found]

    assert asyncio.run(follow(None, None)) == ["soon", "late"]
    first = api.ledger.events()[0].id
    assert asyncio.run(follow(None, first)) == ["0", "1", "2"]


def test_who_follows_events_is_left_after_some_time_and_when_the_service_ends(api: Api) -> None:
    headers = {"Accept": "text/event-stream"}
    with patch.object(events, "FOLLOWED_S", 0.0):
        answer = api.ask("GET", "/v1/events", headers=headers)
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    assert answer.text == "retry: 3000\n\n"

    async def until_the_end() -> list[str]:
        return [frame async for frame in event_frames(api.ledger, EventWatch(api.ledger), None, 0, lambda: True, 60)]

    assert asyncio.run(until_the_end()) == ["retry: 3000\n\n"]
    assert api.ask("GET", "/v1/events?job=none", headers=headers).status_code == 404
    with patch.object(events, "FOLLOWERS_MAX", 0):
        refused = api.ask("GET", "/v1/events", headers=headers)
    assert (refused.status_code, "already follow events" in refused.json()["detail"]) == (503, True)


@pytest.mark.guarantee("G1050")
def test_many_followers_query_the_ledger_once_until_an_event_happens(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then each of them queries it."""
    monkeypatch.setattr(events, "_LOOK_S", look_s := 0.05)
    monkeypatch.setattr(event_watch, "LOOK_S", look_s)

    class Counted:
        """The ledger, which counts queries."""

        queries = 0

        def events(self, *arguments: Any, **options: Any) -> list[EventRow]:
            self.queries += 1
            return api.ledger.events(*arguments, **options)

    by_watch, by_followers = Counted(), Counted()

    async def follow() -> set[str]:
        ledger: Any = by_followers
        watched: Any = by_watch
        watch = EventWatch(watched)
        followers = [event_frames(ledger, watch, None, None, lambda: False, 60) for _ in range(20)]
        for frames in followers:
            await anext(frames)
        waiting = [asyncio.ensure_future(anext(frames)) for frames in followers]
        await wait_until_async(lambda: by_followers.queries == 40, "each has queried its position, and has looked once")
        before, began_s = by_watch.queries, time.monotonic()
        await wait_until_async(lambda: by_watch.queries >= before + 5, "more looks")
        looks_max = 1 + (time.monotonic() - began_s) / (0.9 * look_s)
        assert by_watch.queries - before <= looks_max, "the number of followers doesn't count"
        assert by_followers.queries == 40
        api.ledger.record_event("note", "here")
        found = {json.loads(frame.partition("data: ")[2])["message"] for frame in await asyncio.gather(*waiting)}
        assert by_followers.queries == 60
        for frames in followers:
            await frames.aclose()
        return found

    assert asyncio.run(follow()) == {"here"}


def test_events_can_be_followed(api: Api) -> None:
    api.apply(BOTH)
    for number in range(3):
        api.ledger.record_event("note", str(number))
    page = api.ask("GET", "/v1/events?limit=2").json()
    assert [event["kind"] for event in page["events"]] == ["job_created", "note"]
    page = api.ask("GET", page["next"]).json()
    assert [event["message"] for event in page["events"]] == ["1", "2"]
    assert [event["kind"] for event in api.ask("GET", "/v1/events?job=power").json()["events"]] == ["job_created"]
    newest = api.ask("GET", "/v1/events?last=2&limit=1").json()
    assert ([event["message"] for event in newest["events"]], newest["next"]) == (["1", "2"], None)
    assert len(api.ask("GET", f"/v1/events?last=2&after={newest['events'][0]['id']}").json()["events"]) == 1
    assert [event["kind"] for event in api.ask("GET", "/v1/events?last=5&job=power").json()["events"]] == [
        "job_created"
    ]


def test_metrics_tell_state_lag_and_totals(api: Api) -> None:
    api.apply(BOTH)
    epoch = api.ledger.begin_run("power", 1).epoch
    api.ledger.plan_slice(a_slice(1, epoch))
    api.ledger.commit_checkpoint(a_checkpoint(1, epoch, closes_ms=60_000, committed_ms=63_500))
    answer = api.ask("GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for line in (
        'strandline_build_info{version="0.1.0"} 1.0',
        'strandline_job_state{job="power",state="created"} 1.0',
        'strandline_job_state{job="power",state="running"} 0.0',
        'strandline_job_lag_records{job="power"} 275.0',
        'strandline_job_records_total{job="power"} 30.0',
        'strandline_job_rejected_records_total{job="power",reason="late"} 1.0',
        'strandline_job_results_total{job="power",stage="per_minute"} 5.0',
        'strandline_job_result_latency_seconds{job="power",stage="per_minute"} 3.5',
    ):
        assert line in answer.text.splitlines()
    assert 'strandline_job_watermark_lag_seconds{job="power"}' in answer.text


@pytest.mark.guarantee(
    "G197",
    "`strandline_job_result_latency_seconds` is the time from the end of the newest windows that a stage emitted to "
    "the commit of the slice that closed them, however many slices followed.",
    promise="failures-are-reported-with-their-remedy",
)
def test_result_latency_is_that_of_the_slice_that_closed_the_window_and_not_of_later_ones(api: Api) -> None:
    """Slices that close nothing follow; then the slice goes from the ledger, which can't tell any more."""
    api.apply(BOTH)
    epoch = api.ledger.begin_run("power", 1).epoch
    emitted, closes = {"per_minute": 60_000}, [None, 59_000, 60_000, 61_000, 62_000]
    for number, closes_ms in enumerate(closes, 1):
        api.ledger.plan_slice(a_slice(number, epoch))
        row = a_checkpoint(
            number,
            epoch,
            closes_ms=closes_ms,
            emitted=emitted if number > 2 else {},
            committed_ms=60_000 + 1_000 * number,
        )
        api.ledger.commit_checkpoint(row)
    assert (
        'strandline_job_result_latency_seconds{job="power",stage="per_minute"} 3.0' in api.ask("GET", "/metrics").text
    )
    assert [api.ledger.closed_at_ms("power", end) for end in (58_000, 59_500, 62_000, 62_001)] == [
        62_000, 63_000, 65_000, None,
    ]  # fmt: skip
    assert api.ledger.raise_floor("power", 1, 4, 100) > 0
    assert [api.ledger.closed_at_ms("power", end) for end in (58_000, 60_000, 62_000)] == [None, None, 65_000]


def test_ready_only_with_a_ledger(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise LogUnavailable("the ledger is away")

    assert api.ask("GET", "/readyz").status_code == 200
    monkeypatch.setattr(api.ledger, "jobs", away)
    answer = api.ask("GET", "/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
    assert api.ask("GET", "/healthz").status_code == 200


def test_alive_while_requests_hold_every_thread(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    monkeypatch.setattr(api.ledger, "jobs", lambda: may_go_on.wait(stretched(60)) and [])

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            slow = [asyncio.create_task(client.get("/v1/jobs")) for _ in range(100)]
            try:
                return await asyncio.wait_for(client.get("/healthz"), stretched(30))
            finally:
                may_go_on.set()
                await asyncio.gather(*slow)

    assert asyncio.run(ask()).status_code == 200


def test_description_is_the_one_checked_in() -> None:
    """To change it: `python -m strandline.services.rest.api > docs/openapi.json`, and docs/api.md with it."""
    assert api_description() == json.loads(OPENAPI.read_text(encoding="utf-8"))


def test_no_parameter_may_be_null() -> None:
    """In a URL or a header `null` would be a text, which is no number: it was refused although the description allowed it."""
    for path, operations in api_description()["paths"].items():
        for verb, operation in operations.items():
            for parameter in operation.get("parameters", []):
                assert "null" not in json.dumps(parameter["schema"]), f"{verb} {path}: {parameter['name']}"


def test_every_route_stands_in_the_reference() -> None:
    reference = (OPENAPI.parent / "api.md").read_text(encoding="utf-8")
    for path, verbs in api_description()["paths"].items():
        for verb in verbs:
            assert f"`{verb.upper()} {path}`" in reference


@pytest.mark.parametrize("number", [2**63, 2**64, 10**30, -(10**30)])
@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/jobs/power/slices?after={}"),
        ("GET", "/v1/jobs/power/dead-letters?after={}"),
        ("GET", "/v1/jobs/power/dead-letters/{}"),
        ("GET", "/v1/jobs/power/backfills/{}"),
        ("POST", "/v1/jobs/power/backfills/{}/cancel"),
        ("POST", "/v1/jobs/power/backfills?from_ms={}"),
        ("POST", "/v1/jobs/power/backfills?from_ms=0&to_ms={}"),
        ("POST", "/v1/jobs/power/audit?after_ms={}"),
        ("GET", "/v1/events?after={}"),
        ("GET", "/v1/results/turbine-minute?from_ms={}"),
    ],
)
def test_a_number_that_no_database_can_hold_is_refused(api: Api, method: str, target: str, number: int) -> None:
    api.apply(BOTH)
    problem_of(api.ask(method, target.format(number)), 422, "invalid_request")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/jobs/power/backfills?from_ms={}"),
        ("POST", "/v1/jobs/power/backfills?from_ms=0&to_ms={}"),
        ("POST", "/v1/jobs/power/audit?after_ms={}"),
        ("GET", "/v1/jobs/power/dead-letters?since_ms={}"),
        ("GET", "/v1/results/turbine-minute?from_ms={}"),
    ],
)
def test_a_time_that_can_not_be_written_is_refused_and_the_last_one_that_can_is_not(
    api: Api, method: str, target: str
) -> None:
    last_ms = 253_402_300_799_999
    api.apply(BOTH)
    problem_of(api.ask(method, target.format(last_ms + 1)), 422, "invalid_request")
    assert api.ask(method, target.format(last_ms)).status_code in (200, 202, 404, 409, 503)


@pytest.mark.guarantee(
    "G1101",
    "The versions of a job are listed with time and principal, also in the console, and the document of each can be applied "
    "again as the next version.",
    promise="failures-are-reported-with-their-remedy",
)
def test_the_versions_of_a_job_are_listed_with_those_who_applied_them(api: Api) -> None:
    api.apply(BOTH)
    api.apply(BOTH.replace("delay: 10s", "delay: 20s"))
    found = api.ask("GET", "/v1/jobs/power/versions").json()["versions"]
    assert [(one["version"], one["is_current"]) for one in found] == [(2, True), (1, False)]
    assert found[0]["created_ms"] >= found[1]["created_ms"] > 0
    text = api.ask("GET", "/v1/jobs/power/document?version=1").json()["text"]
    assert api.apply(text).json()["applied"][-1]["version"] == 3
    assert api.ask("GET", "/v1/jobs/none/versions").status_code == 404
