"""Notices in the ledger: their documents, the problems that they found, the messages about them, and the leader that
sends these.

One control service leads the notices, by its own lease on the database's clock. Every write of the leader contains the
epoch of its lease, so a service that was replaced can't change anything. All times are of the database's clock, which
all control services share.

A message is recorded before it is sent, in the transaction that records its cause. Each attempt to send it is recorded
before it starts and when it has ended. An attempt that has no end was interrupted: its message is sent again, and the
attempt still counts for the limit per minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from strandline.core.described import Described
from strandline.core.errors import Fenced, NotFound
from strandline.ledger.database import Database
from strandline.ledger.journal import NewEvent, insert_event
from strandline.ledger.models import (
    checkpoints,
    events,
    notice_attempts,
    notice_leader,
    notice_messages,
    notice_problems,
    notices,
    service_readings,
)
from strandline.ledger.part import Part
from strandline.ledger.states import EventRow

_LEADER = "notices"
_IS_PENDING = (
    notice_messages.c.sent_ms.is_(None)
    & notice_messages.c.merged_into.is_(None)
    & notice_messages.c.given_up_ms.is_(None)
)
ATTEMPT_MAX_MS = 10_000
"""Maximum time of an attempt."""
ATTEMPTS_KEPT_MS = 3_600_000
"""Age at which an ended attempt is deleted."""


@dataclass(frozen=True)
class NoticeRow(Described):
    """A notice that was applied."""

    name: str
    version: int
    document: dict[str, Any]
    created_ms: int
    """Time at which a notice with this name was first applied. Together with a number it identifies a problem or
    message."""
    applied_ms: int
    event_seen: int
    """Highest number of an event that the notice has handled."""
    memory: dict[str, Any]
    """State of the notice between two checks."""
    revision: int
    """Number of changes of the row. A check that was based on an older revision records nothing."""
    muted_until_ms: int | None = None
    muted_by: str | None = None


@dataclass(frozen=True)
class ProblemRow(Described):
    """A problem that a notice found."""

    notice: str
    number: int
    condition: str
    """Condition of the document that found the problem."""
    subject: str
    """The affected object, for example `job power`."""
    job: str | None
    cause: int
    """Number of the event that caused the problem; 0 if it was found by a check."""
    since_ms: int
    opened_ms: int
    """Time at which the notice found the problem."""
    title: str
    reason: str
    affected: str
    action: str
    """Remedy, with exact commands."""
    reported_ms: int | None = None
    """Time at which a message about the problem was recorded."""
    reminded_ms: int | None = None
    ended_ms: int | None = None
    """Time at which the end of the problem was found."""
    end_reported_ms: int | None = None
    """Time at which the message about the end was recorded."""
    end_reason: str = ""
    """Reason why the problem isn't checked any more, although it may still exist. Empty if the problem is over."""


@dataclass(frozen=True)
class MessageRow(Described):
    """One message to one channel."""

    notice: str
    number: int
    channel: str
    """Channel of the document, for example `mail` or `webhook 2`."""
    kind: str
    """`problem`, `resolved`, `reminder`, `summary` or `test`."""
    problems: list[int]
    """Numbers of the problems that the message is about."""
    content: dict[str, Any]
    made_ms: int
    due_ms: int
    """Time from which the next attempt may begin."""
    attempts: int = 0
    sent_ms: int | None = None
    merged_into: int | None = None
    """Number of the summary that replaces the message."""
    given_up_ms: int | None = None
    error: str = ""
    """Reason why the last attempt failed."""

    @property
    def is_pending(self) -> bool:
        return self.sent_ms is None and self.merged_into is None and self.given_up_ms is None


@dataclass(frozen=True)
class AttemptRow:
    """One attempt to send a message."""

    notice: str
    message: int
    number: int
    channel: str
    begun_ms: int
    ended_ms: int | None


@dataclass(frozen=True)
class NoticeChanges:
    """Changes by one check of a notice."""

    memory: dict[str, Any]
    event_seen: int
    problems: Sequence[ProblemRow] = ()
    """New problems, and changed known problems."""
    messages: Sequence[MessageRow] = ()
    """New messages."""
    events: Sequence[NewEvent] = field(default_factory=tuple)


@dataclass(frozen=True)
class ReadingsRow:
    """The last readings of a control service about its own machine."""

    service: str
    at_ms: int
    """Time at which the service recorded them."""
    readings: dict[str, Any]


