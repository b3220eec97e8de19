"""Faults in addition to kills, pauses, and lost answers, and those of them that are possible on this machine."""

from __future__ import annotations

import itertools
import random
import signal
import time
from functools import partial

import httpx
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from strandline.core.failpoints import BACKFILL_FAILPOINTS
from tests.support.chaos.acts import ANSWER_TIMEOUT_S, Backfill, StopAndStart, Upgrade
from tests.support.chaos.faults import End, Fault, Maker, send_signal, targets
from tests.support.chaos.job_stack import JobStack
from tests.support.chaos.more_jobs import ChaosJob
from tests.support.chaos.restored import IndexRestored, LedgerRestored
from tests.support.chaos.tcp_proxy import TcpProxy
from tests.support.faults.kafka_proxy import (
    Api,
    Rule,
    cut_request_unsent,
    delay_answer,
    drop_answer,
    empty_fetches,
    holed_fetches,
    no_replicas_in_sync,
)
from tests.support.waiting import wait_until

HOLD_S = (2.0, 10.0)
AWAY_S = (10.0, 20.0)
"""Longer than a lease."""
PARTITIONS_MAX = 8
ASK_TIMEOUT_S = 5.0
"""Seconds until a request without an answer is repeated."""
EMPTY_SHARE = (0.5, 1.0)
HOLE_S = (2.0, 6.0)
"""Less than a run believes that the log may only seem to lack records (`continuity.DOUBT_MS`)."""
UNWRITABLE_S = 90.0
UNWRITABLE_SETTLES_S = 2.0
WRITES = (Api.PRODUCE, Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN)
REWIND_S = (0.0, 1.5)
REWIND_TIMEOUT_S = 600.0
REFUSED_SHARE = (0.1, 0.9)
CLOCK_STEPS_S = {
    "clock-step": (45, -45, 86_400),
    "runner-clock": (45, -45, 86_400),
    "control-clock": (21_600, -21_600, 86_400),
    "kafka-clock": (21_600, -21_600),
}
"""Kafka's by more than a run takes: so every log time says whether it is of a step."""
DRIFT_SHARE, RESTART_SHARE = 0.5, 0.5
"""Share of the clock faults that drift, and share of the faults of a control service that begin with its restart."""
DRIFT_RATES = (1.05, 0.95, 1.2, 0.8)
"""How many seconds a clock that drifts goes in a second. At each of them two thirds of a lease are less than a lease."""
FAILPOINT_SHARE = 0.5
"""Share of the kills of a backfill."""
DELAY_S = (0.1, 0.9)
"""Less than what the checker allows between two clocks."""
DELAYED_ANSWERS = (Api.FETCH, Api.LIST_OFFSETS, Api.METADATA, Api.PRODUCE)
LOST_ANSWERS = (Api.LIST_OFFSETS, Api.METADATA, Api.FETCH, Api.PRODUCE, Api.INIT_PRODUCER_ID, Api.END_TXN)
LOST_ANSWERS_MAX = 4
"""Maximum number for each kind."""
TRANSACTION_TIMEOUT_MS = 60_000


class PowerCut(Fault):
    """Every process of the stack is killed at once; they come back in any order."""

    def __init__(self, stack: JobStack) -> None:
        self._every = targets(stack, random.Random(0))
        super().__init__("power cut", "", is_violent=True, touches=frozenset(one.thing for one in self._every))

    def begin(self, stack: JobStack) -> None:
        send_signal([*stack.family(), *(pid for one in self._every for pid in one.pids(stack))], signal.SIGKILL)
        self.parts_killed += [one.part for one in self._every if one.part is not None]


