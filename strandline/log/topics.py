"""The Kafka topics of streams: created when a stream or a job needs them, and never changed so that records are lost.

Invariants of a topic that Strandline created:

- `LogAppendTime`: retention and slices use the time of arrival; event time stays in the payload. A topic that existed
  before may have `CreateTime`: its log time is then set by the producers.
- `cleanup.policy=delete`: compaction would remove records from the middle of the log, and no rewind could be repeated.
- The number of partitions stays. Otherwise a key would move to another partition, and lose the order of its records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from strandline.core.errors import Conflict, LogUnavailable, NotFound
from strandline.core.record_headers import dead_letter_topic
from strandline.core.streams.stream import StreamSpec
from strandline.core.times.durations import FOREVER_MS, format_retention
from strandline.log.admin import Hazard, HazardKind, KafkaAdmin, TopicDescription
from strandline.log.record_size import record_batch_bytes_max

DEAD_LETTER_PARTITIONS = 1
"""Dead letters are few, and one partition keeps them in order."""
DEAD_LETTER_RETENTION_MS = 30 * 86_400_000
"""Thirty days, because people read dead letters, not programs."""
_CONFIRMING_MIN = 2
"""Replicas that must have a record before Kafka confirms it, so that the record survives the loss of one broker."""
_POLL_S = 0.05


class Topics:
    """Creates and describes topics. Used by the control service when a stream or a job is applied. Blocking.

    Every method raises LogUnavailable if the brokers don't answer within `timeout_s`.
    """

    def __init__(
        self, kafka_bootstrap: str, *, replication: int, record_bytes_max: int, timeout_s: float = 30.0
    ) -> None:
        self._admin = KafkaAdmin(kafka_bootstrap, timeout_s=timeout_s, changes_topics=True)
        self._replication = replication
        self._batch_bytes_max = record_batch_bytes_max(record_bytes_max)

    def ensure_stream_topic(self, spec: StreamSpec, *, creates: bool = True) -> TopicDescription:
        """Create the stream's topic, or change the existing topic to match the spec. Return when the topic can be
        written.

        Idempotent. Retention may grow. Raises Conflict, and changes nothing, if the existing topic has another number
        of partitions, would lose records by a shorter retention, or is compacted.

        Args: creates: False for a stream that had a topic before: if it no longer exists, raise NotFound.
        """
        if creates:
            made = self._create_unless_present(spec.stream, spec.partitions, spec.retention_ms)
            if made is not None:
                return made
        else:
            self._admin.describe(spec.stream)
        present = self._wait_until_writable(spec.stream)
        config = self._config_that_fits(spec, present)
        changes = {}
        if _retention_grows(spec, int(config["retention.ms"])):
            changes["retention.ms"] = str(spec.retention_ms)
        self._change_config(spec.stream, changes | self._room_for_records(config))
        return _with_settings(present, config)

    def present_stream_topic(self, spec: StreamSpec) -> TopicDescription | None:
        """Return the existing topic of the stream.

        None if there is none. Changes nothing. Raises Conflict like `ensure_stream_topic`.
        """
        present = self.find(spec.stream)
        return None if present is None else _with_settings(present, self._config_that_fits(spec, present))

    def ensure_room_for_records(self, topic: str) -> None:
        """Make an existing topic accept the largest record, and change nothing else. Raises Conflict if the brokers refuse."""
        self._change_config(topic, self._room_for_records(self._admin.config(topic)))

    def require_complete_log(self, topic: str) -> None:
        """Raise Conflict if an existing topic is compacted, and NotFound if it doesn't exist."""
        require_complete_log(topic, self._admin.config(topic))

    def ensure_dead_letter_topic(self, job: str) -> TopicDescription:
        """Create the job's dead-letter topic, or make the existing topic accept the dead letter of the largest record.

        The retention of an existing topic stays, because an operator may have set it. Raises Conflict if the topic is
        compacted.
        """
        topic = dead_letter_topic(job)
        made = self._create_unless_present(topic, DEAD_LETTER_PARTITIONS, DEAD_LETTER_RETENTION_MS)
        if made is not None:
            return made
        present = self._wait_until_writable(topic)
        config = self._admin.config(topic)
        require_complete_log(topic, config)
        self._change_config(topic, self._room_for_records(config))
        return _with_settings(present, config)

    def describe(self, topic: str) -> TopicDescription:
        """Return the topic's partitions and id. Raises NotFound if it doesn't exist."""
        return self._admin.describe(topic)

    def find(self, topic: str) -> TopicDescription | None:
        """Return the topic's partitions and id. None if it doesn't exist."""
        try:
            return self._admin.describe(topic)
        except NotFound:
            return None

    def _config_that_fits(self, spec: StreamSpec, present: TopicDescription) -> Mapping[str, str]:
        """Return the settings of an existing topic. Raises Conflict if it can't be changed to match the document."""
        if present.partitions != spec.partitions:
            raise Conflict(
                f"topic {spec.stream} has {present.partitions} partitions, but the document has {spec.partitions}. Fewer "
                f"would lose records, and more would move keys to other partitions and lose their order; "
                f"write partitions: {present.partitions}, or register a stream under another name"
            )
        config = self._admin.config(spec.stream)
        require_complete_log(spec.stream, config)
        _retention_grows(spec, int(config["retention.ms"]))  # raises Conflict for a shorter retention
        return config

    def _create_unless_present(self, topic: str, partitions: int, retention_ms: int) -> TopicDescription | None:
        """Return the new topic once it can be written, or None if it exists already."""
        try:
            self._admin.describe(topic)
        except NotFound:
            config = self._config_of_new(retention_ms)
            if self._admin.create(topic, partitions, self._replication, config):
                return self._wait_until_writable(topic)
        return None

    def _config_of_new(self, retention_ms: int) -> dict[str, str]:
        return {
            "cleanup.policy": "delete",
            "message.timestamp.type": "LogAppendTime",
            "retention.ms": str(retention_ms),
            "retention.bytes": "-1",  # a broker's size limit would delete records before their retention is over
            "max.message.bytes": str(self._batch_bytes_max),
            # With three replicas an acknowledged record survives the loss of any one.
            "min.insync.replicas": str(max(1, self._replication - 1)),
            "unclean.leader.election.enable": "false",
        }

    def _wait_until_writable(self, topic: str) -> TopicDescription:
        """Wait until the leader of each partition answers: brokers receive the metadata of a new topic a moment after
        its creation."""
        deadline = time.monotonic() + self._admin.timeout_s
        while True:
            description = self._described_if_writable(topic)
            if description is not None:
                return description
            if time.monotonic() > deadline:
                raise LogUnavailable(
                    f"topic {topic} has no leader for every partition after {self._admin.timeout_s:g} s; "
                    f"check the brokers at {self._admin.bootstrap}, and try again"
                )
            time.sleep(_POLL_S)

    def _described_if_writable(self, topic: str) -> TopicDescription | None:
        try:
            description = self._admin.describe(topic)
        except NotFound:
            return None
        return description if self._admin.do_leaders_answer(topic, range(description.partitions)) else None

    def _room_for_records(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return the changes of a topic's settings that make the largest record fit. A higher limit stays."""
        if self._batch_bytes_max <= int(config["max.message.bytes"]):
            return {}
        return {"max.message.bytes": str(self._batch_bytes_max)}

    def _change_config(self, topic: str, changes: Mapping[str, str]) -> None:
        """Apply changes. Return when a broker shows them.

        The controller answers before that, so a record that needs the new limit could be refused in between. Raises
        LogUnavailable if it takes too long.
        """
        if not changes:
            return
        deadline = time.monotonic() + self._admin.timeout_s
        self._admin.change_config(topic, changes)
        while not changes.items() <= self._admin.config(topic).items():
            if time.monotonic() > deadline:
                raise LogUnavailable(
                    f"the new settings of topic {topic} are accepted, but not effective after {self._admin.timeout_s:g} s; "
                    f"check the brokers at {self._admin.bootstrap}, and try again"
                )
            time.sleep(_POLL_S)


def require_complete_log(topic: str, config: Mapping[str, str]) -> None:
    """Raise Conflict if the topic with these settings is compacted."""
    policy = config["cleanup.policy"]
    if policy != "delete":
        raise Conflict(
            f"topic {topic} has cleanup.policy={policy}, but Strandline needs delete, and records that such a topic has lost "
            "can't be restored; use another name. If it was changed a moment ago, reset the setting, and start its jobs again: "
            "a replay ends with an error if records are missing"
        )


def has_senders_times(config: Mapping[str, str]) -> bool:
    """Return True if the log time of new records in the topic with these settings is set by their producers."""
    return config["message.timestamp.type"] != "LogAppendTime"


def hazards(topic: str, config: Mapping[str, str], replicas: int) -> Iterator[Hazard]:
    """Yield the settings that can lose confirmed records of the topic.

    Args: config: All settings of the topic. replicas: Replicas of the partition that has the fewest.
    """
    if config.get("unclean.leader.election.enable") == "true":
        yield Hazard(
            HazardKind.UNCLEAN_LEADER,
            f"topic {topic} has unclean.leader.election.enable=true: a broker that lacks confirmed records can become leader, "
            "and these records are lost",
            f"set unclean.leader.election.enable=false on topic {topic}",
        )
    confirming = int(config.get("min.insync.replicas", "1"))
    if replicas == 1:
        yield Hazard(
            HazardKind.ONE_REPLICA,
            f"topic {topic} has one replica (min.insync.replicas={confirming}): confirmed records are on the disk of a single "
            "broker, and are lost with it",
            f"add replicas to topic {topic} on other brokers, three in all, and set min.insync.replicas=2",
        )
    elif confirming < _CONFIRMING_MIN:
        yield Hazard(
            HazardKind.ONE_REPLICA_CONFIRMS,
            f"topic {topic} has min.insync.replicas={confirming} with {replicas} replicas: Kafka confirms records that a single "
            "broker has, and they are lost if this broker fails before another one has copied them",
            f"set min.insync.replicas=2 on topic {topic}"
            + (
                "; with two replicas it then refuses records while one broker is down, so add a third" * (replicas == 2)
            ),
        )
    if config.get("retention.bytes", "-1") != "-1":
        yield Hazard(
            HazardKind.SIZE_LIMIT,
            f"topic {topic} has retention.bytes={config['retention.bytes']}: Kafka deletes records by size, before their "
            "retention is over and whether or not jobs have read them",
            f"set retention.bytes=-1 on topic {topic}",
        )


def _with_settings(topic: TopicDescription, config: Mapping[str, str]) -> TopicDescription:
    found = tuple(hazards(topic.name, config, topic.replicas))
    return replace(topic, has_senders_times=has_senders_times(config), hazards=found)


def _retention_grows(spec: StreamSpec, present_ms: int) -> bool:
    """Return True if the document's retention is longer than the topic's. Raises Conflict if it is shorter."""
    if spec.retention_ms == present_ms:
        return False
    if spec.retention_ms == FOREVER_MS or (present_ms != FOREVER_MS and spec.retention_ms > present_ms):
        return True
    kept = format_retention(present_ms)
    raise Conflict(
        f"topic {spec.stream} keeps its records {'forever' if present_ms == FOREVER_MS else f'for {kept}'}, but the document has "
        f"{format_retention(spec.retention_ms)}, which would delete records; write retention: {kept}"
        + (" or longer" if present_ms != FOREVER_MS else ", or set the topic's retention.ms by hand first")
    )
