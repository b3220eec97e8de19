"""Reading the log by columns while brokers go away, lead no more, fall silent, or ask who is there."""

from __future__ import annotations

import random
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.core.errors import LogTruncated, LogUnavailable
from strandline.log.index import LogIndex
from strandline.log.messages import LogReader
from strandline.log.range_reader import RangeReader
from strandline.log.reader import OffsetRange
from tests.support.faults.kafka_cluster import KafkaCluster
from tests.support.faults.kafka_proxy import Api, drop_answer, empty_fetches, holed_fetches, swallow_answer

RECORDS = 60_000


def fill(cluster: KafkaCluster, topic: str, records: int = RECORDS, **settings: object) -> None:
    """`settings`: of the producer."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    config = {"message.timestamp.type": "LogAppendTime", "min.insync.replicas": "1"}
    admin.create_topics([NewTopic(topic, 1, cluster.replication, config=config)])[topic].result()
    # A new topic's first requests may be refused and sent again: only idempotent ones are then in the log in order, each once.
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **settings})
    for number in range(records):
        producer.produce(topic, f"{number}-{'x' * 100}", partition=0)
        producer.poll(0)
    producer.flush()


def read(reader: RangeReader, topic: str, halfway: Callable[[], object] = lambda: None) -> int:
    """Read all records, and call `halfway` after the first chunk; they must be those of `fill`, each once."""
    seen = 0
    for chunk in reader.read([OffsetRange(topic, 0, 0, RECORDS)]):
        assert list(chunk.offsets) == list(range(seen, seen + len(chunk.offsets)))
        assert [int((value or b"").split(b"-")[0]) for value in chunk.values] == list(chunk.offsets)
        if seen == 0:
            halfway()
        seen += len(chunk.offsets)
    return seen


def test_connections_that_break_and_answers_that_are_lost(cluster: KafkaCluster):
    fill(cluster, "lost")

    def cut() -> None:
        cluster.proxy.cut()
        cluster.proxy.heal()

    with closing(RangeReader(cluster.bootstrap_proxied, timeout_s=6)) as reader:
        assert read(reader, "lost", cut) == RECORDS
        for spoil in (drop_answer(Api.FETCH), swallow_answer(Api.FETCH)):
            cluster.proxy.add(spoil)
            assert read(reader, "lost") == RECORDS
    cluster.proxy.clear()


@pytest.mark.guarantee(
    "G752",
    "Empty fetch responses, missing batches, and 90 s without writes to Kafka change no result. Neither do a run "
    "killed in its rewind, or a rewind that begins after the births of its records. If a ledger loses its last "
    "seconds under load, the job fails, and continues after the documented remedy.",
    promise="kills-and-restarts-change-no-result",
)
def test_answers_without_records_and_with_holes_cost_no_record(cluster: KafkaCluster):
    """The broker has slow tiered storage, or lost a part of its log for some time."""
    fill(cluster, "spoilt", **{"batch.size": 20_000})  # several batches in an answer
    chance = random.Random(7)
    with closing(RangeReader(cluster.bootstrap_proxied, timeout_s=20)) as reader:
        for rule in (empty_fetches(chance, 0.5), holed_fetches(chance, 0.5)):
            cluster.proxy.add(rule)
            assert read(reader, "spoilt") == RECORDS
            assert rule.changed > 0
            cluster.proxy.clear()
    with closing(RangeReader(cluster.bootstrap_proxied, timeout_s=1)) as reader, LogIndex(cluster.bootstrap) as index:
        cluster.proxy.add(empty_fetches(chance, 1.0))
        with pytest.raises(
            LogUnavailable, match="of stream spoilt, partition 0 from offset 0 for 1 s: the responses are empty"
        ):
            read(reader, "spoilt")
        cluster.proxy.clear()
        cluster.proxy.add(holed_fetches(chance, 1.0))
        with pytest.raises(LogTruncated, match="stream spoilt, partition 0 lacks records of offsets"):
            read(reader, "spoilt")
        with closing(LogReader(cluster.bootstrap_proxied, timeout_s=1)) as messages:
            with pytest.raises(LogTruncated, match="stream spoilt, partition 0 lacks records of offsets"):
                list(messages.read(OffsetRange("spoilt", 0, 0, RECORDS)))
        cluster.proxy.clear()
        assert read(reader, "spoilt") == RECORDS
        assert index.checksums("spoilt", {0: RECORDS - 1}).keys() == {0}


@pytest.mark.long
def test_a_broker_that_is_killed_and_started_again(cluster: KafkaCluster):
    fill(cluster, "again")
    (broker,) = cluster.brokers
    starting = threading.Thread(target=cluster.start, args=(broker,))

    def restart() -> None:
        broker.kill()
        starting.start()

    with closing(RangeReader(cluster.bootstrap, timeout_s=60)) as reader:
        assert read(reader, "again", restart) == RECORDS
    starting.join()


@pytest.mark.long
def test_a_broker_that_is_away_or_silent_for_too_long(cluster: KafkaCluster):
    fill(cluster, "silent")
    (broker,) = cluster.brokers
    with closing(RangeReader(cluster.bootstrap, timeout_s=2)) as reader:
        broker.freeze()
        with pytest.raises(
            LogUnavailable, match=r"sent no records of stream silent, partition 0 from offset 0 for 2 s"
        ):
            read(reader, "silent")
        broker.thaw()
        assert read(reader, "silent") == RECORDS
        broker.kill()
        with pytest.raises(LogUnavailable, match=r"sent no records of stream silent.*check that the broker is running"):
            read(reader, "silent")
        cluster.start(broker)
        assert read(reader, "silent") == RECORDS


@pytest.mark.long
def test_a_login_over_tls(tmp_path: Path):
    """The first of the settings that a Kafka outside would ask for: SASL/PLAIN over TLS, and both refusals.

    tests/integration/test_secured_servers.py has the same with all that a Kafka may ask for, on a server that others use, too.
    """
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"],
            *["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        ],
        check=True,
        capture_output=True,
    )
    store = tmp_path / "store.pem"
    store.write_text(key.read_text() + certificate.read_text())
    with closing(KafkaCluster(tmp_path / "cluster")) as cluster:
        (broker,) = cluster.brokers
        login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_reader="right";'
        with (broker.directory / "server.properties").open("a") as properties:
            properties.write(
                "listener.security.protocol.map=PLAIN:PLAINTEXT,PROXIED:SASL_SSL,CONTROLLER:PLAINTEXT\n"
                f"advertised.listeners=PLAIN://127.0.0.1:{broker.port},PROXIED://127.0.0.1:{broker.proxied_port}\n"
                "ssl.keystore.type=PEM\n"
                f"ssl.keystore.location={store}\n"
                "listener.name.proxied.sasl.enabled.mechanisms=PLAIN\n"
                f"listener.name.proxied.plain.sasl.jaas.config={login}\n"
            )
        cluster.start()
        fill(cluster, "secured")

        def read_as(password: str, trusted: Path | None) -> int:
            security = {
                "security_protocol": "SASL_SSL",
                "ssl_context": ssl.create_default_context(cafile=str(trusted) if trusted else None),
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "reader",
                "sasl_plain_password": password,
            }
            with closing(RangeReader(f"127.0.0.1:{broker.proxied_port}", timeout_s=3, security=security)) as reader:
                return read(reader, "secured")

        assert read_as("right", certificate) == RECORDS
        with pytest.raises(LogUnavailable, match="Authentication failed"):
            read_as("wrong", certificate)
        with pytest.raises(LogUnavailable, match="certificate verify failed"):
            read_as("right", None)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_leader_that_moves(tmp_path: Path):
    """The leader is stopped in order, then another is killed: reading goes on at the next one, from where it was."""
    with closing(KafkaCluster(tmp_path, brokers=3)) as cluster:
        cluster.start()
        fill(cluster, "moved")
        cluster.wait_until_in_sync("moved")
        with closing(RangeReader(cluster.bootstrap, timeout_s=60)) as reader:
            first = cluster.leader("moved", 0)
            assert read(reader, "moved", first.stop) == RECORDS
            assert cluster.leader("moved", 0) is not first
            cluster.start(first)
            cluster.wait_until_in_sync("moved")
            assert read(reader, "moved", cluster.leader("moved", 0).kill) == RECORDS
