"""Notices as the API shows them, from the ledger's rows."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.ledger.ledger import Ledger
from strandline.ledger.notices import MessageRow, NoticeRow, ProblemRow
from strandline.notices.document import NoticeSpec
from strandline.services.rest.notice_views import NoticeSummary, NoticeView

_PROBLEMS_SHOWN = 100
_MESSAGES_SHOWN = 100


def notice_summaries(ledger: Ledger) -> list[NoticeSummary]:
    """Return all notices, by name."""
    pending = ledger.pending_messages()
    now_ms = ledger.notice_clock_ms()
    return [
        _summary(
            row,
            ledger.notice_problems(row.name, since_ms=now_ms),
            [one for one in pending if one.notice == row.name],
            now_ms,
        )
        for row in ledger.notices()
    ]


def notice_view(ledger: Ledger, name: str) -> NoticeView:
    """Return one notice with its problems and messages. Raises NotFound."""
    row, now_ms = ledger.notice(name), ledger.notice_clock_ms()
    pending = [one for one in ledger.pending_messages() if one.notice == name]
    summary = _summary(row, ledger.notice_problems(name, since_ms=now_ms), pending, now_ms)
    return NoticeView(
        **dict(summary),
        document=row.document,
        applied_ms=row.applied_ms,
        muted_by=row.muted_by if summary.muted_until_ms is not None else None,
        problems=ledger.notice_problems(name, limit=_PROBLEMS_SHOWN),
        messages=ledger.notice_messages(name, _MESSAGES_SHOWN),
    )


def _summary(
    row: NoticeRow, unsettled: Sequence[ProblemRow], pending: Sequence[MessageRow], now_ms: int
) -> NoticeSummary:
    spec = NoticeSpec.from_document(row.document)
    is_muted = row.muted_until_ms is not None and row.muted_until_ms > now_ms
    return NoticeSummary(
        name=row.name,
        version=row.version,
        conditions=spec.labels,
        channels=list(spec.channels),
        open_problems=sum(one.ended_ms is None for one in unsettled),
        unsent_messages=len(pending),
        failing=next((one.error for one in reversed(pending) if one.error), ""),
        muted_until_ms=row.muted_until_ms if is_muted else None,
    )
