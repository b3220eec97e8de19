"""Condition `results`: the newest result of a key meets a condition, as `peak > 100`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration
from strandline.core.documents import Path
from strandline.notices.finding import Finding, Sight
from strandline.notices.view import FoundResult, View, show_duration, show_time

_OF = re.compile(r"(?P<job>[^\s.]+)\.(?P<stage>[^\s.]+)")
_WHERE_MAX = 1_000


class ResultsSpec(DocumentModel):
    """Results of a stage, and the condition over their fields."""

    of: str
    """Job and stage, as `turbine-health.hourly`. The stage must emit to Elasticsearch."""
    where: str = Field(min_length=1, max_length=_WHERE_MAX)
    """Condition over the fields of a result, as `peak > 100`. Fields are compared with values; `and`, `or`, `not`, and `is null`
    are possible."""
    hold: Duration = Field(default=0, alias="for", json_schema_extra={"default": "0s"})
    """Time for which the newest result of a key must meet the condition."""
    clear: Duration = Field(default=0, json_schema_extra={"default": "0s"})
    """Time for which it must not meet the condition before the problem is over."""
    within: Duration | None = Field(default=None, gt=0)
    """How far back from the newest window the newest result of a key is searched. Default: two windows."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        # Only this condition needs the parser.
        from strandline.notices.result_filter import filter_of
        from strandline.processing.pipelines.expressions import ExpressionError

        if _OF.fullmatch(self.of) is None:
            yield ("of",), f"{self.of!r} is not a stage of a job; write JOB.STAGE, for example turbine-health.hourly"
        try:
            filter_of(self.where)
        except ExpressionError as error:
            yield ("where",), str(error)

    @property
    def job(self) -> str:
        return self.of.partition(".")[0]

    @property
    def stage(self) -> str:
        return self.of.partition(".")[2]


class Fields(DocumentModel):
    results: ResultsSpec | None = None
    """The newest result of a key meets a condition: `{of: turbine-health.hourly, where: "peak > 100", for: 0s, clear: 0s}`."""


def look(options: ResultsSpec, view: View) -> Sight:
    """Find keys whose newest result meets the condition."""
    found = view.surroundings.results(options.job, options.stage, options.where, options.within)
    findings = [_finding(options, one) for one in found]
    holding = {finding.subject: finding for finding in findings}
    return Sight(holding=holding, hold_ms=options.hold, clear_ms=options.clear)


def _finding(options: ResultsSpec, found: FoundResult) -> Finding:
    keys = ", ".join(f"{name} {value}" for name, value in found.keys.items())
    whose = keys or "all records"
    values = ", ".join(f"{name} = {_shown(value)}" for name, value in found.values.items())
    held = f", for {show_duration(options.hold)}" if options.hold else ""
    time = f"from {show_time(found.start_ms)} to {show_time(found.end_ms)}"
    return Finding(
        subject=f"results of {options.of} where {options.where}, {whose}",
        title=f"{whose}: {values} ({options.of} where {options.where}{held})",
        reason=f"This is the newest result of {options.of} for {whose}, of the window {time}.",
        affected=f"{whose}: its measured values meet the condition of this notice. Strandline itself has no problem.",
        action=(
            f"strandline results {found.alias}\n"
            "The command draws the values over time. If they are right, examine the device or its site.\n"
            "If the limit is wrong, change `where` in the document of this notice, then run:\n"
            "strandline apply FILE"
        ),
        job=options.job,
    )


def _shown(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
