"""Check of Kafka: its responses, the user's rights, and the settings on which guarantees depend.

Writes are tested on a topic of the doctor, which is deleted afterwards.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress

from confluent_kafka import KafkaException, Producer

from strandline.core.errors import Conflict, LogUnavailable, NotFound, StrandlineError
from strandline.core.record_headers import dead_letter_topic
from strandline.core.settings import Settings
from strandline.ledger.database import Database, sqlite_file
from strandline.ledger.roles import LedgerReader
from strandline.ledger.schema import HEAD, revision_of
from strandline.log.admin import HazardKind, KafkaAdmin
from strandline.log.kafka_connection import explained, librdkafka
from strandline.log.messages import LogReader
from strandline.log.reader import OffsetRange
from strandline.log.topics import hazards
from strandline.services.doctor.finding import Finding, ok, warning, wrong

SUBJECT = "Kafka"
TOPIC_PREFIX = "strandline-doctor-"
_TIMEOUT_S = 8.0
_RIGHTS = "give the user the rights on topics and transactional ids that docs/security.md lists"
_CLOCK_OFF_MS_MAX = 2_000
_TRANSACTIONS_TOPIC = "__transaction_state"
"""Kafka's own topic for the states of transactions. If its records are lost, the outcomes of transactions are lost."""
_NAMED_MAX = 5


def check_kafka(
    settings: Settings,
    admin: KafkaAdmin | None = None,
    trial: Trial | None = None,
    topics_used: Callable[[str], Collection[str]] | None = None,
) -> Iterator[Finding]:
    """Yield the findings. The first reports whether the server responds.

    Args: topics_used: Returns the topics that the deployment with this ledger uses. Default: read them from the ledger.
    """
    bootstrap = settings.kafka_bootstrap
    admin = admin or KafkaAdmin(bootstrap, timeout_s=_TIMEOUT_S, changes_topics=True)
    try:
        brokers = admin.brokers()
    except LogUnavailable as error:
        yield wrong(SUBJECT, str(error).removesuffix("; try again when Kafka answers"), _unreachable(settings))
        return
    login = f", as user {settings.kafka_username}" if settings.kafka_username else ""
    yield ok(SUBJECT, f"answers on {bootstrap} with {len(brokers)} broker{'s' * (len(brokers) != 1)}{login}")
    yield from _of_replication(len(brokers), settings.stream_replication)
    yield from _of_broker(admin, brokers[0])
    yield from _of_hazards(admin, len(brokers), (topics_used or topics_of_ledger)(settings.ledger_url))
    yield from _of_topics(admin, settings, trial or try_topic)


def _unreachable(settings: Settings) -> str:
    return (
        f"start Kafka, or check STRANDLINE_KAFKA_BOOTSTRAP; if that port requires TLS or a login, check "
        f"STRANDLINE_KAFKA_SECURITY_PROTOCOL (now {settings.kafka_security_protocol})"
    )


def _of_replication(brokers: int, replication: int) -> Iterator[Finding]:
    if replication > brokers:
        remedy = f"start more brokers, or set STRANDLINE_STREAM_REPLICATION to {brokers} at most"
        yield wrong(SUBJECT, f"topics must have {replication} replicas, but only {brokers} brokers are up", remedy)
    elif replication < 3 <= brokers:
        remedy = "set STRANDLINE_STREAM_REPLICATION=3, so that an acknowledged record survives the loss of a broker"
        yield warning(SUBJECT, f"topics have {replication} replica(s), although {brokers} brokers are up", remedy)


def _of_broker(admin: KafkaAdmin, broker: int) -> Iterator[Finding]:
    """Yield findings about the broker's defaults for topics. Topics of Strandline have their own settings; topics of other
    programs don't."""
    try:
        config = admin.broker_config(broker)
    except (Conflict, LogUnavailable) as error:
        remedy = (
            "give the user Describe and DescribeConfigs on the cluster, or ignore this: the settings only "
            "result in hints"
        )
        yield warning(SUBJECT, f"can't read the broker's settings: {error}", remedy)
        return
    if config.get("log.message.timestamp.type", "CreateTime") == "CreateTime":
        yield ok(
            SUBJECT,
            "topics of other programs have the producers' times (message.timestamp.type=CreateTime); topics of Strandline have "
            "the brokers' times",
        )
    if config.get("auto.create.topics.enable") == "true":
        remedy = "set auto.create.topics.enable=false on the brokers, so that a misspelt name creates no topic"
        yield warning(SUBJECT, "the brokers create every topic that a client names", remedy)
    hours = config.get("log.retention.hours", "")
    yield ok(
        SUBJECT,
        f"topics of other programs keep records for {hours or 'unknown'} hours; stream documents "
        "specify their own retention",
    )


def topics_of_ledger(url: str) -> Collection[str]:
    """Return the topics of all streams, and the dead-letter topics of all jobs.

    Empty if the ledger can't be read: the check of the ledger reports why.
    """
    file = sqlite_file(url)
    if file is not None and not file.exists():  # a connection would create the file
        return ()
    try:
        with closing(Database(url)) as database:
            if revision_of(database) != HEAD:  # the tables can differ, and the doctor doesn't upgrade them
                return ()
            ledger = LedgerReader(database)
            return [*(row.name for row in ledger.streams()), *(dead_letter_topic(row.name) for row in ledger.jobs())]
    except StrandlineError:
        return ()


