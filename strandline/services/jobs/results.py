"""Results for charts: a few series with a bounded number of points."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.core.described import Described
from strandline.core.errors import FunctionUnusable, InvalidDocument, NotFound
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import JobRow, Totals
from strandline.results.charts.lens import Field
from strandline.results.charts.saved_objects import Measure, ResultView, operation_of
from strandline.results.charts.series import SeriesQuery, VersionResults, read_series, read_versions
from strandline.results.sinks.registry import sink_of
from strandline.services.jobs.job_status import present_pipeline
from strandline.services.jobs.result_views import result_views


@dataclass(frozen=True)
class SeriesWanted:
    """Query for results of an alias."""

    value: str | None = None
    """Name of a numeric aggregate. None for the first one."""
    by: str | None = None
    """Key field with one series for each value. None for the last one."""
    from_ms: int | None = None
    to_ms: int | None = None
    windows: int = 240
    """Number of newest windows, without `from_ms`."""
    series: int = 10
    points: int = 500
    """Maximum number of points of each series."""
    size_ms: int | None = None
    """Window length of the results. None for that of the current version, or of the newest results if it has none."""


@dataclass(frozen=True)
class ResultNumberView(Described):
    """A number that can be drawn."""

    name: str
    type: str
    operation: str
    """Operation that combines the values of several windows."""


@dataclass(frozen=True)
class ResultAliasView(Described):
    """An alias of results, and the fields of its documents."""

    alias: str
    job: str
    stage: str
    size_ms: int
    every_ms: int
    windows: str
    """Kind of the windows if their size doesn't show it, such as `sessions`; otherwise empty."""
    keys: list[str]
    """Key fields that can make the series of a chart."""
    numbers: list[ResultNumberView]


@dataclass(frozen=True)
class SeriesView(Described):
    """One line of a chart."""

    key: str
    """Value of the key; the name of the value if there is a single line."""
    points: list[tuple[int, float]]
    """(start of the window in ms since 1970, value), by time. Windows without a value are left out."""


@dataclass(frozen=True)
class WindowLengthView(Described):
    """Results with windows of one length."""

    size_ms: int | None
    """Size of a window. Null for versions that can't be read any more, for example because their stream was deleted."""
    every_ms: int
    """Distance between the starts of two consecutive windows."""
    versions: list[int]
    """Versions of the job whose results these are."""
    is_current: bool
    results: int
    from_ms: int
    """Start of the first window."""
    to_ms: int
    """Start of the newest window."""


@dataclass(frozen=True)
class ResultsView(Described):
    """Results of one alias over time."""

    alias: str
    job: str
    stage: str
    size_ms: int
    """Size of a window."""
    every_ms: int
    """Distance between the starts of two consecutive windows."""
    value: str
    operation: str
    """Operation that combines the values of several windows: `sum`, `average`, `min`, or `max`."""
    by: str | None
    """Key field with one series for each value. Null if there is a single series."""
    from_ms: int | None
    """Start of the first window; null if there is no result."""
    to_ms: int | None
    """Start of the newest window."""
    step_ms: int
    """Time of one point: one window, or several if there are more windows than points."""
    results: int
    """Number of all results in this time, also those of keys that are not drawn."""
    lengths: list[WindowLengthView]
    """Lengths of the windows in the alias, the current one first. Results of other lengths than `size_ms` are not part of the
    answer. Empty if all versions of the job have the same windows."""
    series: list[SeriesView]
    """Series of the keys with most results."""
    counts: Totals
    """Counts of the job since its creation: accepted, late, and other rejected records."""


def result_aliases(ledger: LedgerReader) -> list[ResultAliasView]:
    """Return the aliases to which jobs emit, by job and stage, with the keys and the numbers of their documents."""
    found = []
    for job in ledger.jobs():
        try:
            views = result_views(present_pipeline(ledger, job))
        except NotFound:  # the job's status reports the missing stream or lookup
            continue
        found += [_alias_view(job.name, view) for view in views]
    return found