class ForeignTransaction(Fault):
    """Another producer begins a transaction in the input stream, writes to it, hangs, and aborts."""

    def __init__(self, hold_s: float, number: int) -> None:
        super().__init__("foreign transaction", "", hold_s, End.AFTER_HOLD, touches=frozenset({"transaction"}))
        self._number = number
        """Number of the fault, which selects the stream."""
        self._producer: Producer | None = None

    def begin(self, stack: JobStack) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": stack.stack.addresses.kafka_bootstrap,
                "transactional.id": f"somebody-else-{self._number}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(ANSWER_TIMEOUT_S)
        self._producer.begin_transaction()
        self._producer.produce(
            stack.streams[self._number % len(stack.streams)], b'{"id": "of a transaction that is aborted"}'
        )
        assert self._producer.flush(ANSWER_TIMEOUT_S) == 0, "the record of the foreign transaction was not written"

    def end(self, stack: JobStack) -> None:
        assert self._producer is not None
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            try:
                self._producer.abort_transaction(10)
                return
            except KafkaException as error:
                if error.args[0].fatal():
                    return  # the broker ended it, when its time had run out
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise AssertionError(f"the foreign transaction can't be aborted: {error}") from error


class IndexRefusals(Fault):
    """Some items of bulk requests are answered as by a store that is busy; the others pass."""

    def __init__(self, hold_s: float, share: float, chance: random.Random) -> None:
        super().__init__("index refusals", "", hold_s, End.AFTER_HOLD, touches=frozenset({"index-proxy"}))
        self._share = share
        self._chance = chance

    def begin(self, stack: JobStack) -> None:
        stack.index_proxy.refuse_items(self._share, self._chance)

    def end(self, stack: JobStack) -> None:
        stack.index_proxy.refuse_items(0.0, self._chance)


class Cut(Fault):
    """No connection to a server comes through, and those that were there are gone."""

    def __init__(self, kind: str, target: str, hold_s: float, proxy: TcpProxy) -> None:
        super().__init__(kind, target, hold_s, End.AFTER_HOLD, touches=frozenset({f"{kind.split()[0]}-proxy"}))
        self._proxy = proxy

    def begin(self, stack: JobStack) -> None:
        self._proxy.cut()

    def end(self, stack: JobStack) -> None:
        self._proxy.heal()


class KafkaSpoilt(Fault):
    """Corrupt answers of the broker to the control service and the runners."""

    def __init__(self, kind: str, hold_s: float, rules: list[Rule], *, must_change: bool = False) -> None:
        """`must_change`: End only when a rule has changed the records of an answer.

        So it ends when no other fault, such as a held Kafka or runner, prevents readers from fetching any more.
        """
        end_when = End.WHEN_OTHERS_ENDED if must_change else End.AFTER_HOLD
        super().__init__(kind, "", hold_s, end_when, touches=frozenset({"kafka-proxy"}))
        self._rules = rules
        self._must_change = must_change

    def begin(self, stack: JobStack) -> None:
        for rule in self._rules:
            stack.stack.kafka_proxy.add(rule)

    def end(self, stack: JobStack) -> None:
        if self._must_change:
            wait_until(lambda: sum(rule.changed for rule in self._rules), bool, f"met: {self.kind}", ANSWER_TIMEOUT_S)
            stack.noted[self.kind.replace(" ", "-")] += 1
        stack.stack.kafka_proxy.clear()


class KafkaUnwritable(Fault):
    """No request that writes reaches the broker, of the gateway, the control service and the runners; they can read all the time.

    The proxy does it, and says that no replica is in sync: a broker caps `min.insync.replicas` at the number of replicas, so with
    one replica it refuses nothing. All of the time counts as an outage for the checker, so no slice may count it as silence.
    """

    def __init__(self) -> None:
        touches = frozenset({"kafka", "kafka-proxy", "transaction", "partitions"})
        super().__init__("kafka unwritable", "", UNWRITABLE_S, End.AFTER_HOLD, touches=touches)
        self._since_ms = 0
        self._ends: dict[str, dict[int, int]] = {}

    def begin(self, stack: JobStack) -> None:
        self._since_ms = time.time_ns() // 1_000_000
        stack.stack.kafka_proxy.add(no_replicas_in_sync())
        for api in WRITES:
            stack.stack.kafka_proxy.add(cut_request_unsent(api))
        time.sleep(UNWRITABLE_SETTLES_S)  # sleeps: what is on its way to the broker arrives
        self._ends = _ends(stack)

    def end(self, stack: JobStack) -> None:
        ends = _ends(stack)
        stack.stack.kafka_proxy.clear()
        assert ends == self._ends, f"a stream was written while Kafka refused writes: {self._ends}, then {ends}"
        stack.note_kafka_away(self._since_ms)
        stack.noted["kafka-unwritable"] += 1


