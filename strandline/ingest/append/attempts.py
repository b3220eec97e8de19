"""Search the log for an attempt in doubt. If the log can't show any more whether it arrived, an operator decides."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from strandline.core.errors import LogTruncated, LogUnavailable, NotFound
from strandline.core.record_headers import HEADER_EPOCH, HEADER_SEQUENCE, HEADER_WRITER
from strandline.ingest.append.kafka_clients import KafkaClients
from strandline.ingest.append.spool import Attempt, SpooledRecord
from strandline.ingest.append.worker_thread import WorkerThread
from strandline.log.admin import KafkaAdmin
from strandline.log.messages import LogMessage
from strandline.log.reader import OffsetRange

ENDS_AGE_MAX_S = 10.0
"""Maximum age in seconds of the cached end offsets of a topic. To resolve an attempt, the log is read from these
offsets."""
SCAN_IDLE_S = 5.0
"""A scan that receives no record for this many seconds has failed, and is repeated."""


class Outcome(StrEnum):
    """Result of the search for an attempt in the log."""

    ARRIVED = "arrived"
    """All its records are in the log."""
    ABSENT = "absent"
    """None of its records is in the log, and none can arrive any more."""
    UNKNOWN = "unknown"
    """None of its records is in the log, but the log has lost offsets that could have contained them."""


class Decision(StrEnum):
    """Decision of an operator about records in doubt, which may or may not have arrived."""

    RESEND = "resend"
    """Send them. If they had arrived, they are in the stream twice."""
    DROP = "drop"
    """Delete them. If they hadn't arrived, they are lost."""


@dataclass(frozen=True)
class Question:
    """Records in a spool that are in doubt: they may or may not have arrived."""

    number: int
    topic: str
    records: int
    received_first_ms: int
    """Time in ms at which the gateway received the first of the records."""
    received_last_ms: int


