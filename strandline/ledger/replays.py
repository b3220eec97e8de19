"""Dead letters that are requeued into their stream, each at most once.

The stream itself shows which records were requeued: such a record contains its dead letter in a header. The ledger
stores the offsets from which to search, and records that the log no longer contains. All replays into one stream use
one transactional id, so there is one *attempt* at a time:

1. `begin_replay` assigns a number to the attempt; older attempts are Fenced. If nothing is in doubt, it stores the end
   of the stream: all records that this and later attempts requeue are after that.
2. `decide_doubts` is called when the attempt has read the records of older attempts. From then on nothing is in doubt,
   and the records of this attempt are after the end that it found when it began.
3. `intend_replays` is called before records are written. An intent that is not settled is in doubt: the attempt may
   have been killed before it wrote, or after.
4. `settle_replays` is called when the records are in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from strandline.core.errors import Fenced
from strandline.ledger.models import replay_attempts, replays
from strandline.ledger.part import Part

_ROWS_AT_ONCE = 500
"""Maximum number of parameters in a statement, for every database."""


@dataclass(frozen=True)
class ReplayAttempt:
    """One attempt to requeue records into a stream."""

    stream: str
    number: int
    since: dict[int, int]
    """Partition -> offset. Requeued records that are in doubt are at or after it."""
    ends: dict[int, int]
    """Partition -> offset. Records that this attempt requeues are at or after it."""


@dataclass(frozen=True)
class Replay:
    """A row that was requeued, or is about to be."""

    identity: str
    """Key of the dead letter."""
    job: str
    letter: int
    """Number of the dead letter."""
    is_repaired: bool


class Replays(Part):
    """Records replays. Each method is one transaction."""

    def begin_replay(self, stream: str, ends: Mapping[int, int]) -> ReplayAttempt:
        """Begin an attempt, and fence earlier ones. `ends`: current end of the stream, including open transactions."""
        of_stream = replay_attempts.c.stream == stream
        with self._database.writing(f"begin to requeue records into stream {stream}") as connection:
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
        """Raise Fenced if a newer attempt has begun."""
        with self._database.reading(f"read the replay attempt of stream {attempt.stream}") as connection:
            _refuse_older(connection, attempt)

    def decide_doubts(self, attempt: ReplayAttempt, there: Collection[str], *, is_whole: bool) -> set[str]:
        """Decide about each record whose replay into the stream has begun and is not settled, also by another call.

        If `is_whole`, records that aren't in `there` were not requeued, and are forgotten. Otherwise their outcome is
        unknown, so they count as requeued, and are returned. Raises Fenced if a newer attempt has begun.

        Args: there: Records in the stream from `attempt.since` on. They were requeued. is_whole: True if the stream
        still contains all records that it received since then.
        """
        is_doubted = (replays.c.stream == attempt.stream) & replays.c.sent_ms.is_(None)
        now_ms = self._clock_ms()
        with self._database.writing(f"decide which records were requeued into stream {attempt.stream}") as connection:
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
        """Return identity -> True if the dead letter was requeued, False if that is in doubt. Others are left out."""
        found: dict[str, bool] = {}
        with self._database.reading(f"read the requeued records of stream {stream}") as connection:
            for some in _parts(identities):
                wanted = sa.select(replays.c.identity, replays.c.sent_ms)
                rows = connection.execute(wanted.where(replays.c.stream == stream, replays.c.identity.in_(some)))
                found.update((row.identity, row.sent_ms is not None) for row in rows)
        return found

    def intend_replays(self, attempt: ReplayAttempt, rows: Collection[Replay]) -> None:
        """Record the rows that are about to be requeued. Raises Fenced if a newer attempt has begun."""
        now_ms = self._clock_ms()
        with self._database.writing(f"record a replay into stream {attempt.stream}") as connection:
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
        """Record that the requeued records of these dead letters are in the log. Raises Fenced if a newer attempt has begun."""
        now_ms = self._clock_ms()
        with self._database.writing(f"settle a replay into stream {attempt.stream}") as connection:
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
            f"another replay into stream {attempt.stream} has begun and continues with the remaining records; see its "
            "answer, or run the command again"
        )


def _parts(identities: Collection[str]) -> list[list[str]]:
    listed = list(identities)
    return [listed[first : first + _ROWS_AT_ONCE] for first in range(0, len(listed), _ROWS_AT_ONCE)]
