"""Newest record of each stream, according to Kafka."""

from __future__ import annotations

import time
from dataclasses import dataclass

from strandline.core.described import Described
from strandline.core.errors import LogUnavailable, NotFound
from strandline.log.kafka_status import KafkaStatus

_WAIT_S = 5.0
"""Maximum time for all streams of one response."""
_QUESTION_S_MIN = 0.05


@dataclass(frozen=True)
class ArrivalPartitionView(Described):
    partition: int
    offset_next: int
    newest_ms: int | None
    """Log time of the newest record; null if the partition has none."""


@dataclass(frozen=True)
class ArrivalView(Described):
    """The newest record of a stream."""

    stream: str
    newest_ms: int | None
    """Log time of the newest record; null if the topic has none, or if Kafka doesn't respond."""
    records: int | None
    """Number of records in the topic; null if Kafka doesn't respond."""
    partitions: list[ArrivalPartitionView]
    problem: str
    """Reason why Kafka can't be queried for the stream; empty if it can."""


class ArrivalQueries:
    """Queries Kafka for one response. After a timeout, or after _WAIT_S, it isn't queried again."""

    def __init__(self, log: KafkaStatus) -> None:
        self._log = log
        self._until_s = time.monotonic() + _WAIT_S
        self._problem = ""

    def of(self, stream: str) -> ArrivalView:
        """Return the newest record of the stream. If Kafka doesn't respond, the view contains the reason."""
        left_s = self._until_s - time.monotonic()
        if not self._problem and left_s < _QUESTION_S_MIN:
            self._problem = f"Kafka did not respond for all streams within {_WAIT_S:g} s; the page queries it again"
        if self._problem:
            return _unknown(stream, self._problem)
        try:
            held = self._log.range(stream, left_s)
            newest = self._log.newest_log_times(stream, held.offset_next.keys(), left_s)
        except NotFound as error:
            return _unknown(stream, str(error))
        except LogUnavailable as error:
            self._problem = str(error)
            return _unknown(stream, self._problem)
        partitions = [
            ArrivalPartitionView(partition=at, offset_next=held.offset_next[at], newest_ms=newest.get(at) or None)
            for at in sorted(held.offset_next)
        ]
        return ArrivalView(
            stream=stream,
            newest_ms=max((one.newest_ms for one in partitions if one.newest_ms is not None), default=None),
            records=sum(held.offset_next[at] - held.offset_first[at] for at in held.offset_next),
            partitions=partitions,
            problem="",
        )


def _unknown(stream: str, problem: str) -> ArrivalView:
    return ArrivalView(stream=stream, newest_ms=None, records=None, partitions=[], problem=problem)
