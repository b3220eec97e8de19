"""The embedded stack with one job on it, from the side of whoever breaks it: which processes there are, how to end or hold
one, and who starts it again.

A runner and its family are started again by the supervisor; servers, gateway and control service by `mend`, as a service
manager would.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
from rich.console import Console

from strandline.core.errors import StackError
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.services.client import ControlClient, ControlUnavailable
from strandline.services.processes.pids import PidFile
from tests.support.chaos.checking.pace import LONG, PACES, SHORT
from tests.support.chaos.dump import Dump, Row, query, take_dump
from tests.support.chaos.index_proxy import IndexProxy
from tests.support.chaos.machine import SmallDisk, WallClock
from tests.support.chaos.postgresql_server import PostgresqlServer
from tests.support.chaos.proxied_stack import ProxiedStack
from tests.support.chaos.tcp_proxy import TcpProxy
from tests.support.chaos.work import RATE, JobLoad, documents
from tests.support.faults.checker import Verdict, check_files
from tests.support.faults.history import History
from tests.support.faults.topic_dump import dump_topic
from tests.support.kafka_storage import provide_storage
from tests.support.servers import free_port_offset
from tests.support.waiting import wait_until

START_TIMEOUT_S = 600.0
DRAIN_TIMEOUT_S = 600.0
MEND_TIMEOUT_S = 180.0
POLL_S = 0.2
"""What is measured is right to that; to look more often would only take time from the job."""


@dataclass(frozen=True)
class Target:
    """A kind of process that can be killed or held."""

    name: str
    pids: Callable[[JobStack], list[int]]
    """Of what is to be killed or held at once; empty when there is none at the moment."""
    part: str | None = None
    """Of the stack, which `mend_all` has to start again; None for what the supervisor looks after."""

    @property
    def thing(self) -> str:
        """What it is a part of: of the runner's processes only one is broken at a time, the others may end with it."""
        return self.part or "runner"