def _ends(stack: JobStack) -> dict[str, dict[int, int]]:
    """Return the ends of the partitions of each input stream."""
    consumer = Consumer(
        {"bootstrap.servers": stack.stack.addresses.kafka_bootstrap, "group.id": "ladder", "log_level": 0}
    )
    try:
        return {stream: _ends_of(consumer, stream) for stream in stack.streams}
    finally:
        consumer.close()


def _ends_of(consumer: Consumer, stream: str) -> dict[int, int]:
    partitions = consumer.list_topics(stream, timeout=ANSWER_TIMEOUT_S).topics[stream].partitions
    places = [TopicPartition(stream, one) for one in partitions]
    return {one.partition: consumer.get_watermark_offsets(one, timeout=ANSWER_TIMEOUT_S)[1] for one in places}


class RewindKill(Fault):
    """A runner is killed, and the next one, too, while it rewinds: another run has to take over."""

    def __init__(self, job: str, after_s: float) -> None:
        touches = frozenset({"runner", "orders", "version", "control"})
        super().__init__("rewind kill", job, 0.0, End.WHEN_ALL_RUNS, is_violent=True, touches=touches)
        self._job, self._after_s = job, after_s
        self._epoch = 0

    def begin(self, stack: JobStack) -> None:
        self._epoch = wait_until(lambda: self._begun(stack), bool, "known: the runs", ANSWER_TIMEOUT_S)
        send_signal(stack.family(self._job), signal.SIGKILL)

    def end(self, stack: JobStack) -> None:
        wait_until(
            lambda: self._begun(stack), lambda epoch: epoch > self._epoch, "begun: a rewind", REWIND_TIMEOUT_S, 0.05
        )
        time.sleep(self._after_s)  # sleeps: the kill falls somewhere in the rewind
        send_signal(stack.family(self._job), signal.SIGKILL)

    def _begun(self, stack: JobStack) -> int:
        """The newest run of the job that has begun to rewind; 0 while the ledger can't be asked."""
        statement = f"SELECT max(epoch) AS epoch FROM events WHERE kind = 'run_begins' AND job = '{self._job}'"
        rows = stack.ask_ledger(statement)
        return int(rows[0]["epoch"] or 0) if rows else 0


class TemplateDeleted(Fault):
    """Delete the templates from which the job's indices are created."""

    def __init__(self) -> None:
        super().__init__("template deleted", "", touches=frozenset({"template"}))

    def begin(self, stack: JobStack) -> None:
        url = f"{stack.stack.addresses.elasticsearch_url}/_index_template/strandline-{stack.job}-*"

        def delete() -> int:
            try:
                return httpx.delete(url, timeout=30, trust_env=False).status_code
            except httpx.HTTPError:
                return 0

        # 404: they were deleted before, and no run has begun since.
        wait_until(delete, lambda status: status in (200, 404), "deleted: the templates", ANSWER_TIMEOUT_S, 0.5)


class PartitionsAdded(Fault):
    """An input stream gets one or two partitions more while it is written."""

    def __init__(self, count: int, number: int) -> None:
        """`number`: selects the stream."""
        super().__init__("partitions added", "", touches=frozenset({"partitions"}))
        self._count, self._number = count, number

    def begin(self, stack: JobStack) -> None:
        stream = stack.streams[self._number % len(stack.streams)]
        admin = AdminClient({"bootstrap.servers": stack.stack.addresses.kafka_bootstrap, "log_level": 0})
        wanted = 0

        def are_there() -> bool:
            nonlocal wanted
            try:
                there = len(admin.list_topics(stream, timeout=ASK_TIMEOUT_S).topics[stream].partitions)
                wanted = wanted or min(there + self._count, PARTITIONS_MAX)
                if there < wanted:
                    stack.grown.add(stream)
                    new = [NewPartitions(stream, wanted)]
                    admin.create_partitions(new, request_timeout=ASK_TIMEOUT_S)[stream].result()
                return True
            except KafkaException as error:
                code = error.args[0].code()
                if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                    return False  # another fault of the round loses answers
                if code == KafkaError.INVALID_PARTITIONS:
                    return True  # done, and the answer was lost
                raise

        wait_until(are_there, bool, f"added: partitions of {stream}", ANSWER_TIMEOUT_S, 0.1)


