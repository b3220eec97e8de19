"""A check or preview of a viewer's document costs the control service a limited amount of memory and time."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from strandline.core.errors import InvalidDocument, TooExpensive
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import NewestRecords
from strandline.processing.formats.proposals import infer_from_topic
from strandline.processing.kinds.windows.limits import WINDOWS_MAX
from strandline.services import control
from strandline.services.control import _LIMITED_MODULES, ControlSettings
from strandline.services.jobs.apply_documents import DocumentApplier, check_documents
from strandline.services.jobs.previews import _headers, _run_desk, chosen_pipeline
from strandline.services.processes.limited_work import LimitedWork
from tests.support.control import BOTH, Api, Topics

STREAM = "stream: tanks\nschema: {tank: string, ts: {type: timestamp, unit: ms}, note: string}\n"
PIPELINE = """\
---
pipeline: levels
input: {{stream: tanks}}
event_time: {{field: ts, delay: 1s}}
steps:
  - derive: {{text: "{text}"}}
  - window: {{name: w, {window}, by: [tank], aggregate: {{n: count(*), longest: max(length(text))}}}}
    emit: [{{elasticsearch: levels}}]
"""
RECORD = b'{"tank": "t", "ts": 1700000000000, "note": "aaaaaaaa"}'


@pytest.fixture(scope="module")
def work() -> Iterator[LimitedWork]:
    made = LimitedWork(_LIMITED_MODULES, 512 << 20, 60.0)
    yield made
    made.close()


def documents(text: str = "note", window: str = "tumbling: 1m") -> str:
    return STREAM + PIPELINE.format(text=text, window=window)


def nested(levels: int) -> str:
    text = "note"
    for _ in range(levels):
        text = f"replace({text}, 'a', '{'a' * 30}')"
    return text


@pytest.mark.guarantee("G776")
def test_documents_checked_by_the_process_are_those_checked_here(work: LimitedWork, tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    applier = DocumentApplier(
        ledger,
        Topics(ledger),
        lambda pipeline: None,
        lambda topic: {},
        check=partial(work.run, "check", check_documents),
    )
    here = check_documents(documents(), "a.yaml", {})
    assert applier.check(documents(), "a.yaml") == here
    with pytest.raises(InvalidDocument, match="nothing"):
        applier.check(documents("nothing"), "a.yaml")
    ledger.close()


@pytest.mark.guarantee("G777")
def test_nested_replacements_of_a_preview_use_little_memory(work: LimitedWork) -> None:
    """Such previews used 3.7 GB. Now each record whose string would be too long is a dead letter."""
    pipeline = chosen_pipeline(check_documents(documents(nested(6)), "a.yaml", {}), None, "a.yaml")
    newest = NewestRecords([0] * 200, [*range(200)], [1_700_000_000_000] * 200, [RECORD] * 200, [None] * 200)
    found = work.run("preview", _run_desk, pipeline, "tanks", newest)
    assert (found["records"], found["rejected"]) == (200, {"expression": 200})
    assert work.run("preview", _headers, pipeline, "tanks") == _headers(pipeline, "tanks")


@pytest.mark.guarantee("G776")
def test_a_preview_that_still_needs_too_much_is_ended(work: LimitedWork) -> None:
    pipeline = chosen_pipeline(
        check_documents(documents("note", "sliding: {size: 10000m, every: 1m}"), "a.yaml", {}), None, "a.yaml"
    )
    records = [b'{"tank": "t%d", "ts": 1700000000000, "note": ""}' % number for number in range(10_000)]
    newest = NewestRecords([0] * 10_000, [*range(10_000)], [1_700_000_000_000] * 10_000, records, [None] * 10_000)
    with pytest.raises(TooExpensive, match=r"the preview (took longer|needed more)"):
        work.run("preview", _run_desk, pipeline, "tanks", newest)


@pytest.mark.guarantee(
    "G777",
    "No step of a pipeline puts a record into more than 10,000 windows, and no joining or replacing function returns "
    "a string of more than 1 MiB. A longer string is a dead letter and is never built.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize(
    "window",
    [
        "sliding: {size: 30d, every: 50ms}",
        "sliding: {size: 10001ms, every: 1ms}",
        "cumulative: {size: 30d, step: 50ms}",
    ],
)
def test_a_record_is_in_a_limited_number_of_windows(window: str) -> None:
    with pytest.raises(InvalidDocument, match=rf"expected at most {WINDOWS_MAX:,}, so at least"):
        check_documents(documents(window=window), "a.yaml", {})


@pytest.mark.parametrize("window", ["sliding: {size: 10s, every: 1ms}", "cumulative: {size: 10s, step: 1ms}"])
def test_as_many_windows_as_the_limit_are_accepted(window: str) -> None:
    (stage,) = check_documents(documents(window=window), "a.yaml", {}).pipelines[0].stages
    assert stage.size_ms // stage.every_ms == WINDOWS_MAX


def test_a_proposal_is_made_by_the_process(work: LimitedWork) -> None:
    proposal = work.run("proposal", infer_from_topic, "tanks", [RECORD] * 5, 1, "7d")
    assert proposal == infer_from_topic("tanks", [RECORD] * 5, 1, "7d")
    StreamSpec.from_document(proposal.document)


@pytest.mark.guarantee("G776")
def test_the_control_service_computes_nothing_of_a_request_without_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the parts that the service itself makes, except for the contents of Kafka."""
    refused: list[str] = []
    granted: set[str] = set()

    def refuse(
        self: LimitedWork, kind: str, function: Callable[..., object], *arguments: object, **_: object
    ) -> object:
        if kind in granted:
            return function(*arguments)
        refused.append(kind)
        raise TooExpensive(f"the {kind} took too long")

    monkeypatch.setattr(LimitedWork, "start", lambda self: None)
    monkeypatch.setattr(LimitedWork, "run", refuse)
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    api = Api(ledger)
    assert api.apply(BOTH).status_code == 200
    settings = ControlSettings(data_dir=tmp_path, kafka_bootstrap="127.0.0.1:1", elasticsearch_url="http://127.0.0.1:1")
    made = control._dependencies(settings, ledger, "control-test")
    sample = {"documents": BOTH, "sample": b64encode(b"1.5\n").decode()}
    yaml = {"content": BOTH, "headers": {"Content-Type": "application/yaml"}}
    try:
        api._dependencies = replace(made, log=api.log)
        for kind, method, path, options in (
            ("check", "POST", "/v1/documents", yaml),
            ("check", "POST", "/v1/documents/plan", yaml),
            ("check", "POST", "/v1/pipelines/check", yaml),
            ("check", "POST", "/v1/pipelines/preview", yaml),
            ("check", "POST", "/v1/samples/preview", {"json": sample}),
            ("proposal", "POST", "/v1/samples/proposal", {"content": b"1.5\n"}),
            ("preview", "GET", "/v1/jobs/power/preview", {}),
            ("proposal", "GET", "/v1/topics/turbines/proposal", {}),
            ("check", "POST", "/v1/topics/turbines/preview", yaml),
            ("list of fields", "GET", "/v1/streams/turbines/undeclared", {}),
        ):
            refused.clear()
            answer = api.ask(method, path, **options)
            assert (answer.status_code, answer.json().get("code"), refused) == (422, "too_expensive", [kind]), path
        granted.add("check")
        refused.clear()
        assert api.ask("POST", "/v1/pipelines/preview", **yaml).status_code == 422
        assert refused == ["preview"], "a pipeline that was checked is limited when it runs, too"
        refused.clear()
        assert api.ask("POST", "/v1/samples/preview", json=sample).status_code == 422
        assert refused == ["preview"], "a sample is decoded and computed with limits"
        refused.clear()
        assert api.ask("POST", "/v1/topics/turbines/preview", **yaml).status_code == 422
        assert refused == ["preview"], "records of a topic are decoded and computed with limits"
    finally:
        made.close_limited()
        ledger.close()
