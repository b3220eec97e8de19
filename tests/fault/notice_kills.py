"""Kill control services while notices are sent to bad receivers: `make chaos-notices [KILLS=100] [MINUTES=60]`.

Two control services share a ledger on PostgreSQL. Jobs fail and start again, alone and in bursts. Five webhooks and a mail server
refuse, hang, answer slowly, or answer falsely. At the end, all receivers are well, and the program checks what they received:

- Each failure and each end is received by each channel.
- A confirmed message is received again only if a control service was killed in between, once per kill.
- No channel gets more than `limit` messages within a minute.

`--mistake NAME` runs the services with a mistake in their code. Then the program must find something wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email import message_from_bytes
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import sqlalchemy as sa

from strandline.core.documents import read_documents
from strandline.ledger.ledger import Ledger
from strandline.ledger.models import notice_leader, notice_messages, notice_problems
from strandline.ledger.notices import MessageRow, ProblemRow
from strandline.ledger.states import Desired, JobState
from strandline.notices import service as notice_service
from strandline.notices.document import NoticeSpec
from strandline.notices.service import NoticeService
from tests.support.notices import HttpReceiver, Received, SmtpReceiver
from tests.support.ports import free_port
from tests.support.postgresql import new_database, running_postgresql
from tests.support.waiting import stretched, wait_until

JOBS = 40
BURST = 20
LIMITS = {"pager": 6, "team": 10}
"""Notice -> maximum number of messages to a channel within a minute."""
DRIVER = "the-driver"
"""Holder of the leases of all jobs, so that no control service starts their runners."""
CONFIRMED = ("ok", "slow")
DRAIN_S = 900.0
PAGER = """
notice: pager
when: [job_failed]
group: {{by: problem, wait: 0s, every: 0s}}
cooldown: 0s
limit: {limit}
to:
{channels}
"""
TEAM = """
notice: team
when: [job_failed, audit_differences]
group: {{wait: 5s, every: 20s}}
cooldown: 30s
limit: {limit}
to:
{channels}
"""


@dataclass
class Kills:
    """Times of kills, and the way in which the next one is caused."""

    at_s: list[float] = field(default_factory=list)
    of_leaders: int = 0
    armed: str = ""
    """`before`: kill the leader before a request is answered; `after`: a moment later. Empty if no request kills."""
    fired: threading.Event = field(default_factory=threading.Event)


class Control:
    """One control service, which is killed and started again."""

    def __init__(self, name: str, directory: Path, ledger_url: str, mistake: str, environment: dict[str, str]) -> None:
        self.directory = directory / name
        self.directory.mkdir()
        self.port = free_port()
        self._mistake = mistake
        self._environment = os.environ | {
            "STRANDLINE_DATA_DIR": str(self.directory),
            "STRANDLINE_LEDGER_URL": ledger_url,
            "STRANDLINE_CONTROL_PORT": str(self.port),
            "STRANDLINE_KAFKA_BOOTSTRAP": "127.0.0.1:1",
            "STRANDLINE_ELASTICSEARCH_URL": "http://127.0.0.1:1",
            "STRANDLINE_STANDBYS": "0",
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["-m", "strandline.services.control"]
        if self._mistake:
            command = ["-m", "tests.fault.notice_kills", "--serve", "--mistake", self._mistake]
        with (self.directory / "control.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def is_up(self) -> bool:
        if self.process is None:
            return False
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/healthz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def holds(self, holder: str) -> bool:
        """Return True if this service has the lease with this holder."""
        lock = self.directory / "control.lock"
        return lock.exists() and holder.rpartition("/")[0] == lock.read_text().strip() != ""

    def kill(self) -> bool:
        """Kill the service and its child processes, as the end of its machine does. Return False if it doesn't run."""
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return False
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