def _of_hazards(admin: KafkaAdmin, brokers: int, used: Collection[str]) -> Iterator[Finding]:
    """Yield settings with which a topic of the deployment can lose confirmed records."""
    alone: list[str] = []
    try:
        replicas = admin.replicas()
        for topic in sorted({*used, _TRANSACTIONS_TOPIC} & replicas.keys()):
            for hazard in hazards(topic, admin.config(topic), replicas[topic]):
                if hazard.kind is HazardKind.ONE_REPLICA and brokers == 1:
                    alone.append(topic)
                elif topic != _TRANSACTIONS_TOPIC or hazard.kind is not HazardKind.SIZE_LIMIT:
                    yield warning(SUBJECT, hazard.message, hazard.remedy)
    except (Conflict, LogUnavailable, NotFound) as error:
        remedy = (
            "give the user Describe and DescribeConfigs on the topics of the streams and on their dead-letter topics"
        )
        yield warning(SUBJECT, f"can't read the settings of the topics: {error}", remedy)
        return
    if alone:
        named = ", ".join(alone[:_NAMED_MAX]) + f" and {len(alone) - _NAMED_MAX} more" * (len(alone) > _NAMED_MAX)
        yield ok(
            SUBJECT,
            f"there is one broker, so min.insync.replicas=1 and one replica are all that topics can have: confirmed records of "
            f"{named} are lost with its disk",
        )


def _of_topics(admin: KafkaAdmin, settings: Settings, trial: Trial) -> Iterator[Finding]:
    topic = f"{TOPIC_PREFIX}{uuid.uuid4().hex[:12]}"
    replication = settings.stream_replication
    config = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete"}
    try:
        admin.create(topic, 1, replication, config, only_asks=True)
        admin.create(topic, 1, replication, config)
    except (Conflict, LogUnavailable) as error:
        yield wrong(SUBJECT, f"can't create a topic: {error}", f"{_RIGHTS}, and see the reason above")
        return
    try:
        _wait_for_leader(admin, topic)
        before_ms = time.time_ns() // 1_000_000
        log_time_ms = trial(settings.kafka_bootstrap, topic)
        after_ms = time.time_ns() // 1_000_000
        yield ok(SUBJECT, "a topic can be created, described, written in a transaction, read back, and deleted")
        yield from clock_findings(SUBJECT, log_time_ms, before_ms, after_ms)
        admin.newest_log_times(topic, [0])
        yield ok(SUBJECT, "the brokers report the position of the newest record of a partition (Kafka 3.0 or newer)")
    except StrandlineError as error:
        yield wrong(SUBJECT, f"can't write records and read them back: {error}", f"{_RIGHTS}; use Kafka 3.0 or newer")
    finally:
        deleted: Exception | None = None
        try:
            admin.delete(topic)
        except StrandlineError as error:
            deleted = error
    if deleted is not None:
        yield warning(SUBJECT, f"can't delete the doctor's topic {topic}: {deleted}", "delete it by hand")


def clock_findings(subject: str, theirs_ms: int, before_ms: int, after_ms: int) -> Iterator[Finding]:
    """Yield the difference between a server's clock and ours. The server's clock was read between the two times of our clock."""
    off_ms = theirs_ms - after_ms if theirs_ms > after_ms else min(0, theirs_ms - before_ms)
    if abs(off_ms) <= _CLOCK_OFF_MS_MAX:
        yield ok(subject, "its clock agrees with this machine's")
        return
    way = "ahead of" if off_ms > 0 else "behind"
    remedy = (
        "synchronize the clocks (chrony, systemd-timesyncd): leases use the database's clock, log times use Kafka's"
    )
    yield warning(subject, f"its clock is {abs(off_ms) / 1000:.1f} s {way} this machine's", remedy)


Trial = Callable[[str, str], int]
"""Function that writes to a topic and reads back. Returns the record's log time (ms). Raises StrandlineError."""


def try_topic(bootstrap: str, topic: str) -> int:
    """Write one record in a transaction, read it back, and return its log time (ms). Raises LogUnavailable if one of
    them fails.
    """
    own = {
        "transactional.id": topic,
        "acks": "all",
        "message.timeout.ms": int(_TIMEOUT_S * 1_000),
        "transaction.timeout.ms": int(_TIMEOUT_S * 1_000),
        "log_level": 0,
    }
    producer = Producer(librdkafka(bootstrap, own))
    try:
        producer.init_transactions(_TIMEOUT_S)
        producer.begin_transaction()
        producer.produce(topic, b"strandline doctor", partition=0)
        producer.commit_transaction(_TIMEOUT_S)
    except KafkaException as error:
        with suppress(KafkaException):
            producer.abort_transaction(1.0)
        raise LogUnavailable(f"a transaction on topic {topic} failed: {explained(error.args[0])}") from error
    reader = LogReader(bootstrap, _TIMEOUT_S)
    try:
        for messages in reader.read(OffsetRange(topic, 0, 0, 1)):
            for message in messages:
                return int(message.timestamp()[1])
    finally:
        reader.close()
    raise LogUnavailable(
        f"topic {topic} lacks the record that was just committed; see the log of its broker for lost data"
    )


def _wait_for_leader(admin: KafkaAdmin, topic: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(StrandlineError):
            if admin.do_leaders_answer(topic, [0]):
                return
        time.sleep(0.05)
    raise LogUnavailable(f"the new topic {topic} has no leader after {_TIMEOUT_S:g} s; check the brokers")
