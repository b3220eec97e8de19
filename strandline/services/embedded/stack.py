"""The embedded stack: `up`, `down`, and the parts, which tests start one by one."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import httpx
from rich.console import Console
from rich.markup import escape

from strandline.core.errors import StackError
from strandline.core.extras import require_module
from strandline.core.settings import Settings
from strandline.ingest.registry import installed_gateways
from strandline.ledger.ledger import Ledger
from strandline.services.embedded import preflight
from strandline.services.embedded.addresses import (
    NOTHING_OUTSIDE,
    OUTSIDE_FIELDS,
    SERVER_NAMES,
    STACK_FILE,
    STACK_USER,
    Outside,
    Ports,
    StackAddresses,
    read_stack,
    settings_environment,
    stack_settings,
)
from strandline.services.embedded.admin_token import ADMIN_TOKEN_FILE, ensure_admin_token
from strandline.services.embedded.artifacts import ELASTICSEARCH, KAFKA, Artifact, find_java, provide
from strandline.services.embedded.elasticsearch_server import elasticsearch_program
from strandline.services.embedded.interruption import signals_raise_interrupt, signals_wait
from strandline.services.embedded.kafka_server import kafka_program
from strandline.services.embedded.outside_servers import require_outside
from strandline.services.embedded.passwords import (
    NETRC,
    PASSWORDS_DIR,
    ensure_passwords,
    login_settings,
    password_file,
    read_password,
    use_logins,
)
from strandline.services.embedded.progress_display import Cancelled, ProgressDisplay
from strandline.services.embedded.shutdown import WATCHER, record_orphan, stop_all, stop_part, stop_timeout_s
from strandline.services.processes.child_process import Child, Program, start
from strandline.services.processes.file_lock import held_alone
from strandline.services.processes.pids import PidFile
from strandline.services.processes.process_tree import kill_tree, tree_mark
from strandline.services.trust import certificates_for

__all__ = ["Stack", "StackAddresses", "down", "read_stack", "up"]

LOCK_FILE = "up.lock"
_LOOK_INTERVAL_S = 0.5
_WATCHER_LOG_TAIL_BYTES = 4096


def watching(pid: int) -> str:
    """Return the line of the watcher's log that shows that it has begun."""
    return f"the watcher (process {pid}) restarts crashed parts"


