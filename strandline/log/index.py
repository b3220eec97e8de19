"""What is where in the log: partitions, starts, ends, and the offset at which a log time falls."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from strandline.core.errors import LogUnavailable
from strandline.log.admin import KafkaAdmin, ReplicaCounts, TopicDescription
from strandline.log.batch_checksums import BatchChecksums

_TIMEOUT_S = 15.0
PARTITIONS_AGE_MAX_S = 2.0
"""Partitions that are added to a topic are seen after so long, at the latest; `refresh` and `settled_ends` see them at once."""
WRITABLE_AGE_MAX_S = 1.0
"""A partition that can't be written any more is noticed after this time at the latest."""
_IN_SYNC_MIN_AGE_MAX_S = 30.0
"""Age at which the setting `min.insync.replicas` of a topic is read again."""
_IN_SYNC_MIN = "min.insync.replicas"
_SETTLED_TIMEOUT_S = 60.0
_SETTLED_POLL_S = 0.01


class LogIndex:
    """Where records stand, for one run of a job. Asks the brokers at each call; only the partitions are remembered for a moment.
    To be closed, or used in a `with`, where `checksums` is called: it keeps connections.

    Every method raises NotFound when there is no such topic, and LogUnavailable when the brokers don't answer in time.
    """

    def __init__(self, bootstrap: str) -> None:
        self._admin = KafkaAdmin(bootstrap, timeout_s=_TIMEOUT_S)
        self._bootstrap = bootstrap
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
        """Close the connections that are kept; the next call of `checksums` makes new ones."""
        if self._checksums is not None:
            self._checksums.close()
            self._checksums = None

    def topic_id(self, stream: str) -> str:
        """The topic's id. A topic that was deleted and made again has another one under the same name."""
        return self._describe(stream).topic_id

    def settings(self, stream: str) -> dict[str, str]:
        """All settings of the topic, by name."""
        return self._admin.config(stream)

    def partitions(self, stream: str) -> list[int]:
        """The partition numbers, as they were PARTITIONS_AGE_MAX_S ago or later."""
        if time.monotonic() - self._described_s.get(stream, -math.inf) > PARTITIONS_AGE_MAX_S:
            self._describe(stream)
        return list(range(self._topics[stream].partitions))

    def refresh(self, stream: str) -> None:
        """Ask Kafka for the partitions now. Needed before looking for records that were just written: a new producer writes to
        an added partition at once."""
        self._describe(stream)

    def _describe(self, stream: str) -> TopicDescription:
        known, found = self._topics.get(stream), self._admin.describe(stream)
        # A topic never loses partitions: a broker that knows of fewer is behind.
        if known is None or known.topic_id != found.topic_id or known.partitions < found.partitions:
            self._topics[stream] = found
        self._described_s[stream] = time.monotonic()
        self._replicas[stream] = found.replica_counts
        return found

    def not_writable(self, stream: str) -> set[int]:
        """The partitions that can't be written: they have no leader, or fewer in-sync replicas than `min.insync.replicas`.

        The answer is at most WRITABLE_AGE_MAX_S old. If the setting can't be read, all partitions count as not writable.
        """
        if time.monotonic() - self._described_s.get(stream, -math.inf) > WRITABLE_AGE_MAX_S:
            self._describe(stream)
        partitions, replicas = self._topics[stream].partitions, self._replicas[stream]
        in_sync_min = self._in_sync_min_of(stream)
        if in_sync_min is None:
            return set(range(partitions))
        # A broker that is behind may not describe all partitions yet.
        described = {at for at, counts in enumerate(replicas) if counts.takes_records(in_sync_min)}
        return set(range(partitions)) - described

    def _in_sync_min_of(self, stream: str) -> int | None:
        """None if it isn't known now."""
        known = self._in_sync_min.get(stream)
        if known is None or time.monotonic() - known[1] > _IN_SYNC_MIN_AGE_MAX_S:
            try:
                setting = self._admin.config(stream).get(_IN_SYNC_MIN, "")
            except LogUnavailable:
                return None
            if not setting.isdecimal():
                return None
            known = self._in_sync_min[stream] = int(setting), time.monotonic()
        return known[0]

    def starts(self, stream: str) -> dict[int, int]:
        """Per partition the first offset held."""
        return self._admin.starts(stream, self.partitions(stream))

    def ends(self, stream: str) -> dict[int, int]:
        """Per partition the offset up to which every transaction is over. Behind the first open one nothing counts yet, not
        even what was committed."""
        return self._admin.ends(stream, self.partitions(stream))

    def ends_with_open(self, stream: str) -> dict[int, int]:
        """Per partition the offset after the last record, open transactions included. A reader that reads up to it waits
        until all transactions before it are over."""
        return self._admin.ends_with_open(stream, self.partitions(stream))

    def newest_log_time(self, stream: str) -> int:
        """The latest log time of a record in the stream (ms); 0 when it holds none."""
        return max(self._admin.newest_log_times(stream, self.partitions(stream)).values(), default=0)

    def settled_ends(self, stream: str) -> dict[int, int]:
        """As `ends`, of all partitions that there are now, once every transaction that is in the stream now is over.

        The wait is needed even after a commit: Kafka confirms a commit before each partition knows of it. Raises
        LogUnavailable when some producer's transaction stays open.
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
                    f"stream {stream} holds a transaction that is still open after {_SETTLED_TIMEOUT_S:g} s, so results "
                    "behind it can't be read; find its producer, or have Kafka abort it"
                )
            time.sleep(_SETTLED_POLL_S)

    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> dict[int, int]:
        """Per partition the first offset whose log time is at or after `log_time_ms`, but at most `ends`."""
        found = self._admin.offsets_at(stream, self.partitions(stream), log_time_ms)
        return {p: min(found[p], end) if found.get(p, -1) >= 0 else end for p, end in ends.items()}

    def checksums(self, stream: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Per partition the checksum of the record batch that holds this offset: another one is another record. A partition that
        holds no such offset is left out."""
        if self._checksums is None:
            self._checksums = BatchChecksums(self._bootstrap, _TIMEOUT_S)
        return self._checksums.at(stream, offsets)
