"""One history: jobs that fail and lag, disks that fill up, control services that are killed and paused, bad receivers.

Receivers refuse, hang, or answer falsely. The services run the code of `strandline.notices`; only the ledger, the receivers,
and the clock are simulated.
"""

from __future__ import annotations

import heapq
import ssl
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from strandline.core.documents import read_documents
from strandline.core.errors import LedgerUnavailable, StrandlineError
from strandline.ledger.notices import ReadingsRow
from strandline.notices.conditions import disk_full
from strandline.notices.document import NoticeSpec
from strandline.notices.finding import Finding, Happened, Sight
from strandline.notices.service import NoticeService, NoticeTimes, Work
from strandline.notices.view import Surroundings, View
from tests.simulation.chance import Chance
from tests.simulation.notices.twin import TwinNotices
from tests.support.notices import a_channel_tools

END_MS = 420_000
"""When the faults of a history end. Then it goes on until all messages are sent."""
SETTLED_MS = 3_600_000
AWAY_MS = 200_000
"""Time that a machine is away for long. Its readings are old for a part of it."""
DISKS_STAY_MS = 400_000
"""Time after the faults for which disks stay as they are. All services run again within it."""
LEASE_MS = 20_000
TIMEOUT_S = 10.0
NAME = "night"
TOOLS = a_channel_tools(timeout_s=TIMEOUT_S, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
"""Nothing is sent with them."""


class RecordingTwin(TwinNotices):
    """Also keeps all earlier readings."""

    def __init__(self) -> None:
        super().__init__()
        self.all_readings: list[ReadingsRow] = []

    def record_readings(self, service: str, readings: dict[str, Any]) -> None:
        super().record_readings(service, readings)
        self.all_readings.append(self.readings[service])


class Killed(BaseException):
    """The process was killed."""


@dataclass
class Reception:
    """A message that reached a receiver."""

    at_ms: int
    channel: str
    number: int
    was_confirmed: bool


@dataclass
class World:
    """Jobs, and what is true of them."""

    ledger: TwinNotices
    failed: dict[str, int] = field(default_factory=dict)
    """Job -> number of the event."""
    lag: dict[str, bool] = field(default_factory=dict)
    is_blind: bool = False
    """True if the lag is unknown."""
    causes: dict[int, str] = field(default_factory=dict)
    """Number of an event -> failed job."""
    lagged: set[str] = field(default_factory=set)
    """Jobs that ever had a lag, as the conditions could see."""
    is_full: dict[str, bool] = field(default_factory=dict)
    """Control service -> True if its disk is full."""
    full_at_end: set[str] = field(default_factory=set)
    """Control services whose disk was full when the faults ended, and stayed so for a while."""
    well_at: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Job -> times at which a look could see that it had no lag."""

    def fail(self, job: str) -> None:
        if job not in self.failed:
            event = self.ledger.record_event("job_failed", f"job {job} failed", job)
            self.failed[job] = event.id
            self.causes[event.id] = job

    def look(self, keyword: str, options: Any, view: View) -> Sight:
        """Do what the condition modules do, over this world."""
        if keyword == "job_failed":
            happened = tuple(
                Happened(event.id, event.at_ms, _finding(str(event.job), "failed"))
                for event in view.events
                if event.kind == "job_failed"
            )
            return Sight({job: _finding(job, "failed") for job in self.failed}, happened, by_events=True)
        if keyword == "disk_full":
            return disk_full.look(options, view)
        if self.is_blind:
            raise LedgerUnavailable("the lag is unknown")
        for job, has_lag in self.lag.items():
            if has_lag:
                self.lagged.add(job)
            else:
                self.well_at[job].append(self.ledger.now_ms)
        holding = {job: _finding(job, "lag") for job, has_lag in self.lag.items() if has_lag}
        return Sight(holding, hold_ms=options.hold)


def _finding(job: str, what: str) -> Finding:
    return Finding(job, f"{job}: {what}", "its results", f"look at {job}", job=job)


class Condition:
    """Double of a condition module."""

    def __init__(self, world: World, keyword: str) -> None:
        self._world, self._keyword = world, keyword
        self.BY_EVENTS = keyword == "job_failed"

    def look(self, options: Any, view: View) -> Sight:
        return self._world.look(self._keyword, options, view)


class Unreliable:
    """The ledger as one process sees it: a call may fail before or after its transaction, and the process may be killed there."""

    def __init__(self, history: History, process: Process) -> None:
        self._history, self._process = history, process

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._history.ledger, name)

        if name == "record_readings" and not self._history.has_disks:
            return method  # type: ignore[no-any-return]

        def call(*arguments: Any, **named: Any) -> Any:
            self._history.strike(self._process, f"before {name}")
            found = method(*arguments, **named)
            self._history.strike(self._process, f"after {name}")
            return found

        return call


class Process(NoticeService):
    """One process of a control service. What a thread would do is an entry in the history's agenda."""

    def __init__(self, history: History, service: str) -> None:
        self.history = history
        self.is_alive = True
        self.paused_until_ms = 0
        times = NoticeTimes(look_s=5.0, send_s=1.0, lease_ms=LEASE_MS)
        super().__init__(
            Unreliable(history, self),  # type: ignore[arg-type]
            service,
            TOOLS,
            Surroundings(readings=lambda: history.readings(service)),
            times,
            monotonic_s=lambda: history.now_ms / 1_000,
        )

    def _begin(self, work: Work) -> None:
        if not self.history.is_calm and self.history.chance.random() < 0.02:
            self.history.happened["a pause before an attempt"] += 1
            self.history.pause(self)
        self.history.flying[work.message.number].add(self)
        self.history.at(self.history.latency_ms(), lambda: self.deliver(work), self)

    def deliver(self, work: Work) -> None:
        if (error := self._refusal(work)) is not None:
            self.outcome(work, error)
            return
        error, took_ms = self.history.receive(work)
        self.history.at(took_ms, lambda: self.outcome(work, error), self)

    def outcome(self, work: Work, error: str | None) -> None:
        if self._record(work, error):
            self.history.flying[work.message.number].discard(self)
        else:
            # If the ledger stays away for longer than the lease, the next leader can't know that the message was received.
            self.history.happened["an outcome was not recorded"] += 1
            self.history.repeats_allowed[work.message.number] += 1
            self.history.at(1_000, lambda: self.outcome(work, error), self)


class History:
    """All that happens is drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = Chance(seed)
        self.ledger = RecordingTwin()
        self.world = World(self.ledger)
        self.received: list[Reception] = []
        self.happened: Counter[str] = Counter()
        self.repeats_allowed: Counter[int] = Counter()
        """Number of a message -> times that it may be received again: kills, pauses and lost confirmations."""
        self.flying: dict[int, set[Process]] = defaultdict(set)
        """Number of a message -> processes with an attempt at it."""
        self._agenda: list[tuple[int, int, Callable[[], None], Process | None]] = []
        self._order = count()
        self._start_ms = self.ledger.now_ms
        self.is_calm = False
        self.away_until_ms = 0
        self.has_disks = seed % 4 == 3
        self.services = [f"control-{number}" for number in range(1, chance.randint(1, 3) + 1)]
        self.processes: dict[str, Process] = {}
        self.jobs = [f"job-{number}" for number in range(1, chance.randint(2, 12) + 1)]
        self.trouble = chance.choice([0.0, 0.001, 0.005])
        """Chance of a fault at a call of the ledger."""
        self.behaviour = {channel: chance.choice(BEHAVIOURS) for channel in ("webhook", "webhook 2")}
        self.limit = chance.choice([1, 2, 3, 10])
        hold, by = chance.choice(["0s", "5s", "20s"]), chance.choice(["condition", "job", "problem", "notice"])
        wait, every = chance.choice(["0s", "10s"]), chance.choice(["0s", "30s"])
        text = f"""
notice: {NAME}
when: [job_failed, {{lag: {{above: 1, for: {hold}}}}}{", disk_full" if self.has_disks else ""}]
group: {{by: {by}, wait: {wait}, every: {every}}}
cooldown: {chance.choice(["0s", "30s", "2m"])}
remind_after: {chance.choice(["20s", "10m"])}
limit: {self.limit}
to: [{{webhook: {{url: "http://127.0.0.1:1"}}}}, {{webhook: {{url: "http://127.0.0.1:2"}}}}]
"""
        (document,) = read_documents(text, "history", ("notice",))
        self.spec = NoticeSpec.parse(document)
        self.ledger.put_notice(NAME, self.spec.as_document())

    @property
    def now_ms(self) -> int:
        return self.ledger.now_ms

    @property
    def end_ms(self) -> int:
        """Time at which the faults ended."""
        return self._start_ms + END_MS

    def at(self, in_ms: int, work: Callable[[], None], process: Process | None = None) -> None:
        heapq.heappush(self._agenda, (self.now_ms + in_ms, next(self._order), work, process))

    def readings(self, service: str) -> dict[str, Any]:
        """Return the readings of a control service's machine."""
        free_bytes = 10 if self.world.is_full.get(service) else 500
        disk = {"directory": "/data", "total_bytes": 1_000, "free_bytes": free_bytes}
        return {"host": service, "disk": disk, "certificates": []}

    def change_disk(self, service: str) -> None:
        self.world.is_full[service] = not self.world.is_full.get(service, False)
        self.happened["a disk filled up or was emptied"] += 1

    def leave(self) -> None:
        """Kill a process, and start it again only after its readings are old."""
        process = self.processes.get(self.services[0])
        if process is not None and process.is_alive:
            self.kill(process, AWAY_MS)
            self.happened["a machine was away for long"] += 1

    def run(self) -> None:
        chance_of_disks = Chance(f"disks {self.seed}")
        for service in self.services:
            self.at(self.chance.randint(0, 5_000), lambda one=service: self.start(one))  # type: ignore[misc]
        for _ in range(self.chance.randint(3, 40)):
            self.at(self.chance.randint(1_000, END_MS), self.change_world)
        for _ in range(self.chance.randint(0, 15)):
            self.at(self.chance.randint(1_000, END_MS), self.disturb)
        if self.has_disks:
            for _ in range(chance_of_disks.randint(2, 12)):
                at_ms = chance_of_disks.randint(1_000, END_MS)
                self.at(at_ms, partial(self.change_disk, chance_of_disks.choice(self.services)))
            if chance_of_disks.random() < 0.5:
                self.at(chance_of_disks.randint(1_000, END_MS // 2), self.leave)
        self.at(END_MS, self.calm_down)
        while self._agenda:
            at_ms, _, work, process = heapq.heappop(self._agenda)
            self.ledger.now_ms = max(self.now_ms, at_ms)
            if process is not None and not process.is_alive:
                continue
            if process is not None and process.paused_until_ms > self.now_ms:
                self.at(process.paused_until_ms - self.now_ms, work, process)
                continue
            try:
                work()
            except Killed:
                assert process is not None
                self.kill(process)
            except StrandlineError:
                self.happened["a call of the ledger failed"] += 1
            if self.is_calm and (not self._is_busy() or self.now_ms > self._start_ms + END_MS + SETTLED_MS):
                return

    def start(self, service: str) -> None:
        process = self.processes[service] = Process(self, service)
        self.ledger.release_notices(service)
        self.at(0, lambda: self.tick(process), process)

    def tick(self, process: Process) -> None:
        self.at(1_500 if not self.is_calm else 3_000, lambda: self.tick(process), process)
        try:
            process.step()
        except StrandlineError:
            process._renew_at_s = 0.0
            raise

    def kill(self, process: Process, away_ms: int | None = None) -> None:
        """Kill a process. It starts again after `away_ms`; None: after a short time."""
        if not process.is_alive:
            return
        process.is_alive = False
        self.happened["a kill"] += 1
        self.interrupt(process)
        away_ms = away_ms or self.chance.randint(500, 40_000)
        self.at(away_ms, lambda: self.start(process._service))

    def pause(self, process: Process) -> None:
        """Pause a process, perhaps for longer than its lease.

        It can have sent messages that it has not recorded.
        """
        process.paused_until_ms = self.now_ms + self.chance.randint(1_000, 60_000)
        if process.paused_until_ms > self.now_ms + LEASE_MS - TIMEOUT_S * 1_000:
            self.interrupt(process)

    def interrupt(self, process: Process) -> None:
        for number, flying in self.flying.items():
            if process in flying:
                flying.discard(process)
                self.repeats_allowed[number] += 1
                self.happened["an attempt was interrupted"] += 1

    def strike(self, process: Process, where: str) -> None:
        """Perhaps let the process die, or the ledger be away, at this call."""
        if self.is_calm or not process.is_alive:
            return
        if self.now_ms < self.away_until_ms and where.startswith("before"):
            raise LedgerUnavailable(f"the ledger is away {where}")
        if self.chance.random() >= self.trouble:
            return
        if self.chance.random() < 0.5:
            self.happened["a kill at a call of the ledger"] += 1
            raise Killed
        raise LedgerUnavailable(f"the ledger is away {where}")

    def change_world(self) -> None:
        job, chance = self.chance.choice(self.jobs), self.chance.random()
        world = self.world
        if chance < 0.1:
            self.happened["all jobs failed"] += 1
            for one in self.jobs:
                world.fail(one)
        elif chance < 0.35:
            self.happened["a job failed"] += 1
            world.fail(job)
        elif chance < 0.5 and world.failed:
            del world.failed[self.chance.choice(sorted(world.failed))]
            self.happened["a job was started"] += 1
        elif chance < 0.6:
            self.happened["a failure between two looks"] += 1
            world.fail(job)
            del world.failed[job]
        elif chance < 0.9:
            world.lag[job] = not world.lag.get(job, False)
            self.happened["a lag began or ended"] += 1
        else:
            world.is_blind = not world.is_blind
            self.happened["a condition was blind"] += 1

    def disturb(self) -> None:
        chance = self.chance.random()
        process = self.processes.get(self.chance.choice(self.services))
        if chance < 0.4 and process is not None:
            self.kill(process)
        elif chance < 0.6 and process is not None and process.is_alive:
            self.happened["a pause"] += 1
            self.pause(process)
        elif chance < 0.7:
            self.happened["the ledger was away"] += 1
            self.away_until_ms = self.now_ms + self.chance.randint(1_000, 40_000)
        elif chance < 0.85:
            self.behaviour[self.chance.choice(["webhook", "webhook 2"])] = self.chance.choice(BEHAVIOURS)
            self.happened["a receiver changed"] += 1
        else:
            self.happened["the notice was muted"] += 1
            self.ledger.mute_notice(NAME, self.now_ms + self.chance.randint(5_000, 120_000), "ops")

    def calm_down(self) -> None:
        """From now on nothing fails, so that all messages can be sent."""
        self.is_calm = True
        self.world.is_blind = False
        self.world.failed.clear()
        self.world.lag = dict.fromkeys(self.world.lag, False)
        self.behaviour = dict.fromkeys(self.behaviour, "ok")
        self.world.full_at_end = {name for name, is_full in self.world.is_full.items() if is_full}
        self.at(DISKS_STAY_MS, self.world.is_full.clear)
        self.ledger.mute_notice(NAME, None, None)
        for process in self.processes.values():
            process.paused_until_ms = 0

    def latency_ms(self) -> int:
        return self.chance.randint(1, 300)

    def receive(self, work: Work) -> tuple[str | None, int]:
        """Let the receiver of a message behave; return why it isn't confirmed, and how long that takes in ms."""
        behaviour, number = self.behaviour[work.message.channel], work.message.number
        if behaviour == "mixed":
            behaviour = self.chance.choice(BEHAVIOURS[:-1])
        self.happened[f"a receiver: {behaviour}"] += 1
        is_received = behaviour in ("ok", "slow", "false") or (behaviour == "hang" and self.chance.random() < 0.5)
        error = None if behaviour in ("ok", "slow") else f"not confirmed: {behaviour}"
        delay_ms = self.chance.randint(0, 9_000) if behaviour in ("slow", "hang") else 0
        if is_received:
            reception = Reception(self.now_ms + delay_ms, work.message.channel, number, error is None)
            self.received.append(reception)
            if error is not None:
                self.repeats_allowed[number] += 1
        took_ms = {"ok": 20, "slow": delay_ms + 500, "hang": int(TIMEOUT_S * 1_000)}.get(behaviour, 20)
        return error, took_ms

    def _is_busy(self) -> bool:
        rows = self.ledger.problems.values()
        return (
            bool(self.world.is_full)
            or bool(self.ledger.pending_messages())
            or any(row.reported_ms is None or row.end_reported_ms is None for row in rows)
            or self.ledger.rows[NAME].event_seen < max(self.world.causes, default=0)
        )


BEHAVIOURS = ("ok", "refuse", "hang", "slow", "false", "mixed")
