"""The range of the records of a result: from the first slice that can contain one to the slice that closed its window."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from strandline.ledger.ledger import Ledger
from strandline.results.elasticsearch_client import RequestRefused
from strandline.services.jobs import result_records
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice

MINUTE_MS, SLICES = 60_000, 20
SLIDING = (
    BOTH.replace("tumbling: 1m", "sliding: {size: 1m, every: 30s}")
    + """\
  - window: {name: per_ten, tumbling: 10m, by: [turbine], aggregate: {n: sum(n)}}
    emit: [{elasticsearch: turbine-ten}]
"""
)


class Lab:
    """A job of 20 slices, each a minute of event time; and a store that shows what `found` says."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger, self.api = ledger, Api(ledger)
        self.found: dict[str, Any] | Exception = {}
        monkeypatch.setattr(result_records, "request", self._request)
        assert self.api.apply(BOTH).status_code == 200
        self.api.log.ranges["turbines"].offset_first.update({0: 0, 1: 0})
        ledger.begin_run("power", pid=1)
        for number in range(1, SLICES + 1):
            ledger.plan_slice(a_slice(number))
            closes_ms = (number - 1) * MINUTE_MS or None
            ledger.commit_checkpoint(a_checkpoint(number, latest_event_ms=number * MINUTE_MS - 1, closes_ms=closes_ms))

    def show(self, start_ms: int, end_ms: int, emission: int, stage: str = "per_minute", version: int = 1) -> None:
        """The store shows one result, of this window."""
        start, end = (
            datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds") for at in (start_ms, end_ms)
        )
        origin = {"job": "power", "stage": stage, "version": version, "epoch": 1, "emission": emission}
        self.found = {"window": {"start": start, "end": end}, "strandline": origin}

    def ask(self, alias: str = "turbine-minute") -> Any:
        return self.api.ask("GET", f"/v1/results/{alias}/some-id/records")

    def _request(self, url: str, method: str, path: str, *, body: Any, **_: Any) -> Any:
        assert body["query"] == {"ids": {"values": ["some-id"]}}
        if isinstance(self.found, Exception):
            raise self.found
        return {"hits": {"hits": [{"_source": self.found}] if self.found else []}}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Lab(ledger, monkeypatch)
    ledger.close()


def test_from_the_first_slice_that_reached_the_window_to_the_one_that_closed_it(lab: Lab) -> None:
    """Slice 5 is the first whose events reached minute 4 to 5; slice 7 made it final."""
    lab.show(4 * MINUTE_MS, 5 * MINUTE_MS, emission=7)
    answer = lab.ask()
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "alias": "turbine-minute",
        "document": "some-id",
        "job": "power",
        "stage": "per_minute",
        "version": 1,
        "window_start_ms": 4 * MINUTE_MS,
        "window_end_ms": 5 * MINUTE_MS,
        "from_ms": 4 * MINUTE_MS,
        "slice_first": 5,
        "slice_last": 7,
        "ranges": [
            {"stream": "turbines", "partition": 0, "offset_first": 40, "offset_next": 70},
            {"stream": "turbines", "partition": 1, "offset_first": 80, "offset_next": 140},
        ],
    }


@pytest.mark.guarantee("G198")
def test_a_later_stage_takes_results_of_windows_that_began_before_its_own(lab: Lab) -> None:
    """A window of ten minutes holds the results that end in it; the first of them began 30 s before it. The version that made the
    result counts."""
    answer = lab.api.apply(SLIDING)
    assert answer.status_code == 200, answer.text
    other = SLIDING.replace("sliding: {size: 1m, every: 30s}", "tumbling: 1m")
    assert lab.api.apply(other).status_code == 200
    lab.show(10 * MINUTE_MS, 20 * MINUTE_MS, emission=20, stage="per_ten", version=2)
    asked = lab.ask("turbine-ten")
    assert asked.status_code == 200, asked.text
    answer = asked.json()
    assert (answer["from_ms"], answer["slice_first"], answer["slice_last"]) == (10 * MINUTE_MS - 30_000, 10, 20)


@pytest.mark.guarantee("G198")
def test_slices_that_were_removed_are_said_to_be(lab: Lab) -> None:
    assert lab.ledger.raise_floor("power", 1, 6, 100) > 0
    lab.show(4 * MINUTE_MS, 5 * MINUTE_MS, emission=7)
    answer = lab.ask()
    assert answer.status_code == 404
    assert "no longer contains the slices of result" in answer.json()["detail"]
    lab.show(8 * MINUTE_MS, 9 * MINUTE_MS, emission=10)
    assert lab.ask().json()["slice_first"] == 9


@pytest.mark.parametrize(
    "found", [{}, RequestRefused("no index", 404, "index_not_found_exception")], ids=["id", "index"]
)
def test_a_result_that_is_not_there_is_not_found(lab: Lab, found: Any) -> None:
    lab.found = found
    answer = lab.ask()
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "shows no result some-id" in answer.json()["detail"]
    assert lab.ask("nobody").status_code == 404


def test_a_records_own_document_says_where_it_stands(lab: Lab) -> None:
    lab.show(0, 1, emission=7, stage="all")
    assert isinstance(lab.found, dict)
    del lab.found["window"]
    lab.found |= {"@timestamp": "1970-01-01T00:00:09.000Z"}
    lab.found["strandline"] |= {"stream": "turbines", "partition": 1, "offset": 88}
    told = lab.ask().json()
    assert told["ranges"] == [{"stream": "turbines", "partition": 1, "offset_first": 88, "offset_next": 89}]
    assert (told["slice_first"], told["slice_last"], told["window_end_ms"]) == (7, 7, 9_000)
