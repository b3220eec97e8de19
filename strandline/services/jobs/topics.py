"""Topics of the Kafka cluster from which users can choose one for a new stream."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.described import Described
from strandline.core.document_values import check_name
from strandline.core.errors import Conflict, NotFound
from strandline.core.record_headers import dead_letter_topic
from strandline.ledger.roles import LedgerReader
from strandline.log.kafka_status import KafkaStatus, TopicSummary
from strandline.log.topics import require_complete_log

TOPICS_MAX = 500
"""Maximum number of topics of one page: Kafka describes all of them in the same requests."""
_INTERNAL_PREFIX = "__"
"""Prefix of Kafka's own topics."""


@dataclass(frozen=True)
class TopicView(Described):
    """A topic of the Kafka cluster."""

    topic: str
    partitions: int | None
    """Number of partitions. Null if Kafka doesn't return it."""
    records: int | None
    """Maximum number of records: the range of offsets, over all partitions. Null if Kafka doesn't return it."""
    retention_ms: int | None
    """Retention in milliseconds; -1 if records are kept forever. Null if Kafka doesn't return it."""
    is_stream: bool
    """True if a stream with this topic is registered."""
    problem: str | None
    """Reason why no stream can be registered for the topic. Null if there is none."""


@dataclass(frozen=True)
class TopicList(Described):
    """Page of the topics of the Kafka cluster, by name. Without Kafka's own topics, and without dead letters of jobs."""

    matches: int
    """Number of topics that match the search."""
    topics: list[TopicView]
    next: str | None
    """Path of the next page. Null if there is none."""


def topic_names(ledger: LedgerReader, log: KafkaStatus, search: str) -> list[str]:
    """Return the topics whose name contains the text, regardless of case, in order. Without internal topics.

    Raises LogUnavailable.
    """
    text = search.casefold()
    letters = {dead_letter_topic(job.name) for job in ledger.jobs()}
    return [
        name
        for name in log.topic_names()
        if text in name.casefold() and name not in letters and not name.startswith(_INTERNAL_PREFIX)
    ]


def topic_views(ledger: LedgerReader, log: KafkaStatus, names: list[str]) -> list[TopicView]:
    """Return these topics, without those that were deleted in the meantime."""
    streams = {row.name for row in ledger.streams()}
    views = []
    for name, summary in log.summaries(names).items():
        if isinstance(summary, NotFound):
            continue
        if isinstance(summary, TopicSummary):
            facts = summary.partitions, summary.records, int(summary.config["retention.ms"])
            views.append(TopicView(name, *facts, is_stream=name in streams, problem=_problem(name, summary)))
        else:
            # With access control, Kafka can refuse the settings of a single topic.
            views.append(TopicView(name, None, None, None, is_stream=name in streams, problem=str(summary)))
    return views


def _problem(name: str, summary: TopicSummary) -> str | None:
    try:
        check_name(name)
        require_complete_log(name, summary.config)
    except (ValueError, Conflict) as error:
        return str(error)
    return None
