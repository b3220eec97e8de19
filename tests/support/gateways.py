"""A gateway without HTTP as a process, and what a sender and a reader of the log see of it; an MQTT broker for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.topics import Topics
from strandline.services.trust import certificates_for
from tests.support.ports import free_port
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched, wait_until
from tests.support.warm_processes import MODULES, WarmProcess

DEADLINE_S = 60
RECORD_BYTES_MAX = 100_000
MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@dataclass
class Logged:
    """A record as the log holds it."""

    partition: int
    value: bytes
    key: bytes | None
    headers: dict[str, bytes]


class GatewayProcess:
    """The gateway of one protocol as a process, over a ledger of its own."""

    def __init__(self, protocol: str, kafka: str, directory: Path, **settings: object) -> None:
        self.protocol = protocol
        self.kafka = kafka
        self.directory = directory
        self.ledger = Ledger.open(f"sqlite:///{directory}/ledger.sqlite")
        self.log_file = directory / "gateway.log"
        self.health_port = free_port()
        values = {
            "kafka_bootstrap": kafka,
            "ledger_url": f"sqlite:///{directory}/ledger.sqlite",
            "data_dir": directory,
            "http_port" if protocol == "http" else f"{protocol}_health_port": self.health_port,
            "record_bytes_max": RECORD_BYTES_MAX,
            "streams_refresh_s": 0.2,
            "confirm_timeout_s": stretched(10),  # a busy machine is no reason to spool
            **settings,
        }
        self.host_name = ""
        """Host name for its next start. Empty for its real name."""
        self.environment = os.environ | {f"STRANDLINE_{name.upper()}": str(value) for name, value in values.items()}
        url = f"http://127.0.0.1:{self.health_port}"
        verify = certificates_for(url, None)
        self.client = httpx.Client(base_url=url, timeout=stretched(DEADLINE_S), trust_env=False, verify=verify)
        self.start()

    def start(self) -> None:
        """Start the process; also after it was killed."""
        self.process = WarmProcess(MODULES[self.protocol], self.environment, self.log_file, self.host_name)
        wait_until(self.is_healthy, describe=self.log_file.read_text)

    def is_healthy(self) -> bool:
        assert self.process.poll() is None, self.log_file.read_text()
        with contextlib.suppress(httpx.TransportError):
            return self.client.get("/healthz").status_code == 200
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(stretched(DEADLINE_S))

    def close(self) -> None:
        self.kill()
        self.client.close()
        self.ledger.close()

    def register(self, is_open: bool = True, name: str = "", **document: object) -> str:
        """A new stream with its topic, or another version of a known one; return when the gateway has taken it up."""
        name = name or f"stream-{uuid.uuid4().hex[:12]}"
        spec = StreamSpec.from_document({"stream": name, "schema": {"device": "string", "n": "long"}, **document})
        Topics(self.kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX).ensure_stream_topic(spec)
        self.ledger.put_stream(name, spec.as_document())
        if is_open:
            wait_until(
                lambda: self.metric("strandline_ingest_open", stream=name) == 1, describe=self.log_file.read_text
            )
        return name

    def metric(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def counts(self, stream: str) -> dict[str, int]:
        """The counters of one stream: received, confirmed, refused, spooled, dropped, in_flight."""
        names = ("received_total", "confirmed_total", "refused_total", "spooled_total", "dropped_total", "in_flight")
        return {
            name.removesuffix("_total"): int(self.metric(f"strandline_ingest_{name}", stream=stream)) for name in names
        }

    def read(self, stream: str) -> list[Logged]:
        """Return all records of the log, partition by partition.

        Offsets have gaps, because spooled records are in transactions.
        """
        return [
            Logged(message.partition(), message.value() or b"", message.key(), dict(message.headers()))
            for message in read_messages(self.kafka, stream, isolation="read_committed", within_s=DEADLINE_S)
        ]

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


class Mosquitto:
    """An Eclipse Mosquitto of the machine, with sessions and queues that outlive a connection."""

    def __init__(self, directory: Path, *, allow_anonymous: bool = True, more: str = "") -> None:
        assert MOSQUITTO is not None
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        configuration = directory / "mosquitto.conf"
        configuration.write_text(
            f"max_queued_messages 0\nset_tcp_nodelay true\nallow_anonymous {str(allow_anonymous).lower()}\n"
            f"listener {self.port} 127.0.0.1\n{more}"
        )
        self.log_file = directory / "mosquitto.log"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen([MOSQUITTO, "-c", str(configuration)], stdout=log, stderr=log)
        wait_until(self.is_listening, describe=self.log_file.read_text)

    def is_listening(self) -> bool:
        assert self.process.poll() is None, self.log_file.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(stretched(DEADLINE_S))


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that speaks MQTT 5 too; Debian's package `mosquitto`."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    broker = Mosquitto(tmp_path)
    yield broker
    broker.close()