class Stack:
    """A stack that this process starts. Its parts can be started one by one, in any order. `stop` stops the running parts.
    Every method that starts a part raises StackError with a message, and in some cases with the end of a log. Then nothing of
    that part runs."""

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        port_offset: int,
        console: Console,
        outside: Outside = NOTHING_OUTSIDE,
        *,
        passwords: bool = False,
    ) -> None:
        """Args: outside: External servers that the stack uses instead of its own. passwords: True if its own servers require
        passwords."""
        self.data_dir = data_dir.absolute()
        self.ports = Ports.moved(port_offset)
        self.addresses = StackAddresses.of(self.data_dir, port_offset, outside, passwords=passwords, auth=settings.auth)
        self.settings = stack_settings(settings, self.addresses)
        """Settings for the processes of this stack and for its clients."""
        self._gateways = installed_gateways()
        self._console = console
        self._progress = ProgressDisplay(console)
        self._pids = PidFile(self.data_dir)
        self._java: Path | None = None
        self._children: dict[str, Child] = {}
        self._watcher_log_offset = 0
        self.was_running = False
        """True if parts of the stack already ran when `start` was called."""
        self.repaired: tuple[str, ...] = ()
        """Names in `pids.json` of the processes that `start` added to a stack that already ran."""

    @property
    def servers(self) -> dict[str, Callable[[], object]]:
        """Own servers of the stack that all other parts need: name in `pids.json` -> function that starts it."""
        own = {"kafka": self.start_kafka, "elasticsearch": self.start_elasticsearch, "mqtt": self.start_mqtt}
        return {name: start for name, start in own.items() if name not in self.addresses.outside}

    @property
    def parts(self) -> dict[str, Callable[[], object]]:
        """All parts that the watcher watches: name in `pids.json` -> function that starts it."""
        gateways = {one.part: partial(self.start_gateway, name) for name, one in self._gateways.items()}
        return self.servers | {"control": self.start_control} | gateways

    @property
    def running(self) -> dict[str, int]:
        """Running processes of the stack, including runners: name -> pid."""
        return self._pids.alive()

    def start(self) -> None:
        """Start the missing parts of the stack. On return, every part responds and is watched. If all parts run, change
        nothing.

        1. Check the settings, Java, the directory, free space, and the external servers. Refuse while another `up` or `down` of
           this stack runs.
        2. Find the running parts. Refuse if they run with other options, and return if no part is missing. If its own servers
           require passwords, create them, and let this process log in with them. Stop the watcher, so that no part is started
           twice.
        3. Check that the ports of the missing parts are free.
        4. In parallel: download missing files, start Kafka, Elasticsearch, and the MQTT broker, and bring the ledger's schema
           up to date.
        5. Start the control service and the gateways, then the watcher.

        After a failure, stop the parts that were started here. Parts that ran before keep running, and are watched again.
        """
        preflight.require_embedded_settings(os.environ, self.addresses)
        self._find_java()
        preflight.require_data_dir(self.data_dir)
        refusal = f"another `strandline up` or `down` runs in {self.data_dir}; wait until it has ended"
        # Two would start the same parts, and the one that fails would stop parts that the other needs.
        with held_alone(self.data_dir / LOCK_FILE, refusal):
            running = self._running_parts()
            self.was_running, alive = bool(running), self._pids.alive()
            absent = tuple(name for name in (*self.parts, WATCHER) if name not in alive)
            if running and not absent:
                return
            if running:
                self._progress.say(
                    f"a stack runs in {escape(str(self.data_dir))}; starting what is missing: {', '.join(absent)}"
                )
            self._require_outside()
            ensure_passwords(self.addresses)
            use_logins(self.addresses)
            missing = {name: start for name, start in self.parts.items() if name not in running}
            try:
                with signals_raise_interrupt():
                    stop_part(WATCHER, self._pids, self._progress)
                    if not running:
                        # Remaining processes of a killed stack could still write.
                        kill_tree(tree_mark(self.data_dir), whole_stack=True)
                    preflight.require_free_ports(self.ports, missing)
                    self.addresses.write()
                    first = [missing[name] for name in self.servers if name in missing]
                    self._at_once(*first, *([self.migrate_ledger] if "control" in missing else []))
                    self._at_once(*(start for name, start in missing.items() if name not in self.servers))
                    self.start_watcher()
                self.repaired = absent if running else ()
            except BaseException:
                if running:
                    with signals_wait():
                        self._stop_children()
                        self._progress = ProgressDisplay(self._console)  # the current display is cancelled
                        self.start_watcher()
                else:
                    self.stop()
                raise

    def _require_outside(self) -> None:
        """Raise StackError if an external server can't be used."""
        if outside := self.addresses.outside_servers():
            names = ", ".join(outside)
            with self._progress.step(f"looking at your servers: {names}", f"your servers are fine: {names}"):
                require_outside(outside, self.settings)

    def start_kafka(self) -> str:
        """Start Kafka, and download it first if necessary. Return its bootstrap address."""
        home = self._provide(KAFKA, "Kafka 4.2.1")
        with self._progress.step("starting Kafka", f"Kafka answers on {self.addresses.kafka_bootstrap}"):
            log, directory = self._log("kafka"), self.data_dir / "kafka"
            ports = self.ports.kafka, self.ports.kafka_controller
            password = read_password(self.addresses, "kafka")
            program = kafka_program(home, self._find_java(), directory, log, *ports, password)
            self._start(program)
        return self.addresses.kafka_bootstrap

    def start_elasticsearch(self) -> str:
        """Start Elasticsearch, and download it first if necessary. Return its URL."""
        home = self._provide(ELASTICSEARCH, "Elasticsearch 8.19.21")
        with self._progress.step(
            "starting Elasticsearch", f"Elasticsearch answers on {self.addresses.elasticsearch_url}"
        ):
            log, directory = self._log("elasticsearch"), self.data_dir / "elasticsearch"
            ports = self.ports.elasticsearch, self.ports.elasticsearch_transport
            password = read_password(self.addresses, "elasticsearch")
            program = elasticsearch_program(home, self._find_java(), directory, log, *ports, password)
            self._start(program)
        return self.addresses.elasticsearch_url

    def start_mqtt(self) -> str:
        """Start the MQTT broker, and return its URL. Raises MissingExtra if its package isn't installed."""
        require_module("amqtt")
        with self._progress.step("starting the MQTT broker", f"the MQTT broker answers on {self.addresses.mqtt_url}"):
            module = "strandline.services.embedded.mqtt_broker"
            password = read_password(self.addresses, "mqtt")
            arguments = [] if password is None else [str(password_file(self.addresses, "mqtt"))]
            self._start_module(
                "mqtt", [module, str(self.ports.mqtt), *arguments], lambda: _speaks_mqtt(self.ports.mqtt, password)
            )
        return self.addresses.mqtt_url

    def migrate_ledger(self) -> None:
        """Create the ledger's schema or bring it up to date. With logins, also create the admin's token."""
        with self._progress.step("preparing the ledger", "the ledger is ready"):
            Ledger.migrate(self.addresses.ledger_url)
            if self.settings.auth != "none":
                ensure_admin_token(self.data_dir, self.addresses.ledger_url)

    def start_control(self) -> str:
        """Start the control service, which starts the runners of the jobs. Return the API's URL."""
        with self._progress.step("starting the control service", f"the API answers on {self.addresses.api_url}"):
            self._start_module(
                "control",
                ["strandline.services.control"],
                _health(self.addresses.api_url),
                STRANDLINE_PORT_OFFSET=str(self.addresses.port_offset),
            )
        return self.addresses.api_url

    def start_gateway(self, name: str) -> None:
        """Start the gateway with this name, of Strandline or of a package."""
        gateway, ports = self._gateways[name], self.ports.gateways
        url = f"{gateway.scheme}://127.0.0.1:{ports[gateway.ports[0].setting]}"
        with self._progress.step(
            f"starting {gateway.title}", f"{gateway.title} {f'answers on {url}' if gateway.scheme else 'runs'}"
        ):
            values = {
                "port_offset": str(self.addresses.port_offset),
                **{port.setting: str(ports[port.setting]) for port in gateway.ports},
                **dict.fromkeys(gateway.hosts, "127.0.0.1"),
            }
            environment = {f"STRANDLINE_{setting.upper()}": value for setting, value in values.items()}
            self._start_module(
                gateway.part,
                [gateway.module],
                _health(f"http://127.0.0.1:{ports[gateway.health_port.setting]}"),
                **environment,
                **gateway.environment(self.addresses.servers()),
            )

    def start_watcher(self) -> None:
        """Start the watcher, which restarts crashed parts."""
        module = ["strandline.services.embedded.watcher", str(self.addresses.port_offset)]
        self._start_module(WATCHER, module, self._is_watched)
        self._watcher_log_offset = self._log(WATCHER).stat().st_size

    def wait(self) -> None:
        """Show the actions of the watcher until Ctrl-C, SIGTERM, SIGHUP, or until another command stops the stack. The stack
        keeps running: `stop` stops it."""
        try:
            with signals_raise_interrupt():
                while self.follow():
                    time.sleep(_LOOK_INTERVAL_S)
                self._progress.say("the stack was stopped by another command")
        except KeyboardInterrupt:
            return

    def follow(self) -> bool:
        """Print new lines of the watcher's log, and restart the watcher if it crashed. Return False if another command stopped
        the stack: no part and no watcher runs."""
        for child in self._children.values():
            child.is_alive()  # removes an ended process from the process table
        with self._log(WATCHER).open("rb") as log:
            if log.seek(0, os.SEEK_END) < self._watcher_log_offset:
                self._watcher_log_offset = 0  # the log was too large, and was started again
            log.seek(self._watcher_log_offset)
            lines = log.read()
            self._watcher_log_offset = log.tell()
        for line in lines.decode("utf-8", "replace").splitlines():
            self._progress.say(escape(line))
        recorded, alive = self._pids.all(), self._pids.alive()
        if WATCHER in recorded and WATCHER not in alive:
            self._progress.say("the watcher was killed; it is restarted")
            self.start_watcher()
        # A watcher that `down` or another `up` stops removes its own record, so it is not restarted here.
        return WATCHER in recorded or any(name in alive for name in self.parts)

    def cancel(self) -> None:
        """Make every running start end with Cancelled. Then nothing of that part runs."""
        self._progress.cancel()

    def stop(self) -> None:
        """Stop every process of the stack, in the reverse order of starting."""
        with signals_wait():
            stop_all(self.data_dir, self._progress)
            for child in self._children.values():
                child.is_alive()
            self._children.clear()

    def _stop_children(self) -> None:
        """Stop only the parts that were started here."""
        for name, child in self._children.items():
            if self._pids.alive().get(name) == child.pid:
                stop_part(name, self._pids, self._progress)
        self._children.clear()

    def _running_parts(self) -> set[str]:
        """Return the names of the parts that run already. Raises StackError if they run with other options."""
        record_orphan(self.data_dir, self._pids)
        alive = self._pids.alive()
        running = {name: pid for name, pid in alive.items() if name in self.parts}
        if not running:
            return set()
        there = read_stack(self.data_dir)
        if differences := self.addresses.differences(there):
            where = f"--data-dir {self.data_dir}"
            raise StackError(
                f"the stack in {self.data_dir} already runs with other options: {'; '.join(differences)}. To use it as it is, "
                f"run strandline up {where} without these options and variables. To change it, run strandline down {where} first"
            )
        return set(running)

    def _is_watched(self) -> bool:
        """Return True if the watcher has logged that it watches."""
        log = self._log(WATCHER)
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _WATCHER_LOG_TAIL_BYTES))
            return watching(self._pids.all().get(WATCHER, 0)).encode() in file.read()

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
                environment=settings_environment(self.settings) | login_settings(self.addresses) | environment,
                directory=self.data_dir,
                stop_timeout_s=stop_timeout_s(name),
            )
        )

    def _start(self, program: Program) -> None:
        if program.name in self._children:
            self._children[program.name].is_alive()  # removes a killed process from the process table
        self._children[program.name] = start(program, self._pids, self._progress.check)

    def _at_once(self, *parts: Callable[[], object]) -> None:
        """Run the parts in threads. The first failure ends the others, and is raised."""
        if not parts:
            return
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


