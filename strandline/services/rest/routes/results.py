"""Results as a chart needs them: a few series of a bounded number of points."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from strandline.core.errors import NotFound
from strandline.core.times.durations import TIME_MS_MAX
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobRow
from strandline.results.charts.lens import Field
from strandline.results.charts.saved_objects import Measure, ResultView, operation_of
from strandline.results.charts.series import SeriesQuery, read_series
from strandline.results.sinks.registry import sink_of
from strandline.services.rest.dependencies import Control
from strandline.services.rest.job_status import present_pipeline
from strandline.services.rest.result_records import result_records
from strandline.services.rest.result_views import result_views
from strandline.services.rest.views import (
    ResultAliasList,
    ResultAliasView,
    ResultNumberView,
    ResultRecordsView,
    ResultsView,
    SeriesView,
)

router = APIRouter(tags=["results"])


@router.get("/v1/results")
def list_results(control: Control) -> ResultAliasList:
    """The aliases to which jobs emit, by job and stage, with the keys and the numbers of their documents."""
    found = []
    for job in control.ledger.jobs():
        try:
            views = result_views(present_pipeline(control.ledger, job))
        except NotFound:  # the job's status says which stream or lookup is missing
            continue
        found += [_alias_view(job.name, view) for view in views]
    return ResultAliasList(results=found)


@router.get("/v1/results/{alias}")
def show_results(
    control: Control,
    alias: str,
    value: Annotated[str | None, Query(description="A number among the aggregates; default: the first one.")] = None,
    by: Annotated[str | None, Query(description="The key that makes the series; default: the last one.")] = None,
    from_ms: Annotated[
        int | None, Query(ge=0, le=TIME_MS_MAX, description="Windows that start at this time or later.")
    ] = None,
    to_ms: Annotated[
        int | None, Query(ge=0, le=TIME_MS_MAX, description="Windows that start no later; default: all.")
    ] = None,
    windows: Annotated[int, Query(ge=1, le=100_000, description="How far back, without from_ms.")] = 240,
    series: Annotated[int, Query(ge=1, le=50)] = 10,
    points: Annotated[int, Query(ge=1, le=2_000, description="Of each series, at most.")] = 500,
) -> ResultsView:
    """Results of one alias over time, one series for each of the keys that have most results."""
    job, view = _view(control.ledger, alias)
    measure, drawn = _value(view, value)
    key = _key(view, by)
    operation = operation_of(measure, view)
    query = SeriesQuery(alias, view.every_ms, drawn, operation, key, series, points, view.time)
    found = read_series(control.elasticsearch_url, query, from_ms, to_ms, windows)
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
        counts=control.ledger.totals(job.name),
    )


@router.get("/v1/results/{alias}/{document}/records")
def show_result_records(control: Control, alias: str, document: str) -> ResultRecordsView:
    """Where the records of one result stand in the log, as ranges of offsets."""
    job, _ = _view(control.ledger, alias)
    return result_records(control.ledger, control.elasticsearch_url, job.name, alias, document)


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


def _view(ledger: Ledger, alias: str) -> tuple[JobRow, ResultView]:
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