@dataclass(frozen=True)
class WatermarkRow:
    """Watermark of a job after its last committed slice."""

    watermark_ms: int
    since_ms: int
    """Time at which the first slice with this watermark was committed."""
    records: int
    """Number of records of the later slices."""


class NoticeReader(Part):
    """Reads notices, their problems and messages."""

    def notice(self, name: str) -> NoticeRow:
        """Return a notice. Raises NotFound."""
        with self._database.reading(f"read notice {name}") as connection:
            return _required(connection, name)

    def notices(self) -> list[NoticeRow]:
        """Return all notices, by name."""
        with self._database.reading("read the notices") as connection:
            return [
                NoticeRow(**row) for row in connection.execute(sa.select(notices).order_by(notices.c.name)).mappings()
            ]

    def notice_clock_ms(self) -> int:
        """Return the time of the database."""
        with self._database.reading("read the time") as connection:
            return _now_ms(self._database, connection)

    def notice_problems(self, name: str, since_ms: int | None = None, limit: int = 1_000) -> list[ProblemRow]:
        """Return problems of a notice, the oldest first.

        `since_ms`: Problems that aren't settled, and those with a message since then. None for the newest of all.
        """
        wanted = sa.select(notice_problems).where(notice_problems.c.notice == name)
        if since_ms is not None:
            of_use = sa.or_(notice_problems.c.end_reported_ms.is_(None), notice_problems.c.reported_ms > since_ms)
            wanted = wanted.where(of_use).order_by(notice_problems.c.number)
            with self._database.reading(f"read the problems of notice {name}") as connection:
                return [ProblemRow(**row) for row in connection.execute(wanted).mappings()]
        with self._database.reading(f"read the problems of notice {name}") as connection:
            newest = wanted.order_by(notice_problems.c.number.desc()).limit(limit)
            return [ProblemRow(**row) for row in connection.execute(newest).mappings()][::-1]

    def notice_messages(self, name: str, limit: int = 100) -> list[MessageRow]:
        """Return the newest messages of a notice, the oldest first."""
        wanted = sa.select(notice_messages).where(notice_messages.c.notice == name)
        with self._database.reading(f"read the messages of notice {name}") as connection:
            newest = wanted.order_by(notice_messages.c.number.desc()).limit(limit)
            return [MessageRow(**row) for row in connection.execute(newest).mappings()][::-1]

    def pending_messages(self) -> list[MessageRow]:
        """Return all messages that must still be sent, the oldest first."""
        columns = notice_messages.c
        wanted = sa.select(notice_messages).where(_IS_PENDING).order_by(columns.notice, columns.number)
        with self._database.reading("read the messages to be sent") as connection:
            return [MessageRow(**row) for row in connection.execute(wanted).mappings()]

    def notice_attempts(self) -> list[AttemptRow]:
        """Return the attempts that are kept: those of the last hour, and those that haven't ended."""
        with self._database.reading("read the attempts to send notices") as connection:
            return [AttemptRow(**row) for row in connection.execute(sa.select(notice_attempts)).mappings()]

    def service_readings(self) -> list[ReadingsRow]:
        """Return the last readings of each control service, also of services that have ended."""
        with self._database.reading("read the readings of the control services") as connection:
            wanted = sa.select(service_readings).order_by(service_readings.c.service)
            return [ReadingsRow(**row) for row in connection.execute(wanted).mappings()]

    def recent_events(self, kinds: Sequence[str], after_ms: int) -> list[EventRow]:
        """Return the events of these kinds since a time, the oldest first."""
        wanted = sa.select(events).where(events.c.kind.in_(kinds), events.c.at_ms > after_ms).order_by(events.c.id)
        with self._database.reading("read recent events") as connection:
            return [EventRow(*row) for row in connection.execute(wanted)]

    def rejected_since(self, job: str, since_ms: int) -> dict[str, int]:
        """Return how many records a job has rejected since a time, by reason. Zero counts are left out."""
        total = (
            sa.select(checkpoints.c.rejected_total).where(checkpoints.c.job == job).order_by(checkpoints.c.slice.desc())
        )
        with self._database.reading(f"count what job {job} has rejected") as connection:
            newest = connection.execute(total.limit(1)).scalar()
            before = connection.execute(total.where(checkpoints.c.committed_ms <= since_ms).limit(1)).scalar()
        counts = {reason: count - (before or {}).get(reason, 0) for reason, count in (newest or {}).items()}
        return {reason: count for reason, count in counts.items() if count > 0}

    def watermark_since(self, job: str) -> WatermarkRow | None:
        """Return the watermark after the last committed slice, and the time since which it has this value. None before the first
        accepted record."""
        columns = checkpoints.c
        newest = sa.select(columns.closes_ms).where(columns.job == job).order_by(columns.slice.desc()).limit(1)
        with self._database.reading(f"read the watermark of job {job}") as connection:
            watermark_ms = connection.execute(newest).scalar()
            if watermark_ms is None:
                return None
            same = (columns.job == job) & (columns.closes_ms == watermark_ms)
            first, since_ms = connection.execute(
                sa.select(columns.slice, columns.committed_ms).where(same).order_by(columns.slice).limit(1)
            ).one()
            later = sa.select(sa.func.coalesce(sa.func.sum(columns.records), 0)).where(same, columns.slice > first)
            return WatermarkRow(watermark_ms, since_ms, int(connection.execute(later).scalar_one()))


