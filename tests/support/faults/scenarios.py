"""Faults of a gateway under load, each as a function that returns its outcome.

Each function begins a stream, lets senders run, and injects a fault as often as requested. It waits until records flow
again, stops the senders, and compares their answers with the topic. Each measurement of a scenario has a limit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.support.faults.checker import Verdict
from tests.support.faults.kafka_proxy import (
    Api,
    Rule,
    cut_request,
    delay_answer,
    drop_answer,
    hold_request,
    slow_produce,
    stale_high_watermark,
    swallow_answer,
)
from tests.support.faults.lab import BROKER_QUIET_S, Lab, Trial
from tests.support.faults.load import LEFT
from tests.support.waiting import stretched, wait_until

MEMORY_BYTES_MAX = 512 * 1024 * 1024
FIRST_ACK_S_MAX = 5.0
"""From the start of a gateway that was killed to an acknowledgement."""
FLOWS_AGAIN_S_MAX = 5.0
"""From Kafka's return to an acknowledgement."""
_BETWEEN_FAULTS_RECORDS = 200
"""Number of acknowledged records before the next fault, so that it hits a working gateway."""
_TAIL_RECORDS = 300
_SPOILABLE = [api for api in Api if api not in (Api.API_VERSIONS, Api.DESCRIBE_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS)]
_SPOILS: list[tuple[str, Callable[[Api, float, int], Rule]]] = [
    ("held", hold_request),
    ("answered late", delay_answer),
    ("not answered", lambda api, _, times: swallow_answer(api, times)),
    ("lost with its connection", lambda api, _, times: drop_answer(api, times)),
    ("cut", lambda api, _, times: cut_request(api, times)),
]
_HELD_S = (0.2, 1.0, 3.0, 6.0)
_SPOILT_TIMES = (1, 1, 2, 4, 50)
_IDLE_S = 5.0
_LATE_S = 6.0
"""Longer than a gateway waits for a confirmation."""
_OVERLOAD_CLIENTS = 400
_OVERLOAD_BATCH_RECORDS = 40
_OVERLOAD_RECORD_BYTES = 10_000
_OVERLOAD_TIMES = 10


@dataclass
class Measure:
    """The largest value seen, against what was promised."""

    unit: str
    limit: float | None = None
    worst: float = 0.0
    allowed: float = 0.0
    """The limit, stretched as the machine was at work when something was noted: by the end it may have rest again."""

    def note(self, value: float) -> None:
        self.worst = max(self.worst, value)
        if self.limit is not None:
            self.allowed = max(self.allowed, stretched(self.limit) if self.unit == "s" else self.limit)

    @property
    def is_kept(self) -> bool:
        return self.limit is None or self.worst <= max(self.limit, self.allowed)

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" (limit {self.limit:g})"
        return f"{self.worst:.2f} {self.unit}{limit}" if self.unit == "s" else f"{self.worst:.0f} {self.unit}{limit}"