def results_over_time(ledger: LedgerReader, elasticsearch_url: str, alias: str, wanted: SeriesWanted) -> ResultsView:
    """Return results of one alias over time, one series for each of the keys with most results. Raises NotFound,
    IndexUnavailable, RequestRefused."""
    job, view = _view(ledger, alias)
    measure, drawn = _value(view, wanted.value)
    key = _key(view, wanted.by)
    operation = operation_of(measure, view)
    lengths = _lengths(ledger, elasticsearch_url, job, view)
    chosen = _chosen(lengths, wanted.size_ms, alias)
    size_ms = view.size_ms if chosen is None or chosen.size_ms is None else chosen.size_ms
    every_ms = view.every_ms if chosen is None else chosen.every_ms
    versions = None if chosen is None else tuple(chosen.versions)
    query = SeriesQuery(alias, every_ms, drawn, operation, key, wanted.series, wanted.points, view.time, versions)
    found = read_series(elasticsearch_url, query, wanted.from_ms, wanted.to_ms, wanted.windows)
    return ResultsView(
        alias=alias,
        job=job.name,
        stage=view.stage,
        size_ms=size_ms,
        every_ms=every_ms,
        value=drawn.name,
        operation=operation,
        by=key.name if key else None,
        from_ms=found.from_ms,
        to_ms=found.to_ms,
        step_ms=found.step_ms,
        results=found.results,
        lengths=lengths,
        series=[SeriesView(key=one.key, points=one.points) for one in found.series],
        counts=ledger.totals(job.name),
    )


def _lengths(ledger: LedgerReader, elasticsearch_url: str, job: JobRow, view: ResultView) -> list[WindowLengthView]:
    """Return the lengths of the windows in the alias, the current one first. Empty if there is a single one."""
    if len(ledger.job_versions(job.name)) < 2:
        return []
    current = (view.size_ms, view.every_ms)
    found: dict[tuple[int | None, int], list[VersionResults]] = {}
    for one in read_versions(elasticsearch_url, view.alias, view.time):
        found.setdefault(_length_of(ledger, job, one.version, view), []).append(one)
    if found.keys() <= {current}:
        return []
    lengths = [
        WindowLengthView(
            size_ms=size_ms,
            every_ms=every_ms,
            versions=[one.version for one in some],
            is_current=(size_ms, every_ms) == current,
            results=sum(one.results for one in some),
            from_ms=min(one.from_ms for one in some),
            to_ms=max(one.to_ms for one in some),
        )
        for (size_ms, every_ms), some in found.items()
    ]
    return sorted(lengths, key=lambda one: (not one.is_current, -max(one.versions)))


def _length_of(ledger: LedgerReader, job: JobRow, version: int, view: ResultView) -> tuple[int | None, int]:
    """Return the size and the distance of the windows of a version in the alias. None instead of the size if it is unknown."""
    try:
        views = result_views(present_pipeline(ledger, replace(job, version=version)))
    except (NotFound, InvalidDocument, FunctionUnusable):
        views = []
    found = next((one for one in views if one.alias == view.alias), None)
    return (None, view.every_ms) if found is None else (found.size_ms, found.every_ms)


def _chosen(lengths: list[WindowLengthView], size_ms: int | None, alias: str) -> WindowLengthView | None:
    """Return the chosen length. None if the alias has a single one."""
    if not lengths:
        return None
    if size_ms is None:
        return lengths[0]
    for one in lengths:
        if one.size_ms == size_ms:
            return one
    sizes = ", ".join(str(one.size_ms) for one in lengths)
    raise NotFound(f"{alias} has no windows of {size_ms} ms; expected one of: {sizes}")


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
    raise NotFound(f"no job emits to an alias {alias}; to list the emissions, run strandline job status NAME")


def _value(view: ResultView, name: str | None) -> tuple[Measure, Field]:
    for measure, field in view.numbers:
        if name in (None, measure.name):
            return measure, field
    raise NotFound(
        f"{view.alias} has no number {name or 'among its aggregates'}; expected one of: "
        f"{', '.join(measure.name for measure, _ in view.numbers) or 'none'}"
    )


def _key(view: ResultView, name: str | None) -> Field | None:
    if name is None:
        return view.keys[-1] if view.keys else None
    for field in view.keys:
        if field.name == name:
            return field
    raise NotFound(f"{view.alias} has no key {name}; there are {', '.join(f.name for f in view.keys) or 'none'}")
