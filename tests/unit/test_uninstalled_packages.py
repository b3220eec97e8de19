"""A package that jobs use is uninstalled: only these jobs are concerned, and users can see, stop, and delete them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from strandline.ledger.ledger import Ledger
from strandline.ledger.roles import NoticeLedger
from strandline.log.kafka_status import KafkaStatus
from strandline.processing.pipelines import stored
from strandline.services.jobs import job_status
from strandline.services.jobs.notice_surroundings import job_facts
from strandline.services.supervision.placement import pool_placement
from tests.support.control import BOTH, STREAM, Api
from tests.support.plugins import forget_toys, install_toys

HEAD = "pipeline: NAME\ninput: {stream: turbines}\nevent_time: {field: ts, delay: 10s}\nsteps:\n"
WINDOW = "  - window: {name: all, KIND, by: [turbine], aggregate: {v: FUNCTION(power)}}\n    emit: [{elasticsearch: NAME-all}]\n"
EACH = {
    "step": HEAD + "  - bound: {field: power, into: shown, low: 0, high: 100}\n  - emit: [{elasticsearch: NAME-all}]\n",
    "window": HEAD + WINDOW.replace("KIND", "shifts: ['06:00', '14:00', '22:00']").replace("FUNCTION", "max"),
    "aggregate": HEAD + WINDOW.replace("KIND", "tumbling: 1m").replace("FUNCTION", "product"),
    "sink": HEAD + "  - emit: [{sink: {use: arrow, name: NAME-records}}]\n",
    "format": (
        "stream: frames\nformat: acme_frames\nformat_options: {byte_order: big}\n"
        "schema: {device: string, time: timestamp, value: double}\nretention: 7d\n---\n"
        "pipeline: NAME\ninput: {stream: frames}\nevent_time: {field: time, delay: 10s}\nsteps:\n"
        "  - window: {name: all, tumbling: 1m, by: [device], aggregate: {n: count(*)}}\n    emit: [{elasticsearch: NAME-all}]\n"
    ),
}
TOYS = ("acme_kinds", "acme_aggregates", "acme_sink", "acme_frames")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


@pytest.fixture(params=EACH)
def text(request: pytest.FixtureRequest, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The documents of job `power`, which needs no package, and of job `other`, whose package was uninstalled since. Returns the
    documents of the second one."""
    text = EACH[request.param].replace("NAME", "other")
    with pytest.MonkeyPatch.context() as packages:
        packages.setenv("ACME_ARROW_DIRECTORY", str(tmp_path / "arrow"))
        install_toys(packages, *TOYS)
        assert api.apply(BOTH).status_code == 200
        answer = api.apply(text)
        assert answer.status_code == 200, answer.text
        forget_toys(packages)
    _start_again()
    return text


def _start_again() -> None:
    """Forget what the process has read, as a new control service has read nothing."""
    stored._parsed.cache_clear()
    job_status._checked_before.cache_clear()


def test_the_jobs_are_listed_and_explained(api: Api, text: str) -> None:
    assert {job["name"] for job in api.ask("GET", "/v1/jobs").json()["jobs"]} == {"power", "other"}
    assert api.ask("GET", "/metrics").status_code == 200
    explained = {one["job"]: one for one in api.ask("GET", "/v1/explanations").json()["explanations"]}
    assert explained["power"]["cause"] != "missing"
    alone = api.ask("GET", "/v1/jobs/other/explanation").json()
    assert alone["cause"] == explained["other"]["cause"]


def test_a_notice_over_all_jobs_still_knows_the_lag(api: Api, text: str) -> None:
    # A condition that fails for one job is blind for all of them.
    facts = job_facts(cast(NoticeLedger, api.ledger), cast(KafkaStatus, api.log), "other")
    assert (facts.lag_records is None) == ("frames" in text), "the double of Kafka has no topic of the frames"


def test_the_checks_after_a_start_go_on_with_other_jobs(api: Api, text: str) -> None:
    jobs = api.ledger.jobs()
    assert len(list(job_status.check_pipelines(api.ledger, jobs))) == len(jobs)


def test_other_jobs_are_placed_changed_and_added(api: Api, text: str) -> None:
    jobs = api.ledger.jobs()
    is_for_pool = pool_placement(api.ledger, frozenset())(jobs)
    assert [is_for_pool(job) for job in jobs if job.name == "power"] == [True]
    assert api.outcomes(BOTH.replace("max(power)", "max(power), least: min(power)")) == ["unchanged", "changed"]
    assert api.outcomes(BOTH.replace("pipeline: power", "pipeline: third").replace("turbine-minute", "third")) == [
        "unchanged",
        "created",
    ]
    assert (
        api.outcomes(
            BOTH.replace("retention: 7d", "retention: 8d").replace("max(power)", "max(power), least: min(power)")
        )[0]
        == "changed"
    )


def test_the_job_can_be_stopped_and_deleted(api: Api, text: str) -> None:
    assert api.ask("POST", "/v1/jobs/other/stop").status_code == 202
    assert api.ask("DELETE", "/v1/jobs/other").status_code == 200
    assert api.ask("DELETE", "/v1/jobs/power").status_code == 200


def test_a_change_whose_effect_on_the_job_is_unknown_is_refused_by_name(api: Api, text: str) -> None:
    answer = api.apply(STREAM.replace("power: double", "power: double\n  speed: double?"))
    if "frames" in text or "sink" in text:
        assert answer.status_code == 200  # the job doesn't read this stream, or its sink doesn't depend on the stream
        return
    assert answer.status_code == 409, answer.text
    assert "job other" in answer.json()["detail"]
