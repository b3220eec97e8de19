"""Events in the ledger, for people and for programs that follow them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from strandline.ledger.database import Database
from strandline.ledger.models import events, jobs
from strandline.ledger.part import Part
from strandline.ledger.states import EventRow

_LOCK_KEY = 0x5374_7261_6E65


@dataclass(frozen=True)
class NewEvent:
    """An event to record."""

    kind: str
    message: str
    job: str | None = None
    epoch: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    principal: str | None = None


def insert_event(database: Database, connection: sa.Connection, at_ms: int, event: NewEvent) -> EventRow:
    """Record an event in a running transaction."""
    # Without it, a lower id could become visible after a higher one, and a follower would miss it.
    database.hold_lock(connection, _LOCK_KEY)
    values = vars(event) | {"at_ms": at_ms}
    number = connection.execute(sa.insert(events).values(values).returning(events.c.id)).scalar_one()
    return EventRow(number, event.job, event.epoch, at_ms, event.kind, event.message, event.facts, event.principal)


class JournalReader(Part):
    """Reads events, in the order in which they became visible."""

    def events(
        self, job: str | None = None, after_id: int = 0, limit: int = 100, *, newest: bool = False
    ) -> list[EventRow]:
        """Return events with an id above `after_id`, the oldest first. To follow, pass the last id that was read.

        `newest`: If there are more than `limit`, return the newest of them.
        """
        wanted = sa.select(events).where(events.c.id > after_id)
        if job is not None:
            wanted = wanted.where(events.c.job == job)
        with self._database.reading("read events") as connection:
            rows = connection.execute(wanted.order_by(events.c.id.desc() if newest else events.c.id).limit(limit))
            found = [EventRow(*row) for row in rows]
            return found[::-1] if newest else found

    def last_event(self, job: str, kind: str) -> EventRow | None:
        """Return the newest event of that kind about the job."""
        wanted = sa.select(events).where(events.c.job == job, events.c.kind == kind)
        with self._database.reading(f"read the last event {kind} of job {job}") as connection:
            row = connection.execute(wanted.order_by(events.c.id.desc()).limit(1)).first()
            return EventRow(*row) if row else None

    def last_events(self, names: Collection[str], kind: str) -> dict[str, EventRow]:
        """Return the newest event of that kind about each of these jobs. A job without one is left out."""
        of_job = sa.select(events.c.id).where(events.c.job == jobs.c.name, events.c.kind == kind)
        newest = of_job.order_by(events.c.id.desc()).limit(1).correlate(jobs).scalar_subquery()
        wanted = sa.select(jobs.c.name, newest.label("id")).where(jobs.c.name.in_(names)).subquery()
        with self._database.reading(f"read the last events {kind} of {len(names)} jobs") as connection:
            rows = connection.execute(sa.select(events).join(wanted, events.c.id == wanted.c.id))
            return {row.job: EventRow(*row) for row in rows}

    def events_of_kind(self, job: str, kind: str) -> list[EventRow]:
        """Return all events of that kind about the job, the oldest first."""
        wanted = sa.select(events).where(events.c.job == job, events.c.kind == kind)
        with self._database.reading(f"read the events {kind} of job {job}") as connection:
            return [EventRow(*row) for row in connection.execute(wanted.order_by(events.c.id))]


class Journal(Part):
    """Records events."""

    def record_event(
        self,
        kind: str,
        message: str,
        job: str | None = None,
        epoch: int | None = None,
        facts: dict[str, Any] | None = None,
        principal: str | None = None,
    ) -> EventRow:
        """Record an event. Raises Conflict for an unknown job.

        Args: facts: Details for programs, any JSON. principal: Principal that caused it. None for the platform itself.
        """
        (row,) = self.record_events([NewEvent(kind, message, job, epoch, facts or {}, principal)])
        return row

    def record_events(self, new: Sequence[NewEvent]) -> list[EventRow]:
        """Record several events in one transaction, in this order. Raises Conflict for an unknown job: then none is recorded."""
        if not new:
            return []
        what = f"an event {new[0].kind}" if len(new) == 1 else f"{len(new)} events"
        with self._database.writing(f"record {what}") as connection:
            return [insert_event(self._database, connection, self._clock_ms(), event) for event in new]
