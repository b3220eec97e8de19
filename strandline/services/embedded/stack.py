"""The embedded stack as a whole: `up`, `down`, and the pieces that tests start one by one."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx
from rich.console import Console

from strandline.core.errors import StackError
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.services.embedded import preflight
from strandline.services.embedded.addresses import (
    Ports,
    StackAddresses,
    read_stack,
    settings_environment,
    stack_settings,
)
from strandline.services.embedded.artifacts import ELASTICSEARCH, KAFKA, Artifact, find_java, provide
from strandline.services.embedded.elasticsearch_server import elasticsearch_program, find_server
from strandline.services.embedded.kafka_server import kafka_program
from strandline.services.embedded.progress_display import Cancelled, ProgressDisplay
from strandline.services.processes.child_process import Child, Program, log_tail, start, stop
from strandline.services.processes.pids import PidFile
from strandline.services.processes.process_tree import kill_tree, tree_mark

__all__ = ["Stack", "StackAddresses", "down", "read_stack", "up"]

_STOP_TIMEOUTS_S = {
    "kafka": 30.0,
    "elasticsearch": 30.0,
    "mqtt": 5.0,
    "control": 40.0,
    "gateway-http": 20.0,
    "gateway-mqtt": 30.0,
    "gateway-mqtt-listener": 20.0,
    "gateway-udp": 20.0,
    "gateway-tcp": 20.0,
}
"""How long each may take to end by itself. The control service waits for its runners, and they for their slice."""
_RUNNER_STOP_TIMEOUT_S = 20.0
_WATCH_INTERVAL_S = 0.5


class Stack:
    """A stack that this process starts. Its parts can be started one by one, in any order; `stop` stops what runs.

    Every method that starts something raises StackError, in one sentence and perhaps the end of a log, and leaves
    nothing of that part running.
    """

    def __init__(self, settings: Settings, data_dir: Path, port_offset: int, console: Console) -> None:
        self.data_dir = data_dir.absolute()
        self.ports = Ports.moved(port_offset)
        self.addresses = StackAddresses.of(self.data_dir, port_offset)
        self.settings = stack_settings(settings, self.addresses)
        """What the processes of this stack, and a client of it, are to be given."""
        self._progress = ProgressDisplay(console)
        self._pids = PidFile(self.data_dir)
        self._java: Path | None = None
        self._children: dict[str, Child] = {}

    def start(self) -> None:
        """Start everything, so that on return every part answers; on any failure stop what was started.

        1. Look whether the machine is fit: Java, the directory, free space, no stack there already, free ports.
        2. Fetch what the cache lacks, start Kafka, Elasticsearch and the MQTT broker, bring the ledger's schema up to
           date: all at once.
        3. Start the control service and the gateways.
        """
        self._prepare()
        try:
            with _signals_raise_interrupt():
                self._at_once(self.start_kafka, self.start_elasticsearch, self.start_mqtt, self.migrate_ledger)
                self._at_once(
                    self.start_control,
                    self.start_http_gateway,
                    self.start_mqtt_gateway,
                    self.start_mqtt_listener,
                    self.start_udp_gateway,
                    self.start_tcp_gateway,
                )
        except BaseException:
            self.stop()
            raise

    def start_kafka(self) -> str:
        """Start Kafka, fetching it first if need be. Returns its bootstrap address."""
        home = self._provide(KAFKA, "Kafka 4.2.1")
        with self._progress.step("starting Kafka", f"Kafka answers on {self.addresses.kafka_bootstrap}"):
            log = self._log("kafka")
            directory = self.data_dir / "kafka"
            program = kafka_program(
                home, self._find_java(), directory, log, self.ports.kafka, self.ports.kafka_controller
            )
            self._start(program)
        return self.addresses.kafka_bootstrap

    def start_elasticsearch(self) -> str:
        """Start Elasticsearch, fetching it first if need be. Returns its URL."""
        home = self._provide(ELASTICSEARCH, "Elasticsearch 8.19.21")
        with self._progress.step(
            "starting Elasticsearch", f"Elasticsearch answers on {self.addresses.elasticsearch_url}"
        ):
            log = self._log("elasticsearch")
            directory = self.data_dir / "elasticsearch"
            program = elasticsearch_program(
                home, self._find_java(), directory, log, self.ports.elasticsearch, self.ports.elasticsearch_transport
            )
            self._start(program)
        return self.addresses.elasticsearch_url

    def start_mqtt(self) -> str:
        """Start the MQTT broker. Returns its URL."""
        with self._progress.step("starting the MQTT broker", f"the MQTT broker answers on {self.addresses.mqtt_url}"):
            module = "strandline.services.embedded.mqtt_broker"
            self._start_module("mqtt", [module, str(self.ports.mqtt)], lambda: _speaks_mqtt(self.ports.mqtt))
        return self.addresses.mqtt_url

    def migrate_ledger(self) -> None:
        """Bring the ledger's schema up to date; it is made on the first start."""
        with self._progress.step("preparing the ledger", "the ledger is ready"):
            Ledger.migrate(self.addresses.ledger_url)

    def start_control(self) -> str:
        """Start the control service; it starts the runners of the jobs. Returns the API's URL."""
        with self._progress.step("starting the control service", f"the API answers on {self.addresses.api_url}"):
            self._start_module("control", ["strandline.services.control"], _health(self.addresses.api_url))
        return self.addresses.api_url

    def start_http_gateway(self) -> str:
        """Start the HTTP gateway. Returns its URL."""
        with self._progress.step(
            "starting the HTTP gateway", f"the HTTP gateway answers on {self.addresses.ingest_url}"
        ):
            self._start_module("gateway-http", ["strandline.ingest.http.gateway"], _health(self.addresses.ingest_url))
        return self.addresses.ingest_url

    def start_mqtt_gateway(self) -> None:
        """Start the gateway that takes what is published to the stack's MQTT broker."""
        with self._progress.step("starting the MQTT bridge", "the MQTT bridge runs"):
            self._start_module(
                "gateway-mqtt",
                ["strandline.ingest.mqtt.bridge"],
                _health(f"http://127.0.0.1:{self.ports.mqtt_gateway_health}"),
                STRANDLINE_MQTT_URL=self.addresses.mqtt_url,
                STRANDLINE_MQTT_VERSION="3.1.1",  # what amqtt speaks
                STRANDLINE_MQTT_PAGES_PORT=str(self.ports.mqtt_gateway_health),
            )

    def start_udp_gateway(self) -> None:
        """Start the UDP gateway; the streams' documents say on which ports it listens."""
        with self._progress.step("starting the UDP gateway", "the UDP gateway runs"):
            self._start_module(
                "gateway-udp",
                ["strandline.ingest.sockets.udp_gateway"],
                _health(f"http://127.0.0.1:{self.ports.udp_gateway_health}"),
                STRANDLINE_PORT_OFFSET=str(self.addresses.port_offset),
                STRANDLINE_UDP_HOST="127.0.0.1",
                STRANDLINE_UDP_PAGES_PORT=str(self.ports.udp_gateway_health),
            )

    def start_tcp_gateway(self) -> None:
        """Start the TCP gateway; the streams' documents say on which ports it listens."""
        with self._progress.step("starting the TCP gateway", "the TCP gateway runs"):
            self._start_module(
                "gateway-tcp",
                ["strandline.ingest.sockets.tcp_gateway"],
                _health(f"http://127.0.0.1:{self.ports.tcp_gateway_health}"),
                STRANDLINE_PORT_OFFSET=str(self.addresses.port_offset),
                STRANDLINE_TCP_HOST="127.0.0.1",
                STRANDLINE_TCP_PAGES_PORT=str(self.ports.tcp_gateway_health),
            )

    def start_mqtt_listener(self) -> str:
        """Start the MQTT server, to which sensors connect themselves. Returns its URL."""
        url = self.addresses.mqtt_listener_url
        with self._progress.step("starting the MQTT server", f"the MQTT server answers on {url}"):
            self._start_module(
                "gateway-mqtt-listener",
                ["strandline.ingest.mqtt.server"],
                _health(f"http://127.0.0.1:{self.ports.mqtt_listener_health}"),
                STRANDLINE_MQTT_LISTENER_HOST="127.0.0.1",
                STRANDLINE_MQTT_LISTENER_PORT=str(self.ports.mqtt_listener),
                STRANDLINE_MQTT_LISTENER_PAGES_PORT=str(self.ports.mqtt_listener_health),
            )
        return url

    def wait(self) -> None:
        """Return when the user gives up (Ctrl-C, SIGTERM, SIGHUP). The stack runs on: `stop` stops it.

        Raises StackError, with the end of its log, when a process of the stack ends by itself.
        """
        try:
            with _signals_raise_interrupt():
                while True:
                    self.require_alive()
                    time.sleep(_WATCH_INTERVAL_S)
        except KeyboardInterrupt:
            return

    def require_alive(self) -> None:
        """Raises StackError, with the end of its log, when a process that was started here has ended by itself."""
        for name, child in self._children.items():
            if not child.is_alive():
                raise StackError(f"{name} ended unexpectedly:\n{log_tail(child.program.log)}")

    def stop(self) -> None:
        """Stop every process of the stack, in the reverse order of starting."""
        with _signals_wait():
            _stop_all(self.data_dir, self._progress)
            for child in self._children.values():
                child.is_alive()
            self._children.clear()

    def _prepare(self) -> None:
        self._find_java()
        preflight.require_data_dir(self.data_dir)
        _record_orphan(self.data_dir, self._pids)
        if running := self._pids.alive():
            names = ", ".join(f"{name} ({pid})" for name, pid in running.items())
            raise StackError(
                f"a stack already runs in {self.data_dir}: {names}; "
                f"stop it with: strandline down --data-dir {self.data_dir}"
            )
        # What a stack that was killed left behind could still write.
        kill_tree(tree_mark(self.data_dir), whole_stack=True)
        preflight.require_free_ports(self.ports)
        self.addresses.write()

    def _provide(self, artifact: Artifact, title: str) -> Path:
        doing, done = f"fetching {title}", f"{title} is in the cache, every file as expected"
        with self._progress.step(doing, done, total=artifact.download_bytes) as advance:
            return provide(artifact, self.settings.cache_dir, self._find_java(), advance)

    def _find_java(self) -> Path:
        self._java = self._java or find_java()
        return self._java

    def _log(self, name: str) -> Path:
        return self.data_dir / "logs" / f"{name}.log"

    def _start_module(self, name: str, module: list[str], is_ready: Callable[[], bool], **environment: str) -> None:
        self._start(
            Program(
                name=name,
                arguments=[sys.executable, "-m", *module],
                log=self._log(name),
                is_ready=is_ready,
                environment=settings_environment(self.settings) | environment,
                directory=self.data_dir,
                stop_timeout_s=_STOP_TIMEOUTS_S[name],
            )
        )

    def _start(self, program: Program) -> None:
        if program.name in self._children:
            self._children[program.name].is_alive()  # clears one that was killed from the process table
        self._children[program.name] = start(program, self._pids, self._progress.check)

    def _at_once(self, *parts: Callable[[], object]) -> None:
        """Run the parts in threads. The first failure ends the others, and is what is raised."""
        with ThreadPoolExecutor(len(parts)) as pool:
            futures = [pool.submit(part) for part in parts]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                if not all(future.done() and future.exception() is None for future in futures):
                    self._progress.cancel()
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, Cancelled)), errors[0])


