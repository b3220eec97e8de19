"""Refusals of documents whose stream lost its topic.

The offsets in the ledger belong to the records of the lost topic, so no job can read a new topic of the same name.
"""

from __future__ import annotations

from typing import Protocol

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import IDLE_STATES, StreamRow
from strandline.log.admin import TopicDescription
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import emissions_to_streams, present_pipelines
from strandline.processing.pipelines.stored import followers_of


class DescribesTopics(Protocol):
    """The part of `Topics` that the checks use."""

    def find(self, topic: str) -> TopicDescription | None: ...


class TopicChecks:
    """Compares topics with the streams in the ledger. Blocking; changes nothing."""

    def __init__(self, ledger: LedgerReader, topics: DescribesTopics) -> None:
        self._ledger = ledger
        self._topics = topics

    def is_registered(self, stream: str) -> bool:
        """Return True if the stream is registered. A registered stream has had a topic."""
        return self._row(stream) is not None

    def refuse_lost(self, stream: str) -> None:
        """Refuse a registered stream whose topic doesn't exist, or was recreated. Raises Conflict, LogUnavailable."""
        if self.is_registered(stream):
            self.refuse_other(stream, self._topics.find(stream))

    def refuse_other(self, stream: str, topic: TopicDescription | None) -> None:
        """Refuse the stream unless `topic`, which has its name now, is its topic. Raises Conflict with the commands that free the
        name.

        Args: topic: None if it doesn't exist. A stream that isn't registered can have none, or adopt an existing topic, except
        a topic that is still being deleted.
        """
        row = self._row(stream)
        if row is None:
            if topic is not None and self._ledger.topic_of_deleted_stream(stream) == topic.topic_id:
                raise _still_deleted(stream)
        elif topic is None:
            raise Conflict(
                f"stream {stream}: its topic does not exist any more, and its records with it. Nothing was changed, and no new "
                f"topic was created. {self._remedy(stream)}"
            )
        elif row.topic_id is not None and row.topic_id != topic.topic_id:
            raise Conflict(
                f"stream {stream}: its topic was deleted and recreated (topic id {topic.topic_id}, known is {row.topic_id}), so "
                "the offsets in the ledger no longer identify the same records. Nothing was changed. "
                f"{self._remedy(stream, keeps_topic=True)}"
            )

    def _row(self, stream: str) -> StreamRow | None:
        try:
            return self._ledger.stream(stream)
        except NotFound:
            return None

    def _deletion(self, job: str) -> list[str]:
        """Return the commands that delete a job. A job that runs must be stopped before."""
        stop = [] if self._ledger.job(job).state in IDLE_STATES else [f"strandline job stop {job}"]
        return [*stop, f"strandline job delete {job}"]

    def _remedy(self, stream: str, *, keeps_topic: bool = False) -> str:
        """Return the commands that free the name of the stream, in an order in which none of them is refused.

        Args: keeps_topic: True if the present topic can have records that gateways acknowledged.
        """
        commands = [
            *(command for job in _users_before_emitters(self._ledger, stream) for command in self._deletion(job)),
            *(f"strandline lookup delete {one.lookup}" for one in followers_of(self._ledger, stream)),
            f"strandline stream delete {stream}" + " --keep-topic" * keeps_topic,
        ]
        kept = ", which keeps the records of the new topic" * keeps_topic
        return (
            "If a copy of the lost topic exists, restore Kafka, the ledger, and the results from copies of the same moment "
            f"(docs/backup.md). Otherwise free the name: {'; '.join(commands)}{kept}. Then apply the stream again, and its "
            "pipelines under other names, with other sinks; earlier results stay under the old ones"
        )


def _users_before_emitters(ledger: LedgerReader, stream: str) -> list[str]:
    """Return the jobs that read or emit to the stream, or need a lookup that follows it, and those that read results of these
    jobs. A job comes after all jobs that read its results."""
    present = present_pipelines(ledger)
    following = {job for one in followers_of(ledger, stream) for job in ledger.jobs_with_lookup(one.lookup)}
    found: list[str] = []
    seen: set[str] = set()

    def add(job: str) -> None:
        if job not in seen:
            seen.add(job)
            emitted = _emitted(present[job])
            for reader, spec in present.items():
                if emitted.intersection(spec.streams):
                    add(reader)
            found.append(job)

    for job, spec in present.items():
        if job in following or stream in spec.streams or stream in _emitted(spec):
            add(job)
    return found


def _emitted(spec: PipelineSpec) -> set[str]:
    return {stream for _, stream in emissions_to_streams(spec)}


def _still_deleted(stream: str) -> Conflict:
    return Conflict(
        f"the topic of the deleted stream {stream} is still being deleted; apply the documents again when this is done. "
        f"If the deletion has failed, run strandline stream delete {stream}. To keep its records, run strandline stream "
        f"delete {stream} --keep-topic"
    )
