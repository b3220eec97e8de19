"""The topics that Kafka doesn't confirm now, so that their requests are refused immediately instead of waiting."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from strandline.ingest.append.outcome import LogAway

logger = structlog.get_logger()

PROBE_S = 0.25
"""Interval in seconds at which one batch is sent as a probe, while Kafka is away and nothing of the topic is in flight.
"""


class Reachability:
    """Tracks the topics for which Kafka is away, and lets one batch at a time pass to detect that Kafka is back."""

    def __init__(self, bootstrap: str, clock_s: Callable[[], float]) -> None:
        self._bootstrap = bootstrap
        self._clock_s = clock_s
        self._away: dict[str, float] = {}
        """Topic -> time at which the next batch may pass."""

    def check(self, topic: str, is_under_way: bool) -> None:
        """Return if a batch of the topic may be sent now. Raises LogAway if it must not be.

        No probe is sent while a batch is under way, because its outcome shows whether Kafka is back.
        """
        if topic not in self._away:
            return
        if is_under_way or self._clock_s() < self._away[topic]:
            raise self.refusal(topic)
        self._away[topic] = self._clock_s() + PROBE_S

    def refusal(self, topic: str) -> LogAway:
        """Return the error for a caller whose batch was not sent."""
        return LogAway(
            f"Kafka at {self._bootstrap} does not confirm records of topic {topic} at present; nothing of this "
            f"request was persisted: send it again a little later"
        )

    def note_away(self, topic: str, reason: str) -> None:
        """Note that Kafka didn't confirm a batch of the topic."""
        if topic not in self._away:
            self._away[topic] = 0.0
            logger.warning(
                "Kafka does not confirm", action="kafka_lost", kafka=self._bootstrap, topic=topic, reason=reason
            )

    def note_reached(self, topic: str) -> None:
        """Note that Kafka confirmed a batch of the topic."""
        if self._away.pop(topic, None) is not None:
            logger.info("Kafka confirms again", action="kafka_reached", kafka=self._bootstrap, topic=topic)
