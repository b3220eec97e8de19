"""Traces of records: a process of its own for each, and the routes and commands that use them."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import NotFound, StrandlineError, TooExpensive
from strandline.ledger.ledger import Ledger
from strandline.processing.lineage.process import TraceOutcome
from strandline.processing.lineage.views import (
    RecordLife,
    RecordPathView,
    RecordResultView,
    RecordRowView,
    ResultSources,
    SourceRecord,
    StepOutcome,
)
from strandline.services.jobs import traces
from strandline.services.jobs.traces import Traces
from tests.support.control import BOTH, Api

STEPS = [
    StepOutcome("steps[0].where", "where", "where a > 1", "kept"),
    StepOutcome("steps[1].where", "where", "where b", "left_out"),
]
LIFE = RecordLife(
    "power",
    "turbines",
    1,
    7,
    "read",
    log_time_ms=1_700_000_000_000,
    value='{"turbine": "T1"}',
    slice=3,
    version=1,
    lookups={"sites": 2},
    rows=[
        RecordRowView(None, 1_700_000_000_000, {"turbine": "T1"}, "accepted", paths=[RecordPathView("alarms", STEPS)])
    ],
    row_count=1,
    results=[
        RecordResultView(
            "per_minute", "emitted", 0, 60_000, "an-id", ["elasticsearch turbine-minute"], 1, 1, 4, None, {"n": 12}
        )
    ],
    open_until_ms=1_700_000_060_000,
)
SOURCES = ResultSources("power", "per_minute", "an-id", 1, 4, [SourceRecord("turbines", 1, 7)], 1, 30)


def answering(answer: TraceOutcome) -> Callable[[str, Sequence[str]], Sequence[str]]:
    """Return the command of a process that gives this answer."""
    text = base64.b64encode(pickle.dumps(answer)).decode()
    program = f"import base64, sys; sys.stdout.buffer.write(base64.b64decode('{text}'))"
    return lambda job, arguments: [sys.executable, "-c", program]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    made = Api(ledger)
    assert made.apply(BOTH).status_code == 200
    yield made
    ledger.close()


def trace(api: Api, tmp_path: Path, command: Any) -> RecordLife:
    return Traces(tmp_path, command=command).of_record(api.ledger, "power", "turbines", 1, 7)


def test_the_answer_and_the_error_of_the_process_are_passed_on(api: Api, tmp_path: Path) -> None:
    assert trace(api, tmp_path, answering(TraceOutcome(LIFE))) == LIFE
    for error in (NotFound("no slice contains it"), TooExpensive("too many records")):
        with pytest.raises(type(error), match=str(error)):
            trace(api, tmp_path, answering(TraceOutcome(error=error)))
    assert list((tmp_path / "logs").glob("trace-*")) == []


def test_a_process_that_its_limits_end_is_too_expensive(api: Api, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; print('reading', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGALRM)"
    )
    with pytest.raises(TooExpensive, match=r"longer than 60 s.*Its last output: reading"):
        trace(api, tmp_path, lambda job, arguments: [sys.executable, "-c", program])


def test_the_process_is_asked_for_the_record_and_the_result(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []

    def command(job: str, arguments: Sequence[str]) -> Sequence[str]:
        asked.append((job, list(arguments)))
        return answering(TraceOutcome(LIFE if arguments[0] == "record" else SOURCES))(job, arguments)

    one = Traces(tmp_path, command=command)
    origin: dict[str, Any] = {"stage": "per_minute", "version": 1, "emission": 4}
    monkeypatch.setattr(traces, "origin_of", lambda *_: origin)
    one.of_record(api.ledger, "power", "turbines", 1, 7)
    one.of_result(api.ledger, "http://nowhere", "power", "turbine-minute", "an-id")
    assert asked == [
        ("power", ["record", "turbines", "1", "7"]),
        ("power", ["result", "per_minute", "an-id", "1", "4"]),
    ]
    origin |= {"stream": "turbines", "partition": 0, "offset": 3}
    found = one.of_result(api.ledger, "http://nowhere", "power", "turbine-minute", "an-id")
    assert (found.records, len(asked)) == ([SourceRecord("turbines", 0, 3)], 2)


def test_the_routes_return_the_life_and_the_sources(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, RecordLife | ResultSources | StrandlineError] = {"record": LIFE, "result": SOURCES}

    def run(self: Traces, job: str, arguments: Sequence[str]) -> Any:
        answer = found[arguments[0]]
        if isinstance(answer, StrandlineError):
            raise answer
        return answer

    monkeypatch.setattr(Traces, "_run", run)
    monkeypatch.setattr(traces, "origin_of", lambda *_: {"stage": "per_minute", "version": 1, "emission": 4})
    life = api.ask("GET", "/v1/jobs/power/records/turbines/1/7")
    assert life.status_code == 200, life.text
    assert life.json()["results"][0]["document"] == "an-id"
    sources = api.ask("GET", "/v1/results/turbine-minute/an-id/sources")
    assert sources.json()["records"] == [{"stream": "turbines", "partition": 1, "offset": 7}]
    other = api.ask("GET", "/v1/jobs/power/records/meters/1/7")
    assert (other.status_code, other.json()["detail"]) == (
        404,
        "job power doesn't read stream meters; it reads turbines",
    )
    found["record"] = TooExpensive("too many records")
    assert api.ask("GET", "/v1/jobs/power/records/turbines/1/7").status_code == 422
