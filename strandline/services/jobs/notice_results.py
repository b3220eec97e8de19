"""Results of a stage that meet a condition, for the condition `results` of notices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from strandline.core.documents import did_you_mean
from strandline.core.errors import PermanentError
from strandline.ledger.roles import LedgerReader
from strandline.notices.conditions.results import ResultsSpec
from strandline.notices.document import NoticeSpec
from strandline.notices.result_filter import filter_of
from strandline.notices.view import FoundResult
from strandline.results.charts.saved_objects import ResultView
from strandline.results.newest_matches import MatchQuery, newest_matches
from strandline.services.jobs.job_status import MISSING_PARTS, present_pipeline
from strandline.services.jobs.result_views import result_views

_WINDOWS = 2
"""Number of newest windows in which the newest result of a key is searched."""


class ConditionUnusable(PermanentError):
    """A condition over results that no result can meet."""

    code = "condition_unusable"


def matching_results(
    ledger: LedgerReader, elasticsearch_url: str, job: str, stage: str, where: str, within_ms: int | None
) -> list[FoundResult]:
    """Return the newest result of each key of a stage, if it meets the condition.

    Raises IndexUnavailable, RequestRefused; ConditionUnusable if the job, the stage, or a field doesn't exist.
    """
    condition = filter_of(where)
    view = _view(ledger, job, stage)
    _refuse_unknown_fields(view, f"{job}.{stage}", condition.columns)
    keys = tuple(name for name, _ in view.by)
    query = MatchQuery(
        alias=view.alias,
        keys=keys,
        fields=tuple(name for name in condition.columns if name not in keys),
        matches=condition.query,
        time=view.time.name,
        within_ms=within_ms or max(_WINDOWS * view.every_ms, view.size_ms),
    )
    return [
        FoundResult(
            alias=view.alias,
            keys={name: found.get(name) for name in keys},
            values={name: found.get(name) for name in condition.columns},
            start_ms=_time_ms(found["window"]["start"]),
            end_ms=_time_ms(found["window"]["end"]),
        )
        for found in newest_matches(elasticsearch_url, query)
    ]


def notes_of_conditions(ledger: LedgerReader, spec: NoticeSpec) -> Iterator[str]:
    """Return a note for each condition over results that can't be evaluated now. The notice is valid: the job can follow."""
    for condition in spec.when:
        options = condition.options
        if isinstance(options, ResultsSpec):
            try:
                view = _view(ledger, options.job, options.stage)
                _refuse_unknown_fields(view, options.of, filter_of(options.where).columns)
            except ConditionUnusable as error:
                yield f"the condition over results of {options.of} isn't evaluated: {error}"


def _view(ledger: LedgerReader, job: str, stage: str) -> ResultView:
    try:
        views = result_views(present_pipeline(ledger, ledger.job(job)))
    except MISSING_PARTS as error:
        raise ConditionUnusable(f"{error}; apply the job, or correct the notice") from None
    names = [view.stage for view in views if view.has_window]
    found = next((view for view in views if view.stage == stage and view.has_window), None)
    if found is None:
        raise ConditionUnusable(
            f"job {job} emits no windows of a stage {stage} to Elasticsearch{did_you_mean(stage, names)}; it emits those of: "
            f"{', '.join(names) or 'no stage'}"
        )
    return found


def _refuse_unknown_fields(view: ResultView, stage: str, columns: tuple[str, ...]) -> None:
    known = [name for name, _ in view.by] + [measure.name for measure in view.measures]
    for column in columns:
        if column not in known:
            raise ConditionUnusable(
                f"results of {stage} have no field {column}{did_you_mean(column, known)}; they have {', '.join(known)}"
            )


def _time_ms(text: str | int) -> int:
    return text if isinstance(text, int) else int(datetime.fromisoformat(text).timestamp() * 1_000)