class Notices(Part):
    """Registers, mutes and deletes notices. Each method is one transaction."""

    def put_notice(self, name: str, document: dict[str, Any]) -> NoticeRow:
        """Register a notice, or replace its document; an equal document changes nothing.

        A notice is a document with conditions; when one is met, people get a message. A new notice ignores all events
        that were recorded before it.
        """
        with self._database.writing(f"register notice {name}") as connection:
            known = _read(connection, name, locked=True)
            now_ms = _now_ms(self._database, connection)
            if known is not None and known.document == document:
                return known
            if known is not None:
                changed = {"document": document, "version": known.version + 1, "applied_ms": now_ms}
                connection.execute(_update_of(name).values(changed))
            else:
                newest = connection.execute(sa.select(sa.func.coalesce(sa.func.max(events.c.id), 0))).scalar_one()
                row = NoticeRow(name, 1, document, now_ms, now_ms, newest, {}, 1)
                connection.execute(sa.insert(notices).values(vars(row)))
            found = _read(connection, name)
            assert found is not None
            return found

    def delete_notice(self, name: str) -> None:
        """Delete a notice, its problems and its messages. Raises NotFound."""
        with self._database.writing(f"delete notice {name}") as connection:
            _required(connection, name, locked=True)
            for table in (notice_attempts, notice_messages, notice_problems):
                connection.execute(sa.delete(table).where(table.c.notice == name))
            connection.execute(sa.delete(notices).where(notices.c.name == name))

    def mute_notice(self, name: str, until_ms: int | None, by: str | None) -> NoticeRow:
        """Hold back the messages of a notice until this time. None ends the muting. Raises NotFound."""
        with self._database.writing(f"mute notice {name}") as connection:
            _required(connection, name, locked=True)
            muted = {"muted_until_ms": until_ms, "muted_by": by if until_ms is not None else None}
            connection.execute(_update_of(name).values(muted))
            return _required(connection, name)

    def add_test_messages(self, name: str, made: Sequence[tuple[str, dict[str, Any]]]) -> list[MessageRow]:
        """Record a test message for each channel, as (channel, content); return the messages. Raises NotFound."""
        with self._database.writing(f"record a test of notice {name}") as connection:
            row = _required(connection, name, locked=True)
            first = int(row.memory.get("messages", 0))
            now_ms = _now_ms(self._database, connection)
            rows = [
                MessageRow(name, first + at, channel, "test", [], content, now_ms, now_ms)
                for at, (channel, content) in enumerate(made, 1)
            ]
            for message in rows:
                connection.execute(sa.insert(notice_messages).values(vars(message)))
            connection.execute(_update_of(name).values(memory=row.memory | {"messages": first + len(rows)}))
            return rows


