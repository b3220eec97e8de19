"""Documents that were stored before rules that refuse them now: nothing runs by them, and nothing else is kept from working; what
follows them is applied as any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.processing.emission.fencing import slots_of_older_runs
from strandline.processing.formats.record_rows import record_format
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.emissions import Emissions, Emitter
from strandline.processing.source.stream_formats import StreamFormats
from strandline.services.rest.apply_documents import check_documents
from tests.support.control import BOTH, PIPELINE, STREAM, Api
from tests.support.ledgers import a_slice

EXPRESSION = ("max(power)", "max(power), ok: 'sum(if(power > 1, 1))'")
"""An `if` with two arguments."""
CONTRADICTION = ("steps:", "dead_letters: {index: true, kept: 0ms}\nsteps:")
"""An index that keeps nothing."""
REFUSED_STREAM = {"mqtt": {"topics": ["farm/a#"]}}
"""Not a filter of MQTT topics."""
BY_STREAM = "emit: [{elasticsearch: turbine-minute}]", "emit: [{stream: minutes}]"
refusals = pytest.mark.parametrize("refusal", [EXPRESSION, CONTRADICTION], ids=["expression", "contradiction"])


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    yield Api(ledger)
    ledger.close()


def store(api: Api, refusal: tuple[str, str], text: str = PIPELINE) -> str:
    """Put the pipeline into the ledger as an earlier release did that took it; its text."""
    refused = text.replace(*refusal)
    (document,) = read_documents(refused, "a.yaml")
    with pytest.raises(InvalidDocument):
        check_documents(f"{STREAM}---\n{refused}", "a.yaml", {})
    spec = PipelineSpec.parse(document, is_strict=False)
    api.ledger.submit_job(document.name, refused, spec.as_document())
    return refused


def store_stream(api: Api) -> None:
    api.ledger.put_stream("turbines", stored_stream())


def stored_stream() -> dict[str, Any]:
    (document,) = read_documents(STREAM, "a.yaml")
    return StreamSpec.parse(document).as_document() | REFUSED_STREAM


def plan(api: Api, text: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """What becomes of the job, and each change with its effect and reason."""
    told = api.ask("POST", "/v1/documents/plan", content=text, headers={"Content-Type": "application/yaml"})
    assert told.status_code == 200, told.text
    (job,) = told.json()["jobs"]
    return job["outcome"], {one["what"]: (one["effect"], one["reason"]) for one in job["changes"]}


@refusals
def test_a_job_that_the_rules_of_now_refuse_is_shown_and_hides_no_other(api: Api, refusal: tuple[str, str]) -> None:
    api.apply(STREAM)
    store(api, refusal)
    api.apply(PIPELINE.replace("power\n", "other\n").replace("turbine-minute", "elsewhere"))
    assert [one["name"] for one in api.ask("GET", "/v1/jobs").json()["jobs"]] == ["other", "power"]
    for path in ("/metrics", "/v1/jobs/power", "/v1/jobs/power/explanation", "/v1/jobs/power/graph"):
        assert api.ask("GET", path).status_code == 200, path
    assert api.ask("POST", "/v1/jobs/power/stop").status_code == 202
    assert api.ask("DELETE", "/v1/jobs/power").status_code == 200


@refusals
def test_nothing_runs_by_what_the_rules_of_now_refuse(api: Api, refusal: tuple[str, str]) -> None:
    api.apply(STREAM)
    store(api, refusal)
    with pytest.raises(InvalidDocument, match=r"^<stored pipeline power>: "):
        load_pipeline(api.ledger, "power", 1)
    told = api.ask("GET", "/v1/jobs/power/preview")
    assert (told.status_code, "<stored pipeline power>: " in told.text) == (422, True)


@refusals
def test_what_is_right_in_it_is_compared_with_what_follows_it(api: Api, refusal: tuple[str, str]) -> None:
    api.apply(STREAM)
    store(api, refusal)
    assert api.ledger.begin_run("power", 1).version == 1
    others = PIPELINE.replace("per_minute, tumbling: 1m", "other, tumbling: 2m")
    told = api.apply(others)
    assert (told.status_code, "power has begun and can't change" in told.text) == (409, True)
    outcome, changes = plan(api, PIPELINE)
    effect, reason = changes.pop("version 1 as far as rules that are stricter now refuse it")
    assert (outcome, effect) == ("changed", "safe")
    assert reason.startswith("that part is not compared: <stored pipeline power>: ")
    assert "forbidden" not in [effect for effect, _ in changes.values()]
    assert api.apply(PIPELINE).status_code == 200
    assert plan(api, PIPELINE.replace("10s", "20s"))[1].keys() == {"delay from 10s to 20s"}
    run = api.ledger.begin_run("power", 1)
    assert run.version == 2
    assert slots_of_older_runs(api.ledger, run) is not None
    assert load_pipeline(api.ledger, "power", 2).stages[0].name == "per_minute"
    assert load_pipeline(api.ledger, "power", 1, is_strict=False).stages[0].shape.size_ms == 60_000


def test_more_than_the_check_tells_at_once_is_compared_too(api: Api) -> None:
    api.apply(STREAM)
    store(api, ("max(power)", "max(power), " + ", ".join(f"ok{at}: 'sum(if(power > 1, 1))'" for at in range(60))))
    assert plan(api, PIPELINE)[0] == "changed"


@refusals
def test_a_stream_changes_together_with_what_mends_its_reader(api: Api, refusal: tuple[str, str]) -> None:
    api.apply(STREAM)
    store(api, refusal)
    wider = BOTH.replace("power: double", "power: double\n  site: string?")
    assert api.apply(wider).status_code == 200, api.apply(wider).text


@refusals
def test_a_stream_of_results_changes_while_its_emitter_is_refused(api: Api, refusal: tuple[str, str]) -> None:
    api.apply(f"{STREAM}---\n{PIPELINE.replace(*BY_STREAM)}")
    store(api, refusal, PIPELINE.replace(*BY_STREAM))
    minutes = api.ledger.stream("minutes").document
    fields = "".join(
        f"  {name}: {one['type']}{'' if one.get('required', True) else '?'}\n"
        for name, one in minutes["schema"].items()
    )
    told = api.apply(f"stream: minutes\nkey: turbine\nschema:\n{fields}  more: long?\n")
    assert told.status_code == 200, told.text


@refusals
def test_who_reads_results_of_a_version_that_is_refused_knows_its_windows(api: Api, refusal: tuple[str, str]) -> None:
    api.apply(f"{STREAM}---\n{PIPELINE.replace(*BY_STREAM)}")
    store(api, refusal, PIPELINE.replace(*BY_STREAM))
    log: Any = None  # which is not asked
    emitter = Emitter("minutes", "power", "window_start")
    found = Emissions(api.ledger, log, [emitter])._stage(emitter, 2)
    assert found is not None
    assert (found[0], found[1].first_begin(120_000)) == ("per_minute", 120_000)


def test_a_stored_stream_that_the_rules_of_now_refuse_is_mended_and_what_it_read_is_read_again(api: Api) -> None:
    store_stream(api)
    (document,) = read_documents(PIPELINE, "a.yaml")
    api.ledger.submit_job("power", PIPELINE, PipelineSpec.parse(document).as_document())
    assert api.ask("GET", "/v1/jobs").status_code == 200
    with pytest.raises(InvalidDocument, match=r"^<stored stream turbines>: mqtt.topics\[0\]"):
        load_pipeline(api.ledger, "power", 1)
    told = api.apply(f"{STREAM}mqtt: {{topics: [farm/a]}}\n")
    assert told.status_code == 200, told.text
    present = load_pipeline(api.ledger, "power", 1)
    assert present.stream.mqtt is not None
    formats = StreamFormats(api.ledger, {"turbines": record_format(present.stream)})
    assert formats.of(a_slice(1, 1, "power", stream_versions={"turbines": 1}), "turbines") is None, "of one format"