@dataclass
class Outcome:
    """Outcome of a scenario."""

    name: str
    rounds: int
    verdict: Verdict
    measures: dict[str, Measure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        missed = [f"{name}: {measure}" for name, measure in self.measures.items() if not measure.is_kept]
        return [*self.verdict.violations, *missed]

    def __str__(self) -> str:
        measures = ", ".join(f"{name} {measure}" for name, measure in self.measures.items())
        return "\n".join([f"{self.name} x {self.rounds}: {self.verdict}", measures, *self.notes])


Progress = Callable[[str], None]


class Course:
    """One scenario under way: the trial, its measures, and the end that all scenarios share."""

    def __init__(self, name: str, lab: Lab, say: Progress) -> None:
        self.name = name if lab.durability == "log" else f"{name}, spool"
        self.lab = lab
        self.say = say
        self.trial: Trial = lab.begin()
        self.measures = {"gateway memory": Measure("MB", MEMORY_BYTES_MAX / 2**20)}
        lab.gateway.memory_peak_bytes = 0
        if not lab.gateway.is_running:
            lab.gateway.start()
        lab.gateway.wait_until_listening()
        if lab.kind.name == "mqtt-listener":
            # Until it has read the streams again, the topic of a new stream is unknown.
            log = lab.gateway.log_file
            wait_until(lambda: self.trial.stream in log.read_text(errors="replace"), bool, f"taken up (see {log})")
        self._starts = lab.gateway.starts
        self._counted_before = lab.gateway.metrics()

    def measure(self, name: str, unit: str, limit: float | None = None) -> Measure:
        return self.measures.setdefault(name, Measure(unit, limit))

    def end(self, rounds: int) -> Outcome:
        """See that records still flow, stop, compare."""
        self.trial.wait_for_acknowledged(_TAIL_RECORDS)
        verdict = self.trial.finish()
        if self.lab.gateway.starts == self._starts:
            verdict.contradictions += self._check_accounts(verdict)
        self.measures["gateway memory"].note(self.lab.gateway.memory_peak_bytes / 2**20)
        reasons = ", ".join(f"{why} {count}" for why, count in self.trial.history.reasons.most_common())
        outcome = Outcome(
            self.name, rounds, verdict, self.measures, [f"not acknowledged: {reasons}"] if reasons else []
        )
        if any("without Retry-After" in why for why in self.trial.history.reasons):
            outcome.verdict.contradictions.append("a 503 came without Retry-After")
        if any(why == "PUBACK 0x90" for why in self.trial.history.reasons):
            outcome.verdict.contradictions.append("a topic of a registered stream was refused as unknown")
        self.say(str(outcome))
        return outcome

    def _check_accounts(self, verdict: Verdict) -> list[str]:
        """Whether what a gateway that lived through it all has counted adds up, and fits what was sent and logged.

        What an MQTT broker sent may still be in flight though it is in the log: its confirmation is waited for.
        """
        until_s = time.monotonic() + (BROKER_QUIET_S if self.lab.kind.has_broker else 0.0)
        while (
            wrong := self._wrong_accounts(verdict)
        ) and time.monotonic() < until_s:  # sleeps: the caller reports what is wrong
            time.sleep(0.2)  # sleeps: as above
        return wrong

    def _wrong_accounts(self, verdict: Verdict) -> list[str]:
        now = self.lab.gateway.metrics()

        def counted(name: str) -> int:
            sample = f"strandline_ingest_{name}"
            return int(now.get(sample, 0) - self._counted_before.get(sample, 0))

        received, confirmed, refused = counted("received_total"), counted("confirmed_total"), counted("refused_total")
        spooled, in_flight, dropped = counted("spooled_total"), counted("in_flight"), counted("dropped_total")
        sums = (
            f"received {received}, confirmed {confirmed}, refused {refused}, spooled {spooled}, in flight {in_flight}"
        )
        wrong = []
        if received != confirmed + refused + spooled + in_flight:
            wrong.append(f"the gateway's counts don't add up: {sums}")
        if confirmed + spooled < verdict.acknowledged:
            wrong.append(f"{verdict.acknowledged} records were acknowledged, and the gateway counted {sums}")
        if self.lab.kind.name == "udp" and verdict.sent != received + dropped:
            wrong.append(f"{verdict.sent} records were sent, and the gateway counted {sums}, dropped {dropped}")
        return wrong


def kill_gateway(lab: Lab, kills: int, say: Progress = print, *, resends: bool = False, seed: int = 1) -> Outcome:
    """`kill -9` at random instants under load, each time started again at once."""
    name = f"{lab.kind.name}: gateway killed" + (", senders repeat" if resends else "")
    course, chance = Course(name, lab, say), random.Random(seed)
    first_ack = course.measure("first ack after a start", "s", FIRST_ACK_S_MAX)
    course.trial.start_load(resends=resends)
    for number in range(1, kills + 1):
        course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        time.sleep(chance.uniform(0, 0.3))  # sleeps: the instant of the fault
        lab.gateway.kill()
        lab.gateway.start()
        took_s = course.trial.first_ok_after(lab.gateway.started_s)
        first_ack.note(took_s)
        say(
            f"{course.name}: kill {number} of {kills}, first ack after {took_s:.2f} s, "
            f"{course.trial.acknowledged} acknowledged"
        )
    return course.end(kills)


def cut_senders(lab: Lab, cuts: int, say: Progress = print, *, resends: bool = False) -> Outcome:
    """Senders cut their connections when they have sent a batch, or a part of it, and before they have an answer."""
    name = f"{lab.kind.name}: senders leave before the answer" + (", and repeat" if resends else "")
    course = Course(name, lab, say)
    course.trial.start_load(leave_chance=0.3, resends=resends)
    history = course.trial.history
    wait_until(lambda: history.reasons[LEFT], lambda count: count >= cuts, f"cut {cuts} times", 300.0)
    return course.end(history.reasons[LEFT])


def freeze_gateway(lab: Lab, times: int, say: Progress = print, *, seconds: float = 1.0) -> Outcome:
    """SIGSTOP, and SIGCONT some time later."""
    course = Course(f"{lab.kind.name}: gateway frozen for {seconds:g} s", lab, say)
    course.trial.start_load()
    for _ in range(times):
        course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        lab.gateway.freeze()
        time.sleep(seconds)  # sleeps: how long the fault lasts
        lab.gateway.thaw()
        course.trial.first_ok_after(time.monotonic())
    return course.end(times)


def stop_kafka(lab: Lab, seconds: float, say: Progress = print) -> Outcome:
    """Kafka is stopped in order, stays away, and comes back with its data."""
    return _kafka_away(lab, seconds, 1, say, "stopped", lab.cluster.brokers[0].stop)


def kill_kafka(lab: Lab, kills: int, say: Progress = print, *, seconds: float = 0.0) -> Outcome:
    """`kill -9` of the only broker, which is started again at once or some time later."""
    return _kafka_away(lab, seconds, kills, say, "killed", lab.cluster.brokers[0].kill)


def freeze_kafka(lab: Lab, seconds: float, say: Progress = print) -> Outcome:
    """The broker's connections stay open, and nothing answers."""
    return _kafka_away(lab, seconds, 1, say, "frozen", lab.cluster.brokers[0].freeze)


def cut_network(lab: Lab, seconds: float, say: Progress = print) -> Outcome:
    """Every connection to Kafka breaks, and none can be made."""
    return _kafka_away(lab, seconds, 1, say, "cut off", lab.cluster.proxy.cut)


def _kafka_away(
    lab: Lab, seconds: float, times: int, say: Progress, what: str, take_away: Callable[[], None]
) -> Outcome:
    course = Course(f"{lab.kind.name}: Kafka {what}" + (f" for {seconds:g} s" if seconds else ""), lab, say)
    answer = course.measure("slowest answer meanwhile", "s", lab.kind.answer_s_max)
    flows_again = course.measure("first ack after Kafka's return", "s", FLOWS_AGAIN_S_MAX)
    (broker,) = lab.cluster.brokers
    course.trial.start_load()
    for number in range(1, times + 1):
        course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        take_away()
        gone_s = time.monotonic()
        time.sleep(seconds)  # sleeps: how long the fault lasts
        if broker.is_running:
            broker.thaw()
            broker.proxy.heal()
            lab.cluster.wait_until_answering()
        else:
            lab.cluster.start(broker)
        lab.cluster.leader(course.trial.stream, 0)
        back_s = time.monotonic()
        took_s = course.trial.first_ok_after(back_s)
        flows_again.note(took_s)
        answer.note(course.trial.slowest_answer_s(gone_s, back_s))
        say(
            f"{course.name}: {number} of {times}, away for {back_s - gone_s:.1f} s, slowest answer {answer.worst:.2f} s, "
            f"first ack {took_s:.2f} s after its return, {course.trial.acknowledged} acknowledged"
        )
    return course.end(times)


def kill_gateway_without_kafka(lab: Lab, kills: int, say: Progress = print, *, seed: int = 1) -> Outcome:
    """`kill -9` of a gateway whose Kafka is away: what it acknowledges meanwhile, it acknowledges from its spool."""
    course, chance = Course(f"{lab.kind.name}: gateway killed while Kafka is away", lab, say), random.Random(seed)
    flows_again = course.measure("first ack after Kafka's return", "s", FLOWS_AGAIN_S_MAX)
    (broker,) = lab.cluster.brokers
    course.trial.start_load()
    for number in range(1, kills + 1):
        course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        broker.kill()
        if lab.durability == "spool" and lab.kind.is_answering:
            course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        time.sleep(chance.uniform(0, 1.0))  # sleeps: the instant of the fault
        lab.gateway.kill()
        lab.gateway.start()
        if chance.random() < 0.5:
            lab.gateway.wait_until_listening()
        lab.cluster.start(broker)
        lab.cluster.leader(course.trial.stream, 0)
        took_s = course.trial.first_ok_after(time.monotonic())
        flows_again.note(took_s)
        say(f"{course.name}: kill {number} of {kills}, first ack {took_s:.2f} s after Kafka's return")
    return course.end(kills)


def spoil_produce(lab: Lab, make_rule: Callable[[], Rule], times: int, say: Progress = print, *, what: str) -> Outcome:
    """One frame of the exchange with Kafka is spoilt, again and again, each time after records have flowed."""
    course = Course(f"{lab.kind.name}: {what}", lab, say)
    course.trial.start_load()
    for number in range(1, times + 1):
        rule = lab.cluster.proxy.add(make_rule())
        wait_until(lambda rule=rule: rule.done, bool, f"spoilt ({what})", 60.0)
        lab.cluster.proxy.clear()
        took_s = course.trial.first_ok_after(time.monotonic())
        course.measure("first ack after it", "s").note(took_s)
        course.trial.wait_for_acknowledged(50)
        if number % 10 == 0:
            say(f"{course.name}: {number} of {times}, {course.trial.acknowledged} acknowledged")
    return course.end(times)


def hide_ends(lab: Lab, times: int, say: Progress = print) -> Outcome:
    """Commit a transaction with an answer that is too late, and hide the topic's end: it can't be known yet whether the
    records are in the log."""
    course = Course(f"{lab.kind.name}: committed late, and the topic's ends unknown", lab, say)
    course.trial.start_load()
    for number in range(1, times + 1):
        course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        late = lab.cluster.proxy.add(delay_answer(Api.END_TXN, _LATE_S, 1))
        wait_until(lambda late=late: late.hits, bool, "committed", 60.0)
        lost = lab.cluster.proxy.add(swallow_answer(Api.LIST_OFFSETS, 2))
        wait_until(lambda lost=lost: lost.done, bool, "asked for the ends", 60.0)
        lab.cluster.proxy.clear()
        course.trial.first_ok_after(time.monotonic())
        say(f"{course.name}: {number} of {times}, {course.trial.acknowledged} acknowledged")
    return course.end(times)


def spoil_anything(lab: Lab, rounds: int, say: Progress = print, *, seed: int | None = None) -> Outcome:
    """Hold, lose, or cut some requests or answers of each kind of exchange with Kafka, drawn by the seed, several kinds
    at a time."""
    seed = time.time_ns() % 2**32 if seed is None else seed
    course, chance = (
        Course(f"{lab.kind.name}: anything on the wire spoilt (seed {seed})", lab, say),
        random.Random(seed),
    )
    course.trial.start_load()
    for number in range(1, rounds + 1):
        course.trial.wait_for_acknowledged(chance.choice((0, _BETWEEN_FAULTS_RECORDS)))
        spoilt = []
        for api in chance.sample(_SPOILABLE, chance.randint(1, 4)):
            how, make_rule = chance.choice(_SPOILS)
            lab.cluster.proxy.add(make_rule(api, chance.choice(_HELD_S), chance.choice(_SPOILT_TIMES)))
            spoilt.append(f"{api.name} {how}")
        time.sleep(chance.uniform(0.5, 6))  # sleeps: how long it lasts
        lab.cluster.proxy.clear()
        took_s = course.trial.first_ok_after(time.monotonic())
        course.measure("first ack after it", "s").note(took_s)
        say(f"{course.name}: {number} of {rounds}, {', '.join(spoilt)}, first ack {took_s:.2f} s later")
    return course.end(rounds)


def hold_produce(lab: Lab, rounds: int, say: Progress = print, *, seconds: float = 30.0) -> Outcome:
    """A Produce request is held; the gateway is killed and started again; the request is delivered into the new life."""
    course = Course(f"{lab.kind.name}: Produce held {seconds:g} s, delivered after the gateway's restart", lab, say)
    first_ack = course.measure("first ack after a start", "s", FIRST_ACK_S_MAX)
    course.trial.start_load()
    for number in range(1, rounds + 1):
        course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        rule = lab.cluster.proxy.add(hold_request(Api.PRODUCE, seconds))
        wait_until(lambda rule=rule: rule.hits, bool, "held", 60.0)
        lab.gateway.kill()
        lab.gateway.start()
        first_ack.note(course.trial.first_ok_after(lab.gateway.started_s))
        wait_until(lambda rule=rule: rule.done, bool, "delivered", seconds + 30.0)
        lab.cluster.proxy.clear()
        course.trial.first_ok_after(time.monotonic())
        say(f"{course.name}: {number} of {rounds}, {course.trial.acknowledged} acknowledged")
    return course.end(rounds)


def blind_read_back(lab: Lab, times: int, say: Progress = print, *, seconds: float = 3.0) -> Outcome:
    """Fetches answer as if nothing newer were there: nothing may be acknowledged that was not read back."""
    return _without_read_back(lab, times, say, seconds, "high watermark stale", stale_high_watermark)


def slow_read_back(lab: Lab, times: int, say: Progress = print, *, seconds: float = 3.0) -> Outcome:
    """Each answer to a fetch comes after the time is up."""
    return _without_read_back(lab, times, say, seconds, "fetches delayed", lambda: delay_answer(Api.FETCH, seconds))


def _without_read_back(
    lab: Lab, times: int, say: Progress, seconds: float, what: str, make_rule: Callable[[], Rule]
) -> Outcome:
    course = Course(f"{lab.kind.name}: {what} for {seconds:g} s", lab, say)
    unread = course.measure("acknowledged and not read back", "records", 0)
    course.trial.start_load()
    for _ in range(times):
        course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        rule = lab.cluster.proxy.add(make_rule())
        started_s = time.monotonic()
        # Only what is sent once the rule holds: before, a fetch that already passed may carry it.
        wait_until(lambda rule=rule, s=started_s: rule.hits or time.monotonic() - s > seconds, bool, "fetching", 60.0)
        blind_s = time.monotonic()
        time.sleep(seconds)  # sleeps: how long the fault lasts
        seen_s = time.monotonic()
        lab.cluster.proxy.clear()
        course.trial.first_ok_after(seen_s)
        latencies_s = list(course.trial.history.latencies_s)
        if not lab.kind.is_answering:  # what its senders hear doesn't come from the gateway
            continue
        unread.note(
            sum(
                1 for at_s, took_s, op in latencies_s if op == "ok" and at_s > blind_s and at_s + took_s < seen_s - 0.05
            )
        )
    return course.end(times)


def overload(lab: Lab, say: Progress = print, *, seconds: float = 20.0, bytes_per_s: float = 200_000.0) -> Outcome:
    """Limit Kafka to `bytes_per_s` bytes per second, and offer ten times as much, for at least `seconds`."""
    course = Course(f"{lab.kind.name}: overload", lab, say)
    offered = course.measure("offered, times what Kafka takes", "")
    answer = course.measure("slowest answer", "s")
    rule = lab.cluster.proxy.add(slow_produce(bytes_per_s))
    course.trial.start_load(
        clients=_OVERLOAD_CLIENTS, batch_records_max=_OVERLOAD_BATCH_RECORDS, record_bytes=_OVERLOAD_RECORD_BYTES
    )
    started_s = time.monotonic()
    wait_until(lambda: rule.hits, bool, "loaded", 30.0)
    time.sleep(seconds)  # sleeps: how long the fault lasts
    # A slow machine offers less in a second; the first acknowledgements come while the buffers are still empty.
    wait_until(lambda: _times_offered(course), lambda times: times >= _OVERLOAD_TIMES, "times offered", 60.0)
    ended_s = time.monotonic()
    offered.note(_times_offered(course))
    answer.note(course.trial.slowest_answer_s(started_s, ended_s))
    for load in course.trial.loads:
        load.is_stopping = True
    lab.cluster.proxy.clear()
    course.trial.start_load()
    course.trial.first_ok_after(ended_s)
    return course.end(1)


def _times_offered(course: Course) -> float:
    """Return the ratio of sent to acknowledged records."""
    return course.trial.history.records["invoke"] / max(1, course.trial.acknowledged)


def fill_disk(lab: Lab, disk: Path, times: int, say: Progress = print) -> Outcome:
    """The disk under Kafka's log fills up; room is made, and Kafka is started again where it gave up."""
    course = Course(f"{lab.kind.name}: Kafka's disk full", lab, say)
    flows_again = course.measure("first ack after Kafka's return", "s", FLOWS_AGAIN_S_MAX)
    (broker,) = lab.cluster.brokers
    ballast = disk / "ballast"
    # Large batches: the room that is left goes quickly.
    course.trial.start_load(batch_records_max=200)
    for number in range(1, times + 1):
        course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        _fill(ballast)
        full_s = time.monotonic()
        wait_until(
            lambda since_s=full_s: _is_refused(course.trial, since_s), bool, "refused while the disk is full", 120.0
        )
        ballast.unlink()
        if not broker.is_running or not _leads(lab, course.trial.stream):
            broker.kill()
            lab.cluster.start(broker)
        lab.cluster.leader(course.trial.stream, 0)
        took_s = course.trial.first_ok_after(time.monotonic())
        flows_again.note(took_s)
        say(f"{course.name}: {number} of {times}, first ack {took_s:.2f} s after Kafka's return")
    return course.end(times)


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def _is_refused(trial: Trial, since_s: float) -> bool:
    """Nothing was acknowledged of what was sent in the last seconds, and something was not. Where senders don't hear from the
    gateway: nothing has come into the log for some seconds."""
    if not trial.lab.kind.is_answering:
        return trial.idle_s() > _IDLE_S
    recent = [(at_s, op) for at_s, took_s, op in trial.history.latencies_s[-200:] if at_s > since_s]
    return len(recent) >= 8 and all(op != "ok" for _, op in recent[-8:])


def _leads(lab: Lab, topic: str) -> bool:
    """Whether every partition still has its leader."""
    metadata = AdminClient({"bootstrap.servers": lab.cluster.bootstrap, "log_level": 0}).list_topics(
        topic, timeout=10.0
    )
    return all(partition.leader > 0 for partition in metadata.topics[topic].partitions.values())


def kill_leader(lab: Lab, kills: int, say: Progress = print, *, seed: int = 1) -> Outcome:
    """Kill the leader of a partition, one of three brokers. It returns when the others have taken over."""
    course, chance = Course(f"{lab.kind.name}: leader of three killed", lab, say), random.Random(seed)
    again = course.measure("first ack after the kill", "s")
    course.trial.start_load()
    for number in range(1, kills + 1):
        course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        lab.cluster.wait_until_in_sync(course.trial.stream)
        partition = chance.randrange(3)
        broker = lab.cluster.leader(course.trial.stream, partition)
        time.sleep(chance.uniform(0, 0.3))  # sleeps: the instant of the fault
        killed_s = time.monotonic()
        broker.kill()
        # A new leader for what it led; only then does an acknowledgement say something.
        wait_until(
            lambda partition=partition: lab.cluster.leader(course.trial.stream, partition),
            lambda now, dead=broker: now is not dead,
            "a new leader",
            60.0,
        )
        course.trial.wait_for_acknowledged(_BETWEEN_FAULTS_RECORDS)
        took_s = course.trial.first_ok_after(killed_s)
        again.note(took_s)
        lab.cluster.start(broker)
        say(
            f"{course.name}: kill {number} of {kills}, broker {broker.number}, first ack after {took_s:.2f} s, "
            f"{course.trial.acknowledged} acknowledged"
        )
    return course.end(kills)