class Questions:
    """Questions to an operator, and the answers: files in the directory of a writer.

    The file of a spool is locked while its gateway runs, so another process can't read it or write to it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def ask(self, question: Question) -> None:
        """Write the question. Raises OSError."""
        _write_whole(self._asked(question.number), json.dumps(asdict(question)))

    def all(self) -> Iterator[Question]:
        """Yield the questions that are open, by their numbers."""
        for path in sorted(self._directory.glob("in-doubt-*.json"), key=lambda path: int(path.stem.rpartition("-")[2])):
            with suppress(FileNotFoundError):  # answered in the meantime
                yield Question(**json.loads(path.read_text()))

    def answer(self, number: int, decision: Decision) -> None:
        """Record the decision. The gateway applies it within seconds, or at its next start. Raises OSError."""
        _write_whole(self._answered(number), decision.value)

    def answer_of(self, number: int) -> Decision | None:
        """Return the decision. None if there is none yet, or if the file contains none. Raises OSError."""
        with suppress(FileNotFoundError, ValueError):
            return Decision(self._answered(number).read_text().strip())
        return None

    def close(self, number: int) -> None:
        """Remove the question and its answer. Raises OSError."""
        self._asked(number).unlink(missing_ok=True)
        self._answered(number).unlink(missing_ok=True)

    def _asked(self, number: int) -> Path:
        return self._directory / f"in-doubt-{number}.json"

    def _answered(self, number: int) -> Path:
        return self._directory / f"in-doubt-{number}.answer"


def open_questions(directories: Mapping[str, Path]) -> Iterator[tuple[str, Question]]:
    """Yield the writer id and each open question of it. `directories`: by writer id, see `writer_directories`."""
    for writer_id, directory in sorted(directories.items()):
        for question in Questions(directory).all():
            yield writer_id, question


class AttemptFinder:
    """Caches the end offsets of topics before attempts are made, and searches the log from these offsets for their
    records."""

    def __init__(self, clients: KafkaClients, thread: WorkerThread) -> None:
        self._clients = clients
        self._thread = thread
        self._writer_id = clients.writer_id.encode()
        self._admin: KafkaAdmin | None = None
        self._ends: dict[str, tuple[float, dict[int, int]]] = {}
        """Topic -> monotonic time of the query, and the end offsets of the partitions at that time."""

    async def ends_of(self, topic: str) -> dict[int, int]:
        """Return recent end offsets of the topic's partitions: a record that is sent from now on is at or after them.

        Raises LogUnavailable.
        """
        now_s = time.monotonic()
        asked_s, ends = self._ends.get(topic, (0.0, {}))
        if not ends or now_s - asked_s > ENDS_AGE_MAX_S:
            _, ends = await self._thread.run(self._ask_bounds, topic)
            self._ends[topic] = (now_s, ends)
        return ends

    async def outcome_of(self, attempt: Attempt, records: Sequence[SpooledRecord]) -> Outcome:
        """Return whether the records of the attempt, which are the records of one transaction, are in the log.

        The producer that made the attempt must be fenced: then a record that hasn't arrived yet never will. Raises
        LogUnavailable.
        """
        wanted = {(record.epoch, record.sequence) for record in records}
        found, is_whole = await self._thread.run(self._scan, attempt, wanted)
        if found == wanted:
            return Outcome.ARRIVED
        if not found:
            return Outcome.ABSENT if is_whole else Outcome.UNKNOWN
        if is_whole:
            raise LogUnavailable(
                f"{len(found)} of {len(wanted)} records of one transaction are in topic {attempt.topic}; was the topic "
                f"deleted and created again? The spool keeps them all"
            )
        # A transaction is committed as a whole: retention has deleted the other records since then.
        return Outcome.ARRIVED

    def forget(self) -> None:
        """Drop the cached offsets and the admin client."""
        self._ends.clear()
        self._admin = None

    def _scan(self, attempt: Attempt, wanted: set[tuple[int, int]]) -> tuple[set[tuple[int, int]], bool]:
        """Return which of the wanted (epoch, sequence) pairs of this writer are committed at or after the attempt's
        offsets.

        The second value is False if the log has lost offsets of this range, by retention or because records were
        deleted. The scan ends at the current ends of the partitions: older records can't arrive later, because their
        producer is fenced. Raises LogUnavailable if the answer isn't known, for example while an open transaction of
        another producer hides records.
        """
        topic, found, is_whole = attempt.topic, set[tuple[int, int]](), True
        starts, ends = self._ask_bounds(topic)
        reader = self._clients.log_reader(SCAN_IDLE_S)
        try:
            for number, end in ends.items():
                noted = attempt.scan_from.get(number, 0)
                if noted > end:
                    noted = 0  # the topic was recreated or truncated, so all its records may be younger
                is_whole = is_whole and starts[number] <= noted
                first = max(noted, starts[number])
                for messages in reader.read(OffsetRange(topic, number, first, end)):
                    found |= {place for place in map(self._place_of, messages) if place in wanted and place is not None}
                    if found == wanted:
                        return found, is_whole
        except (LogTruncated, LogUnavailable) as error:
            raise LogUnavailable(
                f"topic {topic} could not be read to its end, so it is unknown which of its records the spool must still send; "
                f"it is tried again ({error})"
            ) from error
        finally:
            reader.close()
        return found, is_whole

    def _place_of(self, message: LogMessage) -> tuple[int, int] | None:
        headers: dict[str, Any] = dict(message.headers() or ())
        if headers.get(HEADER_WRITER) != self._writer_id:
            return None
        return int(headers[HEADER_EPOCH]), int(headers[HEADER_SEQUENCE])

    def _ask_bounds(self, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        """Return the current start and end offsets of the topic's partitions."""
        admin = self._admin = self._admin or self._clients.admin()
        try:
            partitions = range(admin.describe(topic).partitions)
            return admin.starts(topic, partitions), admin.ends_with_open(topic, partitions)
        except NotFound as error:  # the records wait in the spool until the topic is there again
            raise LogUnavailable(str(error)) from error
        except LogUnavailable:
            self._admin = None
            raise


def _write_whole(path: Path, text: str) -> None:
    """Write the file atomically and durably: a reader finds the complete text or no file, even after a power failure."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
