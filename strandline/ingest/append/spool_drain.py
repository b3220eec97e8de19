"""Moves spooled records into the log: stream by stream, in order, one transaction at a time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import partial

import structlog
from confluent_kafka import KafkaException

from strandline.core.errors import LogUnavailable
from strandline.core.record_headers import HEADER_RECEIVED
from strandline.ingest.append.attempts import AttemptFinder, Decision, Outcome, Question, Questions
from strandline.ingest.append.outcome import NOT_CONFIRMED, SpoolFull
from strandline.ingest.append.spool import Attempt, Doubt, Spool, SpooledRecord
from strandline.ingest.append.transactional_writer import (
    SERVE_S,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_RECORDS_MAX,
    TransactionalWriter,
)
from strandline.ingest.append.worker_thread import WorkerThread

logger = structlog.get_logger()

RETRY_S = 0.25
"""Seconds until Kafka is tried again after an error."""
REFUSED_RETRY_S = 1.0
"""Seconds until a stream that could not be drained is tried again."""
TROUBLE_RETRY_S_MAX = 4.0
"""Maximum number of seconds until a topic with its own errors is tried again. The pause starts at RETRY_S and doubles
each time, because a deleted topic may never be recreated."""


ANSWER_LOOK_S = 1.0
"""Interval in seconds at which the operator's decisions are read."""


class TopicTrouble(Exception):
    """One topic can't be drained now. Other topics can."""


