"""The faults beside kills, pauses and lost answers, and which of them can be done on this machine."""

from __future__ import annotations

import itertools
import random
import signal
import time

import httpx
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.support.chaos.acts import ANSWER_TIMEOUT_S, Backfill, StopAndStart, Upgrade
from tests.support.chaos.faults import End, Fault, Maker, send_signal, targets
from tests.support.chaos.job_stack import JobStack
from tests.support.chaos.tcp_proxy import TcpProxy
from tests.support.faults.kafka_proxy import Api, delay_answer
from tests.support.waiting import wait_until

HOLD_S = (2.0, 10.0)
AWAY_S = (10.0, 20.0)
"""Longer than a lease."""
PARTITIONS_MAX = 8
REFUSED_SHARE = (0.1, 0.9)
CLOCK_STEPS_S = {"clock-step": (45, -45, 86_400), "runner-clock": (45, -45, 86_400), "kafka-clock": (21_600, -21_600)}
"""Kafka's by more than a run takes: so every log time says whether it is of a step."""
DELAY_S = (0.1, 0.9)
"""Less than what the checker allows between two clocks."""
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
    """Somebody else begins a transaction in the input stream, writes to it, hangs, and aborts."""

    def __init__(self, hold_s: float, number: int) -> None:
        super().__init__("foreign transaction", "", hold_s, End.AFTER_HOLD, touches=frozenset({"transaction"}))
        self._number = number
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
        self._producer.produce(stack.stream, b'{"id": "of a transaction that is aborted"}')
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


class KafkaDelay(Fault):
    """What the broker answers the control service and the runners is long on its way."""

    def __init__(self, hold_s: float, delay_s: float) -> None:
        super().__init__("kafka delay", "", hold_s, End.AFTER_HOLD, touches=frozenset({"kafka-proxy"}))
        self._delay_s = delay_s

    def begin(self, stack: JobStack) -> None:
        for api in (Api.FETCH, Api.LIST_OFFSETS, Api.METADATA, Api.PRODUCE):
            stack.stack.kafka_proxy.add(delay_answer(api, self._delay_s))

    def end(self, stack: JobStack) -> None:
        stack.stack.kafka_proxy.clear()


class TemplateDeleted(Fault):
    """Somebody deletes the templates from which the job's indices are made."""

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
    """The input stream gets one or two partitions more while it is written."""

    def __init__(self, count: int) -> None:
        super().__init__("partitions added", "", touches=frozenset({"partitions"}))
        self._count = count

    def begin(self, stack: JobStack) -> None:
        admin = AdminClient({"bootstrap.servers": stack.stack.addresses.kafka_bootstrap, "log_level": 0})
        topic = admin.list_topics(stack.stream, timeout=ANSWER_TIMEOUT_S).topics[stack.stream]
        wanted = min(len(topic.partitions) + self._count, PARTITIONS_MAX)
        if wanted > len(topic.partitions):
            admin.create_partitions([NewPartitions(stack.stream, wanted)])[stack.stream].result(ANSWER_TIMEOUT_S)
            stack.has_more_partitions = True


class ClockStep(Fault):
    """A wall clock is set, and set back after a while; all others stay as they are."""

    def __init__(self, kind: str, hold_s: float, by_s: int) -> None:
        super().__init__(kind.replace("-", " "), f"{by_s:+} s", hold_s, End.AFTER_HOLD, touches=frozenset({kind}))
        self._of, self._by_s = kind, by_s

    def begin(self, stack: JobStack) -> None:
        stack.clocks[self._of].set(self._by_s)

    def end(self, stack: JobStack) -> None:
        stack.clocks[self._of].set(0)


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
    """The control service that leads the first job is killed, and comes back only when another one could take its jobs over: one
    that comes back at once takes back its own leases. Meanwhile nobody gives orders, which one service of all takes here."""

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
    transactions = itertools.count(1)
    found: dict[str, Maker] = {
        "power-cut": lambda _: PowerCut(stack),
        "foreign-transaction": lambda chance: ForeignTransaction(_hold_s(chance), next(transactions)),
        "index-refusals": lambda chance: IndexRefusals(
            _hold_s(chance), chance.uniform(*REFUSED_SHARE), random.Random(chance.random())
        ),
        "index-cut": lambda chance: Cut("index cut", "", _hold_s(chance), stack.index_proxy),
        "kafka-delay": lambda chance: KafkaDelay(_hold_s(chance), chance.uniform(*DELAY_S)),
        "template-deleted": lambda _: TemplateDeleted(),
        "partitions-added": lambda chance: PartitionsAdded(chance.randint(1, 2)),
        "stop-and-start": lambda chance: StopAndStart(_hold_s(chance)),
        "upgrade": lambda _: Upgrade(),
        "backfill": _backfill,
    }
    if stack.ledger_proxies:
        found["ledger-cut"] = lambda chance: _ledger_cut(stack, chance)
    if len(stack.services) > 1:
        found["leader-away"] = lambda chance: LeaderAway(stack, round(chance.uniform(*AWAY_S), 1))
    found |= {kind: _setting(kind) for kind in stack.clocks}
    if stack.small_disk is not None:
        found["disk-full"] = lambda chance: DiskFull(_hold_s(chance))
    return found


def _setting(kind: str) -> Maker:
    return lambda chance: ClockStep(kind, _hold_s(chance), chance.choice(CLOCK_STEPS_S[kind]))


def _backfill(chance: random.Random) -> Backfill:
    """One in two up to what is emitted then; killed up to twice, at its start or in the middle of its work."""
    from_share = chance.uniform(-0.1, 0.7)
    to_share = None if chance.random() < 0.5 else chance.uniform(from_share + 0.2, 1.0)
    return Backfill(from_share, to_share, [chance.uniform(0, 30) for _ in range(chance.randint(0, 2))])


def _hold_s(chance: random.Random) -> float:
    return round(chance.uniform(*HOLD_S), 1)


def _ledger_cut(stack: JobStack, chance: random.Random) -> Cut:
    """From one control service, with its runners."""
    name, proxy = chance.choice(list(zip(stack.services, stack.ledger_proxies, strict=True)))
    return Cut("ledger cut", name if len(stack.services) > 1 else "", _hold_s(chance), proxy)
