"""The embedded stack, with a proxy between Kafka and those that run jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from strandline.core.settings import Settings
from strandline.services.embedded.stack import Stack
from strandline.services.processes.child_process import Program
from tests.support.faults.kafka_cluster import free_ports
from tests.support.faults.kafka_proxy import KafkaProxy


class ProxiedStack(Stack):
    """A stack whose control service, and so its runners, and broker get more into their environment, and the broker a listener
    more."""

    def __init__(self, settings: Settings, data_dir: Path, port_offset: int, console: Console) -> None:
        super().__init__(settings, data_dir, port_offset, console)
        self.of_control: dict[str, str] = {}
        self.of_kafka: dict[str, str] = {}
        self.proxied_port, proxy_port = free_ports(2)
        self.kafka_proxy = KafkaProxy(proxy_port, self.proxied_port)
        """Between the broker, and control service and runners."""
        self.of_control["STRANDLINE_KAFKA_BOOTSTRAP"] = f"127.0.0.1:{proxy_port}"

    def _start_module(self, name: str, module: list[str], is_ready: Callable[[], bool], **environment: str) -> None:
        more = self.of_control if name == "control" else {}
        super()._start_module(name, module, is_ready, **environment | more)

    def _start(self, program: Program) -> None:
        if program.name == "kafka":
            properties = Path(program.arguments[-1])
            text = properties.read_text()
            for name, port in (("listeners", self.proxied_port), ("advertised.listeners", self.kafka_proxy.port)):
                text = re.sub(rf"^{name}=", f"{name}=PROXIED://127.0.0.1:{port},", text, count=1, flags=re.MULTILINE)
            names = ("CONTROLLER", "PLAINTEXT", "PROXIED")
            protocols = ",".join(f"{name}:PLAINTEXT" for name in names)
            properties.write_text(f"{text}listener.security.protocol.map={protocols}\n")
            program = replace(program, environment={**program.environment, **self.of_kafka})
        super()._start(program)
