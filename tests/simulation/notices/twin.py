"""The part of the ledger that notices use, in memory, with a clock of its own. `tests/contract/test_notices.py` holds both to the
same promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strandline.core.errors import Fenced, NotFound
from strandline.ledger.journal import NewEvent
from strandline.ledger.notices import (
    ATTEMPT_MAX_MS,
    ATTEMPTS_KEPT_MS,
    AttemptRow,
    MessageRow,
    NoticeChanges,
    NoticeRow,
    ProblemRow,
    ReadingsRow,
)
from strandline.ledger.states import EventRow


class TwinNotices:
    """Each method is one transaction. `now_ms` is the clock of the database."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.journal: list[EventRow] = []
        self.rows: dict[str, NoticeRow] = {}
        self.problems: dict[tuple[str, int], ProblemRow] = {}
        self.messages: dict[tuple[str, int], MessageRow] = {}
        self.attempts: dict[tuple[str, int, int], AttemptRow] = {}
        self.readings: dict[str, ReadingsRow] = {}
        self.lease = ("", 0, 0, 1)
        """Holder, epoch, end, length."""

    def record_event(
        self, kind: str, message: str, job: str | None = None, facts: dict[str, Any] | None = None
    ) -> EventRow:
        row = EventRow(len(self.journal) + 1, job, None, self.now_ms, kind, message, facts or {}, None)
        self.journal.append(row)
        return row

    def events(self, job: str | None = None, after_id: int = 0, limit: int = 100) -> list[EventRow]:
        return self.journal[after_id : after_id + limit]

    def put_notice(self, name: str, document: dict[str, Any]) -> NoticeRow:
        known = self.rows.get(name)
        if known is not None and known.document == document:
            return known
        if known is None:
            row = NoticeRow(name, 1, document, self.now_ms, self.now_ms, len(self.journal), {}, 1)
        else:
            changed = {"version": known.version + 1, "applied_ms": self.now_ms, "revision": known.revision + 1}
            row = replace(known, document=document, **changed)
        self.rows[name] = row
        return row

    def notice(self, name: str) -> NoticeRow:
        if name not in self.rows:
            raise NotFound(f"There is no notice {name}; see all with: strandline notice list")
        return self.rows[name]

    def notices(self) -> list[NoticeRow]:
        return [self.rows[name] for name in sorted(self.rows)]

    def delete_notice(self, name: str) -> None:
        self.notice(name)
        for table in (self.attempts, self.messages, self.problems):
            for key in [one for one in table if one[0] == name]:
                del table[key]  # type: ignore[attr-defined]
        del self.rows[name]

    def mute_notice(self, name: str, until_ms: int | None, by: str | None) -> NoticeRow:
        row = self.notice(name)
        muted = {"muted_until_ms": until_ms, "muted_by": by if until_ms is not None else None}
        self.rows[name] = replace(row, revision=row.revision + 1, **muted)  # type: ignore[arg-type]
        return self.rows[name]

    def lead_notices(self, holder: str, length_ms: int) -> tuple[int, int] | None:
        before, epoch, until_ms, length = self.lease
        has_run_out = until_ms <= self.now_ms or until_ms > self.now_ms + 2 * length
        if before != holder and not has_run_out:
            return None
        is_new = before != holder or has_run_out
        epoch += is_new
        self.lease = (holder, epoch, self.now_ms + length_ms, length_ms)
        if is_new:
            self.end_interrupted()
        return epoch, self.now_ms

    def end_interrupted(self) -> None:
        for key, attempt in self.attempts.items():
            if attempt.ended_ms is None:
                self.attempts[key] = replace(attempt, ended_ms=max(self.now_ms, attempt.begun_ms + ATTEMPT_MAX_MS))
                message = self.messages[attempt.notice, attempt.message]
                self.messages[attempt.notice, attempt.message] = replace(message, due_ms=self.now_ms)

    def notice_clock_ms(self) -> int:
        return self.now_ms

    def release_notices(self, service: str) -> None:
        holder, epoch, _, length = self.lease
        if holder.startswith(f"{service}/"):
            self.lease = (holder, epoch, 0, length)

    def service_readings(self) -> list[ReadingsRow]:
        return [row for _, row in sorted(self.readings.items())]

    def record_readings(self, service: str, readings: dict[str, Any]) -> None:
        self.readings[service] = ReadingsRow(service, self.now_ms, readings)

    def forget_notices(self, before_ms: int) -> None:
        for key, problem in list(self.problems.items()):
            if problem.end_reported_ms is not None and problem.end_reported_ms < before_ms:
                del self.problems[key]
        for key, message in list(self.messages.items()):
            ended_ms = message.sent_ms or message.given_up_ms or message.made_ms
            if not message.is_pending and ended_ms < before_ms:
                del self.messages[key]
        self.readings = {name: row for name, row in self.readings.items() if row.at_ms >= before_ms}

    def notice_problems(self, name: str, since_ms: int | None = None, limit: int = 1_000) -> list[ProblemRow]:
        rows = [row for (notice, _), row in sorted(self.problems.items()) if notice == name]
        if since_ms is None:
            return rows[-limit:]
        return [
            row
            for row in rows
            if row.end_reported_ms is None or (row.reported_ms is not None and row.reported_ms > since_ms)
        ]

    def notice_messages(self, name: str, limit: int = 100) -> list[MessageRow]:
        return [row for (notice, _), row in sorted(self.messages.items()) if notice == name][-limit:]

    def pending_messages(self) -> list[MessageRow]:
        return [row for _, row in sorted(self.messages.items()) if row.is_pending]

    def notice_attempts(self) -> list[AttemptRow]:
        return list(self.attempts.values())

    def record_notice(self, epoch: int, row: NoticeRow, changes: NoticeChanges) -> None:
        self.refuse_old(epoch)
        known = self.rows.get(row.name)
        if known is None or (known.created_ms, known.revision) != (row.created_ms, row.revision):
            raise Fenced(f"Notice {row.name} was changed in the meantime; the next check uses the new document.")
        numbers = [message.number for message in changes.messages]
        assert not [number for number in numbers if (row.name, number) in self.messages], "a number is used twice"
        self.rows[row.name] = replace(
            known, memory=changes.memory, event_seen=changes.event_seen, revision=known.revision + 1
        )
        self.problems.update({(row.name, one.number): one for one in changes.problems})
        self.messages.update({(row.name, one.number): one for one in changes.messages})
        self.add_events(*changes.events)

    def add_events(self, *made: NewEvent | None) -> None:
        for event in made:
            if event is not None:
                self.record_event(event.kind, event.message, event.job, event.facts)

    def add_test_messages(self, name: str, made: Sequence[tuple[str, dict[str, Any]]]) -> list[MessageRow]:
        row = self.notice(name)
        first = int(row.memory.get("messages", 0))
        rows = [
            MessageRow(name, first + at, channel, "test", [], content, self.now_ms, self.now_ms)
            for at, (channel, content) in enumerate(made, 1)
        ]
        self.messages.update({(name, one.number): one for one in rows})
        memory = row.memory | {"messages": first + len(rows)}
        self.rows[name] = replace(row, memory=memory, revision=row.revision + 1)
        return rows

    def merge_messages(self, epoch: int, summary: MessageRow, merged: Sequence[int]) -> bool:
        self.refuse_old(epoch)
        row = self.rows.get(summary.notice)
        if row is None or int(row.memory.get("messages", 0)) != summary.number - 1:
            return False
        these = [self.messages.get((summary.notice, number)) for number in merged]
        if any(one is None or not one.is_pending for one in these):
            return False
        self.messages[summary.notice, summary.number] = summary
        for one in these:
            assert one is not None
            self.messages[one.notice, one.number] = replace(one, merged_into=summary.number)
        memory = row.memory | {"messages": summary.number}
        self.rows[summary.notice] = replace(row, memory=memory, revision=row.revision + 1)
        return True

    def begin_attempt(self, epoch: int, message: MessageRow) -> AttemptRow | None:
        length = self.refuse_old(epoch)
        known = self.messages.get((message.notice, message.number))
        if known is None or not known.is_pending:
            return None
        self.messages[message.notice, message.number] = replace(known, attempts=known.attempts + 1)
        attempt = AttemptRow(message.notice, message.number, known.attempts + 1, message.channel, self.now_ms, None)
        self.attempts[attempt.notice, attempt.message, attempt.number] = attempt
        holder, lease, _, _ = self.lease
        self.lease = (holder, lease, self.now_ms + length, length)
        return attempt

    def end_attempt(
        self,
        attempt: AttemptRow,
        error: str | None,
        retry_in_ms: int,
        event: NewEvent | None = None,
        *,
        gives_up: bool = False,
    ) -> None:
        key = (attempt.notice, attempt.message)
        open_attempt = self.attempts.get((*key, attempt.number))
        if open_attempt is not None and open_attempt.ended_ms is None:
            self.attempts[*key, attempt.number] = replace(attempt, ended_ms=self.now_ms)
        elif error is not None:
            return
        known = self.messages.get(key)
        if known is not None and known.sent_ms is None:
            if error is None:
                self.messages[key] = replace(known, sent_ms=self.now_ms, error="")
            else:
                given_up_ms = self.now_ms if gives_up else None
                due_ms = self.now_ms + retry_in_ms
                self.messages[key] = replace(known, error=error, due_ms=due_ms, given_up_ms=given_up_ms)
        for one, row in list(self.attempts.items()):
            if row.ended_ms is not None and row.ended_ms < self.now_ms - ATTEMPTS_KEPT_MS:
                del self.attempts[one]
        self.add_events(event)

    def refuse_old(self, epoch: int) -> int:
        if self.lease[1] != epoch:
            raise Fenced("Another control service leads the notices now.")
        return self.lease[3]
