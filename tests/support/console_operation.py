"""Audits, backfills, lookups, and notices of the example service of the console."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strandline.ledger.ledger import Ledger
from strandline.ledger.notices import MessageRow, NoticeChanges, ProblemRow
from strandline.ledger.states import BackfillState, Totals, WindowRange
from strandline.log.kafka_status import KafkaStatus
from strandline.notices.document import NoticeSpec
from strandline.processing.audit.reconciliation import Finding, Kind
from strandline.processing.audit.report import AuditReport, StoreReport
from strandline.services.supervision.audit_jobs import AuditJobs, AuditState
from strandline.services.supervision.backfill_jobs import BackfillJobs

_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
_YEAR_MS = 365 * 24 * _HOUR_MS
_AUDITED = "turbine-health"
_NIGHT = {
    "notice": "night",
    "when": ["job_failed", {"lag": {"above": 5_000, "for": "5m"}}],
    "to": [{"webhook": {"url": "https://hooks.example.org/farm"}}],
}


CREWS = """\
lookup: crews
schema: {crew: string, phone: string}
key: crew
rows: [{crew: blue, phone: "+49 40 1"}, {crew: green, phone: "+49 40 2"}]
"""


def sites(version: int) -> str:
    """Return a version of the lookup of `turbine-export`. The second one adds, removes, and changes a row."""
    places = {f"T{number:02d}": "Nordhang" for number in range(1, 61)}
    if version > 1:
        del places["T60"]
        places |= {"T61": "Suedhang", "T07": "Nordkap"}
    rows = "\n".join(f"  - {{turbine: {name}, place: {place}}}" for name, place in places.items())
    return f"lookup: sites\nschema: {{turbine: string, place: string}}\nkey: turbine\nrows:\n{rows}\n"


class KnownAudits(AuditJobs):
    """Audits that have ended or are running, without a process."""

    def __init__(self, ledger: Ledger, now_ms: int) -> None:
        super().__init__(ledger, Path("/nowhere"))
        self._states = {one.job: one for one in _audits(now_ms)}


def idle_backfills(ledger: Ledger, log: KafkaStatus) -> BackfillJobs:
    """Return the backfills of a service that leads no job, so it starts no process."""
    return BackfillJobs(
        ledger, Path("/nowhere"), lambda _: False, lambda stream: log.range(stream).offset_first, lambda *_: None
    )


def _audits(now_ms: int) -> list[AuditState]:
    end_ms = now_ms - now_ms % _MINUTE_MS - 30 * _MINUTE_MS
    sample = [
        Finding(Kind.MISSING, "turbine-minute", "", 1, "Jt0kUq1xRj2p5sZb8vYwMA", "", end_ms, "belongs in turbine-minute-2026.11"),
        Finding(
            Kind.DIFFERENT, "turbine-minute", "", 1, "q3bT0hT4ZWmMyYb1Bfh0sg", "turbine-minute-2026.11", end_ms,
            "load is 0.8412 in the index, this run computed 0.8401; peak is 2190.0 in the index, this run computed 2188.0",
        ),
        Finding(
            Kind.EXTRA, "turbine-hour", "", 1, "mF7c1DkXl0yKcAqMKd3v0w", "turbine-hour-2026.11", end_ms,
            "is in turbine-hour-2026.11, but the records of the log don't lead to it",
        ),
        Finding(
            Kind.MISSING, "(dead letters)", "late", 1, "turbines/2/402117", "", None,
            "the record was rejected (late), but has no dead letter",
        ),
    ]  # fmt: skip
    totals = Totals(1_148_205, 1_147_122, {"late": 1_083}, {"per_minute": 19_118, "hourly": 410}, {})
    report = AuditReport(
        _AUDITED, "differences", "", None, None, 1, 196, totals, totals, [], [],
        [
            StoreReport("turbine-minute", "per_minute", None, end_ms, {"same": 19_116, "missing": 1, "different": 1}),
            StoreReport("turbine-hour", "hourly", None, end_ms, {"same": 410, "extra": 1}),
            StoreReport("(dead letters)", "", None, None, {"same": 1_082, "missing": 1}),
        ],
        4, sample, 38.4,
    )  # fmt: skip
    return [
        AuditState(_AUDITED, "done", None, None, now_ms - 3 * _HOUR_MS, "done", 0, 0, "", report),
        AuditState(
            "pump-pressure", "running", now_ms - 24 * _HOUR_MS, None, now_ms - 40_000, "reading the log", 31, 120, "", None
        ),
    ]  # fmt: skip


def furnish_operation(ledger: Ledger, now_ms: int) -> None:
    """Record two backfills of `turbine-health`, and a notice with problems and messages. No service sends them."""
    version = ledger.job(_AUDITED).version
    hour_ms = now_ms - now_ms % _HOUR_MS
    for from_h, to_h in ((20, 14), (10, 4)):
        windows = {"per_minute": WindowRange(hour_ms - from_h * _HOUR_MS, hour_ms - to_h * _HOUR_MS)}
        requested = (windows["per_minute"].after_ms, windows["per_minute"].up_to_ms)
        row = ledger.request_backfill(_AUDITED, version, requested, windows, 190, 412_000, {"turbines": 1})
        row = ledger.begin_backfill(_AUDITED, row.generation)
        is_first = from_h == 20
        ledger.record_backfill(
            _AUDITED, row.generation, row.epoch, done_ms=requested[1], records_done=412_000 if is_first else 148_000,
            results={"per_minute": 6_812 if is_first else 2_340}, refused={}, sample=[],
        )  # fmt: skip
        if is_first:
            for state in (BackfillState.SWAPPING, BackfillState.COMPLETE):
                ledger.move_backfill(_AUDITED, row.generation, state, epoch=row.epoch)
    _notice(ledger, now_ms)


def _notice(ledger: Ledger, now_ms: int) -> None:
    row = ledger.put_notice("night", NoticeSpec.from_document(_NIGHT).as_document())
    granted = ledger.lead_notices("elsewhere/1", _YEAR_MS)
    assert granted is not None
    failed_ms, lag_ms = now_ms - 47 * _MINUTE_MS, now_ms - 9 * _HOUR_MS
    problems = [
        _problem(
            1, "lag", "turbine-export", lag_ms, "Job turbine-export is 5,000 records behind",
            "the job reads more slowly than records arrive", "run strandline job explain turbine-export",
            ended_ms=lag_ms + 12 * _MINUTE_MS,
        ),
        _problem(
            2, "job_failed", "meter-energy", failed_ms, "Job meter-energy has failed",
            "topic meters no longer has offset 9304 of partition 0: retention removed it",
            "run strandline job reset meter-energy --to earliest",
        ),
    ]  # fmt: skip
    messages = [
        _message(1, "problem", [1], lag_ms, attempts=1, sent_ms=lag_ms + 400),
        _message(2, "resolved", [1], lag_ms + 12 * _MINUTE_MS, attempts=1, sent_ms=lag_ms + 12 * _MINUTE_MS + 350),
        _message(
            3, "problem", [2], failed_ms, attempts=9, due_ms=now_ms + 4 * _MINUTE_MS,
            error="hooks.example.org answered 503 Service Unavailable",
        ),
    ]  # fmt: skip
    memory = {"problems": 2, "messages": 3}
    ledger.record_notice(granted[0], row, NoticeChanges(memory, 0, problems, messages))


def _problem(
    number: int, condition: str, job: str, since_ms: int, title: str, reason: str, action: str, ended_ms: int | None = None
) -> ProblemRow:  # fmt: skip
    return ProblemRow(
        "night", number, condition, f"job {job}", job, 0, since_ms, since_ms, title, reason, f"results of job {job}", action,
        reported_ms=since_ms, ended_ms=ended_ms, end_reported_ms=ended_ms,
    )  # fmt: skip


def _message(number: int, kind: str, problems: list[int], made_ms: int, **more: Any) -> MessageRow:
    return MessageRow(
        **{
            "notice": "night", "number": number, "channel": "webhook", "kind": kind, "problems": problems,
            "content": {"title": kind}, "made_ms": made_ms, "due_ms": made_ms, **more,
        }
    )  # fmt: skip