def up(
    settings: Settings,
    data_dir: Path,
    port_offset: int,
    detach: bool,
    console: Console,
    outside: Outside = NOTHING_OUTSIDE,
    *,
    passwords: bool = False,
) -> Stack:
    """Start a stack in `data_dir`, or its missing parts. When every part responds, print the addresses, and return.

    If the stack already runs, start only missing processes, and print what runs and what was repaired. Its processes outlive
    this process. Without `detach`, the caller continues with `Stack.wait` and `Stack.stop`. Raises StackError if it can't be
    started, KeyboardInterrupt if the user cancels. Then no process that it started runs.

    Args: outside: External servers, from `choose_outside`. passwords: Result of `choose_passwords`.
    """
    stack = Stack(settings, data_dir, port_offset, console, outside, passwords=passwords)
    stack.start()
    where = stack.addresses
    yours = {name: " (yours)" if name in where.outside else "" for name in OUTSIDE_FIELDS}
    lines = [
        *_state_lines(stack),
        f"console {where.api_url}/",
        f"API {where.api_url}   HTTP ingest {where.ingest_url}   Elasticsearch {where.elasticsearch_url}{yours['elasticsearch']}",
        f"Kafka {where.kafka_bootstrap}{yours['kafka']}   MQTT broker {where.mqtt_url}{yours['mqtt']}   "
        f"MQTT server {where.mqtt_listener_url}",
        *([f"ledger {where.ledger_url} (yours)"] if yours["ledger"] else []),
        f"UDP and TCP: the ports that the streams name{f', plus {port_offset}' if port_offset else ''}   "
        f"logs {stack.data_dir / 'logs'}",
    ]
    if where.secured():
        names = ", ".join(SERVER_NAMES[name] for name in where.secured())
        lines.append(
            f"user {STACK_USER} with the passwords in {stack.data_dir / PASSWORDS_DIR} can log in to {names}; "
            "strandline up --no-passwords starts a stack without passwords"
        )
    if "elasticsearch" in where.secured():
        netrc = shlex.quote(str(stack.data_dir / PASSWORDS_DIR / NETRC))
        lines.append(f"to query Elasticsearch: curl --netrc-file {netrc} '{where.elasticsearch_url}/_cat/indices?v'")
    if settings.auth != "none":
        lines.append(f"the admin's token, which local commands use, is in {stack.data_dir / ADMIN_TOKEN_FILE}")
    if detach:
        lines.append(f"to stop the stack, run strandline down --data-dir {stack.data_dir}")
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)
    return stack