class NoticeDelivery(Part):
    """Records the findings of notices, and the outcomes of messages, under a lease. Each method is one transaction."""

    def lead_notices(self, holder: str, length_ms: int) -> tuple[int, int] | None:
        """Claim or renew the lease on all notices. Return its epoch and the database's time, or None if another service
        has it.

        A new epoch ends the attempts of earlier epochs: their service can't be sending any more. Their messages become
        due.
        """
        with self._database.writing("lead the notices") as connection:
            connection.execute(
                self._database.insert_new(notice_leader).values(
                    name=_LEADER, holder="", epoch=0, until_ms=0, length_ms=1
                )
            )
            row = connection.execute(sa.select(notice_leader).with_for_update()).one()
            now_ms = _now_ms(self._database, connection)
            # A lease that ends later than twice its length from now was granted before the clock was set back.
            has_run_out = row.until_ms <= now_ms or row.until_ms > now_ms + 2 * row.length_ms
            if row.holder != holder and not has_run_out:
                return None
            is_new = row.holder != holder or has_run_out
            epoch = row.epoch + 1 if is_new else row.epoch
            lease = {"holder": holder, "epoch": epoch, "until_ms": now_ms + length_ms, "length_ms": length_ms}
            connection.execute(sa.update(notice_leader).values(lease))
            if is_new:
                _end_interrupted(connection, now_ms)
            return epoch, now_ms

    def release_notices(self, service: str) -> None:
        """Release the lease of any process of this control service, so that its next process, or another service, can
        lead immediately.

        The holder of a lease is `SERVICE/PROCESS`.
        """
        is_own = notice_leader.c.holder.startswith(f"{service}/", autoescape=True)
        with self._database.writing("release the lease of the notices") as connection:
            connection.execute(sa.update(notice_leader).where(is_own).values(until_ms=0))

    def record_readings(self, service: str, readings: dict[str, Any]) -> None:
        """Replace the readings of this control service. It needs no lease, because they are about its own machine."""
        with self._database.writing(f"record the readings of control service {service}") as connection:
            values = {"at_ms": _now_ms(self._database, connection), "readings": readings}
            own = service_readings.c.service == service
            if connection.execute(sa.update(service_readings).where(own).values(values)).rowcount == 0:
                connection.execute(sa.insert(service_readings).values(values | {"service": service}))

    def forget_notices(self, before_ms: int) -> None:
        """Delete the problems that were settled, the messages that were sent, merged or given up, and the readings that were
        recorded, before this time."""
        problems, messages = notice_problems.c, notice_messages.c
        ended_ms = sa.func.coalesce(messages.sent_ms, messages.given_up_ms, messages.made_ms)
        with self._database.writing("delete old notices") as connection:
            connection.execute(sa.delete(notice_problems).where(problems.end_reported_ms < before_ms))
            connection.execute(sa.delete(notice_messages).where(ended_ms < before_ms, sa.not_(_IS_PENDING)))
            connection.execute(sa.delete(service_readings).where(service_readings.c.at_ms < before_ms))

    def record_notice(self, epoch: int, row: NoticeRow, changes: NoticeChanges) -> None:
        """Record the findings of one check of a notice, and the messages about them, in one transaction.

        Raises Fenced if another service leads now, or if the notice has changed since the check: then nothing is
        recorded.
        """
        with self._database.writing(f"record notice {row.name}") as connection:
            self._refuse_old(connection, epoch)
            is_same = (
                (notices.c.name == row.name)
                & (notices.c.created_ms == row.created_ms)
                & (notices.c.revision == row.revision)
            )
            values = {"memory": changes.memory, "event_seen": changes.event_seen, "revision": row.revision + 1}
            if connection.execute(sa.update(notices).where(is_same).values(values)).rowcount == 0:
                raise Fenced(f"Notice {row.name} was changed in the meantime; the next check uses the new document.")
            for problem in changes.problems:
                _put(connection, notice_problems, problem)
            for message in changes.messages:
                connection.execute(sa.insert(notice_messages).values(vars(message)))
            for event in changes.events:
                insert_event(self._database, connection, self._clock_ms(), event)

    def merge_messages(self, epoch: int, summary: MessageRow, merged: Sequence[int]) -> bool:
        """Replace messages by a summary.

        Return False, and change nothing, if one of them isn't pending any more. Raises Fenced.
        """
        with self._database.writing(f"summarize messages of notice {summary.notice}") as connection:
            self._refuse_old(connection, epoch)
            row = _read(connection, summary.notice, locked=True)
            if row is None or int(row.memory.get("messages", 0)) != summary.number - 1:
                return False
            columns = notice_messages.c
            these = (columns.notice == summary.notice) & columns.number.in_(merged) & _IS_PENDING
            known = connection.execute(sa.select(columns.number).where(these).with_for_update()).scalars().all()
            if len(known) != len(merged):
                return False
            connection.execute(sa.insert(notice_messages).values(vars(summary)))
            connection.execute(sa.update(notice_messages).where(these).values(merged_into=summary.number))
            memory = row.memory | {"messages": summary.number}
            connection.execute(_update_of(summary.notice).values(memory=memory))
            return True

    def begin_attempt(self, epoch: int, message: MessageRow) -> AttemptRow | None:
        """Record that the message is being sent now, and renew the lease for its whole length. Raises Fenced.

        None if the message isn't pending any more.
        """
        with self._database.writing(f"begin to send message {message.number} of notice {message.notice}") as connection:
            length_ms = self._refuse_old(connection, epoch)
            now_ms = _now_ms(self._database, connection)
            columns = notice_messages.c
            this = (columns.notice == message.notice) & (columns.number == message.number)
            taken = connection.execute(
                sa.update(notice_messages).where(this, _IS_PENDING).values(attempts=columns.attempts + 1)
            )
            if taken.rowcount == 0:
                return None
            number = connection.execute(sa.select(columns.attempts).where(this)).scalar_one()
            attempt = AttemptRow(message.notice, message.number, number, message.channel, now_ms, None)
            connection.execute(sa.insert(notice_attempts).values(vars(attempt)))
            connection.execute(sa.update(notice_leader).values(until_ms=now_ms + length_ms))
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
        """Record the outcome of an attempt. `error`: None if the message was received.

        Valid also for a service that doesn't lead any more: its report about its own attempt is true.
        """
        with self._database.writing(f"end an attempt of notice {attempt.notice}") as connection:
            now_ms = _now_ms(self._database, connection)
            columns = notice_messages.c
            this = (columns.notice == attempt.notice) & (columns.number == attempt.message)
            attempts = notice_attempts.c
            mine = (attempts.notice == attempt.notice) & (attempts.message == attempt.message)
            ended = connection.execute(
                sa.update(notice_attempts)
                .where(mine, attempts.number == attempt.number, attempts.ended_ms.is_(None))
                .values(ended_ms=now_ms)
            )
            if error is not None and ended.rowcount == 0:
                return  # a new leader, or an earlier call, has ended it
            if error is None:
                values: dict[str, Any] = {"sent_ms": now_ms, "error": ""}
            else:
                values = {"error": error, "due_ms": now_ms + retry_in_ms} | (
                    {"given_up_ms": now_ms} if gives_up else {}
                )
            connection.execute(sa.update(notice_messages).where(this, columns.sent_ms.is_(None)).values(values))
            old = attempts.ended_ms < now_ms - ATTEMPTS_KEPT_MS
            connection.execute(sa.delete(notice_attempts).where(old))
            if event is not None:
                insert_event(self._database, connection, self._clock_ms(), event)

    def _refuse_old(self, connection: sa.Connection, epoch: int) -> int:
        """Return the length of the lease. Raises Fenced unless the epoch is of the current lease.

        No other lease can begin before the transaction ends.
        """
        row = connection.execute(sa.select(notice_leader).with_for_update()).first()
        if row is None or row.epoch != epoch:
            raise Fenced("Another control service leads the notices now.")
        return int(row.length_ms)


