"""What Kafka holds of the streams that one answer speaks of."""

from __future__ import annotations

import time
from collections.abc import Iterable

from strandline.core.errors import LogUnavailable, NotFound
from strandline.log.kafka_status import KafkaStatus, LogRange


class StreamRanges:
    """Asks Kafka for each stream once, and for no other after it did not answer: an answer about many streams then waits for it
    as long as one about a single stream. Make one for each answer."""

    def __init__(self, log: KafkaStatus, wait_s: float | None = None) -> None:
        """`wait_s`: how long Kafka is waited for, for all streams together; None: as long as `log` waits, and for each."""
        self._log = log
        self._until = None if wait_s is None else time.monotonic() + wait_s
        self._is_away = False
        self._known: dict[str, LogRange | None] = {}

    def of(self, streams: Iterable[str]) -> dict[str, LogRange | None]:
        """What Kafka holds of each; None: unknown. While Kafka is away the status matters most: it shows all but the lag."""
        return {stream: self._of(stream) for stream in streams}

    def _of(self, stream: str) -> LogRange | None:
        if stream not in self._known:
            self._known[stream] = self._ask(stream)
        return self._known[stream]

    def _ask(self, stream: str) -> LogRange | None:
        left_s = None if self._until is None else self._until - time.monotonic()
        if self._is_away or (left_s is not None and left_s <= 0):
            return None
        try:
            return self._log.range(stream, left_s)
        except NotFound:
            return None
        except LogUnavailable:
            self._is_away = True
            return None
