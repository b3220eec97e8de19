"""Requeues rejected records: appends them to their stream again, each at most once, by transactions.

Such a record has the payload of its dead letter, or a repaired payload. It has the headers of the sender's record, without those
by which gateways recognise their own records, and headers that name the dead letter. So the stream shows which records were
requeued. The ledger contains the records in doubt, and those that the stream no longer contains (`ledger/replays.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strandline.core.failpoints import failpoint
from strandline.core.record_headers import (
    HEADER_EPOCH,
    HEADER_JOB,
    HEADER_REPLAY_LETTER,
    HEADER_REPLAY_OF,
    HEADER_REPLAY_REPAIRED,
    HEADER_SEQUENCE,
    HEADER_WRITER,
)
from strandline.ledger.replays import Replay, ReplayAttempt
from strandline.log.messages import LogMessage
from strandline.log.transactions import Entry, SlotConfig, TransactionSlot
from strandline.processing.emission.result_stream_writer import result_header

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import ReplayLedger
    from strandline.log.index import LogIndex

_NOT_COPIED = frozenset(
    [
        HEADER_WRITER,
        HEADER_EPOCH,
        HEADER_SEQUENCE,
        HEADER_JOB,
        HEADER_REPLAY_OF,
        HEADER_REPLAY_LETTER,
        HEADER_REPLAY_REPAIRED,
    ]
)
"""A gateway that starts again looks for the last record that it has written: it must not find another one's."""


@dataclass(frozen=True)
class RequeueRecord:
    """A record to requeue."""

    replay: Replay
    value: bytes | None
    key: bytes | None
    partition: int | None
    """Partition of the stream. None if the key chooses it."""
    headers: Mapping[str, bytes]
    """Headers of the rejected record, if the log still holds it."""

    @property
    def entry(self) -> Entry:
        """Return the record for its stream."""
        replay = self.replay
        kept = [(name, value) for name, value in self.headers.items() if name not in _NOT_COPIED]
        origin = [
            (HEADER_REPLAY_OF, replay.identity.encode()),
            (HEADER_REPLAY_LETTER, f"{replay.job}/{replay.letter}".encode()),
            *([(HEADER_REPLAY_REPAIRED, b"1")] if replay.is_repaired else []),
        ]
        return Entry(replay.identity, self.value, self.key, [*kept, *origin], self.partition)


@dataclass
class RequeueResult:
    """Identities of requested records, by outcome."""

    now: set[str] = field(default_factory=set)
    """Records that this call has requeued."""
    before: set[str] = field(default_factory=set)
    """Records that were requeued before."""
    unknown: set[str] = field(default_factory=set)
    """The identities that a killed call may have put back: the stream no longer holds the offsets where they would be. They are
    counted as put back, and not written again."""


def requeue(
    ledger: ReplayLedger, index: LogIndex, bootstrap: str, stream: str, records: Sequence[RequeueRecord], bytes_max: int
) -> RequeueResult:
    """Append the records to the stream, except those that an earlier call has appended. Return which records are which.

    1. Begin an attempt, which fences older attempts. Fence their late writes to Kafka, and read their records.
    2. Decide by the records in the log about all records in doubt, including those that aren't requested again. Otherwise each
       later call would read the stream from there, and retention could remove its beginning.
    3. Record which records will be requeued, append them in one transaction, and record that they are in the log.

    `bytes_max`: the largest record that gateways accept. Raises Fenced if another attempt has begun, RecordTooLarge,
    LogUnavailable, LedgerUnavailable. Then records may be in doubt: the next call finds out whether they are in the log.
    """
    attempt = ledger.begin_replay(stream, index.ends_with_open(stream))
    failpoint("replay.begun")
    slot = _slot(ledger, bootstrap, attempt, bytes_max)
    there = slot.there()
    by_identity = {one.replay.identity: one for one in records}
    # Records that the stream holds and the ledger does not know are noted first: the next attempt reads the stream only from
    # where this one began.
    ledger.intend_replays(attempt, [by_identity[identity].replay for identity in by_identity.keys() & there])
    is_whole = all(start <= attempt.since.get(partition, 0) for partition, start in index.starts(stream).items())
    unknown = ledger.decide_doubts(attempt, there, is_whole=is_whole)
    if unasked := sorted(unknown - by_identity.keys()):
        message = (
            f"{len(unasked)} dead letters that an earlier call wanted to put back into stream {stream} count as put back, though "
            f"they may not be. The stream no longer holds the offsets where they would be ({', '.join(unasked[:3])})"
        )
        ledger.record_event("dead_letters_unknown", message, facts={"stream": stream, "identities": unasked[:1_000]})
    known = ledger.known_replays(stream, by_identity).keys()
    done = RequeueResult(before=known - unknown, unknown=known & unknown)
    todo = [one for identity, one in by_identity.items() if identity not in known]
    ledger.intend_replays(attempt, [one.replay for one in todo])
    failpoint("replay.intended")
    slot.write([one.entry for one in todo])
    done.now = {one.replay.identity for one in todo}
    ledger.settle_replays(attempt, done.now)
    return done


def _slot(ledger: ReplayLedger, bootstrap: str, attempt: ReplayAttempt, bytes_max: int) -> TransactionSlot:
    config = SlotConfig(
        bootstrap,
        attempt.stream,
        attempt.number,
        lambda _: ledger.require_replay(attempt),
        identity_of=_replay_of,
        failpoints="replay",
        record_bytes_max=bytes_max,
        # Placed as the gateways place keys.
        settings={"partitioner": "murmur2_random"},
    )
    return TransactionSlot(config, f"{attempt.stream}:replay", attempt.since)


def _replay_of(message: LogMessage) -> str:
    return result_header(message, HEADER_REPLAY_OF)
