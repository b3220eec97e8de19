"""A gateway over Kafka brokers, with everything in between that can be broken, and a stream to send to."""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.topics import Topics
from tests.support.faults.checker import Verdict, check_files
from tests.support.faults.gateways import HTTP, GatewayKind, GatewayProcess
from tests.support.faults.history import History
from tests.support.faults.kafka_cluster import KafkaCluster
from tests.support.faults.load import Load
from tests.support.faults.mosquitto import Mosquitto
from tests.support.faults.mqtt_load import topic_of
from tests.support.faults.topic_dump import dump_topic
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

RECORD_BYTES_MAX = 1_000_000
PROGRESS_TIMEOUT_S = 60.0
PARTITIONS = 3
QUIET_S = 2.0
BROKER_QUIET_S = 60.0
"""An answer that is swallowed costs a confirmation timeout, then the pause until the MQTT broker is asked again, perhaps twice.
It is waited for only while something is missing."""


class Trial:
    """One stream, its sent records, and their outcomes."""

    def __init__(self, lab: Lab, stream: str, port: int) -> None:
        self.lab = lab
        self.stream = stream
        self.port = port
        self.history = History(lab.directory / f"history-{stream}.jsonl")
        self.loads: list[Load] = []
        self._logged_last = 0
        self._grown_to, self._grown_s = -1, 0.0
        """How many records were logged at the last look of `idle_s`, and since when."""
        self._reader = self._make_reader()

    def _make_reader(self) -> Consumer:
        return Consumer({"bootstrap.servers": self.lab.cluster.bootstrap, "group.id": "progress", "log_level": 0})

    def start_load(self, **how: object) -> Load:
        load = self.lab.kind.load(self.history, lambda: self.port, self.stream, **how)  # type: ignore[arg-type]
        self.loads.append(load)
        load.start()
        return load

    @property
    def acknowledged(self) -> int:
        """Records that senders know to be in the log; where senders hear nothing of it, those that are in the log."""
        return self.history.records["ok"] if self.lab.kind.is_answering else self._logged()

    def wait_for_acknowledged(self, more: int, timeout_s: float = PROGRESS_TIMEOUT_S) -> None:
        """Return when this many more records are acknowledged."""
        goal = self.acknowledged + more
        wait_until(self._progress, lambda count: count >= goal, self._explain(f"at {goal} acknowledged"), timeout_s)

    def first_ok_after(self, moment_s: float, timeout_s: float = PROGRESS_TIMEOUT_S) -> float:
        """Wait until a request is acknowledged that was sent after the moment; return how long after it that was.

        Where senders hear nothing: until a record is in the log that was not there when this was called.
        """
        if not self.lab.kind.is_answering:
            self.wait_for_acknowledged(1, timeout_s)
            return time.monotonic() - moment_s

        def ask() -> float | None:
            self._progress()
            done = [
                invoked_s + took_s
                for invoked_s, took_s, op in self.history.latencies_s[-500:]
                if op == "ok" and invoked_s >= moment_s
            ]
            return min(done, default=None)

        found = wait_until(ask, lambda at_s: at_s is not None, self._explain("acknowledging again"), timeout_s)
        assert found is not None
        return found - moment_s

    def slowest_answer_s(self, from_s: float, to_s: float) -> float:
        """Return the longest time from `from_s` to the answer, of all requests that were running between the two
        moments."""
        settled = [
            invoked_s + took_s - max(invoked_s, from_s)
            for invoked_s, took_s, _ in self.history.latencies_s
            if invoked_s + took_s > from_s and invoked_s < to_s
        ]
        hanging = [
            time.monotonic() - max(invoked_s, from_s) for invoked_s in self.history.open_since_s() if invoked_s < to_s
        ]
        return max(settled + hanging, default=0.0)

    def finish(self) -> Verdict:
        """Stop the senders, read the topic, compare."""
        for load in self.loads:
            load.stop()
        self.history.close()
        wait_until(
            lambda: self.lab.gateway.metrics().get("strandline_ingest_spool_records", 0),
            lambda left: left == 0,
            self._explain("drained of what was spooled"),
            PROGRESS_TIMEOUT_S,
        )
        if not self.lab.kind.is_answering:
            self._wait_until_quiet()
        self._reader.close()
        self.lab.gateway.note_memory()
        assert not self.lab.cluster.errors(), self.lab.cluster.errors()
        return self._compare()

    def _wait_until_quiet(self) -> None:
        """Wait until no record has arrived in the log for a while: the last received record may still be on its way.

        A message that an MQTT broker has acknowledged must arrive, but a gateway that has lost its log pauses before it
        connects to the broker again. That pause is waited for only if records are missing.
        """
        while (quiet_s := self.idle_s()) < QUIET_S or (
            self.lab.kind.has_broker and quiet_s < BROKER_QUIET_S and self._compare().lost
        ):
            time.sleep(0.1)  # sleeps: silence of the log for a while is the subject

    def _compare(self) -> Verdict:
        dump = dump_topic(self.lab.cluster.bootstrap, self.stream)
        return check_files(self.history.path, dump, may_repeat=self.lab.kind.has_broker)

    def _logged(self) -> int:
        """Offsets that are taken, as far as it is known: while a partition has no leader, as many as when it had one."""
        ends: list[int] = []
        try:
            for partition in range(PARTITIONS):
                place = TopicPartition(self.stream, partition)
                ends.append(self._reader.get_watermark_offsets(place, timeout=2.0, cached=False)[1])
        except KafkaException:
            # After a broker's crash, a consumer that reads nothing may query the old leader forever.
            self._reader.close()
            self._reader = self._make_reader()
            return self._logged_last
        self._logged_last = sum(ends)
        return self._logged_last

    def idle_s(self) -> float:
        """For how long nothing has come into the log, as far as calls of this have seen."""
        if (now := self._logged()) != self._grown_to:
            self._grown_to, self._grown_s = now, time.monotonic()
        return time.monotonic() - self._grown_s

    def _progress(self) -> int:
        for load in self.loads:
            if load.error is not None:
                raise load.error
        return self.acknowledged

    def _explain(self, what: str) -> str:
        return f"{what} ({dict(self.history.reasons)}); see {self.lab.gateway.log_file}"


