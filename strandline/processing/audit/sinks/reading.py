"""The parts in which an audit reads the results in sinks that are neither indices nor streams."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.settings import Settings
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.parts import Account, Part
from strandline.processing.audit.plan import AuditPlan
from strandline.processing.audit.reconciliation import Row, Side
from strandline.processing.audit.sinks.audited_sinks import AuditedSink, audited_sinks
from strandline.processing.audit.sinks.rows import stored_row
from strandline.processing.audit.stores import ROWS_SCHEMA
from strandline.processing.audit_queries.table import Table
from strandline.processing.operators.blobs import batch_of
from strandline.processing.pipelines.calendars import DAY_MS
from strandline.results.sinks.sink import ResultsRequest, StoredFile, StoredPart


@dataclass(frozen=True)
class SinkPart:
    """Some results in a sink, read as a unit (`parts.Part`)."""

    name: str
    """Name of its rows in `compared`."""
    store: str
    fields: tuple[str, ...]
    requested: EndRange
    part: StoredPart
    compared: Table

    @property
    def rows(self) -> int:
        return self.part.rows

    def run(self) -> Account:
        account = Account()
        with self.compared.writer(self.name) as rows:
            for found in self.part.read():
                if isinstance(found, StoredFile):
                    if found.day is not None:
                        account.standing[self.store, found.day] += found.is_there
                    if found.problem:
                        rows.append(batch_of([self._lost(found)], ROWS_SCHEMA))
                    continue
                stored = (stored_row(self.store, found.position, row, self.fields) for row in found.rows)
                rows.append(batch_of([row for row in stored if self.requested.holds(row.end_ms)], ROWS_SCHEMA))
        return account

    def _lost(self, file: StoredFile) -> Row:
        time_ms = None if file.day is None else file.day * DAY_MS
        return Row(self.store, file.path, Side.LOST, file.path, time_ms, None, file.problem.encode())


def sink_parts(settings: Settings, plan: AuditPlan, compared: Table) -> tuple[list[Part], list[str]]:
    """Return the parts, and the stores that don't exist. Raises SinkUnavailable, InvalidSettings, Conflict."""
    parts: list[Part] = []
    absent: list[str] = []
    for sink_read in audited_sinks(plan):
        found = sink_read.sink.result_parts(settings, _request(plan.job, sink_read))
        if found is None:
            absent.append(sink_read.store)
        for part in found or ():
            name = f"sink-{len(parts)}"
            parts.append(SinkPart(name, sink_read.store, sink_read.fields, sink_read.requested, part, compared))
    return parts, absent


def _request(job: str, sink_read: AuditedSink) -> ResultsRequest:
    after_ms = [known for known in (sink_read.requested.after_ms, sink_read.after_ms) if known is not None]
    return ResultsRequest(
        name=sink_read.name,
        job=job,
        stages=sink_read.stages,
        types=sink_read.types,
        after_ms=max(after_ms, default=None),
        up_to_ms=sink_read.requested.up_to_ms,
        is_unbounded=sink_read.requested == EndRange(),
        emission_first=sink_read.emission_first,
    )
