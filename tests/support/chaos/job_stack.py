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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
from rich.console import Console

from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.services.client import ControlClient, ControlUnavailable
from strandline.services.embedded.stack import Stack
from strandline.services.processes.pids import PidFile
from tests.support.chaos.dump import Dump, Row, query, take_dump
from tests.support.chaos.index_proxy import IndexProxy
from tests.support.chaos.postgresql_server import PostgresqlServer
from tests.support.chaos.work import DOCUMENTS, JobLoad
from tests.support.faults.checker import Verdict, check_files
from tests.support.faults.history import History
from tests.support.faults.topic_dump import dump_topic
from tests.support.kafka_storage import provide_storage
from tests.support.servers import free_port_offset
from tests.support.waiting import wait_until

START_TIMEOUT_S = 600.0
DRAIN_TIMEOUT_S = 600.0
POLL_S = 0.3
"""What is measured is in the ledger's own times; to look more often would only take time from the job."""


@dataclass(frozen=True)
class Target:
    """A kind of process that can be killed or held."""

    name: str
    pids: Callable[[JobStack], list[int]]
    """Of what is to be killed or held at once; empty when there is none at the moment."""
    part: str | None = None
    """Of the stack, which `mend` has to start again; None for what the supervisor looks after."""


class JobStack:
    """Kafka, Elasticsearch, control service, HTTP gateway and one job in a directory of its own. `close` ends all."""

    def __init__(self, directory: Path, seed: int, *, ledger: str = "sqlite", recovery: str = "rewind") -> None:
        """`ledger`: `sqlite` or `postgresql`. `recovery`: the job's, `rewind` or `snapshot`."""
        self.directory = directory
        self.recovery = recovery
        self.failpoints = directory / "failpoints"
        """While this file is there, it arms failpoints in every runner; see strandline/core/failpoints.py."""
        self.job, self.stream = "chaos", "chaos-readings"
        self.stack = Stack(Settings(), directory, free_port_offset(), Console(quiet=True))
        self.index_proxy = IndexProxy(self.stack.ports.elasticsearch)
        """Between the job and the index; what reads the index at the end goes past it."""
        self.stack.settings = self.stack.settings.model_copy(
            update={"elasticsearch_url": f"http://127.0.0.1:{self.index_proxy.port}"}
        )
        self.history = History(directory / "history.jsonl")
        self.load: JobLoad | None = None
        self._seed = seed
        self._pids = PidFile(directory)
        self._starters: dict[str, Callable[[], object]] = {
            "kafka": self.stack.start_kafka,
            "elasticsearch": self.stack.start_elasticsearch,
            "control": self._start_control,
            "gateway-http": self.stack.start_http_gateway,
        }
        self.postgresql: PostgresqlServer | None = None
        if ledger == "postgresql":
            self.postgresql = PostgresqlServer()
            self.stack.settings = self.stack.settings.model_copy(update={"ledger_url": self.postgresql.url})

    @property
    def ledger_url(self) -> str:
        return self.stack.settings.ledger_url

    def start(self) -> None:
        """Start the servers, the job and its senders; return when the first results are there."""
        self.stack.addresses.write()
        provide_storage(self.directory / "kafka" / "log")
        Ledger.migrate(self.ledger_url)
        for starter in self._starters.values():
            starter()
        text = DOCUMENTS.format(stream=self.stream, job=self.job) + f"recovery: {self.recovery}\n"
        with ControlClient(self.stack.addresses.api_url) as control:
            control.apply(text.encode(), "chaos.yaml")
        self.load = JobLoad(self.history, lambda: self.stack.ports.http, self.stream, seed=self._seed)
        self.load.start()
        self.wait_for_results(after_ms=0, timeout_s=START_TIMEOUT_S)

    def close(self) -> None:
        """End everything, whatever state it is in. What is held is let go on first, or it could not end."""
        if self.load is not None:
            self.load.is_stopping = True
        for pid in [*self._pids.alive().values(), *self.family()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.stack.stop()
        self.index_proxy.close()
        if self.postgresql is not None:
            self.postgresql.close()

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

    def mend(self, part: str) -> None:
        """Start a part of the stack again that was killed."""
        if part == "postgresql":
            assert self.postgresql is not None
            wait_until(self.postgresql.pids, lambda pids: not pids, "gone: PostgreSQL")
            self.postgresql.start()
            return
        wait_until(lambda: self.named(part), lambda pids: not pids, f"gone: {part}")
        self._starters[part]()

    def _start_control(self) -> None:
        with _in_environment({"STRANDLINE_FAILPOINTS": f"@{self.failpoints}"}):  # which the runners inherit
            self.stack.start_control()

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

    def wait_for_results(self, *, after_ms: int, timeout_s: float) -> Row:
        """Wait until a slice is committed that was planned after the moment (ms of the wall clock) and made results final,
        and until a sender has heard so after it; return its checkpoint with `planned_ms`."""
        sender_since_s = time.monotonic() - (time.time() - after_ms / 1000)

        def ask() -> Row | None:
            self.require_healthy()
            rows = self.ask_ledger(
                "SELECT c.slice, c.epoch, c.results, c.committed_ms, s.planned_ms FROM checkpoints c "
                f"JOIN slices s ON s.job = c.job AND s.number = c.slice WHERE c.job = '{self.job}' "
                f"AND s.planned_ms > {after_ms} ORDER BY c.slice LIMIT 200"
            )
            found = next((row for row in rows if sum(row["results"].values())), None)
            heard_s = self.history.ok_last_s
            return found if heard_s is not None and heard_s > sender_since_s else None

        try:
            found = wait_until(ask, lambda row: row is not None, "giving results", timeout_s, POLL_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.describe()}") from error
        assert found is not None
        return found

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

    def finish(self) -> tuple[Verdict, Dump]:
        """Stop the senders, drain the job, read everything; what the gateway's word was worth, and the dump."""
        assert self.load is not None
        self.load.stop()
        self.history.close()
        with ControlClient(self.stack.addresses.api_url) as control:
            control.order(self.job, "drain")
        wait_until(self._state, lambda state: state == "drained", "drained", DRAIN_TIMEOUT_S, POLL_S)
        ingested = check_files(self.history.path, dump_topic(self.stack.addresses.kafka_bootstrap, self.stream))
        dump = take_dump(
            self.job,
            self.stream,
            [f"{self.job}-ten", f"{self.job}-minute"],
            bootstrap=self.stack.addresses.kafka_bootstrap,
            ledger_url=self.ledger_url,
            index_url=self.stack.addresses.elasticsearch_url,
        )
        return ingested, dump

    def _state(self) -> str:
        self.require_healthy()
        with contextlib.suppress(ControlUnavailable, httpx.HTTPError):
            with ControlClient(self.stack.addresses.api_url) as control:
                return str(control.job(self.job)["state"])
        return "unknown"


@contextlib.contextmanager
def _in_environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


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
