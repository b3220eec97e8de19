"""The embedded stack, with a proxy between Kafka and those that run jobs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from strandline.core.settings import Settings
from strandline.services.embedded.addresses import settings_environment
from strandline.services.embedded.shutdown import stop_part, stop_timeout_s
from strandline.services.embedded.stack import Stack, _health
from strandline.services.processes.child_process import Program
from strandline.services.processes.process_tree import kill_tree, tree_mark
from tests.support.faults.kafka_proxy import KafkaProxy
from tests.support.ports import free_ports
from tests.support.waiting import stretched

_BOOTSTRAP = "STRANDLINE_KAFKA_BOOTSTRAP"


@dataclass(frozen=True)
class MoreControl:
    """An additional control service, with its own data directory."""

    name: str
    directory: Path
    port: int
    ledger_url: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "STRANDLINE_DATA_DIR": str(self.directory),
            "STRANDLINE_CONTROL_PORT": str(self.port),
            "STRANDLINE_LEDGER_URL": self.ledger_url,
        }


class ProxiedStack(Stack):
    """A stack whose control service, and so its runners, and broker get more into their environment, and the broker a listener
    more."""

    def __init__(self, settings: Settings, data_dir: Path, port_offset: int, console: Console) -> None:
        super().__init__(settings, data_dir, port_offset, console)
        self.of_control: dict[str, str] = {}
        self.of_kafka: dict[str, str] = {}
        self.of_service: dict[str, dict[str, str]] = {}
        """Settings of single control services, by name."""
        self.proxied_port, proxy_port = free_ports(2)
        self.kafka_proxy = KafkaProxy(proxy_port, self.proxied_port)
        """Between the broker, and control service, runners and gateway."""
        self.of_control[_BOOTSTRAP] = f"127.0.0.1:{proxy_port}"
        self.more_services: dict[str, MoreControl] = {}
        """The additional control services, by their names in `pids.json`."""

    def add_service(self, ledger_url: str) -> MoreControl:
        """One more control service over the same ledger, reached by this URL; nothing is started."""
        name = f"control-{len(self.more_services) + 2}"
        found = self.more_services[name] = MoreControl(name, self.data_dir / name, free_ports(1)[0], ledger_url)
        found.directory.mkdir()
        return found

    def directory_of(self, service: str) -> Path:
        """A control service's data directory, as it records it in the ledger."""
        one = self.more_services.get(service)
        return (self.data_dir if one is None else one.directory).resolve()

    def start_service(self, name: str) -> None:
        """Start one that was added."""
        one = self.more_services[name]
        environment = (
            settings_environment(self.settings) | self.of_control | self.of_service.get(name, {}) | one.environment
        )
        module = [sys.executable, "-m", "strandline.services.control"]
        log, ready = self._log(name), _health(f"http://127.0.0.1:{one.port}")
        self._start(
            Program(name, module, log, ready, environment, one.directory, stop_timeout_s=stop_timeout_s("control"))
        )

    def stop(self) -> None:
        for name, one in self.more_services.items():
            stop_part(name, self._pids, self._progress)
            kill_tree(tree_mark(one.directory), whole_stack=True)
        super().stop()

    def _start_module(self, name: str, module: list[str], is_ready: Callable[[], bool], **environment: str) -> None:
        more = self.of_control | self.of_service.get(name, {}) if name == "control" else {}
        if name.startswith("gateway"):
            more = {_BOOTSTRAP: self.of_control[_BOOTSTRAP]}
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
        super()._start(replace(program, ready_timeout_s=stretched(program.ready_timeout_s)))
