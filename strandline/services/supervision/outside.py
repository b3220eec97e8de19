"""Whether what jobs need outside answers: the control service's own look at Kafka, Elasticsearch and a schema registry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import sqlalchemy as sa

from strandline.core.errors import LogUnavailable, StrandlineError
from strandline.core.network.http_limits import bounded_stream
from strandline.log.admin import KafkaAdmin
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.results.elasticsearch_client import RequestRefused, request
from strandline.services.trust import certificates_for

ASK_S = 5.0
"""So long an answer counts: during an outage many jobs ask, and each look may take two timeouts."""
TIMEOUT_S = 2.0


class Outside:
    """Kafka, Elasticsearch and the schema registry, if one is set, as the jobs see them. The ledger is not asked: who asks here
    has just used it."""

    def __init__(
        self,
        kafka: KafkaAdmin,
        elasticsearch_url: str,
        registry_url: str | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`kafka` waits no longer than TIMEOUT_S."""
        self._kafka = kafka
        self._elasticsearch_url = elasticsearch_url
        self._registry_url = registry_url
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._asked_s: float | None = None
        self._answered = False

    def answers(self) -> bool:
        """Whether all answer, and can be written to, where they are to be. Asked at most once in ASK_S."""
        with self._lock:
            if self._asked_s is None or self._clock_s() - self._asked_s >= ASK_S:
                self._answered = (
                    self._does_kafka_answer()
                    and elasticsearch_answers(self._elasticsearch_url)
                    and self._does_registry_answer()
                )
                self._asked_s = self._clock_s()
            return self._answered

    def _does_kafka_answer(self) -> bool:
        try:
            self._kafka.check_writable()
        except LogUnavailable:
            return False
        return True

    def _does_registry_answer(self) -> bool:
        """One that refuses us answers: that is no outage, and somebody has to mend it."""
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


def elasticsearch_answers(url: str) -> bool:
    """Whether Elasticsearch answers within TIMEOUT_S, and can be written to."""
    try:
        health: Any = request(url, "GET", "/_cluster/health", timeout_s=TIMEOUT_S)
    except RequestRefused:
        return True  # it reads requests, and doesn't let everybody ask this
    except StrandlineError:
        return False
    return bool(health["status"] != "red")


def store_away(pipeline: CheckedPipeline, elasticsearch_url: str, sql_sink_url: str | None) -> str | None:
    """The store that the pipeline emits to and that does not answer, in words; None where all do. Kafka, files and the sinks of
    packages are not asked."""
    kinds = {emit.kind for stage in pipeline.all_stages for emit in stage.emits}
    if "elasticsearch" in kinds and not elasticsearch_answers(elasticsearch_url):
        return "Elasticsearch"
    if "sql" in kinds and sql_sink_url is not None and not _database_answers(sql_sink_url):
        return "the database of STRANDLINE_SQL_SINK_URL"
    return None


def _database_answers(url: str) -> bool:
    wait = {"timeout" if url.startswith("sqlite") else "connect_timeout": int(TIMEOUT_S)}
    try:
        with sa.create_engine(url, poolclass=sa.NullPool, connect_args=wait).connect():
            return True
    except (sa.exc.SQLAlchemyError, ImportError):
        return False
