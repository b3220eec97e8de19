"""Results as a chart needs them: a few series of a bounded number of points."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.described import Described
from strandline.core.errors import NotFound
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import JobRow, Totals
from strandline.results.charts.lens import Field
from strandline.results.charts.saved_objects import Measure, ResultView, operation_of
from strandline.results.charts.series import SeriesQuery, read_series
from strandline.results.sinks.registry import sink_of
from strandline.services.jobs.job_status import present_pipeline
from strandline.services.jobs.result_views import result_views


@dataclass(frozen=True)
class SeriesWanted:
    """Query for results of an alias."""

    value: str | None = None
    """A number among the aggregates; None: the first one."""
    by: str | None = None
    """The key that makes the series; None: the last one."""
    from_ms: int | None = None
    to_ms: int | None = None
    windows: int = 240
    """How far back, without `from_ms`."""
    series: int = 10
    points: int = 500
    """Maximum number of points of each series."""


@dataclass(frozen=True)
class ResultNumberView(Described):
    """A number that can be drawn."""

    name: str
    type: str
    operation: str
    """How the values of several windows become one value."""


@dataclass(frozen=True)
class ResultAliasView(Described):
    """An alias of results, and the fields of its documents."""

    alias: str
    job: str
    stage: str
    size_ms: int
    every_ms: int
    windows: str
    """Kind of the windows if their size doesn't show it, such as `sessions`; else empty."""
    keys: list[str]
    """Key fields that can make the series of a chart."""
    numbers: list[ResultNumberView]


@dataclass(frozen=True)
class SeriesView(Described):
    """One line of a chart."""

    key: str
    """The value of the key; the value's name where there is one line only."""
    points: list[tuple[int, float]]
    """(start of the window in ms since 1970, value), by time. Windows without a value are left out."""


@dataclass(frozen=True)
class ResultsView(Described):
    """Results of one alias over time."""

    alias: str
    job: str
    stage: str
    size_ms: int
    """Of a window."""
    every_ms: int
    """From one window's start to the next one's."""
    value: str
    operation: str
    """What makes one value of those of several windows: `sum`, `average`, `min` or `max`."""
    by: str | None
    """The key: each of its values is a series. Null: there is one series."""
    from_ms: int | None
    """Windows that start at this time or later; null where there is no result at all."""
    to_ms: int | None
    """The start of the youngest window."""
    step_ms: int
    """So much time is one point: one window, or several when there are more than points."""
    results: int
    """All results in this time, also those of keys that are not drawn."""
    series: list[SeriesView]
    """Of the keys that have most results."""
    counts: Totals
    """Of the whole job, since its beginning: accepted, late and other rejected records."""


def result_aliases(ledger: LedgerReader) -> list[ResultAliasView]:
    """Return the aliases to which jobs emit, by job and stage, with the keys and the numbers of their documents."""
    found = []
    for job in ledger.jobs():
        try:
            views = result_views(present_pipeline(ledger, job))
        except NotFound:  # the job's status says which stream or lookup is missing
            continue
        found += [_alias_view(job.name, view) for view in views]
    return found


def results_over_time(ledger: LedgerReader, elasticsearch_url: str, alias: str, wanted: SeriesWanted) -> ResultsView:
    """Return results of one alias over time, one series for each of the keys that have most results. Raises NotFound,
    IndexUnavailable, RequestRefused."""
    job, view = _view(ledger, alias)
    measure, drawn = _value(view, wanted.value)
    key = _key(view, wanted.by)
    operation = operation_of(measure, view)
    query = SeriesQuery(alias, view.every_ms, drawn, operation, key, wanted.series, wanted.points, view.time)
    found = read_series(elasticsearch_url, query, wanted.from_ms, wanted.to_ms, wanted.windows)
    return ResultsView(
        alias=alias,
        job=job.name,
        stage=view.stage,
        size_ms=view.size_ms,
        every_ms=view.every_ms,
        value=drawn.name,
        operation=operation,
        by=key.name if key else None,
        from_ms=found.from_ms,
        to_ms=found.to_ms,
        step_ms=found.step_ms,
        results=found.results,
        series=[SeriesView(key=one.key, points=one.points) for one in found.series],
        counts=ledger.totals(job.name),
    )


def job_of_alias(ledger: LedgerReader, alias: str) -> str:
    """Return the job that emits to the alias. Raises NotFound."""
    job, _ = _view(ledger, alias)
    return job.name


def _alias_view(job: str, view: ResultView) -> ResultAliasView:
    return ResultAliasView(
        alias=view.alias,
        job=job,
        stage=view.stage,
        size_ms=view.size_ms,
        every_ms=view.every_ms,
        windows=view.windows,
        keys=[field.name for field in view.keys],
        numbers=[
            ResultNumberView(name=measure.name, type=measure.type, operation=operation_of(measure, view))
            for measure, _ in view.numbers
        ],
    )


def _view(ledger: LedgerReader, alias: str) -> tuple[JobRow, ResultView]:
    for job in ledger.jobs():
        if any(place.name == alias and sink_of(place).has_generations for place in ledger.places(job.name)):
            views = result_views(present_pipeline(ledger, job))
            found = next((view for view in views if view.alias == alias), None)
            if found is not None:
                return job, found
    raise NotFound(f"no job emits to an alias {alias}; see the emissions in `strandline job status NAME`")


def _value(view: ResultView, name: str | None) -> tuple[Measure, Field]:
    for measure, field in view.numbers:
        if name in (None, measure.name):
            return measure, field
    raise NotFound(
        f"{view.alias} has no number {name or 'among its aggregates'}; there are "
        f"{', '.join(measure.name for measure, _ in view.numbers) or 'none'}"
    )


def _key(view: ResultView, name: str | None) -> Field | None:
    if name is None:
        return view.keys[-1] if view.keys else None
    for field in view.keys:
        if field.name == name:
            return field
    raise NotFound(f"{view.alias} has no key {name}; there are {', '.join(f.name for f in view.keys) or 'none'}")