def _update_of(name: str) -> sa.Update:
    return sa.update(notices).where(notices.c.name == name).values(revision=notices.c.revision + 1)


def _read(connection: sa.Connection, name: str, *, locked: bool = False) -> NoticeRow | None:
    wanted = sa.select(notices).where(notices.c.name == name)
    row = connection.execute(wanted.with_for_update() if locked else wanted).mappings().first()
    return None if row is None else NoticeRow(**row)


def _required(connection: sa.Connection, name: str, *, locked: bool = False) -> NoticeRow:
    row = _read(connection, name, locked=locked)
    if row is None:
        raise NotFound(f"There is no notice {name}; see all with: strandline notice list")
    return row


def _put(connection: sa.Connection, table: sa.Table, row: ProblemRow) -> None:
    this = (table.c.notice == row.notice) & (table.c.number == row.number)
    if connection.execute(sa.update(table).where(this).values(vars(row))).rowcount == 0:
        connection.execute(sa.insert(table).values(vars(row)))


def _end_interrupted(connection: sa.Connection, now_ms: int) -> None:
    """End the attempts without an end, and make their messages due.

    A receiver can get the message until the maximum time of an attempt has passed, so the end can be in the future.
    """
    is_open = notice_attempts.c.ended_ms.is_(None)
    for notice, message in connection.execute(
        sa.select(notice_attempts.c.notice, notice_attempts.c.message).where(is_open)
    ).all():
        this = (notice_messages.c.notice == notice) & (notice_messages.c.number == message)
        connection.execute(sa.update(notice_messages).where(this).values(due_ms=now_ms))
    ends_ms = notice_attempts.c.begun_ms + ATTEMPT_MAX_MS
    connection.execute(
        sa.update(notice_attempts).where(is_open).values(ended_ms=sa.case((ends_ms > now_ms, ends_ms), else_=now_ms))
    )


def _now_ms(database: Database, connection: sa.Connection) -> int:
    """Return the time of the database's clock, which messages and the lease use."""
    return int(connection.execute(sa.select(database.clock_ms())).scalar_one())
