"""Availability of external services that jobs need: the control service's own check of Kafka, Elasticsearch, and a schema
registry.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx

from strandline.core.errors import LogUnavailable
from strandline.core.network.http_limits import bounded_stream
from strandline.core.settings import Settings
from strandline.log.admin import KafkaAdmin
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.results.elasticsearch_client import is_writable
from strandline.results.sinks.registry import sink_of
from strandline.services.trust import certificates_for

RESULT_VALID_S = 5.0
"""Time in seconds for which a result is cached: in an outage, many jobs need it, and each check can take two timeouts."""
TIMEOUT_S = 2.0


class ExternalServices:
    """Kafka, Elasticsearch, and the schema registry, if one is configured. The ledger isn't checked, because callers have just
    used it."""

    def __init__(
        self,
        kafka: KafkaAdmin,
        elasticsearch_url: str,
        registry_url: str | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: kafka: Client whose timeout is at most TIMEOUT_S."""
        self._kafka = kafka
        self._elasticsearch_url = elasticsearch_url
        self._registry_url = registry_url
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._checked_s: float | None = None
        self._is_up = False

    def are_up(self) -> bool:
        """Return True if all respond and accept writes, as far as jobs write to them. Checked at most once in RESULT_VALID_S."""
        with self._lock:
            if self._checked_s is None or self._clock_s() - self._checked_s >= RESULT_VALID_S:
                self._is_up = (
                    self._does_kafka_respond()
                    and is_writable(self._elasticsearch_url, TIMEOUT_S)
                    and self._does_registry_respond()
                )
                self._checked_s = self._clock_s()
            return self._is_up

    def _does_kafka_respond(self) -> bool:
        try:
            self._kafka.check_writable()
        except LogUnavailable:
            return False
        return True

    def _does_registry_respond(self) -> bool:
        """Return True also if the registry refuses the login: that is no outage, and needs a correction by a user."""
        if self._registry_url is None:
            return True
        try:
            url = f"{self._registry_url.rstrip('/')}/schemas/types"
            verify = certificates_for(url, None)
            with (
                httpx.Client(timeout=TIMEOUT_S, trust_env=False, verify=verify) as client,
                bounded_stream(client, "GET", url, TIMEOUT_S) as answer,
            ):
                return answer.status_code < 500
        except (httpx.HTTPError, httpx.InvalidURL):
            return False


def unavailable_store(pipeline: CheckedPipeline, settings: Settings) -> str | None:
    """Return the name of a server that the pipeline emits to and that doesn't respond. None if all respond. Kafka, files, and
    most sinks of packages aren't checked."""
    sinks = dict.fromkeys(sink_of(emit) for stage in pipeline.all_stages for emit in stage.emits)
    return next((name for sink in sinks if (name := sink.away(settings, TIMEOUT_S)) is not None), None)
