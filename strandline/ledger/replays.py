"""Dead letters that are put back into their stream, each at most once.

The stream itself says what is there: a record that was put back names its dead letter in a header. The ledger says where to
look, and remembers what the log no longer holds. Writes of one stream's replays are one transactional id, so there is one
*attempt* at a time:

1. `begin_replay` gives the attempt a number; older ones are Fenced. Where nothing is in doubt, it notes where the stream ends:
   all that this attempt, and later ones, put back stands behind that.
2. `decide_doubts`, when the attempt has read what older ones wrote: from then on nothing is in doubt, and what this attempt puts
   back stands behind the end that it found when it began.
3. `intend_replays`, before anything of it is written. An intent that is not settled is in doubt: the attempt may have been killed
   before it wrote, or after.
4. `settle_replays`, when it is in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from strandline.core.errors import Fenced
from strandline.ledger.models import replay_attempts, replays
from strandline.ledger.part import Part

_ROWS_AT_ONCE = 500
"""A statement may have so many parameters, whatever the database."""


@dataclass(frozen=True)
class ReplayAttempt:
    """One attempt to put records back into a stream."""

    stream: str
    number: int
    since: dict[int, int]
    """Partition -> offset: what was put back and is in doubt stands at or behind it."""
    ends: dict[int, int]
    """Partition -> offset: what this attempt puts back stands at or behind it."""


@dataclass(frozen=True)
class Replay:
    """A row that was put back, or is about to be."""

    identity: str
    """What the dead letter is of: its key."""
    job: str
    letter: int
    """The number of the dead letter."""
    is_repaired: bool


class Replays(Part):
    """Each method is one transaction."""

    def begin_replay(self, stream: str, ends: Mapping[int, int]) -> ReplayAttempt:
        """Begin an attempt, and fence earlier ones. `ends`: where the stream ends now, open transactions included."""
        of_stream = replay_attempts.c.stream == stream
        with self._database.writing(f"begin to put records back into stream {stream}") as connection:
            fresh = {"stream": stream, "number": 0, "since": dict(ends)}
            connection.execute(self._database.insert_new(replay_attempts).values(fresh))
            known = connection.execute(sa.select(replay_attempts).where(of_stream).with_for_update()).one()
            doubt = (
                sa.select(replays.c.identity).where(replays.c.stream == stream, replays.c.sent_ms.is_(None)).limit(1)
            )
            is_in_doubt = connection.execute(doubt).first() is not None
            since = known.since if is_in_doubt else dict(ends)
            attempt = ReplayAttempt(stream, known.number + 1, since, dict(ends))
            connection.execute(
                sa.update(replay_attempts).where(of_stream).values(number=attempt.number, since=attempt.since)
            )
            return attempt

    def require_replay(self, attempt: ReplayAttempt) -> None:
        """Raise Fenced when a newer attempt has begun."""
        with self._database.reading(f"read who puts records back into stream {attempt.stream}") as connection:
            _refuse_older(connection, attempt)

    def decide_doubts(self, attempt: ReplayAttempt, there: Collection[str], *, is_whole: bool) -> set[str]:
        """Decide about each record whose replay into the stream has begun and is not settled, also one that another call began.

        `there`: the records that the stream holds from `attempt.since` on. They were put back. `is_whole`: whether the stream
        still holds all that it got since then. If so, the other records were not put back, and are forgotten; if not, nobody can
        tell, so they count as put back, and are returned. Raises Fenced when a newer attempt has begun.
        """
        is_doubted = (replays.c.stream == attempt.stream) & replays.c.sent_ms.is_(None)
        now_ms = self._clock_ms()
        with self._database.writing(f"decide what was put back into stream {attempt.stream}") as connection:
            _refuse_older(connection, attempt, lock=True)
            absent = set(connection.execute(sa.select(replays.c.identity).where(is_doubted)).scalars()) - set(there)
            if is_whole:
                for some in _parts(absent):
                    connection.execute(sa.delete(replays).where(is_doubted, replays.c.identity.in_(some)))
            connection.execute(sa.update(replays).where(is_doubted).values(sent_ms=now_ms))
            of_stream = replay_attempts.c.stream == attempt.stream
            connection.execute(sa.update(replay_attempts).where(of_stream).values(since=attempt.ends))
        return set() if is_whole else absent

    def known_replays(self, stream: str, identities: Collection[str]) -> dict[str, bool]:
        """Those of the rows that were put back (True), or are in doubt (False)."""
        found: dict[str, bool] = {}
        with self._database.reading(f"read what was put back into stream {stream}") as connection:
            for some in _parts(identities):
                wanted = sa.select(replays.c.identity, replays.c.sent_ms)
                rows = connection.execute(wanted.where(replays.c.stream == stream, replays.c.identity.in_(some)))
                found.update((row.identity, row.sent_ms is not None) for row in rows)
        return found

    def intend_replays(self, attempt: ReplayAttempt, rows: Collection[Replay]) -> None:
        """Record what is about to be put back. Raises Fenced when a newer attempt has begun."""
        now_ms = self._clock_ms()
        with self._database.writing(f"note what is put back into stream {attempt.stream}") as connection:
            _refuse_older(connection, attempt, lock=True)
            for row in rows:
                values = {
                    "stream": attempt.stream,
                    "identity": row.identity,
                    "job": row.job,
                    "letter": row.letter,
                    "repaired": int(row.is_repaired),
                    "intended_ms": now_ms,
                }
                connection.execute(self._database.insert_new(replays).values(values))

    def settle_replays(self, attempt: ReplayAttempt, identities: Collection[str]) -> None:
        """Record that these are in the log. Raises Fenced when a newer attempt has begun."""
        now_ms = self._clock_ms()
        with self._database.writing(f"note what was put back into stream {attempt.stream}") as connection:
            _refuse_older(connection, attempt, lock=True)
            for some in _parts(identities):
                of_rows = (replays.c.stream == attempt.stream) & replays.c.identity.in_(some)
                connection.execute(
                    sa.update(replays).where(of_rows, replays.c.sent_ms.is_(None)).values(sent_ms=now_ms)
                )


def _refuse_older(connection: sa.Connection, attempt: ReplayAttempt, *, lock: bool = False) -> None:
    wanted = sa.select(replay_attempts.c.number).where(replay_attempts.c.stream == attempt.stream)
    present = connection.execute(wanted.with_for_update() if lock else wanted).scalar()
    if present != attempt.number:
        raise Fenced(
            f"another replay into stream {attempt.stream} has begun and goes on with what is left; look at its answer, or "
            "give the "
            "command again"
        )


def _parts(identities: Collection[str]) -> list[list[str]]:
    listed = list(identities)
    return [listed[first : first + _ROWS_AT_ONCE] for first in range(0, len(listed), _ROWS_AT_ONCE)]
