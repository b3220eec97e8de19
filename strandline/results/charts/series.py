"""Results over time for a chart: a few series with a bounded number of points, computed by Elasticsearch.

The query uses the alias, which shows each window once. The time of a point is the start of its window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.results.charts.lens import Field, Operation
from strandline.results.charts.saved_objects import WINDOW_START
from strandline.results.elasticsearch_client import RequestRefused, request

_TIMEOUT_S = 30.0
VERSION = "strandline.version"
"""Field of a document with the version of the job."""
VERSIONS_MAX = 1_000
"""Maximum number of versions of a job whose results are distinguished."""
_METRICS = {"sum": "sum", "average": "avg", "min": "min", "max": "max"}


@dataclass(frozen=True)
class SeriesQuery:
    """Query for the chart of an alias."""

    alias: str
    every_ms: int
    """Time from one window to the next."""
    value: Field
    operation: Operation
    """Operation that combines the values of several windows."""
    by: Field | None
    """Field for the series: one for each of its values. None for a single series."""
    series_max: int
    points_max: int
    time: Field = WINDOW_START
    """Time field of a document."""
    versions: tuple[int, ...] | None = None
    """Only results of these versions of the job. None for all."""

    def filtered(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """Return the query of results whose window starts in a range."""
        of_time = {"range": {self.time.name: {**start, "format": "epoch_millis"}}}
        if self.versions is None:
            return of_time
        return {"bool": {"filter": [of_time, {"terms": {VERSION: list(self.versions)}}]}}


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    key: str
    points: list[tuple[int, float]]
    """(start of the window in ms since 1970, value), by time. Windows without a value are left out."""


@dataclass(frozen=True)
class SeriesResult:
    """Result of a query."""

    from_ms: int | None = None
    """Lower bound of the windows' starts. None if there is no result."""
    to_ms: int | None = None
    """Start of the youngest window."""
    step_ms: int = 0
    """Time of one point: one window, or several if there are more windows than points."""
    results: int = 0
    """Number of results in this time, including those of keys that are not drawn."""
    series: list[Series] = field(default_factory=list)


@dataclass(frozen=True)
class VersionResults:
    """Results of one version of a job."""

    version: int
    results: int
    from_ms: int
    """Start of the oldest window."""
    to_ms: int
    """Start of the youngest window."""


def read_versions(url: str, alias: str, time: Field = WINDOW_START) -> list[VersionResults]:
    """Return the versions whose results the alias shows, the oldest first. Raises IndexUnavailable and RequestRefused."""
    starts = {"first": {"min": {"field": time.name}}, "last": {"max": {"field": time.name}}}
    terms = {"field": VERSION, "size": VERSIONS_MAX, "order": {"_key": "asc"}}
    found = _search_if_there(url, alias, {"size": 0, "aggs": {"version": {"terms": terms, "aggs": starts}}})
    buckets = [] if found is None else found["aggregations"]["version"]["buckets"]
    return [
        VersionResults(int(one["key"]), int(one["doc_count"]), int(one["first"]["value"]), int(one["last"]["value"]))
        for one in buckets
        if one["first"]["value"] is not None
    ]


def read_series(url: str, query: SeriesQuery, from_ms: int | None, to_ms: int | None, windows: int) -> SeriesResult:
    """Read the series of the windows that start in `from_ms` to `to_ms`, both included.

    Without `to_ms`, the range ends at the youngest result. Without `from_ms`, it has `windows` windows. An alias
    without an index has no results. Raises IndexUnavailable and RequestRefused.
    """
    to_ms = _youngest(url, query, to_ms)
    if to_ms is None:
        return SeriesResult()
    from_ms = from_ms if from_ms is not None else to_ms - (windows - 1) * query.every_ms
    step_ms = _step_ms(max(to_ms - from_ms, 0) // query.every_ms + 1, query)
    answer = _search(url, query.alias, _body(query, from_ms, to_ms, step_ms))
    return SeriesResult(
        from_ms, to_ms, step_ms, int(answer["hits"]["total"]["value"]), _series(answer["aggregations"], query)
    )


def _youngest(url: str, query: SeriesQuery, up_to_ms: int | None) -> int | None:
    """Return the start of the youngest window that starts no later than this. None if there is none."""
    body: dict[str, Any] = {"size": 0, "aggs": {"start": {"max": {"field": query.time.name}}}}
    if up_to_ms is not None or query.versions is not None:
        body["query"] = query.filtered({} if up_to_ms is None else {"lte": up_to_ms})
    found = _search_if_there(url, query.alias, body)
    value = None if found is None else found["aggregations"]["start"]["value"]
    return None if value is None else int(value)


def _step_ms(windows: int, query: SeriesQuery) -> int:
    """Return the time of one point: as many windows as needed to keep the number of points in the limit."""
    return -(-windows // query.points_max) * query.every_ms


def _body(query: SeriesQuery, from_ms: int, to_ms: int, step_ms: int) -> dict[str, Any]:
    value = {_METRICS[query.operation]: {"field": query.value.name}}
    offset_ms = from_ms % step_ms
    buckets = {
        "field": query.time.name,
        "fixed_interval": f"{step_ms}ms",
        "offset": f"{offset_ms}ms",
        "min_doc_count": 1,
    }
    time = {"date_histogram": buckets, "aggs": {"value": value}}
    aggregations: dict[str, Any] = {"time": time}
    if query.by is not None:
        terms = {"field": query.by.name, "size": query.series_max, "order": [{"_count": "desc"}, {"_key": "asc"}]}
        aggregations = {"key": {"terms": terms, "aggs": aggregations}}
    wanted = query.filtered({"gte": from_ms, "lte": to_ms})
    return {"size": 0, "track_total_hits": True, "query": wanted, "aggs": aggregations}


def _series(aggregations: dict[str, Any], query: SeriesQuery) -> list[Series]:
    if query.by is None:
        return [Series(query.value.name, _points(aggregations))]
    found = aggregations["key"]["buckets"]
    return [Series(str(one.get("key_as_string", one["key"])), _points(one)) for one in found]


def _points(aggregations: dict[str, Any]) -> list[tuple[int, float]]:
    buckets: Sequence[dict[str, Any]] = aggregations["time"]["buckets"]
    return [(int(one["key"]), float(one["value"]["value"])) for one in buckets if one["value"]["value"] is not None]


def _search_if_there(url: str, alias: str, body: dict[str, Any]) -> Any:
    """Return the response to a search. None if the alias has no index: no window has closed yet."""
    try:
        return _search(url, alias, body)
    except RequestRefused as error:
        if error.error_type == "index_not_found_exception":
            return None
        raise


def _search(url: str, alias: str, body: dict[str, Any]) -> Any:
    return request(url, "POST", f"/{alias}/_search", timeout_s=_TIMEOUT_S, body=body)
