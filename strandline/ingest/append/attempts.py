"""Finds out from the log whether an attempt in doubt has arrived. Where the log can't show it any more, an operator decides."""

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
"""How old the known ends of a stream's partitions may be: so much of the log is read to resolve an attempt."""
SCAN_IDLE_S = 5.0
"""A scan in which nothing comes for so long has failed, and is repeated."""


class Outcome(StrEnum):
    """What the log shows of an attempt."""

    ARRIVED = "arrived"
    """All its records are in the log."""
    ABSENT = "absent"
    """None of its records is in the log, and none can arrive any more."""
    UNKNOWN = "unknown"
    """None of its records is in the log, and the log has lost offsets at which they could have been."""


class Decision(StrEnum):
    """What an operator decides about records of which nobody knows whether they have arrived."""

    RESEND = "resend"
    """Send them. If they had arrived, they are in the stream twice."""
    DROP = "drop"
    """Delete them. If they hadn't arrived, they are lost."""


@dataclass(frozen=True)
class Question:
    """Records in a spool of which nobody knows whether they have arrived."""

    number: int
    topic: str
    records: int
    received_first_ms: int
    """Time at which the gateway received the first of the records."""
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

    async def outcome_of(self, attempt: Attempt, records: Sequence[SpooledRecord]) -> Outcome:
        """Return whether the records of the attempt, which are those of one transaction, are in the log. Raises LogUnavailable.

        The producer that made the attempt must be fenced: what has not arrived by now never will.
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
        return Outcome.ARRIVED  # a transaction is committed whole: retention has deleted the others since

    def forget(self) -> None:
        """Ask for everything again."""
        self._ends.clear()
        self._admin = None

    def _scan(self, attempt: Attempt, wanted: set[tuple[int, int]]) -> tuple[set[tuple[int, int]], bool]:
        """Which of the wanted (epoch, sequence) of this writer are committed behind the attempt's offsets. False if the log has
        lost offsets from there on, by retention or because somebody deleted records.

        Reads up to where the partitions end now; nothing older can arrive later, because it is fenced. Raises
        LogUnavailable when it can't be told, also while someone else's open transaction hides a part.
        """
        topic, found, is_whole = attempt.topic, set[tuple[int, int]](), True
        starts, ends = self._ask_bounds(topic)
        reader = self._clients.log_reader(SCAN_IDLE_S)
        try:
            for number, end in ends.items():
                noted = attempt.scan_from.get(number, 0)
                if noted > end:
                    noted = 0  # the topic was made anew, or cut off: what it holds may all be younger
                is_whole = is_whole and starts[number] <= noted
                first = max(noted, starts[number])
                for messages in reader.read(OffsetRange(topic, number, first, end)):
                    found |= {place for place in map(self._place_of, messages) if place in wanted and place is not None}
                    if found == wanted:
                        return found, is_whole
        except (LogTruncated, LogUnavailable) as error:
            raise LogUnavailable(
                f"topic {topic} could not be read to its end, so it is not known what of it the spool still has to send; "
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


def _write_whole(path: Path, text: str) -> None:
    """Write the file so that a reader finds all of it or nothing, also after a power cut."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
