"""The embedded stack with its jobs on it, as a fault meets it: which processes there are, how to end or hold
one, and who starts it again.

A runner and its family are started again by the supervisor; servers, gateway and control service by `mend`, as a service
manager would.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import psycopg
from rich.console import Console

from strandline.core.errors import StackError
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.services.client import ControlClient, ControlUnavailable
from strandline.services.processes.pids import PidFile
from strandline.services.supervision.pools import POOL_NAME
from tests.support.chaos.checking.pace import PACES
from tests.support.chaos.clocks import CLOCK_KINDS, WallClock, WrongTime, make_clocks
from tests.support.chaos.dump import Dump, Row, query, take_dump
from tests.support.chaos.index_proxy import IndexProxy
from tests.support.chaos.job_sets import JobSet, ReadingJobs
from tests.support.chaos.machine import SmallDisk
from tests.support.chaos.more_jobs import ChaosJob
from tests.support.chaos.postgresql_server import PostgresqlServer
from tests.support.chaos.processes import descendants, name_of, signal_each
from tests.support.chaos.proxied_stack import ProxiedStack
from tests.support.chaos.tcp_proxy import TcpProxy
from tests.support.chaos.work import RATE, RestingLoad
from tests.support.faults.checker import Verdict, check_files, merged
from tests.support.faults.history import History
from tests.support.faults.topic_dump import dump_topic
from tests.support.kafka_storage import provide_storage
from tests.support.ports import free_port_offset
from tests.support.waiting import Patience, wait_until

START_TIMEOUT_S = 600.0
DRAIN_TIMEOUT_S = 600.0
MEND_TIMEOUT_S = 180.0
SERVERS = ("kafka", "elasticsearch")
POLL_S = 0.2
"""What is measured is right to that; to look more often would only take time from the job."""


class JobStack:
    """Kafka, Elasticsearch, control services, HTTP gateway and jobs in a directory of its own. `close` ends all."""

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
        services: int = 1,
        job_set: JobSet | None = None,
        own_runners: bool = False,
    ) -> None:
        """`speed`: seconds of event time in a second. `rate`: records/s. `ledger`: `sqlite` or `postgresql`. `recovery`: the
        jobs', `rewind` or `snapshot`. `kinds`: the kinds of faults that it has to be made ready for; none: all. `services`: how
        many control services there are. `job_set`: the jobs and their senders; None: the job of `work.py`. `own_runners`: whether
        each job has its own runner, instead of a pool."""
        self.directory = directory
        self.speed, self.rate = speed, rate
        self.recovery = recovery
        self.failpoints = directory / "failpoints"
        """While this file is there, it arms failpoints in every runner; see strandline/core/failpoints.py."""
        self.job_set: JobSet = job_set or ReadingJobs()
        self.versions: dict[str, int] = defaultdict(lambda: 1)
        """Newest version of each job's document that was applied, or will be."""
        self.lookups_applied: list[tuple[int, int]] = []
        """Each version of the lookup, and when the answer was there that it is applied, in ms of the wall clock."""
        self.stack = ProxiedStack(Settings(), directory, free_port_offset(), Console(quiet=True))
        self.stack.of_control["STRANDLINE_FAILPOINTS"] = f"@{self.failpoints}"  # which the runners inherit
        if own_runners:
            self.stack.of_control["STRANDLINE_JOBS_PER_POOL"] = "1"
        self.index_proxy = IndexProxy(self.stack.ports.elasticsearch)
        """Between the job and the index; what reads the index at the end goes past it."""
        self._set(elasticsearch_url=f"http://127.0.0.1:{self.index_proxy.port}")
        self.histories = {stream: History(directory / f"history-{stream}.jsonl") for stream in self.streams}
        self.loads: list[RestingLoad] = []
        self.kafka_away: list[tuple[int, int]] = []
        """When the broker was down or held: from, to, in ms of the wall clock."""
        self.noted: Counter[str] = Counter()
        """States that a fault has seen the stack in, by name: how often."""
        self.grown: set[str] = set()
        """Streams that got partitions after their senders had begun."""
        self._seed = seed
        # Its threads live as long as this object: PostgreSQL gets a signal to end when the thread that started it ends.
        self._menders = ThreadPoolExecutor(16, "mender")
        self._starters: dict[str, Callable[[], object]] = {
            "kafka": self.stack.start_kafka,
            "elasticsearch": self.stack.start_elasticsearch,
            "control": self.stack.start_control,
            **{f"gateway-{name}": partial(self.stack.start_gateway, name) for name in self.job_set.gateways},
        }
        self.postgresql: PostgresqlServer | None = None
        self.ledger_proxies: list[TcpProxy] = []
        """Between each control service, with its runners, and PostgreSQL."""
        if ledger == "postgresql":
            self.postgresql = PostgresqlServer()
            self.ledger_proxies = [TcpProxy(self.postgresql.port) for _ in range(services)]
            self._set(ledger_url=self.postgresql.url_at(self.ledger_proxies[0].port))
        self.services = ["control"]
        """The control services, by their names in `pids.json`."""
        for number in range(1, services):
            self._add_service(number)
        # Each keeps a record of the runners that it started.
        self._pid_files = [PidFile(directory), *(PidFile(one.directory) for one in self.stack.more_services.values())]
        if len(self.jobs) > 1 and own_runners:
            self._set(standbys=0)  # or memory is short
        self.left_out: dict[str, str] = {}
        """Kinds of faults that can't be done on this machine, and why."""
        self.clocks: dict[str, dict[str, WallClock]] = {}
        """Kind of fault -> whose clock it sets -> the clock."""
        clock_kinds = [kind for kind in CLOCK_KINDS if not kinds or kind in kinds]
        # Services over one SQLite file are on one machine, and SQLite's clock is theirs.
        with_clocks = self.services if self.postgresql is not None else []
        try:
            self.clocks = make_clocks(directory, self.stack, with_clocks, clock_kinds)
        except OSError as error:
            self.left_out |= dict.fromkeys(clock_kinds, str(error))
        self.small_disk: SmallDisk | None = None
        """Where the runners have their scratch."""
        if not kinds or "disk-full" in kinds:
            self._make_disk()

    @property
    def jobs(self) -> list[ChaosJob]:
        return self.job_set.jobs

    @property
    def job(self) -> str:
        """The first job."""
        return self.jobs[0].name

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams to which senders write."""
        return self.job_set.streams

    @property
    def stream(self) -> str:
        """The input of the first job."""
        return self.jobs[0].stream

    @property
    def ledger_url(self) -> str:
        """For the harness itself: past the proxy."""
        return self.stack.settings.ledger_url if self.postgresql is None else self.postgresql.url

    def _add_service(self, number: int) -> None:
        ledger_url = self.stack.settings.ledger_url
        if self.postgresql is not None:
            ledger_url = self.postgresql.url_at(self.ledger_proxies[number].port)
        name = self.stack.add_service(ledger_url).name
        self.services.append(name)
        self._starters[name] = lambda: self.stack.start_service(name)

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
        wait_until(self._has_applied, bool, "applied: the documents", START_TIMEOUT_S, 0.5)
        self.note_lookup_applied(1)
        ports, share = self.stack.ports.gateways, self.rate // len(self.streams)
        for number, (stream, history) in enumerate(self.histories.items()):
            how = {"seed": self._seed + number, "speed": self.speed, "rate": share}
            self.loads.append(self.job_set.load(stream, history, ports, **how))
        for load in self.loads:
            load.start()
        self.wait_for_results(after_slices={}, since_s=0.0, timeout_s=START_TIMEOUT_S)

    def text(self) -> str:
        """The documents of streams and jobs, in their current versions."""
        return "---\n".join([*self.job_set.stream_documents(), self.text_of_jobs()])

    def text_of_jobs(self) -> str:
        """The documents of lookups and jobs, in their current versions."""
        lookups = self.job_set.lookup_documents(max((version for version, _ in self.lookups_applied), default=1))
        pipelines = self.job_set.pipeline_documents(PACES[self.speed], self.versions)
        return "---\n".join([*lookups, *(f"{text}recovery: {self.recovery}\n" for text in pipelines)])

    def _has_applied(self) -> bool:
        """Apply the documents; False where there was no answer in time, as on a machine with much to do."""
        with contextlib.suppress(ControlUnavailable), ControlClient(self.stack.addresses.api_url) as control:
            control.apply(self.text().encode(), "chaos.yaml")
            return True
        return False

    def note_lookup_applied(self, version: int) -> None:
        self.lookups_applied.append((version, time.time_ns() // 1_000_000))

    def close(self) -> None:
        """End everything, whatever state it is in. What is held is let go on first, or it could not end."""
        for load in self.loads:
            load.is_stopping = True
        recorded = [pid for file in self._pid_files for pid in file.alive().values()]
        started = [*recorded, *self.family()]
        signal_each(started, signal.SIGCONT)
        with contextlib.ExitStack() as closing:  # each, whatever another one raises; the last named is the first
            if self.small_disk is not None:
                closing.callback(self.small_disk.close)
            if self.postgresql is not None:
                closing.callback(self.postgresql.close)
            for proxy in self.ledger_proxies:
                closing.callback(proxy.close)
            closing.callback(self.stack.kafka_proxy.stop)
            closing.callback(self.index_proxy.close)
            for history in self.histories.values():
                closing.callback(history.close)
            closing.callback(self._menders.shutdown)
            try:
                self.stack.stop()
            except BaseException as error:
                killed = signal_each(started, signal.SIGKILL)
                print(
                    f"the stack could not be stopped ({error}); killed what it had started: {killed}", file=sys.stderr
                )
                raise

    # --- Processes

    def named(self, name: str) -> list[int]:
        """There may be two runners of a job for a moment: the old leader's, and the new one's."""
        return [pid for file in self._pid_files if (pid := file.alive().get(name)) is not None]

    def runner(self, job: str) -> list[int]:
        """Return the process of the job's own runner, or of the pool that runs it now."""
        if own := self.named(f"runner-{job}"):
            return own
        pools = {pid for file in self._pid_files for name, pid in file.alive().items() if name.startswith(POOL_NAME)}
        if not pools:
            return []
        rows = self.ask_ledger(f"SELECT pid FROM runs WHERE job = '{job}' ORDER BY epoch DESC LIMIT 1")
        return [row["pid"] for row in rows if row["pid"] in pools]

    def jvm(self, job: str) -> list[int]:
        return [pid for pid in self.family(job) if name_of(pid) == "java"][:1]

    def worker(self, chance: random.Random) -> list[int]:
        """One of the Python processes below the JVMs: a worker, a daemon that forks them, or a planner."""
        jvms = [pid for job in self.jobs for pid in self.jvm(job.name)]
        below = [pid for jvm in jvms for pid in descendants(jvm) if name_of(pid).startswith("python")]
        return [chance.choice(below)] if below else []

    def family(self, *jobs: str) -> list[int]:
        """Return the runners of these jobs, or of all, and the processes that they started; a runner is before its
        children."""
        runners = [pid for job in jobs or [one.name for one in self.jobs] for pid in self.runner(job)]
        return [pid for runner in runners for pid in (runner, *descendants(runner))]

    def ledger_users(self) -> list[int]:
        """All processes that may have the ledger open: control services, gateway, runners, standbys, backfills."""
        started = [pid for file in self._pid_files for name, pid in file.alive().items() if name not in SERVERS]
        return [pid for one in started for pid in (one, *descendants(one))]

    def leader(self) -> str | None:
        """Return the control service that leads the first job.

        None if there is no leader, or if the ledger can't be read.
        """
        held = "leases JOIN control_services ON name = holder"
        rows = self.ask_ledger(f"SELECT data_dir FROM {held} WHERE job = '{self.job}'")
        led_from = {row["data_dir"] for row in rows}
        return next((name for name in self.services if str(self.stack.directory_of(name)) in led_from), None)

    def mend_all(self, parts: Sequence[str]) -> None:
        """Start parts of the stack again that were killed, all at once: one may have to wait for another."""
        for done in [self._menders.submit(self._mend, part) for part in parts]:
            done.result()

    def _mend(self, part: str) -> None:
        """Restart a part like a service manager: again, if it ends because another part isn't running yet."""
        if part == "postgresql":
            assert self.postgresql is not None
            wait_until(self.postgresql.pids, lambda pids: not pids, "gone: PostgreSQL")
            self.postgresql.start()
            return
        wait_until(lambda: self.named(part), lambda pids: not pids, f"gone: {part}")
        patience = Patience(f"started: {part}", MEND_TIMEOUT_S)
        while True:
            try:
                self._starters[part]()
                return
            except StackError as error:
                patience.check(last=error)

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

    def slices_last(self) -> dict[str, int] | None:
        """Job -> the number of the last slice that was planned; None while the ledger can't be asked."""
        rows = self.ask_ledger("SELECT job, max(number) AS number FROM slices GROUP BY job")
        return {row["job"]: row["number"] for row in rows} or None

    def wait_for_results(self, *, after_slices: dict[str, int], since_s: float, timeout_s: float) -> float:
        """Wait until each job has committed a slice after its number that has made results final.

        Also wait until a sender of each stream got a success after `since_s` (monotonic), if its gateway answers.

        Returns the time when the last of the slices was seen, by the monotonic clock.
        """
        waiting, seen_s = [one.name for one in self.jobs], 0.0

        def ask() -> float | None:
            nonlocal waiting, seen_s
            self.require_healthy()
            if waiting:
                waiting = [job for job in waiting if not self._has_results(job, after_slices.get(job, 0))]
                seen_s = time.monotonic()
            return seen_s if not waiting and self._are_heard(since_s) else None

        try:
            found = wait_until(ask, lambda moment_s: moment_s is not None, "giving results", timeout_s, POLL_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; no results of {waiting}; {self.describe()}") from error
        assert found is not None
        return found

    def _are_heard(self, since_s: float) -> bool:
        answered = [load.history.ok_last_s for load in self.loads if load.hears]
        return all(heard_s is not None and heard_s > since_s for heard_s in answered)

    def _has_results(self, job: str, after_slice: int) -> bool:
        rows = self.ask_ledger(
            f"SELECT results FROM checkpoints WHERE job = '{job}' AND slice > {after_slice} ORDER BY slice LIMIT 200"
        )
        return any(sum(row["results"].values()) for row in rows)

    def ask_ledger(self, statement: str) -> list[Row]:
        """The rows; none while the ledger can't be read."""
        try:
            return query(self.ledger_url, statement)
        except (sqlite3.OperationalError, psycopg.OperationalError):
            return []

    def require_healthy(self) -> None:
        for load in self.loads:
            if load.error is not None:
                raise load.error
        failed = self.ask_ledger("SELECT name, message FROM jobs WHERE state = 'failed'")
        assert not failed, f"a job has failed: {failed}"

    def describe(self) -> str:
        rows = self.ask_ledger("SELECT name, state, message, epoch FROM jobs")
        alive = [sorted(file.alive()) for file in self._pid_files]
        return f"{rows}; alive: {alive}; logs in {self.directory / 'logs'}"

    # --- The end

    def finish(self, meanwhile: Callable[[], object] = lambda: None) -> tuple[Verdict, list[Dump]]:
        """Stop the senders, drain the jobs, read everything; what the gateway's word was worth, and a dump of each job.
        `meanwhile` is called when drains have been ordered."""
        for load in self.loads:
            load.stop()
            load.history.close()
        readers = [one for one in self.jobs if one.stream not in self.streams]
        for jobs in ([one for one in self.jobs if one not in readers], readers):  # so readers get all results of others
            if jobs:
                self._drain(jobs, meanwhile)
        assert self.stack.kafka_proxy.errors == []
        return merged({load.stream: self._ingested(load) for load in self.loads}), [
            self._dump(one) for one in self.jobs
        ]

    def _drain(self, jobs: list[ChaosJob], meanwhile: Callable[[], object]) -> None:
        """Order each of the jobs to drain, call `meanwhile`, and wait until they are drained."""
        with ControlClient(self.stack.addresses.api_url) as control:
            for one in jobs:
                control.order(one.name, "drain")
        meanwhile()
        for one in jobs:
            state = partial(self.state, one.name)
            wait_until(state, lambda state: state == "drained", f"drained: {one.name}", DRAIN_TIMEOUT_S, POLL_S)

    def _ingested(self, load: RestingLoad) -> Verdict:
        logged = dump_topic(self.stack.addresses.kafka_bootstrap, load.stream)
        return check_files(load.history.path, logged, may_move=load.stream in self.grown, id_of=load.id_of)

    def _dump(self, job: ChaosJob) -> Dump:
        dump = take_dump(
            job.name,
            job.stream,
            job.emissions,
            job.results,
            bootstrap=self.stack.addresses.kafka_bootstrap,
            ledger_url=self.ledger_url,
            index_url=self.stack.addresses.elasticsearch_url,
        )
        dump.kafka_away = self.kafka_away
        dump.speed = self.speed
        dump.lookups_applied = self.lookups_applied
        of_runner = [one for kind in ("clock-step", "runner-clock") for one in self._wrong(kind)]
        dump.ledger_times_jump = bool(of_runner)
        dump.silence_drifts = [(one.from_ms, one.to_ms, one.rate) for one in of_runner if one.rate > 1]
        dump.log_time_steps = [(one.from_ms, one.to_ms, one.ahead_ms, one.rate) for one in self._wrong("kafka-clock")]
        return dump

    def _wrong(self, kind: str) -> list[WrongTime]:
        return [one for clock in self.clocks.get(kind, {}).values() for one in clock.wrong]

    def state(self, job: str = "") -> str:
        """Return the state of that job (or the first one), or `unknown` if it can't be queried.

        Raises AssertionError if a job has failed.
        """
        self.require_healthy()
        with contextlib.suppress(ControlUnavailable, httpx.HTTPError):
            with ControlClient(self.stack.addresses.api_url) as control:
                return str(control.job(job or self.job)["state"])
        return "unknown"