class JobStack:
    """Kafka, Elasticsearch, control service, HTTP gateway and one job in a directory of its own. `close` ends all."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        speed: int = 20,
        rate: int = RATE,
        ledger: str = "sqlite",
        recovery: str = "rewind",
        kinds: Sequence[str] = (),
    ) -> None:
        """`speed`: seconds of event time in a second. `rate`: records/s. `ledger`: `sqlite` or `postgresql`. `recovery`: the
        job's, `rewind` or `snapshot`. `kinds`: the kinds of faults that it has to be made ready for; none: all."""
        self.directory = directory
        self.speed, self.rate = speed, rate
        self.recovery = recovery
        self.failpoints = directory / "failpoints"
        """While this file is there, it arms failpoints in every runner; see strandline/core/failpoints.py."""
        self.job, self.stream = "chaos", "chaos-readings"
        self.version = 1
        """Of the job's document, the newest that was applied, or is to be."""
        self.stack = ProxiedStack(Settings(), directory, free_port_offset(), Console(quiet=True))
        self.stack.of_control["STRANDLINE_FAILPOINTS"] = f"@{self.failpoints}"  # which the runners inherit
        self.index_proxy = IndexProxy(self.stack.ports.elasticsearch)
        """Between the job and the index; what reads the index at the end goes past it."""
        self._set(elasticsearch_url=f"http://127.0.0.1:{self.index_proxy.port}")
        self.history = History(directory / "history.jsonl")
        self.load: JobLoad | None = None
        self.kafka_away: list[tuple[int, int]] = []
        """When the broker was down or held: from, to, in ms of the wall clock."""
        self.has_more_partitions = False
        """Whether the stream got partitions after its senders had begun."""
        self._seed = seed
        self._pids = PidFile(directory)
        # Its threads live as long as this: PostgreSQL is told to end when the thread ends that started it.
        self._menders = ThreadPoolExecutor(16, "mender")
        self._starters: dict[str, Callable[[], object]] = {
            "kafka": self.stack.start_kafka,
            "elasticsearch": self.stack.start_elasticsearch,
            "control": self.stack.start_control,
            "gateway-http": self.stack.start_http_gateway,
        }
        self.postgresql: PostgresqlServer | None = None
        self.ledger_proxy: TcpProxy | None = None
        """Between the platform and PostgreSQL."""
        if ledger == "postgresql":
            self.postgresql = PostgresqlServer()
            self.ledger_proxy = TcpProxy(self.postgresql.port)
            self._set(ledger_url=self.postgresql.url_at(self.ledger_proxy.port))
        self.left_out: dict[str, str] = {}
        """Kinds of faults that can't be done on this machine, and why."""
        self.clocks: dict[str, WallClock] = {}
        """By the kind of fault that sets it."""
        self._make_clocks(kinds)
        self.small_disk: SmallDisk | None = None
        """Where the runners have their scratch."""
        if not kinds or "disk-full" in kinds:
            self._make_disk()

    @property
    def ledger_url(self) -> str:
        """For the harness itself: past the proxy."""
        return self.stack.settings.ledger_url if self.postgresql is None else self.postgresql.url

    def _make_clocks(self, wanted: Sequence[str]) -> None:
        for kind, (environment, some) in {
            "clock-step": (self.stack.of_control, ""),
            "runner-clock": (self.stack.of_control, "strandline.processing.run.process"),
            "kafka-clock": (self.stack.of_kafka, ""),
        }.items():
            if not wanted or kind in wanted:
                try:
                    self.clocks[kind] = WallClock(self.directory, kind, some)
                except OSError as error:
                    self.left_out[kind] = str(error)
                    continue
                environment |= self.clocks[kind].environment

    def _make_disk(self) -> None:
        try:
            self.small_disk = SmallDisk(self.directory / "small-disk")
        except OSError as error:
            self.left_out["disk-full"] = f"no file system can be mounted: {error}"
            return
        self._set(scratch_dir=self.small_disk.directory)

    def _set(self, **settings: object) -> None:
        self.stack.settings = self.stack.settings.model_copy(update=settings)

    def start(self) -> None:
        """Start the servers, the job and its senders; return when the first results are there."""
        self.stack.addresses.write()
        self.stack.kafka_proxy.start()
        provide_storage(self.directory / "kafka" / "log")
        Ledger.migrate(self.ledger_url)
        for starter in self._starters.values():
            starter()
        with ControlClient(self.stack.addresses.api_url) as control:
            control.apply(self.text().encode(), "chaos.yaml")
        self.load = JobLoad(
            self.history,
            lambda: self.stack.ports.http,
            self.stream,
            seed=self._seed,
            speed=self.speed,
            rate=self.rate,
        )
        self.load.start()
        self.wait_for_results(after_slice=0, since_s=0.0, timeout_s=START_TIMEOUT_S)

    def text(self) -> str:
        """The documents of stream and job, in the present version."""
        return documents(self.stream, self.job, PACES[self.speed], self.version) + f"recovery: {self.recovery}\n"

    def close(self) -> None:
        """End everything, whatever state it is in. What is held is let go on first, or it could not end."""
        if self.load is not None:
            self.load.is_stopping = True
        for pid in [*self._pids.alive().values(), *self.family()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.stack.stop()
        self._menders.shutdown()
        self.index_proxy.close()
        self.stack.kafka_proxy.stop()
        if self.postgresql is not None and self.ledger_proxy is not None:
            self.ledger_proxy.close()
            self.postgresql.close()
        if self.small_disk is not None:
            self.small_disk.close()

    # --- Processes

    def named(self, name: str) -> list[int]:
        pid = self._pids.alive().get(name)
        return [] if pid is None else [pid]

    def runner(self) -> list[int]:
        return self.named(f"runner-{self.job}")

    def jvm(self) -> list[int]:
        return [pid for pid in self.family() if _name(pid) == "java"][:1]

    def worker(self, chance: random.Random) -> list[int]:
        """One of the Python processes below the JVM: a worker, a daemon that forks them, or the planner."""
        below = [pid for jvm in self.jvm() for pid in _descendants(jvm) if _name(pid).startswith("python")]
        return [chance.choice(below)] if below else []

    def family(self) -> list[int]:
        """The runner and all that it started, the runner first."""
        return [pid for runner in self.runner() for pid in (runner, *_descendants(runner))]

    def mend_all(self, parts: Sequence[str]) -> None:
        """Start parts of the stack again that were killed, all at once: one may have to wait for another."""
        for done in [self._menders.submit(self._mend, part) for part in parts]:
            done.result()

    def _mend(self, part: str) -> None:
        """As a service manager would: again, when it ends because another part is not there yet."""
        if part == "postgresql":
            assert self.postgresql is not None
            wait_until(self.postgresql.pids, lambda pids: not pids, "gone: PostgreSQL")
            self.postgresql.start()
            return
        wait_until(lambda: self.named(part), lambda pids: not pids, f"gone: {part}")
        deadline_s = time.monotonic() + MEND_TIMEOUT_S
        while True:
            try:
                self._starters[part]()
                return
            except StackError:
                if time.monotonic() > deadline_s:
                    raise

    def note_kafka_away(self, since_ms: int) -> None:
        """That the brokers were away until now is no silence: the checker must know of it."""
        self.kafka_away.append((since_ms, time.time_ns() // 1_000_000))

    # --- Failpoints

    def arm(self, orders: str) -> None:
        """Arm failpoints in place of those that were armed before; nothing has fired then."""
        self._beside("fired").unlink(missing_ok=True)
        new = self._beside("new")
        new.write_text(orders)
        new.replace(self.failpoints)

    def disarm(self) -> None:
        self.failpoints.unlink(missing_ok=True)

    def has_fired(self) -> bool:
        return self._beside("fired").exists()

    def reached(self) -> set[str]:
        """The failpoints that were noted while `*=note` was armed."""
        noted = self._beside("reached")
        return set(noted.read_text().split()) if noted.exists() else set()

    def _beside(self, what: str) -> Path:
        return self.failpoints.with_name(f"{self.failpoints.name}.{what}")

    # --- Progress

    def slice_last(self) -> int | None:
        """The number of the last slice that was planned, 0 before the first; None while the ledger can't be asked."""
        rows = self.ask_ledger(f"SELECT max(number) AS number FROM slices WHERE job = '{self.job}'")
        return rows[0]["number"] or 0 if rows else None

    def wait_for_results(self, *, after_slice: int, since_s: float, timeout_s: float) -> float:
        """Wait until a slice beyond that number is committed and has made results final, and until a sender has heard a yes
        after `since_s` (monotonic); return when the first was seen, by the monotonic clock."""
        seen_s: float | None = None

        def ask() -> float | None:
            nonlocal seen_s
            self.require_healthy()
            if seen_s is None and self._has_results(after_slice):
                seen_s = time.monotonic()
            heard_s = self.history.ok_last_s
            return seen_s if heard_s is not None and heard_s > since_s else None

        try:
            found = wait_until(ask, lambda moment_s: moment_s is not None, "giving results", timeout_s, POLL_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.describe()}") from error
        assert found is not None
        return found

    def _has_results(self, after_slice: int) -> bool:
        rows = self.ask_ledger(
            f"SELECT results FROM checkpoints WHERE job = '{self.job}' AND slice > {after_slice} ORDER BY slice LIMIT 200"
        )
        return any(sum(row["results"].values()) for row in rows)

    def ask_ledger(self, statement: str) -> list[Row]:
        """The rows; none while the ledger can't be read."""
        try:
            return query(self.ledger_url, statement)
        except (sqlite3.OperationalError, psycopg.OperationalError):
            return []

    def require_healthy(self) -> None:
        if self.load is not None and self.load.error is not None:
            raise self.load.error
        rows = self.ask_ledger(f"SELECT state, message FROM jobs WHERE name = '{self.job}'")
        assert not rows or rows[0]["state"] != "failed", f"the job has failed: {rows[0]['message']}"

    def describe(self) -> str:
        rows = self.ask_ledger(f"SELECT state, message, epoch FROM jobs WHERE name = '{self.job}'")
        return f"{rows}; alive: {sorted(self._pids.alive())}; logs in {self.directory / 'logs'}"

    # --- The end

    def finish(self, meanwhile: Callable[[], object] = lambda: None) -> tuple[Verdict, Dump]:
        """Stop the senders, drain the job, read everything; what the gateway's word was worth, and the dump. `meanwhile` is
        called when the drain has been ordered."""
        assert self.load is not None
        self.load.stop()
        self.history.close()
        with ControlClient(self.stack.addresses.api_url) as control:
            control.order(self.job, "drain")
        meanwhile()
        wait_until(self.state, lambda state: state == "drained", "drained", DRAIN_TIMEOUT_S, POLL_S)
        assert self.stack.kafka_proxy.errors == []
        logged = dump_topic(self.stack.addresses.kafka_bootstrap, self.stream)
        ingested = check_files(self.history.path, logged, may_move=self.has_more_partitions)
        dump = take_dump(
            self.job,
            self.stream,
            [SHORT, LONG],
            bootstrap=self.stack.addresses.kafka_bootstrap,
            ledger_url=self.ledger_url,
            index_url=self.stack.addresses.elasticsearch_url,
        )
        dump.kafka_away = self.kafka_away
        dump.speed = self.speed
        steps = {kind: clock.steps for kind, clock in self.clocks.items()}
        dump.ledger_times_jump = any(steps.get(kind) for kind in ("clock-step", "runner-clock"))
        dump.log_time_steps = steps.get("kafka-clock", [])
        return ingested, dump

    def state(self) -> str:
        """The job's, or `unknown` while nobody tells. Raises AssertionError when the job has failed."""
        self.require_healthy()
        with contextlib.suppress(ControlUnavailable, httpx.HTTPError):
            with ControlClient(self.stack.addresses.api_url) as control:
                return str(control.job(self.job)["state"])
        return "unknown"


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; the first is the state, the second the parent."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _descendants(root: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError, IndexError):
            if entry.name.isdigit():
                below.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found: list[int] = []
    rest = [root]
    while rest:
        children = below.get(rest.pop(), [])
        found += children
        rest += children
    return found
