"""Results as a chart needs them: a few series of a bounded number of points."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from strandline.core.times.durations import TIME_MS_MAX
from strandline.services.jobs.result_records import ResultRecordsView, result_records
from strandline.services.jobs.results import ResultsView, SeriesWanted, job_of_alias, result_aliases, results_over_time
from strandline.services.rest.dependencies import Control
from strandline.services.rest.views import ResultAliasList

router = APIRouter(tags=["results"])


@router.get("/v1/results")
def list_results(control: Control) -> ResultAliasList:
    """The aliases to which jobs emit, by job and stage, with the keys and the numbers of their documents."""
    return ResultAliasList(results=result_aliases(control.ledger))


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
    wanted = SeriesWanted(value, by, from_ms, to_ms, windows, series, points)
    return results_over_time(control.ledger, control.elasticsearch_url, alias, wanted)


@router.get("/v1/results/{alias}/{document}/records")
def show_result_records(control: Control, alias: str, document: str) -> ResultRecordsView:
    """Where the records of one result stand in the log, as ranges of offsets."""
    job = job_of_alias(control.ledger, alias)
    return result_records(control.ledger, control.elasticsearch_url, job, alias, document)
