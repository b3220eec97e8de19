"""Notices: their status, test messages, muting, and deletion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.described import Described
from strandline.ledger.notices import MessageRow, NoticeReader, NoticeRow, ProblemRow
from strandline.ledger.roles import ApplyLedger
from strandline.notices.document import NoticeSpec
from strandline.notices.rendering import render

_PROBLEMS_SHOWN = 100
_MESSAGES_SHOWN = 100


@dataclass(frozen=True)
class NoticeSummary(Described):
    """A notice in a list."""

    name: str
    version: int
    conditions: list[str]
    channels: list[str]
    open_problems: int
    """Number of open problems."""
    unsent_messages: int
    """Number of messages that no receiver has confirmed yet."""
    failing: str
    """Reason why the last attempt of an unsent message failed; empty if none failed."""
    muted_until_ms: int | None
    """Time until which messages are held back; null if they aren't."""


@dataclass(frozen=True)
class NoticeView(NoticeSummary):
    """A notice, its problems, and its messages."""

    document: dict[str, Any]
    applied_ms: int
    muted_by: str | None
    problems: list[ProblemRow]
    """The newest problems, the oldest first."""
    messages: list[MessageRow]
    """The newest messages, the oldest first."""


def notice_summaries(ledger: NoticeReader) -> list[NoticeSummary]:
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


def notice_view(ledger: NoticeReader, name: str) -> NoticeView:
    """Return one notice with its problems and messages. Raises NotFound."""
    row, now_ms = ledger.notice(name), ledger.notice_clock_ms()
    pending = [one for one in ledger.pending_messages() if one.notice == name]
    summary = _summary(row, ledger.notice_problems(name, since_ms=now_ms), pending, now_ms)
    return NoticeView(
        **vars(summary),
        document=row.document,
        applied_ms=row.applied_ms,
        muted_by=row.muted_by if summary.muted_until_ms is not None else None,
        problems=ledger.notice_problems(name, limit=_PROBLEMS_SHOWN),
        messages=ledger.notice_messages(name, _MESSAGES_SHOWN),
    )


def send_test_messages(ledger: ApplyLedger, name: str) -> list[int]:
    """Add a test message for each channel of a notice, and return their numbers. Raises NotFound."""
    spec = NoticeSpec.from_document(ledger.notice(name).document)
    content = render(name, "test", [], spec.about)
    made = ledger.add_test_messages(name, [(channel, content) for channel in spec.channels])
    return [one.number for one in made]


def mute_notice(ledger: ApplyLedger, name: str, until_ms: int | None, principal: str | None) -> None:
    """Hold back the messages of a notice until a time, for `principal`. None ends muting. Raises NotFound."""
    ledger.mute_notice(name, until_ms, principal)
    verb = "muted" if until_ms is not None else "unmuted"
    facts = {"notice": name, "until_ms": until_ms}
    ledger.record_event(f"notice_{verb}", f"notice {name} is {verb}", facts=facts, principal=principal)


def delete_notice(ledger: ApplyLedger, name: str, principal: str | None) -> None:
    """Delete a notice, its problems, and its messages, for `principal`. Raises NotFound."""
    ledger.delete_notice(name)
    ledger.record_event("notice_deleted", f"notice {name} is deleted", facts={"notice": name}, principal=principal)


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