class Lab:
    """Brokers, ledger, gateway. `close` ends everything."""

    def __init__(
        self,
        directory: Path,
        kind: GatewayKind = HTTP,
        *,
        cluster: KafkaCluster | None = None,
        brokers: int = 1,
        storage: Path | None = None,
        durability: str = "log",
        settings: dict[str, object] | None = None,
    ) -> None:
        """`cluster`: brokers that run already and outlive the lab; without, it has `brokers` of its own."""
        self.directory = directory
        self.kind = kind
        self.durability = durability
        self._has_own_cluster = cluster is None
        self.cluster = cluster or KafkaCluster(directory, brokers, storage)
        self.mqtt_broker: Mosquitto | None = None
        self._trials: list[Trial] = []
        try:
            if self._has_own_cluster:
                self.cluster.start()
            ledger_url = f"sqlite:///{directory}/ledger.sqlite"
            Ledger.migrate(ledger_url)
            self.ledger = Ledger.open(ledger_url)
            values: dict[str, object] = {
                "data_dir": directory / "data",
                "ledger_url": ledger_url,
                "kafka_bootstrap": self.cluster.bootstrap_proxied,
                "stream_replication": self.cluster.replication,
                "record_bytes_max": RECORD_BYTES_MAX,
                "streams_refresh_s": 0.2,
            }
            if kind.has_broker:
                self.mqtt_broker = Mosquitto(directory / "mosquitto")
                values["mqtt_url"] = f"mqtt://127.0.0.1:{self.mqtt_broker.port}"
            self.gateway = GatewayProcess(kind, directory, values | (settings or {}))
            self.gateway.start()
            self.gateway.wait_until_listening()
        except BaseException:
            if self._has_own_cluster:
                self.cluster.close()
            if self.mqtt_broker is not None:
                self.mqtt_broker.close()
            raise

    def begin(self, **document: object) -> Trial:
        """A new stream with its topic, its key the client, and a history for it."""
        name = f"stream-{uuid.uuid4().hex[:10]}"
        port = self.gateway.port if self.kind.port_setting else free_ports(1)[0]
        spec = StreamSpec.from_document(
            {
                "stream": name,
                "schema": {"id": "string", "client": "string", "n": "long", "pad": "string"},
                "key": "client",
                "partitions": PARTITIONS,
                "durability": self.durability,
                **self.kind.document(name, port),
                **document,
            }
        )
        replication = self.cluster.replication
        topics = Topics(self.cluster.bootstrap, replication=replication, record_bytes_max=RECORD_BYTES_MAX)
        topics.ensure_stream_topic(spec)
        self.ledger.put_stream(name, spec.as_document())
        if self.mqtt_broker is not None:
            port = self.mqtt_broker.port
            # Messages that are published before the gateway has subscribed are not kept.
            log = self.gateway.log_file
            wait_until(lambda: topic_of(name) in log.read_text(errors="replace"), bool, f"subscribed to (see {log})")
        elif not self.kind.port_setting:
            wait_until(lambda: _is_open(port), bool, f"listening on {port}, as the stream's document says")
        for trial in self._trials:  # of one that failed the senders may still be at it
            for load in trial.loads:
                load.is_stopping = True
        self._trials.append(Trial(self, name, port))
        return self._trials[-1]

    def close(self) -> None:
        """Each, whatever another one raises."""
        with contextlib.ExitStack() as closing:  # the last named is the first
            closing.callback(self.ledger.close)
            if self.mqtt_broker is not None:
                closing.callback(self.mqtt_broker.close)
            if self._has_own_cluster:
                closing.callback(self.cluster.close)
            closing.callback(self.gateway.close)


def _is_open(port: int) -> bool:
    """Return True if any socket is bound to the port, TCP or UDP."""
    bound = f":{port:04X}"
    tables = [Path(f"/proc/net/{protocol}").read_text().splitlines()[1:] for protocol in ("tcp", "udp")]
    return any(line.split()[1].endswith(bound) for table in tables for line in table)
