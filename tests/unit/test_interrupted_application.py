"""A stream was changed, and the pipeline that was to change with it was not: the application of both was interrupted in between.

The job's current version then doesn't fit the stream. It doesn't run, holds up nothing else, and is replaced by applying again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.core.errors import InvalidDocument, LedgerUnavailable
from strandline.ledger.ledger import Ledger
from strandline.processing.emission.fencing import slots_of_older_runs
from strandline.processing.pipelines.stored import load_pipeline
from tests.support.control import BOTH, PIPELINE, STREAM, Api

LATER_STREAM = STREAM.replace("power: double", "load: double?")
LATER_PIPELINE = PIPELINE.replace("max(power)", "max(load)")
LATER = f"{LATER_STREAM}---\n{LATER_PIPELINE}"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    yield Api(ledger)
    ledger.close()


def interrupt(api: Api, before: str = BOTH, text: str = LATER) -> None:
    """Apply `before`, and of `text` only the streams."""

    def is_unavailable(*given: object) -> None:
        raise LedgerUnavailable("the ledger does not answer")

    told = api.apply(before)
    assert told.status_code == 200, told.text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api.ledger, "submit_job", is_unavailable)
        assert api.apply(text).status_code == 503
    assert api.ledger.stream("turbines").version == 2 and api.ledger.job("power").version == 1


def plan(api: Api, text: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return the outcome for the job, and its changes: what -> effect and reason."""
    told = api.ask("POST", "/v1/documents/plan", content=text, headers={"Content-Type": "application/yaml"})
    assert told.status_code == 200, told.text
    (job,) = told.json()["jobs"]
    return job["outcome"], {one["change"]: (one["effect"], one["reason"]) for one in job["changes"]}


@pytest.mark.guarantee("G631")
def test_the_job_is_shown_and_hides_no_other(api: Api) -> None:
    interrupt(api)
    other = LATER_PIPELINE.replace("power\n", "other\n").replace("turbine-minute", "elsewhere")
    assert api.apply(other).status_code == 200
    assert [one["name"] for one in api.ask("GET", "/v1/jobs").json()["jobs"]] == ["other", "power"]
    for path in ("/metrics", "/v1/jobs/power", "/v1/jobs/power/explanation", "/v1/jobs/power/graph"):
        assert api.ask("GET", path).status_code == 200, path
    assert api.ask("POST", "/v1/jobs/power/stop").status_code == 202
    assert api.ask("DELETE", "/v1/jobs/power").status_code == 200


@pytest.mark.guarantee(
    "G631",
    "If an apply of a stream and its pipeline is interrupted in between, a pipeline that doesn't fit the stream "
    "doesn't run. Its job is displayed, and delays no other job, document, or metric. Another apply completes the "
    "first one.",
    promise="unusable-documents-are-refused",
)
def test_it_does_not_run(api: Api) -> None:
    interrupt(api)
    with pytest.raises(InvalidDocument, match=r"^<stored pipeline power>: .*unknown column 'power'"):
        load_pipeline(api.ledger, "power", 1)
    told = api.ask("GET", "/v1/jobs/power/preview")
    assert (told.status_code, "<stored pipeline power>: " in told.text) == (422, True)


@pytest.mark.guarantee("G631")
def test_what_fits_is_compared_and_the_second_application_completes_the_first(api: Api) -> None:
    interrupt(api)
    assert api.ledger.begin_run("power", 1).version == 1
    told = api.apply(LATER.replace("per_minute, tumbling: 1m", "other, tumbling: 2m"))
    assert (told.status_code, "power has started and can't change" in told.text) == (409, True)
    outcome, changes = plan(api, LATER)
    effect, reason = changes.pop("the part of version 1 that doesn't fit the current streams")
    assert (outcome, effect) == ("changed", "safe")
    assert reason.startswith("this part is not compared: <stored pipeline power>: ")
    assert "forbidden" not in [effect for effect, _ in changes.values()]
    assert api.apply(LATER).status_code == 200
    run = api.ledger.begin_run("power", 1)
    assert run.version == 2
    assert slots_of_older_runs(api.ledger, run) is not None
    assert load_pipeline(api.ledger, "power", 2).stages[0].name == "per_minute"
    assert load_pipeline(api.ledger, "power", 1, is_strict=False).stages[0].shape.size_ms == 60_000


def test_more_problems_than_an_answer_holds_are_no_obstacle(api: Api) -> None:
    many = ", ".join(f"peak{number}: max(power)" for number in range(60))
    interrupt(api, BOTH.replace("peak: max(power)", many))
    assert plan(api, LATER)[0] == "changed"


def test_its_stream_can_change_again_with_it(api: Api) -> None:
    interrupt(api)
    told = api.apply(LATER.replace("load: double?", "load: double?\n  site: string?"))
    assert told.status_code == 200, told.text


def test_its_stream_of_results_can_change(api: Api) -> None:
    by_stream = "emit: [{elasticsearch: turbine-minute}]", "emit: [{stream: minutes}]"
    interrupt(api, BOTH.replace(*by_stream), LATER.replace(*by_stream))
    fields = "".join(
        f"  {name}: {one['type']}{'' if one.get('required', True) else '?'}\n"
        for name, one in api.ledger.stream("minutes").document["schema"].items()
    )
    told = api.apply(f"stream: minutes\nkey: turbine\nschema:\n{fields}  more: long?\n")
    assert told.status_code == 200, told.text
