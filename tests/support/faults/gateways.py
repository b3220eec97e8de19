"""Gateways as processes that a test kills, freezes and starts again, and the senders that suit each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from strandline.ingest.registry import own_gateway
from strandline.services.trust import certificates_for
from tests.support.faults.http_load import HttpLoad
from tests.support.faults.load import Load
from tests.support.faults.mqtt_load import MqttLoad, topic_of
from tests.support.faults.tcp_load import TcpLoad
from tests.support.faults.udp_load import UdpLoad
from tests.support.plugins import PLUGINS
from tests.support.ports import free_ports
from tests.support.waiting import stretched, wait_until


@dataclass(frozen=True)
class GatewayKind:
    """One protocol's gateway."""

    name: str
    module: str
    load: type[Load]
    port_setting: str = ""
    """Which setting says where it listens; empty when each stream's document names a port of its own."""
    health_setting: str = ""
    """Which setting says where its health and metrics are; empty when it speaks HTTP anyway."""
    document: Callable[[str, int], dict[str, object]] = lambda _stream, _port: {}
    """What the document of a stream says for this protocol, given its name and a port of its own."""
    is_answering: bool = True
    """Whether what a sender hears says that its record is in the log."""
    answer_s_max: float | None = None
    """Maximum time to any answer while Kafka is away. None if no answer is due, for example for a withheld PUBACK.

    It is the timeout of 1.5 s, and the same again for a gateway and a sender that share two cores with a Kafka that
    starts.
    """
    has_broker: bool = False
    """Whether senders and the gateway meet at an MQTT broker, which sends again what the gateway did not acknowledge."""
    package: str = ""
    """Folder of `tests/plugins` with the package of the gateway. Empty for gateways of Strandline."""


def _own(name: str, load: type[Load], **how: Any) -> GatewayKind:
    """A gateway of Strandline."""
    gateway = own_gateway(name)
    ports = [f"STRANDLINE_{port.setting.upper()}" for port in gateway.ports]
    listens, has_pages = bool(gateway.scheme), not gateway.scheme or len(ports) > 1
    return GatewayKind(name, gateway.module, load, ports[0] * listens, ports[-1] * has_pages, **how)


def _mqtt_document(stream: str, _port: int) -> dict[str, object]:
    return {"mqtt": {"topics": [f"{topic_of(stream)}/+"]}}


KINDS = [
    _own("http", HttpLoad, answer_s_max=3.0),
    _own("mqtt-listener", MqttLoad, document=_mqtt_document),
    _own("mqtt", MqttLoad, document=_mqtt_document, is_answering=False, has_broker=True),
    _own("tcp", TcpLoad, document=lambda _stream, port: {"tcp": {"port": port, "ack": True}}, answer_s_max=3.0),
    _own("udp", UdpLoad, document=lambda _stream, port: {"udp": {"port": port}}, is_answering=False),
]
TOY = GatewayKind(
    "acme",
    "acme_gateway.gateway",
    TcpLoad,
    health_setting="STRANDLINE_ACME_HEALTH_PORT",
    document=lambda _stream, port: {"gateways": {"acme": {"port": port}}},
    answer_s_max=4.0,
    package="acme_gateway",
)
"""The gateway of a package."""
HTTP = KINDS[0]


class GatewayProcess:
    """One gateway; after a kill it is started again with the same settings, as a service manager would."""

    def __init__(self, kind: GatewayKind, directory: Path, settings: Mapping[str, object]) -> None:
        self.kind = kind
        self.port, health_port = free_ports(2)
        """Where it listens, unless streams have ports of their own."""
        self.health_port = health_port if kind.health_setting else self.port
        self.log_file = directory / f"gateway-{kind.name}.log"
        self.starts = 0
        self.started_s = 0.0
        self.memory_peak_bytes = 0
        """Largest resident size of all starts that the kernel recorded. `note_memory` updates it."""
        self._environment = os.environ | {f"STRANDLINE_{name.upper()}": str(value) for name, value in settings.items()}
        for setting, port in ((kind.port_setting, self.port), (kind.health_setting, self.health_port)):
            if setting:
                self._environment[setting] = str(port)
        if kind.package:
            paths = [str(PLUGINS / kind.package), *filter(None, [os.environ.get("PYTHONPATH")])]
            self._environment["PYTHONPATH"] = os.pathsep.join(paths)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, without waiting. `started_s` is that moment."""
        assert not self.is_running
        with self.log_file.open("ab") as log:
            self.started_s = time.monotonic()
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.kind.module],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    def wait_until_listening(self) -> None:
        wait_until(self._listens, bool, f"listening on {self.health_port} (see {self.log_file})", 60.0)

    def metrics(self) -> dict[str, float]:
        """The sums of what it counts now, over all labels, by the names of the samples."""
        url = f"http://127.0.0.1:{self.health_port}/metrics"
        text = httpx.get(url, timeout=10.0, trust_env=False, verify=certificates_for(url, None)).text
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def kill(self) -> None:
        """`kill -9` of the process and its workers, and wait until it is gone."""
        self.note_memory()
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(stretched(30))

    def terminate(self) -> int:
        """SIGTERM; return the exit code."""
        self.note_memory()
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(stretched(60))

    def freeze(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def note_memory(self) -> None:
        """Look at the peak of the process and of its workers."""
        if self.is_running:
            self.memory_peak_bytes = max(self.memory_peak_bytes, sum(_peak_bytes(pid) for pid in _family(self.pid)))

    def require_alive(self) -> None:
        assert self.is_running, f"the gateway ended by itself:\n{self.log_tail()}"

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        if self.is_running:
            self.kill()

    def _listens(self) -> bool:
        self.require_alive()
        try:
            socket.create_connection(("127.0.0.1", self.health_port), 1.0).close()
        except OSError:
            return False
        return True


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(member for child in children for member in _family(int(child)))]


def _peak_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