def up(settings: Settings, data_dir: Path, port_offset: int, detach: bool, console: Console) -> Stack:
    """Start a whole stack in `data_dir`, return when every part answers, and print where.

    Its processes outlive this one. Without `detach` the caller goes on with `Stack.wait` and `Stack.stop`.
    Raises StackError when it can't be started, KeyboardInterrupt when the user gave up; nothing of it runs then.
    """
    stack = Stack(settings, data_dir, port_offset, console)
    stack.start()
    where = stack.addresses
    lines = [
        f"API {where.api_url}   HTTP ingest {where.ingest_url}   Elasticsearch {where.elasticsearch_url}",
        f"Kafka {where.kafka_bootstrap}   MQTT broker {where.mqtt_url}   MQTT server {where.mqtt_listener_url}",
        f"UDP and TCP: the ports that the streams name{f', plus {port_offset}' if port_offset else ''}   "
        f"logs {stack.data_dir / 'logs'}",
    ]
    if detach:
        lines.append(f"stop it with: strandline down --data-dir {stack.data_dir}")
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)
    return stack


def down(data_dir: Path, console: Console) -> None:
    """Stop the stack in `data_dir`, the runners of its jobs included; nothing to stop is no error.

    Raises StackError when no stack was ever started there, or a process doesn't end.
    """
    read_stack(data_dir)
    with _signals_wait():
        _stop_all(data_dir.absolute(), ProgressDisplay(console))