class Driver:
    """Causes failures and kills, and records them."""

    def __init__(self, ledger: Ledger, ledger_url: str, chance: random.Random) -> None:
        self.ledger, self.chance = ledger, chance
        self.kills = Kills()
        self.services: list[Control] = []
        self.leader: Control | None = None
        self.failures = 0
        self.audits = 0
        self.closing = threading.Event()
        self._engine = sa.create_engine(ledger_url)
        self._failed: dict[str, float] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        self.closing.set()
        self._engine.dispose()

    def rows(self, table: sa.Table, row: Callable[..., Any]) -> list[Any]:
        with self._engine.connect() as connection:
            return [row(**one) for one in connection.execute(sa.select(table)).mappings()]

    def find_leader(self) -> Control | None:
        with self._engine.connect() as connection:
            holder = connection.execute(sa.select(notice_leader.c.holder)).scalar() or ""
        return next((one for one in self.services if one.process is not None and one.holds(holder)), None)

    def on_received(self, received: Received) -> None:
        """Kill the leader because of a request, if this is due."""
        if not self.kills.armed or not self._lock.acquire(blocking=False):
            return
        try:
            armed, self.kills.armed = self.kills.armed, ""
            if armed == "before" and self.leader is not None:
                self.kill(self.leader)
            elif armed == "after" and self.leader is not None:
                threading.Timer(self.chance.uniform(0, 0.05), self.kill, (self.leader,)).start()
        finally:
            self._lock.release()

    def kill(self, service: Control) -> None:
        is_leader, at_s = service is self.leader, time.monotonic()
        if service.kill():
            self.kills.at_s.append(at_s)
            self.kills.of_leaders += is_leader
            self.kills.fired.set()
            threading.Timer(self.chance.uniform(0, 3), service.start).start()

    def kill_all(self, count: int, length_s: float) -> None:
        """Kill `count` times within a time."""
        began_s = time.monotonic()
        while (done := len(self.kills.at_s)) < count:
            self._pause(began_s + (done + self.chance.uniform(0.3, 0.7)) * length_s / count - time.monotonic())
            self.leader = self.find_leader()
            running = [one for one in self.services if one.is_up]
            if self.leader is None or self.leader not in running:
                self._pause(0.5)
                continue
            self.kills.fired.clear()
            how = self.chance.choice(("before", "before", "after", "after", "now", "now", "other"))
            if how in ("before", "after"):
                self.kills.armed = how
                if not self.kills.fired.wait(stretched(20)):
                    self.kills.armed = ""
            else:
                other = next((one for one in running if one is not self.leader), self.leader)
                self.kill(other if how == "other" else self.leader)
            if len(self.kills.at_s) % 5 == 0 and len(self.kills.at_s) > done:
                print(f"{len(self.kills.at_s)} kills, {self.failures} failures, {self._state()}", flush=True)
        self._pause(began_s + length_s - time.monotonic())

    def _state(self) -> str:
        rows = self.rows(notice_messages, MessageRow)
        return f"{len(rows)} messages, {sum(one.is_pending for one in rows)} pending"

    def _pause(self, pause_s: float) -> None:
        if pause_s > 0:
            time.sleep(pause_s)  # sleeps: the pace of the load

    def fail_jobs(self) -> None:
        """Let jobs fail and start them again, until `closing` is set. Then start all."""
        next_burst_s = time.monotonic() + 60
        while not self.closing.wait(self.chance.expovariate(1 / 10)):
            now_s = time.monotonic()
            is_burst = now_s >= next_burst_s
            next_burst_s = now_s + 300 if is_burst else next_burst_s
            running = [f"job-{number}" for number in range(JOBS) if f"job-{number}" not in self._failed]
            for job in self.chance.sample(running, min(len(running), BURST if is_burst else 1)):
                self.failures += 1
                self.ledger.move_job(job, JobState.FAILED, f"failure {self.failures}")
                self._failed[job] = now_s + self.chance.uniform(0, 60)
            if self.chance.random() < 0.1:
                self.audits += 1
                text = f"audit {self.audits} found 1 difference"
                self.ledger.record_event("audit_found_differences", text, "job-0")
            for job in [job for job, until_s in self._failed.items() if until_s < now_s]:
                self.ledger.set_desired(job, Desired.RUNNING)
                del self._failed[job]
        for job in self._failed:
            self.ledger.set_desired(job, Desired.RUNNING)