def running_port_offset(data_dir: Path) -> int:
    """Return the port offset of the stack that runs in `data_dir`; 0 if none runs."""
    if not (data_dir / STACK_FILE).exists() or not PidFile(data_dir).alive():
        return 0
    return read_stack(data_dir).port_offset


def _state_lines(stack: Stack) -> list[str]:
    """Return what `up` found and did, if the stack already ran."""
    if not stack.was_running:
        return []
    running = ", ".join(f"{name} ({pid})" for name, pid in stack.running.items())
    repaired = f"repaired: {', '.join(stack.repaired)}" if stack.repaired else "nothing had to be repaired"
    return [f"the stack in {stack.data_dir} already ran; {repaired}", f"processes: {running}"]


def down(data_dir: Path, console: Console) -> None:
    """Stop the stack in `data_dir`, including the runners of its jobs. Does nothing if no process runs.

    Raises StackError if no stack was ever started there, if another `up` or `down` runs, or if a process doesn't end.
    """
    read_stack(data_dir)
    directory = data_dir.absolute()
    refusal = (
        f"another `strandline up` or `down` runs in {directory}; wait until it has ended, or end it by Ctrl-C, "
        "then run `strandline down` again"
    )
    # While an `up` still runs, this would stop the servers, and leave processes that `up` starts next.
    with held_alone(directory / LOCK_FILE, refusal), signals_wait():
        stop_all(directory, ProgressDisplay(console))


def _speaks_mqtt(port: int, password: str | None) -> bool:
    """Return True if a broker accepts a CONNECT (MQTT 3.1.1, clean session) with the login of the stack."""
    logins = [] if password is None else [STACK_USER, password]
    fields = b"".join(len(one).to_bytes(2, "big") + one.encode() for one in ("ready", *logins))
    body = b"\x00\x04MQTT\x04" + (b"\x02" if password is None else b"\xc2") + b"\x00\x0a" + fields
    head = b"\x10" + (bytes([len(body)]) if len(body) < 128 else bytes([len(body) % 128 | 128, len(body) // 128]))
    connect, disconnect = head + body, b"\xe0\x00"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
            connection.sendall(connect)
            is_accepted = connection.recv(4) == b"\x20\x02\x00\x00"
            connection.sendall(disconnect)
    except OSError:
        return False
    return is_accepted


def _health(url: str) -> Callable[[], bool]:
    certificates = certificates_for(url, None)

    def answers() -> bool:
        try:
            return httpx.get(f"{url}/healthz", timeout=2.0, trust_env=False, verify=certificates).status_code == 200
        except httpx.TransportError:
            return False

    return answers