class SpoolDrain:
    """Removes records from the spool once they are in the log. Only one `drain` runs at a time.

    An attempt is stored before it is made. A stored attempt is in doubt, and is resolved before other records of its
    stream are sent. If the log no longer shows whether it has arrived, its records are set aside, and an operator
    decides (`apply_decisions`).
    """

    def __init__(
        self, spool: Spool, disk: WorkerThread, writer: TransactionalWriter, finder: AttemptFinder, behind: Counter[str]
    ) -> None:
        """`behind`: counter of the intake, lowered here by the records that leave the spool."""
        self._spool = spool
        self._disk = disk
        self._writer = writer
        self._finder = finder
        self._behind = behind
        self._retry_at_s: dict[str, float] = {}
        self._questions = Questions(spool.path.parent)
        self._asked: set[int] = set()
        """Doubts whose questions were written by this process."""
        self._is_swept = False
        self._look_at_s = 0.0
        self._troubles: dict[str, tuple[str, float]] = {}
        """Topic -> its last logged error, and the current pause in seconds."""
        self.catching_up: str | None = None
        """Topic whose last spooled records are being drained: its new batches wait in memory until that is done. The
        code that spools these batches instead resets it."""

    def next_topic(self) -> str | None:
        """Return a topic that has spooled records and may be tried now, or None."""
        now_s = time.monotonic()
        spooled = self._spool.records_of
        topics = list(spooled)  # a copy: the disk's thread adds topics in the meantime
        return next((t for t in topics if spooled[t] and self._retry_at_s.get(t, 0.0) <= now_s), None)

    async def drain(self, topic: str) -> None:
        """Write some of the oldest records of a stream, and remove them from the spool once they are in the log.

        If few records are left, all are drained, and new batches wait. Otherwise a stream with steady input would be
        spooled forever. A record that is too large for its topic stays in the spool, because it was acknowledged, and
        is tried again until the topic accepts it.

        Raises TopicTrouble: The topic is then paused. LogUnavailable, RecordTooLarge, and KafkaException: The producer
        must be replaced.
        """
        try:
            await self._ends_of(topic)  # before records are read from the disk: the topic may have been deleted
            attempt = await self._disk.run(self._spool.attempt_of, topic)
            if attempt is not None:
                await self._resolve(attempt)
            if self._behind[topic] > TRANSACTION_RECORDS_MAX:
                await self._drain_chunk(topic)
                return
            self.catching_up = topic
            while self._behind[topic] and self.catching_up == topic:
                if not await self._drain_chunk(topic):
                    await asyncio.sleep(SERVE_S)  # the other records are on their way to the disk
            self.catching_up = None
            self._troubles.pop(topic, None)
        except TopicTrouble as trouble:
            self._put_off(topic, str(trouble))
            raise

    def _put_off(self, topic: str, reason: str) -> None:
        """Pause the topic, longer each time. Log each reason once."""
        logged, pause_s = self._troubles.get(topic, ("", RETRY_S / 2))
        pause_s = min(TROUBLE_RETRY_S_MAX, 2 * pause_s)
        self._troubles[topic] = (reason, pause_s)
        self._retry_at_s[topic] = time.monotonic() + pause_s
        if reason != logged:
            logger.warning("spooled records could not be sent", action="drain_put_off", topic=topic, reason=reason)

    async def _ends_of(self, topic: str) -> dict[int, int]:
        """Return the end offsets of the topic. Raises TopicTrouble."""
        try:
            return await self._finder.ends_of(topic)
        except (LogUnavailable, KafkaException) as error:
            raise TopicTrouble(str(error)) from error

    async def _resolve(self, attempt: Attempt) -> None:
        """Search the log for the attempt, and remove its records from the spool if it has arrived."""
        try:
            chunk = await self._disk.run(partial(self._spool.head, attempt.topic, 0, 0, up_to_id=attempt.last_id))
            if chunk is None:
                await self._disk.run(self._spool.end, attempt.topic, None)
                return
            outcome = await self._finder.outcome_of(attempt, chunk.records)
            if outcome is Outcome.UNKNOWN:
                await self._disk.run(self._spool.set_aside, attempt)
                self._behind[attempt.topic] -= len(chunk.records)
                self._look_at_s = 0.0
                return
            has_arrived = outcome is Outcome.ARRIVED
            await self._disk.run(self._spool.end, attempt.topic, attempt.last_id if has_arrived else None)
        except (LogUnavailable, KafkaException) as error:
            raise TopicTrouble(str(error)) from error
        if has_arrived:
            self._behind[attempt.topic] -= len(chunk.records)
        logger.info(
            "an attempt in doubt was resolved",
            action="attempt_resolved",
            topic=attempt.topic,
            records=len(chunk.records),
            is_in_log=has_arrived,
        )

    async def _drain_chunk(self, topic: str) -> bool:
        """Write one transaction of the topic.

        Return False if no record of it is on disk. Raises the same errors as `drain`.
        """
        chunk = await self._disk.run(self._spool.head, topic, TRANSACTION_RECORDS_MAX, TRANSACTION_BYTES_MAX)
        if chunk is None:
            return False
        ends = await self._ends_of(topic)
        try:
            await self._disk.run(self._spool.begin, Attempt(topic, chunk.last_id, ends))
        except SpoolFull as error:
            raise TopicTrouble(str(error)) from error
        try:
            await self._writer.commit(chunk.records)
        except NOT_CONFIRMED:
            # If only this topic is refused, the others continue.
            self._retry_at_s[topic] = time.monotonic() + REFUSED_RETRY_S
            raise
        self._retry_at_s.pop(topic, None)
        self._troubles.pop(topic, None)
        await self._disk.run(self._spool.end, topic, chunk.last_id)
        self._behind[topic] -= len(chunk.records)
        return True

    # Records in doubt.

    async def apply_decisions(self) -> None:
        """Ask the operator about each doubt, and apply the decisions.

        The records leave the spool when they are dropped or in the log. Raises LogUnavailable, RecordTooLarge, and
        KafkaException if the producer must be replaced; then the doubt stays.
        """
        if not self._is_swept:
            await self._disk.run(self._sweep)
            self._is_swept = True
        if not self._spool.doubts or time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + ANSWER_LOOK_S
        for doubt in list(self._spool.doubts.values()):
            try:
                await self._decide(doubt)
            except TopicTrouble as trouble:
                self._put_off(doubt.topic, str(trouble))

    def _sweep(self) -> None:
        """Remove questions that an earlier process applied and didn't remove."""
        try:
            for question in list(self._questions.all()):
                if question.number not in self._spool.doubts:
                    self._questions.close(question.number)
        except OSError as error:
            logger.warning("old questions could not be removed", action="questions_left", reason=str(error))

    async def _decide(self, doubt: Doubt) -> None:
        records = await self._disk.run(self._spool.doubtful, doubt.number)
        try:
            if doubt.number not in self._asked:
                await self._ask(doubt, records)
            decision = await self._disk.run(self._questions.answer_of, doubt.number)
        except OSError as error:
            raise TopicTrouble(f"the question about spooled records in doubt can't be kept: {error}") from error
        if decision is None:
            return
        if decision is Decision.RESEND and not await self._is_sent_again(doubt, records):
            return
        await self._disk.run(self._spool.end_doubt, doubt.number)
        await self._disk.run(self._questions.close, doubt.number)
        logger.warning(
            "records in doubt left the spool as the operator decided",
            action="doubt_ended",
            topic=doubt.topic,
            records=doubt.records,
            decision=decision.value,
        )

    async def _ask(self, doubt: Doubt, records: list[SpooledRecord]) -> None:
        received = [int(dict(record.headers).get(HEADER_RECEIVED, b"0")) for record in records]
        question = Question(doubt.number, doubt.topic, doubt.records, min(received), max(received))
        await self._disk.run(self._questions.ask, question)
        self._asked.add(doubt.number)
        name = f"{self._spool.path.parent.name}/{doubt.number}"
        logger.error(
            f"the log no longer shows whether {doubt.records} spooled records of stream {doubt.topic} have arrived, because "
            "records from that time were deleted. Nothing was resent; decide with strandline spool resolve "
            f"{name} resend, or drop",
            action="attempt_unknown",
            topic=doubt.topic,
            records=doubt.records,
        )

    async def _is_sent_again(self, doubt: Doubt, records: list[SpooledRecord]) -> bool:
        """Send the records in a transaction of their own. Return False if the operator must decide again."""
        if doubt.scan_from is not None:
            try:
                outcome = await self._finder.outcome_of(Attempt(doubt.topic, 0, doubt.scan_from), records)
            except (LogUnavailable, KafkaException) as error:
                raise TopicTrouble(str(error)) from error
            if outcome is Outcome.UNKNOWN:
                await self._disk.run(self._spool.begin_again, doubt.number, None)
                await self._disk.run(self._questions.close, doubt.number)
                self._asked.discard(doubt.number)
                return False
            if outcome is Outcome.ARRIVED:
                return True
        ends = await self._ends_of(doubt.topic)
        await self._disk.run(self._spool.begin_again, doubt.number, ends)
        await self._writer.commit(records)
        return True
