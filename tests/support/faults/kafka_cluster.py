"""Kafka brokers that a test can stop, kill, freeze, and restart: one or three, each with a listener behind a proxy.

Each broker has two listeners for clients: a plain one for the test itself, and one for the gateway under test, whose
advertised address is a proxy's. Everything is on loopback.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from strandline.services.embedded.artifacts import find_java
from tests.support.faults.kafka_proxy import KafkaProxy
from tests.support.kafka_storage import kafka_home, provide_storage
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

_JAVA_OPTIONS = ["-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
_LOGGING = """\
appenders=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %m (%c{1})%n
rootLogger.level=WARN
rootLogger.appenderRefs=console
rootLogger.appenderRef.console.ref=console
"""
START_TIMEOUT_S = 120.0


@dataclass
class Broker:
    """One broker, which is a controller too; perhaps not running."""

    number: int
    directory: Path
    storage: Path
    port: int
    proxy: KafkaProxy
    proxied_port: int
    """Port of the broker for connections of the proxy."""
    controller_port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to stop in order, and wait until it has."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Freeze the broker: its connections stay open and nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(number)
                if number is not signal.SIGKILL:
                    self.process.send_signal(signal.SIGCONT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)
            self.process = None


class KafkaCluster:
    """One broker, or three with two of them needed for a confirmation. `close` ends what it started."""

    def __init__(
        self, directory: Path, brokers: int = 1, storage: Path | None = None, java_options: Sequence[str] = ()
    ) -> None:
        """`storage`: where the first broker keeps its log, for a disk of its own."""
        self._java_command = [str(find_java()), *_JAVA_OPTIONS, *java_options, "-cp", f"{kafka_home()}/*"]
        self.brokers = []
        ports = iter(free_ports(4 * brokers))
        for number in range(1, brokers + 1):
            own = directory / f"kafka-{number}"
            own.mkdir(parents=True)
            port, proxied_port, proxy_port, controller_port = (next(ports) for _ in range(4))
            proxy = KafkaProxy(proxy_port, proxied_port)
            log = storage or own / "log"
            self.brokers.append(Broker(number, own, log, port, proxy, proxied_port, controller_port))
        for broker in self.brokers:
            (broker.directory / "server.properties").write_text(self._properties(broker), encoding="utf-8")
            (broker.directory / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
            provide_storage(broker.storage, broker.number)
            broker.proxy.start()

    @property
    def replication(self) -> int:
        return len(self.brokers)

    @property
    def bootstrap(self) -> str:
        """For the test itself: past the proxies."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    @property
    def bootstrap_proxied(self) -> str:
        """Address for the gateway under test: every connection to a broker uses that broker's proxy."""
        return ",".join(f"127.0.0.1:{broker.proxy.port}" for broker in self.brokers)

    @property
    def proxy(self) -> KafkaProxy:
        """The only broker's."""
        (broker,) = self.brokers
        return broker.proxy

    def start(self, *brokers: Broker) -> None:
        """Start these, or all, and return when every broker that runs answers and takes part."""
        for broker in brokers or self.brokers:
            self._spawn(broker)
        self.wait_until_answering()

    def wait_until_answering(self) -> None:
        """Return when each running broker answers a request for metadata that names all that run."""
        running = {broker.number for broker in self.brokers if broker.is_running}
        for broker in self.brokers:
            if broker.is_running:
                wait_until(
                    lambda broker=broker: self._ask(broker),
                    lambda known: running <= known,
                    f"answered by broker {broker.number} (see {broker.directory}/broker.log)",
                    START_TIMEOUT_S,
                )

    def leader(self, topic: str, partition: int) -> Broker:
        """The broker that leads the partition now; waits while there is none."""
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def ask() -> int:
            try:
                return client.list_topics(topic, timeout=5.0).topics[topic].partitions[partition].leader
            except (KafkaException, KeyError):
                return -1

        number = wait_until(ask, lambda leader: leader > 0 and self.brokers[leader - 1].is_running, "led", 60.0)
        return self.brokers[number - 1]

    def wait_until_in_sync(self, topic: str) -> None:
        """Return when every replica of every partition is in sync."""
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

        def ask() -> list[int]:
            try:
                return [len(p.isrs) for p in client.list_topics(topic, timeout=5.0).topics[topic].partitions.values()]
            except KafkaException:
                return []

        wait_until(ask, lambda sizes: bool(sizes) and min(sizes) == self.replication, "in sync", 120.0)

    def heal(self) -> None:
        """Take all rules away, and let every broker run that does not."""
        down = []
        for broker in self.brokers:
            broker.proxy.clear()
            broker.proxy.heal()
            if broker.is_running:
                broker.thaw()
            else:
                down.append(broker)
        if down:
            self.start(*down)

    def close(self) -> None:
        for broker in self.brokers:
            if broker.is_running:
                broker.kill()
            broker.proxy.stop()

    def errors(self) -> list[BaseException]:
        """Errors of the proxies themselves."""
        return [error for broker in self.brokers for error in broker.proxy.errors]

    def _spawn(self, broker: Broker) -> None:
        assert not broker.is_running, f"broker {broker.number} runs already"
        with (broker.directory / "broker.log").open("ab") as log:
            broker.process = subprocess.Popen(
                [*self._java_command, "kafka.Kafka", str(broker.directory / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=broker.directory,
                env=os.environ
                | {"JDK_JAVA_OPTIONS": f"-Dlog4j2.configurationFile={broker.directory}/log4j2.properties"},
                start_new_session=True,
            )

    def _ask(self, broker: Broker) -> set[int]:
        assert broker.is_running, f"broker {broker.number} ended:\n{broker_log_tail(broker)}"
        try:
            client = AdminClient(
                {"bootstrap.servers": f"127.0.0.1:{broker.port}", "log_level": 0, "socket.timeout.ms": 1_000}
            )
            return set(client.list_topics(timeout=1.0).brokers)
        except KafkaException:
            return set()

    def _properties(self, broker: Broker) -> str:
        count = len(self.brokers)
        voters = ",".join(f"{b.number}@127.0.0.1:{b.controller_port}" for b in self.brokers)
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": broker.number,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAIN:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAIN",
            "listeners": f"PLAIN://127.0.0.1:{broker.port},PROXIED://127.0.0.1:{broker.proxied_port},"
            f"CONTROLLER://127.0.0.1:{broker.controller_port}",
            "advertised.listeners": f"PLAIN://127.0.0.1:{broker.port},PROXIED://127.0.0.1:{broker.proxy.port}",
            "log.dirs": broker.storage,
            "auto.create.topics.enable": "false",
            "message.max.bytes": 2 * 1024 * 1024,
            "offsets.topic.replication.factor": count,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": count,
            "transaction.state.log.min.isr": max(1, count - 1),
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": count,
            "share.coordinator.state.topic.min.isr": max(1, count - 1),
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
            # A dead broker is noticed within seconds: the tests are about what follows, not about the wait.
            "broker.session.timeout.ms": 3_000,
            "broker.heartbeat.interval.ms": 500,
            "replica.lag.time.max.ms": 5_000,
            "controller.quorum.election.timeout.ms": 500,
            "controller.quorum.fetch.timeout.ms": 1_000,
            "log.segment.bytes": 8 * 1024 * 1024,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


def broker_log_tail(broker: Broker) -> str:
    text = (broker.directory / "broker.log").read_text(errors="replace")
    return "\n".join(text.splitlines()[-15:])