class ClockFault(Fault):
    """A wall clock is set, or runs fast or slow, or both, and is right again after a while; all others stay as they are."""

    def __init__(
        self, kind: str, whose: str, hold_s: float, by_s: int, rate: float, end_when: End = End.AFTER_HOLD
    ) -> None:
        how = [f"{by_s:+} s"] * bool(by_s) + [f"x{rate:g}"] * (rate != 1.0)
        target = " ".join([whose, *how]).strip()
        super().__init__(kind.replace("-", " "), target, hold_s, end_when, touches=frozenset({kind}))
        self._kind, self._whose, self._by_s, self._rate = kind, whose, by_s, rate

    def begin(self, stack: JobStack) -> None:
        stack.clocks[self._kind][self._whose].set(self._by_s, self._rate)

    def end(self, stack: JobStack) -> None:
        stack.clocks[self._kind][self._whose].set(0)


class RestartWithWrongClock(ClockFault):
    """A control service is killed, and comes back with a clock that is wrong, which is right again only when it is there."""

    def __init__(self, whose: str, service: str, hold_s: float, by_s: int, rate: float) -> None:
        super().__init__("control-clock", whose, hold_s, by_s, rate, End.WHEN_OTHERS_ENDED)
        self.target += f", {service} restarted"
        self.is_violent, self.touches = True, self.touches | {service}
        self._service = service

    def begin(self, stack: JobStack) -> None:
        super().begin(stack)
        send_signal(stack.named(self._service), signal.SIGKILL)
        self.parts_killed.append(self._service)


class DiskFull(Fault):
    """There is no space where Spark keeps its scratch."""

    def __init__(self, hold_s: float) -> None:
        super().__init__("disk full", "", hold_s, End.AFTER_HOLD, touches=frozenset({"disk"}))

    def begin(self, stack: JobStack) -> None:
        assert stack.small_disk is not None
        stack.small_disk.fill()

    def end(self, stack: JobStack) -> None:
        assert stack.small_disk is not None
        stack.small_disk.free()


class LeaderAway(Fault):
    """Kill the control service that leads the first job, and restart it only when another one could take its jobs over.

    A service that returns immediately claims its own leases again. In the meantime no service gives orders, which one
    of all services does here.
    """

    def __init__(self, stack: JobStack, hold_s: float) -> None:
        touches = frozenset({*stack.services, "orders", "version"})
        super().__init__("leader away", "", hold_s, End.WHEN_OTHERS_ENDED, is_violent=True, touches=touches)

    def prepare(self, stack: JobStack) -> None:
        self.target = wait_until(stack.leader, bool, "led: the first job", ANSWER_TIMEOUT_S) or ""

    def begin(self, stack: JobStack) -> None:
        send_signal(stack.named(self.target), signal.SIGKILL)

    def end(self, stack: JobStack) -> None:
        stack.mend_all([self.target])


