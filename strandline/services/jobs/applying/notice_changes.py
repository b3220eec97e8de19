"""Changes of notices. A notice depends on no other document, so a valid notice is never refused."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.errors import NotFound
from strandline.ledger.notices import NoticeReader
from strandline.ledger.roles import ApplyLedger
from strandline.notices.channels.table import channel_of
from strandline.notices.document import NoticeSpec
from strandline.services.jobs.applying.applied import Applied
from strandline.services.jobs.applying.lookup_changes import outcome_of
from strandline.services.jobs.notice_results import notes_of_conditions


def apply_notice(ledger: ApplyLedger, spec: NoticeSpec, principal: str | None) -> Applied:
    """Register or change a notice, for `principal`, and return the outcome."""
    notes = [*notes_of_conditions(ledger, spec), *_notes_of_channels(spec)]
    before = _version(ledger, spec.notice)
    row = ledger.put_notice(spec.notice, spec.as_document())
    outcome = outcome_of(before, row.version)
    if outcome != "unchanged":
        message = f"notice {row.name} {outcome}: version {row.version}"
        facts = {"notice": row.name, "version": row.version}
        ledger.record_event(f"notice_{outcome}", message, facts=facts, principal=principal)
    return Applied(kind="notice", name=row.name, outcome=outcome, version=row.version, notes=notes)


def _notes_of_channels(spec: NoticeSpec) -> Iterator[str]:
    for label, channel in spec.channels.items():
        note = getattr(channel_of(channel.keyword), "note", None)
        if note is not None and (reason := note(channel.options)) is not None:
            yield f"channel {label} can't send: {reason}"


def _version(ledger: NoticeReader, name: str) -> int | None:
    try:
        return ledger.notice(name).version
    except NotFound:
        return None