def _stop_all(data_dir: Path, progress: ProgressDisplay) -> None:
    """Stop what runs of the stack, the last started first.

    1. The gateways, so that nothing is accepted that would not be persisted.
    2. The control service, which ends its runners after their slice; before them, because it would start them again.
    3. Runners that are left because their control service died before, and what they left behind.
    4. The servers, Kafka last: the others still write to it.
    """
    pids = PidFile(data_dir)
    _record_orphan(data_dir, pids)
    alive = pids.alive()
    runners = [name for name in alive if name.startswith("runner-")]
    gateways = [name for name in alive if name.startswith("gateway-")]
    for name in (*gateways, "control", *runners):
        _stop_one(name, alive, pids, progress)
    kill_tree(tree_mark(data_dir), whole_stack=True)
    for name in ("mqtt", "elasticsearch", "kafka"):
        _stop_one(name, alive, pids, progress)
    for name, pid in pids.all().items():
        pids.remove(name, pid)


def _stop_one(name: str, alive: dict[str, int], pids: PidFile, progress: ProgressDisplay) -> None:
    if name in alive:
        with progress.step(f"stopping {name}", f"{name} is stopped"):
            stop(name, alive[name], pids, timeout_s=_STOP_TIMEOUTS_S.get(name, _RUNNER_STOP_TIMEOUT_S))