def makers(stack: JobStack) -> dict[str, Maker]:
    """Name -> how it is drawn, of each kind that can be done to this stack; what can't is in `stack.left_out`."""
    transactions, growths = itertools.count(), itertools.count()
    found: dict[str, Maker] = {
        "power-cut": lambda _: PowerCut(stack),
        "foreign-transaction": lambda chance: ForeignTransaction(_hold_s(chance), next(transactions)),
        "index-refusals": lambda chance: IndexRefusals(
            _hold_s(chance), chance.uniform(*REFUSED_SHARE), random.Random(chance.random())
        ),
        "index-cut": lambda chance: Cut("index cut", "", _hold_s(chance), stack.index_proxy),
        "kafka-delay": _kafka_delay,
        "kafka-answers-lost": lambda chance: KafkaSpoilt(
            "kafka answers lost",
            _hold_s(chance),
            [drop_answer(api, chance.randint(0, LOST_ANSWERS_MAX)) for api in LOST_ANSWERS],
        ),
        "kafka-answers-empty": lambda chance: KafkaSpoilt(
            "kafka answers empty",
            _hold_s(chance),
            [empty_fetches(random.Random(chance.random()), chance.uniform(*EMPTY_SHARE))],
            must_change=True,
        ),
        "kafka-holes": lambda chance: KafkaSpoilt(
            "kafka holes",
            round(chance.uniform(*HOLE_S), 1),
            [holed_fetches(random.Random(chance.random()), chance.uniform(*EMPTY_SHARE))],
            must_change=True,
        ),
        "kafka-unwritable": lambda _: KafkaUnwritable(),
        "rewind-kill": lambda chance: RewindKill(_job(stack, chance), chance.uniform(*REWIND_S)),
        "ledger-restored": lambda _: LedgerRestored(),
        "index-restored": lambda _: IndexRestored(),
        "template-deleted": lambda _: TemplateDeleted(),
        "partitions-added": lambda chance: PartitionsAdded(chance.randint(1, 2), next(growths)),
        "stop-and-start": lambda chance: StopAndStart(_job(stack, chance), _hold_s(chance)),
        "upgrade": lambda chance: Upgrade(_job(stack, chance)),
        "backfill": lambda chance: _backfill(chance.choice(with_windows(stack)).name, chance),
    }
    if stack.ledger_proxies:
        found["ledger-cut"] = lambda chance: _ledger_cut(stack, chance)
    if len(stack.services) > 1:
        found["leader-away"] = lambda chance: LeaderAway(stack, _away_s(chance))
    found |= {kind: partial(_clock_fault, stack, kind) for kind in stack.clocks}
    if stack.small_disk is not None:
        found["disk-full"] = lambda chance: DiskFull(_hold_s(chance))
    return found


def _kafka_delay(chance: random.Random) -> KafkaSpoilt:
    hold_s, delay_s = _hold_s(chance), chance.uniform(*DELAY_S)
    return KafkaSpoilt("kafka delay", hold_s, [delay_answer(api, delay_s) for api in DELAYED_ANSWERS])


def with_windows(stack: JobStack) -> list[ChaosJob]:
    """Return the jobs that a backfill can recompute. Records without a window are never recomputed."""
    return [one for one in stack.jobs if one.stages]


def _job(stack: JobStack, chance: random.Random) -> str:
    return chance.choice(stack.jobs).name


def _clock_fault(stack: JobStack, kind: str, chance: random.Random) -> ClockFault:
    """Return a step or, half of the time, a drift of a clock.

    A drift begins at the correct time; in Kafka it begins after a step, so that no log time is treated as correct.
    """
    whose = chance.choice([*stack.clocks[kind]])
    by_s, rate, hold_s = chance.choice(CLOCK_STEPS_S[kind]), 1.0, _hold_s(chance)
    if chance.random() < DRIFT_SHARE:
        by_s, rate, hold_s = by_s if kind == "kafka-clock" else 0, chance.choice(DRIFT_RATES), _away_s(chance)
    if kind == "control-clock" and chance.random() < RESTART_SHARE:
        service = whose or chance.choice(stack.services)
        return RestartWithWrongClock(whose, service, _away_s(chance), by_s, rate)
    return ClockFault(kind, whose, hold_s, by_s, rate)


def _backfill(job: str, chance: random.Random) -> Backfill:
    """One in two up to what is emitted then; killed up to twice, at its start, in the middle of its work, or at a failpoint."""
    from_share = chance.uniform(-0.1, 0.7)
    to_share = None if chance.random() < 0.5 else chance.uniform(from_share + 0.2, 1.0)
    kills: list[float | str] = []
    for _ in range(chance.randint(0, 2)):
        is_at_point = chance.random() < FAILPOINT_SHARE
        kills.append(chance.choice(BACKFILL_FAILPOINTS) if is_at_point else chance.uniform(0, 30))
    return Backfill(job, from_share, to_share, kills)


def _hold_s(chance: random.Random) -> float:
    return round(chance.uniform(*HOLD_S), 1)


def _away_s(chance: random.Random) -> float:
    return round(chance.uniform(*AWAY_S), 1)


def _ledger_cut(stack: JobStack, chance: random.Random) -> Cut:
    """From one control service, with its runners."""
    name, proxy = chance.choice(list(zip(stack.services, stack.ledger_proxies, strict=True)))
    return Cut("ledger cut", name if len(stack.services) > 1 else "", _hold_s(chance), proxy)
