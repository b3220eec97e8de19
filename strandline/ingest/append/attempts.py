"""Finds out from the log whether an attempt in doubt has arrived."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message

from strandline.core.errors import LogTruncated, LogUnavailable, NotFound
from strandline.core.record_headers import HEADER_EPOCH, HEADER_SEQUENCE, HEADER_WRITER
from strandline.ingest.append.kafka_clients import KafkaClients
from strandline.ingest.append.spool import Attempt, SpooledRecord
from strandline.ingest.append.worker_thread import WorkerThread
from strandline.log.admin import KafkaAdmin
from strandline.log.reader import OffsetRange

ENDS_AGE_MAX_S = 10.0
"""How old the known ends of a stream's partitions may be: so much of the log is read to resolve an attempt."""
SCAN_IDLE_S = 5.0
"""A scan in which nothing comes for so long has failed, and is repeated."""


class AttemptFinder:
    """Knows where topics ended before an attempt, and searches behind these offsets for its records."""

    def __init__(self, clients: KafkaClients, thread: WorkerThread) -> None:
        self._clients = clients
        self._thread = thread
        self._writer_id = clients.writer_id.encode()
        self._admin: KafkaAdmin | None = None
        self._ends: dict[str, tuple[float, dict[int, int]]] = {}
        """Topic -> when its ends were asked for, and the ends of its partitions then."""

    async def ends_of(self, topic: str) -> dict[int, int]:
        """Where the topic's partitions ended a while ago: nothing that is sent from now on stands before.

        Raises LogUnavailable.
        """
        now_s = time.monotonic()
        asked_s, ends = self._ends.get(topic, (0.0, {}))
        if not ends or now_s - asked_s > ENDS_AGE_MAX_S:
            _, ends = await self._thread.run(self._ask_bounds, topic)
            self._ends[topic] = (now_s, ends)
        return ends

    async def has_arrived(self, attempt: Attempt, records: Sequence[SpooledRecord]) -> bool:
        """Whether the attempt's records are in the log: all of them or none. Raises LogUnavailable.

        The producer that made the attempt must be fenced: what has not arrived by now never will.
        """
        wanted = {(record.epoch, record.sequence) for record in records}
        found = await self._thread.run(self._scan, attempt, wanted)
        if found and found != wanted:
            raise LogUnavailable(
                f"{len(found)} of {len(wanted)} records of one transaction are in topic {attempt.topic}; was the topic "
                f"made anew, or has retention taken some? The spool keeps them all"
            )
        return bool(found)

    def forget(self) -> None:
        """Ask for everything again."""
        self._ends.clear()
        self._admin = None

    def _scan(self, attempt: Attempt, wanted: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Which of the wanted (epoch, sequence) of this writer are committed behind the attempt's offsets.

        Reads up to where the partitions end now; nothing older can arrive later, because it is fenced. Raises
        LogUnavailable when it can't be told, also while someone else's open transaction hides a part.
        """
        topic, found = attempt.topic, set[tuple[int, int]]()
        starts, ends = self._ask_bounds(topic)
        reader = self._clients.log_reader(SCAN_IDLE_S)
        try:
            for number, end in ends.items():
                noted = attempt.scan_from.get(number, 0)
                if noted > end:
                    noted = 0  # the topic was made anew, or cut off: what it holds may all be younger
                first = max(noted, starts[number])  # what retention has taken can't be found
                for messages in reader.read(OffsetRange(topic, number, first, end)):
                    found |= {place for place in map(self._place_of, messages) if place in wanted and place is not None}
                    if found == wanted:
                        return found
        except (LogTruncated, LogUnavailable) as error:
            raise LogUnavailable(
                f"topic {topic} could not be read to its end, so it is not known what of it the spool still has to send; "
                f"it is tried again ({error})"
            ) from error
        finally:
            reader.close()
        return found

    def _place_of(self, message: Message) -> tuple[int, int] | None:
        headers: dict[str, Any] = dict(message.headers() or ())
        if headers.get(HEADER_WRITER) != self._writer_id:
            return None
        return int(headers[HEADER_EPOCH]), int(headers[HEADER_SEQUENCE])

    def _ask_bounds(self, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        """Where the topic's partitions start and end now."""
        admin = self._admin = self._admin or self._clients.admin()
        try:
            partitions = range(admin.describe(topic).partitions)
            return admin.starts(topic, partitions), admin.ends_with_open(topic, partitions)
        except NotFound as error:  # the records wait in the spool until the topic is there again
            raise LogUnavailable(str(error)) from error
        except LogUnavailable:
            self._admin = None
            raise
