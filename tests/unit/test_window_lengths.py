"""Results of versions of a job with windows of different lengths: each answer contains those of one length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.ledger.ledger import Ledger
from strandline.results.charts.series import SeriesQuery, SeriesResult, VersionResults
from strandline.services.cli.result_verbs import _about
from strandline.services.jobs import results
from tests.support.control import BOTH, Api

HOUR_MS, MINUTE_MS = 3_600_000, 60_000


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


class Index:
    """143 results of each version."""

    def __init__(self, *versions: int) -> None:
        self.versions = versions
        self.queries: list[SeriesQuery] = []

    def read_versions(self, *_: Any) -> list[VersionResults]:
        return [VersionResults(number, 143, 0, HOUR_MS) for number in self.versions]

    def read_series(self, _url: str, query: SeriesQuery, *_: Any) -> SeriesResult:
        self.queries.append(query)
        return SeriesResult(0, HOUR_MS, query.every_ms, 143 * len(query.versions or self.versions), [])


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index()
    monkeypatch.setattr(results, "read_versions", made.read_versions)
    monkeypatch.setattr(results, "read_series", made.read_series)
    return made


@pytest.mark.guarantee(
    "G1102",
    "If versions of a job have windows of different lengths, an answer with results contains windows of one length, and names "
    "the others. Windows of different lengths are never added up.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_results_of_two_window_lengths_are_not_added_up(api: Api, index: Index) -> None:
    api.apply(BOTH)
    api.apply(BOTH.replace("delay: 10s", "delay: 20s"))
    api.apply(BOTH.replace("tumbling: 1m", "tumbling: 5m"))
    index.versions = (1, 2, 3)
    found = api.ask("GET", "/v1/results/turbine-minute").json()
    assert (found["results"], found["size_ms"], found["every_ms"]) == (143, 5 * MINUTE_MS, 5 * MINUTE_MS)
    assert [(one["size_ms"], one["versions"], one["is_current"], one["results"]) for one in found["lengths"]] == [
        (5 * MINUTE_MS, [3], True, 143),
        (MINUTE_MS, [1, 2], False, 286),
    ]
    assert "286 of windows of 1 min" in _about(found)
    found = api.ask("GET", f"/v1/results/turbine-minute?size_ms={MINUTE_MS}").json()
    assert (found["results"], found["size_ms"], index.queries[-1].versions) == (286, MINUTE_MS, (1, 2))
    refused = api.ask("GET", "/v1/results/turbine-minute?size_ms=7")
    assert (refused.status_code, "300000, 60000" in refused.json()["detail"]) == (404, True)


def test_equal_windows_of_several_versions_are_one_answer(api: Api, index: Index) -> None:
    api.apply(BOTH)
    api.apply(BOTH.replace("delay: 10s", "delay: 20s"))
    index.versions = (1, 2)
    found = api.ask("GET", "/v1/results/turbine-minute").json()
    assert (found["results"], found["lengths"], index.queries[-1].versions) == (286, [], None)


def test_before_a_new_window_has_closed_the_earlier_ones_are_shown(api: Api, index: Index) -> None:
    api.apply(BOTH)
    api.apply(BOTH.replace("tumbling: 1m", "tumbling: 5m"))
    index.versions = (1,)
    found = api.ask("GET", "/v1/results/turbine-minute").json()
    assert (found["size_ms"], [one["is_current"] for one in found["lengths"]]) == (MINUTE_MS, [False])