class Receivers:
    """Receivers of all channels, each with its own faults. `heal` ends them."""

    def __init__(
        self, stack: contextlib.ExitStack, chance: random.Random, on_received: Callable[[Received], None]
    ) -> None:
        self._chance = chance
        self._is_well = threading.Event()
        faults = {
            "well": ("ok",),
            "refuse": ("ok", "ok", "503", "429"),
            "hang": ("ok", "ok", "hang"),
            "slow": ("slow",),
            "false": ("ok", "ok", "302", "404", "garbage", "cut"),
        }
        self.http: dict[str, HttpReceiver] = {}
        for name, answers in faults.items():
            self.http[name] = stack.enter_context(HttpReceiver(self._behave(answers), on_received))
            self.http[name].slow_s = 4.0
        answers = ("ok", "ok", "451 later", "hang", "%%%", "250-", "354 what")
        self.mail = stack.enter_context(SmtpReceiver(behave=self._behave(answers), on_received=on_received))
        self.team_http = stack.enter_context(HttpReceiver(self._behave(("ok", "ok", "503", "hang")), on_received))
        self._thread = threading.Thread(target=self._refuse, daemon=True)
        self._thread.start()

    def _behave(self, answers: Sequence[str]) -> Callable[[], str]:
        return lambda: "ok" if self._is_well.is_set() else self._chance.choice(answers)

    def _refuse(self) -> None:
        """Refuse connections for up to 30 s, again and again."""
        while not self._is_well.wait(self._chance.uniform(10, 40)):
            self.http["refuse"].close_port()
            self._is_well.wait(self._chance.uniform(5, 30))
            self.http["refuse"].open_port()

    def heal(self) -> None:
        self._is_well.set()
        self._thread.join()

    def channels(self, notice: str) -> dict[str, list[Received]]:
        """Channel -> all requests that its receiver got."""
        if notice == "team":
            return {"webhook": self.team_http.received}
        labels = ["webhook", *(f"webhook {number}" for number in range(2, len(self.http) + 1))]
        requests = {label: one.received for label, one in zip(labels, self.http.values(), strict=True)}
        return requests | {"mail": self.mail.requests}

    def documents(self) -> dict[str, str]:
        """Notice -> document."""
        pager = [f'  - webhook: {{url: "{one.url}"}}' for one in self.http.values()]
        pager.append(
            "  - mail: {to: [night@example.org], from: s@example.org, server: localhost, security: none, "
            f"port: {self.mail.port}}}"
        )
        team = [f'  - webhook: {{url: "{self.team_http.url}"}}']
        return {
            "pager": PAGER.format(limit=LIMITS["pager"], channels="\n".join(pager)),
            "team": TEAM.format(limit=LIMITS["team"], channels="\n".join(team)),
        }


