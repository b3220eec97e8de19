"""Results for a chart: a few series with a bounded number of points."""

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
    """Return the aliases to which jobs emit, by job and stage, with the keys and the numeric fields of their
    documents.
    """
    return ResultAliasList(results=result_aliases(control.ledger), kibana_url=control.kibana_url)


@router.get("/v1/results/{alias}")
def show_results(
    control: Control,
    alias: str,
    value: Annotated[str | None, Query(description="Numeric aggregate. Default: the first one.")] = None,
    by: Annotated[str | None, Query(description="Key field with one series per value. Default: the last one.")] = None,
    from_ms: Annotated[
        int | None, Query(ge=0, le=TIME_MS_MAX, description="Only windows that start at or after this time.")
    ] = None,
    to_ms: Annotated[
        int | None,
        Query(ge=0, le=TIME_MS_MAX, description="Only windows that start at or before this time. Default: all."),
    ] = None,
    windows: Annotated[int, Query(ge=1, le=100_000, description="Number of newest windows, without from_ms.")] = 240,
    series: Annotated[int, Query(ge=1, le=50)] = 10,
    points: Annotated[int, Query(ge=1, le=2_000, description="Maximum number of points of each series.")] = 500,
    size_ms: Annotated[
        int | None,
        Query(
            ge=1,
            le=TIME_MS_MAX,
            description="Only windows of this length, if versions of the job have different ones: `lengths` of a "
            "response. Default: that of the current version.",
        ),
    ] = None,
) -> ResultsView:
    """Return results of one alias over time, one series for each of the keys with most results. The results have
    windows of one length.
    """
    wanted = SeriesWanted(value, by, from_ms, to_ms, windows, series, points, size_ms)
    return results_over_time(control.ledger, control.elasticsearch_url, alias, wanted)


@router.get("/v1/results/{alias}/{document}/records")
def show_result_records(control: Control, alias: str, document: str) -> ResultRecordsView:
    """Return the ranges of offsets that contain the records of one result."""
    job = job_of_alias(control.ledger, alias)
    return result_records(control.ledger, control.elasticsearch_url, job, alias, document)