def _record_orphan(data_dir: Path, pids: PidFile) -> None:
    """Record an Elasticsearch whose `up` was killed between starting and recording it."""
    pid = find_server(data_dir / "elasticsearch")
    if pid is not None and pids.alive().get("elasticsearch") != pid:
        pids.add("elasticsearch", pid)


def _speaks_mqtt(port: int) -> bool:
    """Whether a broker answers a CONNECT (MQTT 3.1.1, clean session) with success."""
    connect, disconnect = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x0a\x00\x05ready", b"\xe0\x00"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
            connection.sendall(connect)
            is_accepted = connection.recv(4) == b"\x20\x02\x00\x00"
            connection.sendall(disconnect)
    except OSError:
        return False
    return is_accepted


def _health(url: str) -> Callable[[], bool]:
    def answers() -> bool:
        try:
            return httpx.get(f"{url}/healthz", timeout=2.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    return answers


@contextmanager
def _signals_raise_interrupt() -> Iterator[None]:
    """Treat the ends that a terminal or a service manager asks for like Ctrl-C, so that the stack stops in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handlers(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Stopping is bounded in time and must not be left half done: an impatient second Ctrl-C changes nothing."""
    with _handlers(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handlers(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Handle the signals so for a while; one that is ignored (nohup) stays so. Other threads can't set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
