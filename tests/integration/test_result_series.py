"""Results over time as Elasticsearch computes them, compared with a plain recomputation."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import fmean

import httpx
import pytest

from strandline.notices.result_filter import filter_of
from strandline.results.charts.lens import Field, Operation
from strandline.results.charts.series import Series, SeriesQuery, read_series, read_versions
from strandline.results.document import DocumentShape
from strandline.results.mapping import build_mapping
from strandline.results.newest_matches import MatchQuery, newest_matches

WINDOWS, EVERY_MS = 500, 60_000
START_MS = 1_793_491_200_000 + 7 * EVERY_MS
SECOND_VERSION_MS = START_MS + 300 * EVERY_MS
"""Start of the windows of version 2."""
Point = tuple[int, str, float]


@pytest.fixture(scope="module")
def index(elasticsearch: str) -> Iterator[tuple[str, str, list[Point]]]:
    """Yield the store, an index with results of twelve devices, and these results: (window start, device, load)."""
    name, chance = f"series-{uuid.uuid4().hex[:8]}", random.Random(5)
    shape = DocumentShape(name, "job", "stage", 1, (("device", "string"),), (("load", "double"),))
    points = [
        (START_MS + n * EVERY_MS, f"d{d:02}", round(chance.uniform(-5, 5), 3))
        for n in range(WINDOWS)
        for d in range(12)
        if chance.random() < 0.9 - d / 20
    ]
    with httpx.Client(base_url=elasticsearch, timeout=60, trust_env=False) as client:
        client.put(f"/{name}", json={"mappings": build_mapping(shape)}).raise_for_status()
        lines = "".join(
            f'{{"index":{{}}}}\n{{"@timestamp":{at + EVERY_MS},"window":{{"start":{at},"end":{at + EVERY_MS}}},'
            f'"device":"{device}","load":{load},"strandline":{{"version":{1 + (at >= SECOND_VERSION_MS)}}}}}\n'
            for at, device, load in points
        )
        headers = {"content-type": "application/x-ndjson"}
        answer = client.post(f"/{name}/_bulk?refresh=true", content=lines, headers=headers).json()
        assert not answer["errors"], answer
        yield elasticsearch, name, points
        client.delete(f"/{name}").raise_for_status()


def query(name: str, operation: Operation = "average", by: bool = True, points_max: int = 1_000) -> SeriesQuery:
    device = Field("device", "keyword", "device") if by else None
    return SeriesQuery(name, EVERY_MS, Field("load", "double", "load"), operation, device, 10, points_max)


def grouped(points: list[Point], from_ms: int, step_ms: int, by: bool) -> dict[str, dict[int, list[float]]]:
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for at, device, load in points:
        found[device if by else "load"][from_ms + (at - from_ms) // step_ms * step_ms].append(load)
    return found


def require_equal(series: list[Series], expected: dict[str, dict[int, list[float]]], operation: Operation) -> None:
    reduce = {"average": fmean, "sum": sum, "min": min, "max": max}[operation]
    for one in series:
        assert [at for at, _ in one.points] == sorted(expected[one.key])
        assert [load for _, load in one.points] == pytest.approx(
            [reduce(expected[one.key][at]) for at, _ in one.points]
        )


@pytest.mark.parametrize("operation", ["average", "sum", "min", "max"])
@pytest.mark.parametrize("points_max", [1_000, 60, 7])
def test_each_point_is_what_its_windows_say(
    index: tuple[str, str, list[Point]], operation: Operation, points_max: int
) -> None:
    url, name, points = index
    drawn = read_series(url, query(name, operation, points_max=points_max), START_MS, None, 1)
    assert drawn.results == len(points)
    assert all(len(one.points) <= points_max for one in drawn.series)
    assert drawn.step_ms % EVERY_MS == 0
    most = sorted({device for _, device, _ in points}, key=lambda d: (-sum(p[1] == d for p in points), d))
    assert [one.key for one in drawn.series] == most[:10]
    require_equal(drawn.series, grouped(points, START_MS, drawn.step_ms, by=True), operation)


def test_without_a_key_there_is_one_series(index: tuple[str, str, list[Point]]) -> None:
    url, name, points = index
    drawn = read_series(url, query(name, by=False), START_MS, None, 1)
    assert [one.key for one in drawn.series] == ["load"]
    require_equal(drawn.series, grouped(points, START_MS, EVERY_MS, by=False), "average")


def test_a_part_of_the_time_holds_both_ends_and_without_a_start_it_goes_so_many_windows_back(
    index: tuple[str, str, list[Point]],
) -> None:
    url, name, points = index
    from_ms, to_ms = START_MS + 100 * EVERY_MS, START_MS + 149 * EVERY_MS
    part = [point for point in points if from_ms <= point[0] <= to_ms]
    for drawn in (
        read_series(url, query(name), from_ms, to_ms, 1),
        read_series(url, query(name), None, to_ms, 50),
    ):
        assert (drawn.from_ms, drawn.to_ms, drawn.results) == (from_ms, max(at for at, _, _ in part), len(part))
        require_equal(drawn.series, grouped(part, from_ms, drawn.step_ms, by=True), "average")


@pytest.mark.guarantee("G1102")
def test_results_are_read_by_the_version_of_the_job(index: tuple[str, str, list[Point]]) -> None:
    url, name, points = index
    starts = [at for at, _, _ in points]
    found = read_versions(url, name)
    assert [(one.version, one.from_ms, one.to_ms) for one in found] == [
        (1, min(starts), max(at for at in starts if at < SECOND_VERSION_MS)),
        (2, min(at for at in starts if at >= SECOND_VERSION_MS), max(starts)),
    ]
    assert sum(one.results for one in found) == len(points)
    part = [point for point in points if point[0] >= SECOND_VERSION_MS]
    drawn = read_series(url, replace(query(name), versions=(2,)), START_MS, None, 1)
    assert drawn.results == len(part)
    require_equal(drawn.series, grouped(part, START_MS, EVERY_MS, by=True), "average")
    assert read_series(url, replace(query(name), versions=(1,)), None, None, 10).to_ms == found[0].to_ms
    assert read_versions(url, f"{name}-none") == []


def test_before_the_first_window_has_closed_there_is_nothing(index: tuple[str, str, list[Point]]) -> None:
    url, name, _ = index
    for drawn in (
        read_series(url, query(f"{name}-none"), None, None, 10),
        read_series(url, query(name), None, 1_000, 10),
    ):
        assert (drawn.from_ms, drawn.results, drawn.series) == (None, 0, [])


@pytest.mark.parametrize(
    ("where", "meets"),
    [
        ("load > 1.5", lambda load, device: load > 1.5),
        ("load <= 0 and device != 'd03'", lambda load, device: load <= 0 and device != "d03"),
        ("not (load > 0 or device = 'd05')", lambda load, device: not (load > 0 or device == "d05")),
    ],
)
@pytest.mark.guarantee(
    "G931",
    "A condition over results names exactly the keys whose newest result meets it.",
    promise="failures-are-reported-with-their-remedy",
)
def test_keys_whose_newest_result_meets_a_condition(
    index: tuple[str, str, list[Point]], where: str, meets: Callable[[float, str], bool]
) -> None:
    url, name, points = index
    query = MatchQuery(name, ("device",), ("load",), filter_of(where).query, "window.start", 3 * EVERY_MS)
    newest_ms = max(at for at, _, _ in points)
    newest = {device: load for at, device, load in sorted(points) if at > newest_ms - 3 * EVERY_MS}
    found = {one["device"]: one["load"] for one in newest_matches(url, query)}
    assert found == {device: load for device, load in newest.items() if meets(load, device)}
    assert 0 < len(found) < len(newest)


def test_an_alias_without_an_index_has_no_newest_results(index: tuple[str, str, list[Point]]) -> None:
    url, _, _ = index
    query = MatchQuery("series-without-index", (), (), filter_of("load > 1").query, "window.start", EVERY_MS)
    assert newest_matches(url, query) == []
