"""Positions in the log: partitions, their first and last offsets, the offset of a log time, and checksums of record batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Self

from strandline.core.errors import LogUnavailable, StrandlineError
from strandline.log.admin import KafkaAdmin, ReplicaCounts, TopicDescription
from strandline.log.answers import Answers, answer_of, answers_of, good
from strandline.log.batch_checksums import BatchChecksums, LogPosition

_TIMEOUT_S = 15.0
PARTITIONS_AGE_MAX_S = 2.0
"""Maximum age in seconds of the partition count. `refresh` and `settled_ends` see added partitions immediately."""
WRITABLE_AGE_MAX_S = 1.0
"""Maximum age in seconds of the answer of `not_writable`."""
_IN_SYNC_MIN_AGE_MAX_S = 30.0
"""Age in seconds at which the setting `min.insync.replicas` of a topic is read again."""
_IN_SYNC_MIN = "min.insync.replicas"
_SETTLED_TIMEOUT_S = 60.0
_SETTLED_POLL_S = 0.01


class LogIndex:
    """Partitions, first and end offsets, offsets of log times, and checksums of the log, for the runs of one or more
    jobs.

    It queries the brokers at each call; only the partitions are cached for a moment. Use it in a `with` statement, or
    close it, if `checksums` is called: it keeps connections.

    Every method raises NotFound if the topic doesn't exist, and LogUnavailable if the brokers don't answer in time. The
    methods for several streams send one request for all of them, and return the error of a stream as its answer.
    """

    def __init__(self, bootstrap: str, *, timeout_s: float = _TIMEOUT_S, patience_s: float | None = None) -> None:
        """`patience_s`: Seconds for which a request is repeated while its answer for a stream is a temporary error. The
        other streams of the request wait for it. None for the timeout.
        """
        self._admin = KafkaAdmin(bootstrap, timeout_s=timeout_s, patience_s=patience_s)
        self._bootstrap = bootstrap
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._topics: dict[str, TopicDescription] = {}
        self._described_s: dict[str, float] = {}
        self._replicas: dict[str, tuple[ReplicaCounts, ...]] = {}
        self._in_sync_min: dict[str, tuple[int, float]] = {}
        """Topic -> its `min.insync.replicas`, and when it was read."""
        self._checksums: BatchChecksums | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that are kept. The next call of `checksums` opens new ones."""
        if self._checksums is not None:
            self._checksums.close()
            self._checksums = None

    def topic_id(self, stream: str) -> str:
        """Return the topic's id. A topic that was deleted and recreated has another id under the same name."""
        return answer_of(self.topic_ids([stream]), stream)

    def topic_ids(self, streams: Collection[str]) -> Answers[str]:
        """Read `topic_id` of several streams with one request."""
        described = self._describe(streams)
        return answers_of(described, lambda stream: answer_of(described, stream).topic_id)

    def settings(self, stream: str) -> dict[str, str]:
        """Return all settings of the topic, by name."""
        return self._admin.config(stream)

    def partitions(self, stream: str) -> list[int]:
        """Return the partition numbers. They are at most PARTITIONS_AGE_MAX_S old."""
        return answer_of(self._partitions([stream]), stream)

    def _partitions(self, streams: Collection[str]) -> Answers[list[int]]:
        described = self._described(streams, PARTITIONS_AGE_MAX_S)
        return answers_of(described, lambda stream: list(range(answer_of(described, stream).partitions)))

    def refresh(self, stream: str) -> None:
        """Query the partitions now.

        Needed before a search for new records, because a new producer writes to an added partition immediately.
        """
        answer_of(self._describe([stream]), stream)

    def _described(self, streams: Collection[str], age_max_s: float) -> Answers[TopicDescription]:
        """Return the descriptions of these topics. Those that are older than this are read again."""
        asked_s = time.monotonic()
        old = [one for one in streams if asked_s - self._described_s.get(one, -math.inf) > age_max_s]
        failed = {one: answer for one, answer in self._describe(old).items() if isinstance(answer, StrandlineError)}
        return {stream: failed.get(stream) or self._topics[stream] for stream in streams}

    def _describe(self, streams: Collection[str]) -> Answers[TopicDescription]:
        if not streams:
            return {}
        answers = self._admin.describe_each(streams)
        for stream, found in good(answers).items():
            known = self._topics.get(stream)
            # A topic never loses partitions: a broker that knows fewer has outdated metadata.
            if known is None or known.topic_id != found.topic_id or known.partitions < found.partitions:
                self._topics[stream] = found
            self._described_s[stream] = time.monotonic()
            self._replicas[stream] = found.replica_counts
        return answers

    def not_writable(self, stream: str) -> set[int]:
        """Return the partitions that can't be written: they have no leader, or fewer in-sync replicas than
        `min.insync.replicas`.

        The answer is at most WRITABLE_AGE_MAX_S old. If the setting can't be read, all partitions count as not
        writable.
        """
        return answer_of(self.not_writable_of([stream]), stream)

    def not_writable_of(self, streams: Collection[str]) -> Answers[set[int]]:
        """Read `not_writable` of several streams with one request."""
        described = self._described(streams, WRITABLE_AGE_MAX_S)
        in_sync_min = self._in_sync_min_of(good(described))

        def of_stream(stream: str) -> set[int]:
            partitions = set(range(answer_of(described, stream).partitions))
            wanted = answer_of(in_sync_min, stream)
            if wanted is None:
                return partitions
            # A broker with outdated metadata may not describe all partitions yet.
            return partitions - {at for at, one in enumerate(self._replicas[stream]) if one.takes_records(wanted)}

        return answers_of(described, of_stream)

    def _in_sync_min_of(self, streams: Collection[str]) -> Answers[int | None]:
        """Return the setting of each topic. None if it is unknown now."""
        asked_s = time.monotonic()
        read_s = {one: self._in_sync_min[one][1] if one in self._in_sync_min else -math.inf for one in streams}
        old = [stream for stream in streams if asked_s - read_s[stream] > _IN_SYNC_MIN_AGE_MAX_S]
        settings = self._admin.config_each(old) if old else {}

        def of_stream(stream: str) -> int | None:
            if stream not in settings:
                return self._in_sync_min[stream][0]
            try:
                setting = answer_of(settings, stream).get(_IN_SYNC_MIN, "")
            except LogUnavailable:
                return None
            if not setting.isdecimal():
                return None
            self._in_sync_min[stream] = int(setting), time.monotonic()
            return int(setting)

        return answers_of(streams, of_stream)

    def starts(self, stream: str) -> dict[int, int]:
        """Return the first offset of each partition."""
        return answer_of(self.starts_of([stream]), stream)

    def starts_of(self, streams: Collection[str]) -> Answers[dict[int, int]]:
        """Read `starts` of several streams with one request."""
        return self._of_partitions(streams, self._admin.starts_each)

    def ends(self, stream: str) -> dict[int, int]:
        """Return for each partition the offset up to which every transaction has ended.

        Records after the first open transaction don't count yet, even committed ones.
        """
        return answer_of(self.ends_of([stream]), stream)

    def ends_of(self, streams: Collection[str]) -> Answers[dict[int, int]]:
        """Read `ends` of several streams with one request."""
        return self._of_partitions(streams, self._admin.ends_each)

    def ends_with_open(self, stream: str) -> dict[int, int]:
        """Return for each partition the offset after the last record, including open transactions.

        A reader that reads up to this offset waits until all earlier transactions have ended.
        """
        return answer_of(self.ends_with_open_of([stream]), stream)

    def ends_with_open_of(self, streams: Collection[str]) -> Answers[dict[int, int]]:
        """Read `ends_with_open` of several streams with one request."""
        return self._of_partitions(streams, self._admin.ends_with_open_each)

    def _of_partitions(
        self, streams: Collection[str], ask: Callable[[dict[str, list[int]]], Answers[dict[int, int]]]
    ) -> Answers[dict[int, int]]:
        partitions = self._partitions(streams)
        found = ask(good(partitions))
        unknown = {stream: one for stream, one in partitions.items() if isinstance(one, StrandlineError)}
        return found | unknown

    def newest_log_time(self, stream: str) -> int:
        """Return the latest log time of a record in the stream in ms. 0 if it is empty."""
        return max(self._admin.newest_log_times(stream, self.partitions(stream)).values(), default=0)

    def settled_ends(self, stream: str) -> dict[int, int]:
        """Return the `ends` of all current partitions, after every transaction that is in the stream now has ended.

        The wait is needed even after a commit: Kafka confirms a commit before each partition has recorded it. Raises
        LogUnavailable if a producer's transaction stays open.
        """
        self.refresh(stream)
        written = self.ends_with_open(stream)
        deadline = time.monotonic() + _SETTLED_TIMEOUT_S
        while True:
            ends = self.ends(stream)
            if all(ends[partition] >= offset for partition, offset in written.items()):
                return ends
            if time.monotonic() > deadline:
                raise LogUnavailable(
                    f"stream {stream} contains a transaction that is still open after {_SETTLED_TIMEOUT_S:g} s, so results "
                    "after it can't be read; find its producer, or have Kafka abort it"
                )
            time.sleep(_SETTLED_POLL_S)

    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        """Return for each partition the first offset whose log time is at or after `log_time_ms`, but at most `ends`."""
        found = self._admin.offsets_at(stream, self.partitions(stream), log_time_ms)
        return {p: min(found[p], end) if found.get(p, -1) >= 0 else end for p, end in ends.items()}

    def checksums(self, stream: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return for each partition the checksum of the record batch with this offset.

        Another checksum means another record. A partition that lacks the offset is left out.
        """
        found = self.checksums_at([LogPosition(stream, partition, offset) for partition, offset in offsets.items()])
        return {place.partition: answer_of({stream: checksum}, stream) for place, checksum in found.items()}

    def checksums_at(self, positions: Collection[LogPosition]) -> dict[LogPosition, int | LogUnavailable]:
        """Return the checksum of the record batch at each of these offsets. An offset that its partition doesn't hold is left
        out. The answer is LogUnavailable if the brokers don't answer for the offset in time."""
        if self._checksums is None:
            self._checksums = BatchChecksums(self._bootstrap, self._timeout_s, self._patience_s)
        return self._checksums.at(positions)
