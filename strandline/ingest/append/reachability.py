"""For which topics Kafka does not confirm at present, so that their requests are refused at once instead of waiting."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from strandline.ingest.append.outcome import LogAway

logger = structlog.get_logger()

PROBE_S = 0.25
"""While Kafka is away and nothing of a topic is under way, how often a batch is let through to find out."""


class Reachability:
    """Knows the topics for which Kafka is away, and lets one batch at a time through to find out whether it is back."""

    def __init__(self, bootstrap: str, clock_s: Callable[[], float]) -> None:
        self._bootstrap = bootstrap
        self._clock_s = clock_s
        self._away: dict[str, float] = {}
        """Topic -> when the next batch may be let through."""

    def check(self, topic: str, is_under_way: bool) -> None:
        """Return if a batch of the topic may be sent. Raises LogAway. A batch that is under way will tell by itself."""
        if topic not in self._away:
            return
        if is_under_way or self._clock_s() < self._away[topic]:
            raise self.refusal(topic)
        self._away[topic] = self._clock_s() + PROBE_S

    def refusal(self, topic: str) -> LogAway:
        """What a caller is told of whose batch nothing is sent."""
        return LogAway(
            f"Kafka at {self._bootstrap} does not confirm records of topic {topic} at present; nothing of this "
            f"request was persisted: send it again a little later"
        )

    def note_away(self, topic: str, reason: str) -> None:
        """Kafka did not confirm a batch of the topic."""
        if topic not in self._away:
            self._away[topic] = 0.0
            logger.warning(
                "Kafka does not confirm", action="kafka_lost", kafka=self._bootstrap, topic=topic, reason=reason
            )

    def note_reached(self, topic: str) -> None:
        """Kafka confirmed a batch of the topic."""
        if self._away.pop(topic, None) is not None:
            logger.info("Kafka confirms again", action="kafka_reached", kafka=self._bootstrap, topic=topic)