@dataclass
class Channel:
    """Messages that one channel of a notice received."""

    notice: str
    name: str
    requests: Sequence[Received]
    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Number of a message -> times at which the receiver got and confirmed it."""

    def __post_init__(self) -> None:
        for one in self.requests:
            if one.answered in CONFIRMED:
                self.times[_number(one)].append(one.at_s)


def _number(received: Received) -> int:
    """Return the number of a message, by its id."""
    identifier = (
        received.headers.get("webhook-id")
        or str(message_from_bytes(received.body)["Message-ID"]).strip("<>").rpartition("@")[0]
    )
    return int(identifier.rpartition("-")[2])


@dataclass
class Counts:
    """Sums over all channels."""

    problems: int = 0
    messages: int = 0
    summaries: int = 0
    requests: int = 0
    confirmed: int = 0
    repeats: int = 0
    most_in_a_minute: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)


def check(driver: Driver, receivers: Receivers) -> tuple[list[str], Counts]:
    """Return a finding for each broken promise, and the counts."""
    counts, findings = Counts(), []
    all_events = driver.ledger.events(None, 0, 1_000_000)
    failed = {one.id for one in all_events if one.kind == "job_failed"}
    audits = {one.id for one in all_events if one.kind == "audit_found_differences"}
    if (len(failed), len(audits)) != (driver.failures, driver.audits):
        findings.append(f"the ledger has {len(failed)} failures and {len(audits)} audits")
    all_problems = driver.rows(notice_problems, ProblemRow)
    all_messages = driver.rows(notice_messages, MessageRow)
    for notice, causes in (("pager", failed), ("team", failed | audits)):
        problems = [one for one in all_problems if one.notice == notice]
        messages = {one.number: one for one in all_messages if one.notice == notice}
        counts.problems += len(problems)
        counts.messages += len(messages)
        counts.summaries += sum(one.kind == "summary" for one in messages.values())
        if [one.cause for one in problems] and Counter(one.cause for one in problems) != Counter(causes):
            findings.append(f"lost: notice {notice} has {len(problems)} problems of {len(causes)} events")
        if not problems:
            findings.append(f"lost: notice {notice} has no problems")
        for name, requests in receivers.channels(notice).items():
            channel = Channel(notice, name, requests)
            counts.requests += len(requests)
            counts.confirmed += sum(map(len, channel.times.values()))
            counts.answers.update(one.answered for one in requests)
            findings += _lost(channel, problems, messages)
            findings += _repeated(channel, driver.kills.at_s, counts)
            findings += _over_limit(channel, counts)
    return findings, counts


def _lost(channel: Channel, problems: Sequence[ProblemRow], messages: dict[int, MessageRow]) -> Iterator[str]:
    reports: dict[tuple[int, str], list[MessageRow]] = defaultdict(list)
    for message in messages.values():
        if message.channel == channel.name and message.kind in ("problem", "resolved"):
            for number in message.problems:
                reports[number, message.kind].append(message)
    for row in problems:
        begins = reports[row.number, "problem"]
        if len(begins) != 1 or not _reaches(channel, begins[0], row.number, messages):
            yield f"lost: problem {row.number} of {channel.notice} was not received by {channel.name}"
            continue
        was_over = any(
            one["number"] == row.number and one["ended_ms"] is not None for one in begins[0].content["problems"]
        )
        ends = reports[row.number, "resolved"]
        if row.ended_ms is None:
            yield f"lost: problem {row.number} of {channel.notice} has no end"
        elif len(ends) + was_over != 1 and row.cause and row.condition == "job_failed":
            yield f"the end of problem {row.number} of {channel.notice} has {len(ends) + was_over} messages to {channel.name}"
        elif ends and not _reaches(channel, ends[0], row.number, messages):
            yield f"lost: the end of problem {row.number} of {channel.notice} was not received by {channel.name}"


def _reaches(channel: Channel, message: MessageRow, problem: int, messages: dict[int, MessageRow]) -> bool:
    """Return True if the receiver confirmed the message, or the summary that replaces it."""
    while message.merged_into is not None:
        message = messages[message.merged_into]
    return problem in message.problems and bool(channel.times[message.number])


def _repeated(channel: Channel, kills_s: Sequence[float], counts: Counts) -> Iterator[str]:
    for number, times_s in channel.times.items():
        for first_s, again_s in itertools.pairwise(times_s):
            counts.repeats += 1
            if not any(first_s - 0.5 <= at_s <= again_s for at_s in kills_s):
                yield (
                    f"repeated: {channel.name} of {channel.notice} got message {number} again after "
                    f"{again_s - first_s:.1f} s, without a kill"
                )


def _over_limit(channel: Channel, counts: Counts) -> Iterator[str]:
    times_s = sorted(one.at_s for one in channel.requests)
    limit, first = LIMITS[channel.notice], 0
    most = 0
    for last, at_s in enumerate(times_s):
        while at_s - times_s[first] >= 60:
            first += 1
        most = max(most, last - first + 1)
    counts.most_in_a_minute[f"{channel.notice}, {channel.name}"] = most
    if most > limit:
        yield f"limit: {channel.name} of {channel.notice} got {most} messages within a minute, {limit} are allowed"


def _mark_first(self: NoticeService, work: Any) -> None:
    self._record(work, None)
    self._deliver(work)


def _choose_all(pending: Any, attempts: Any, limit: int, now_ms: int) -> Any:
    return _choose(pending, attempts, 1_000, now_ms)


def _deliver_twice(self: NoticeService, work: Any) -> str | None:
    first = _deliver(self, work)
    return first or _deliver(self, work)


_choose, _deliver = notice_service.choose, NoticeService._deliver
MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "mark-first": (NoticeService, "_send", _mark_first),
    "no-limit": (notice_service, "choose", _choose_all),
    "send-twice": (NoticeService, "_deliver", _deliver_twice),
}


def run(directory: Path, ledger_url: str, options: argparse.Namespace) -> int:
    chance = random.Random(options.seed)
    Ledger.migrate(ledger_url)
    ledger = Ledger.open(ledger_url)
    driver = Driver(ledger, ledger_url, chance)
    with contextlib.ExitStack() as stack:
        stack.callback(ledger.close)
        stack.callback(driver.close)
        receivers = Receivers(stack, chance, driver.on_received)
        ledger.put_stream("turbines", {"stream": "turbines", "retention": "7d"})
        for number in range(JOBS):
            job = f"job-{number}"
            ledger.submit_job(job, "text", {"pipeline": job, "input": {"stream": "turbines"}})
            ledger.move_job(job, JobState.STARTING)
            assert ledger.claim_lease(job, DRIVER, 4 * 3_600_000) is not None
        for name, text in receivers.documents().items():
            (document,) = read_documents(text, f"{name}.yaml", ("notice",))
            ledger.put_notice(name, NoticeSpec.parse(document).as_document())
        environment = {"STRANDLINE_NOTICE_HOSTS": json.dumps(["127.0.0.1", "localhost"])}
        driver.services = [Control(name, directory, ledger_url, options.mistake, environment) for name in ("a", "b")]
        for service in driver.services:
            stack.callback(service.kill)
            service.start()
        wait_until(
            lambda: all(one.is_up for one in driver.services), bool, "the control services start", stretched(120)
        )
        failing = threading.Thread(target=driver.fail_jobs)
        failing.start()
        began_s = time.monotonic()
        try:
            driver.kill_all(options.kills, options.minutes * 60)
        finally:
            driver.closing.set()
            failing.join()
        took_s = time.monotonic() - began_s
        receivers.heal()
        print(
            f"{len(driver.kills.at_s)} kills in {took_s / 60:.1f} minutes; wait until all messages are sent", flush=True
        )
        is_drained = _drain(driver)
        findings, counts = check(driver, receivers)
    if not is_drained:
        findings.append("lost: messages were not sent in the end")
    kinds = Counter(finding.partition(":")[0] for finding in findings)
    print(f"kills: {len(driver.kills.at_s)}, of the leader {driver.kills.of_leaders}, in {took_s / 60:.1f} minutes")
    print(f"failures of jobs: {driver.failures}, audits with differences: {driver.audits}")
    print(f"problems: {counts.problems}, messages: {counts.messages}, of them summaries: {counts.summaries}")
    print(
        f"requests at the receivers: {counts.requests}, confirmed: {counts.confirmed}, answers: {dict(counts.answers)}"
    )
    print(f"lost: {kinds['lost']}")
    print(f"repeated after a kill: {counts.repeats - kinds['repeated']}; repeated without a kill: {kinds['repeated']}")
    print(
        f"most messages within a minute: {dict(counts.most_in_a_minute)}, limits {LIMITS}; exceeded: {kinds['limit']}"
    )
    for finding in findings[:20]:
        print(f"WRONG: {finding}")
    print(f"{len(findings)} findings")
    return 1 if findings else 0


def _drain(driver: Driver) -> bool:
    """Wait until all ends are reported and all messages are sent."""
    until_s, idle_since_s = time.monotonic() + stretched(DRAIN_S), 0.0
    while time.monotonic() < until_s:  # sleeps: nothing may arrive for a while, so time itself is the subject
        time.sleep(1)  # sleeps: see above
        is_idle = not any(one.is_pending for one in driver.rows(notice_messages, MessageRow)) and all(
            one.end_reported_ms is not None for one in driver.rows(notice_problems, ProblemRow)
        )
        idle_since_s = (idle_since_s or time.monotonic()) if is_idle else 0.0
        if is_idle and time.monotonic() - idle_since_s > 15:
            return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill control services while notices are sent to bad receivers.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mistake", choices=["", *MISTAKES], default="")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        from strandline.services import control  # the driver needs no control service

        owner, name, other = MISTAKES[options.mistake]
        with mock.patch.object(owner, name, other):
            control.main()
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops all processes
    with (
        tempfile.TemporaryDirectory(prefix="strandline-notices-") as directory,
        running_postgresql() as server,
        new_database(server) as url,
    ):
        return run(Path(directory), url, options)


if __name__ == "__main__":
    sys.exit(main())
