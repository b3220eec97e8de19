"""Faults of a running stack: each fault begins and ends; in between it is held.

A fault that only kills ends immediately, and the killed part is restarted in parallel to others. `Nemesis` draws faults
and their times.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

from tests.support.chaos.job_stack import JobStack
from tests.support.waiting import wait_until

PAUSE_S = (2.0, 12.0)
THERE_TIMEOUT_S = 600.0
"""Maximum time in seconds until there is a process to kill, or an answer to lose."""
GONE_S = 3.0
"""A target that is missing for this many seconds at the begin of its fault ended with another fault of the round, and
may return only after it."""


class End(IntEnum):
    """Time at which a fault ends relative to others of its round, in this order."""

    AT_ONCE = 0
    """Nothing is held."""
    AFTER_HOLD = 1
    WHEN_OTHERS_ENDED = 2
    """What it waits for may need those that the others hold."""
    WHEN_ALL_RUNS = 3


@dataclass(frozen=True)
class Target:
    """A kind of process that can be killed or held."""

    name: str
    pids: Callable[[JobStack], list[int]]
    """Processes to kill or hold together. Empty if there are none at the moment."""
    part: str | None = None
    """Part of the stack that `mend_all` must restart. None for parts that the supervisor restarts."""

    @property
    def thing(self) -> str:
        """Unit to which it belongs: only one of the runner's processes is broken at a time, because the others may end
        with it."""
        return self.part or "runner"


def targets(stack: JobStack, chance: random.Random) -> list[Target]:
    """Return the targets that can be killed or held.

    One of several runners is drawn; each control service is a separate target.
    """

    def drawn(stack: JobStack) -> str:
        return chance.choice(stack.jobs).name

    found = [
        Target("runner-python", lambda stack: stack.runner(drawn(stack))),
        Target("runner-jvm", lambda stack: stack.jvm(drawn(stack))),
        Target("runner-family", lambda stack: stack.family(drawn(stack))),
        Target("python-worker", lambda stack: stack.worker(chance)),
        *(Target(name, lambda stack, name=name: stack.named(name), part=name) for name in stack.services),
        *(_gateway(name) for name in stack.job_set.gateways),
        Target("kafka", lambda stack: stack.named("kafka"), part="kafka"),
        Target("elasticsearch", lambda stack: stack.named("elasticsearch"), part="elasticsearch"),
    ]
    if (postgresql := stack.postgresql) is not None:
        found.append(Target("postgresql", lambda _: postgresql.pids(), part="postgresql"))
    return found


def _gateway(name: str) -> Target:
    part = f"gateway-{name}"
    return Target("gateway" if name == "http" else part, lambda stack: stack.named(part), part=part)


@dataclass
class Fault:
    """One thing that is done; the base does nothing."""

    kind: str
    target: str
    hold_s: float = 0.0
    """Asked for; ending others may take longer."""
    end_when: End = End.AT_ONCE
    is_violent: bool = False
    """True if it begins after the faults that need running servers to begin."""
    touches: frozenset[str] = frozenset()
    """No two faults of a round touch the same."""
    is_alone: ClassVar[bool] = False
    """True if no other fault may be in its round."""
    parts_killed: list[str] = field(default_factory=list)
    """Parts of the stack that must be restarted once it has begun."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.target}".strip()

    def prepare(self, stack: JobStack) -> None:
        """Wait until it can be done; before any fault of its round begins."""

    def begin(self, stack: JobStack) -> None:
        """Do it; for one that is held, begin to."""

    def end(self, stack: JobStack) -> None:
        """Let go what is held."""


class Signal(Fault):
    """A signal to what a target is at the moment."""

    def __init__(self, kind: str, target: Target, number: signal.Signals, hold_s: float, end_when: End) -> None:
        super().__init__(kind, target.name, hold_s, end_when, is_violent=True, touches=frozenset({target.thing}))
        self._of = target
        self._number = number
        self._pids: list[int] = []

    def prepare(self, stack: JobStack) -> None:
        wait_until(lambda: self._of.pids(stack), bool, f"there: {self.target}", THERE_TIMEOUT_S)

    def begin(self, stack: JobStack) -> None:
        deadline_s = time.monotonic() + GONE_S
        while not self._pids and time.monotonic() < deadline_s:  # sleeps: a target may be gone
            self._pids = send_signal(self._of.pids(stack), self._number)
        if not self._pids:
            self.target += ", which was gone"


class Kill(Signal):
    """SIGKILL."""

    def __init__(self, target: Target) -> None:
        super().__init__("kill", target, signal.SIGKILL, 0.0, End.AT_ONCE)

    def begin(self, stack: JobStack) -> None:
        super().begin(stack)
        if self._pids and self._of.part is not None:
            self.parts_killed.append(self._of.part)


class Pause(Signal):
    """SIGSTOP, and SIGCONT after a while."""

    def __init__(self, target: Target, hold_s: float) -> None:
        super().__init__("pause", target, signal.SIGSTOP, hold_s, End.AFTER_HOLD)
        self._since_ms = 0

    def begin(self, stack: JobStack) -> None:
        self._since_ms = time.time_ns() // 1_000_000
        super().begin(stack)

    def end(self, stack: JobStack) -> None:
        send_signal(self._pids, signal.SIGCONT)
        if self._of.part == "kafka":
            stack.note_kafka_away(self._since_ms)


class LoseAnswers(Fault):
    """The proxy before the index loses answers to bulk requests, which are carried out."""

    def __init__(self, count: int) -> None:
        touches = frozenset({"index-proxy"})
        super().__init__("lose", "index-answers", end_when=End.WHEN_ALL_RUNS, touches=touches)
        self._count = count
        self._before = 0

    def begin(self, stack: JobStack) -> None:
        self._before = stack.index_proxy.lost
        stack.index_proxy.lose_answers(self._count)

    def end(self, stack: JobStack) -> None:
        wait_until(
            lambda: stack.index_proxy.lost, lambda lost: lost > self._before, "losing an answer", THERE_TIMEOUT_S
        )


Maker = Callable[[random.Random], Fault]
"""Draws how, and makes the fault."""


def send_signal(pids: Sequence[int], number: signal.Signals) -> list[int]:
    """Signal those that are still there, and return them."""
    reached = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself, or someone has replaced it
            os.kill(pid, number)
            reached.append(pid)
    return reached
