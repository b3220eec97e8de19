"""Breaks one thing after another, by a seed: each only when results flow again after the last."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.support.chaos.job_stack import JobStack, Target
from tests.support.waiting import wait_until

FLOW_LIMIT_S = 60.0
"""So long after a fault, and results must flow again; a longer time is counted and named."""
FLOW_TIMEOUT_S = 600.0
"""So long, and they are given up for lost."""
PAUSE_SHARE, LOSS_SHARE = 0.15, 0.1
"""Of all faults; the others are kills."""
PAUSE_S = (2.0, 12.0)
QUIET_S = (0.2, 3.0)
"""How long after results flow the next fault comes: at any instant of a slice."""


def targets(chance: random.Random) -> list[Target]:
    return [
        Target("runner-python", JobStack.runner),
        Target("runner-jvm", JobStack.jvm),
        Target("runner-family", JobStack.family),
        Target("python-worker", lambda stack: stack.worker(chance)),
        Target("control", lambda stack: stack.named("control"), part="control"),
        Target("gateway", lambda stack: stack.named("gateway-http"), part="gateway-http"),
        Target("kafka", lambda stack: stack.named("kafka"), part="kafka"),
        Target("elasticsearch", lambda stack: stack.named("elasticsearch"), part="elasticsearch"),
        Target("postgresql", lambda stack: stack.postgresql.pids() if stack.postgresql else [], part="postgresql"),
    ]


@dataclass(frozen=True)
class Fault:
    """One thing that was done, and how long it took until results flowed."""

    number: int
    kind: str
    """`kill`, `pause`, or `lose` for answers on their way."""
    target: str
    at_s: float
    """Since the nemesis began."""
    flow_s: float
    """From the fault to the commit of the first slice that was planned after it and made results final."""
    pause_s: float = 0.0
    """How long it was held, which is in `flow_s`."""

    @property
    def recovery_s(self) -> float:
        """Without the pause itself."""
        return max(self.flow_s - self.pause_s, 0.0)


class Nemesis:
    """Draws and does faults. The same seed draws the same targets, kinds and pauses; what it meets there differs."""

    def __init__(self, stack: JobStack, seed: int, *, only: list[str] | None = None) -> None:
        self._stack = stack
        self._chance = random.Random(seed)
        self._targets = [one for one in targets(self._chance) if only is None or one.name in only]
        if stack.postgresql is None:
            self._targets = [one for one in self._targets if one.name != "postgresql"]
        self._began_s = time.monotonic()
        self._bag: list[Target] = []

    def break_things(self, kills: int) -> Iterator[Fault]:
        """Yield each fault when it is overcome, until so many kills are done; pauses and lost answers come in between and
        don't count.

        Raises AssertionError when results don't flow again in time.
        """
        number, done = 0, 0
        while done < kills:
            number += 1
            time.sleep(self._chance.uniform(*QUIET_S))
            kind = self._chance.random()
            if kind < LOSS_SHARE:
                yield self._lose_answers(number)
            elif kind < LOSS_SHARE + PAUSE_SHARE:
                yield self._pause(number, self._chance.choice(self._targets))
            else:
                yield self._kill(number, self._next_target())
                done += 1

    def fail_at(self, points: Sequence[str], how: str = "kill") -> Iterator[Fault]:
        """Yield a fault for each failpoint, when it is overcome: whichever process comes there next is killed.

        Raises AssertionError when none comes there, or results don't flow again in time.
        """
        for number, point in enumerate(points, 1):
            self._stack.arm(f"{point}={how}")
            if point.startswith(("run.", "rewind.")):
                # Only a start comes there.
                self._signal(Target("runner-python", JobStack.runner), signal.SIGKILL)
            wait_until(self._stack.has_fired, bool, f"reached: {point}", FLOW_TIMEOUT_S, 0.05)
            at_s, at_ms = time.monotonic(), time.time_ns() // 1_000_000
            yield self._wait(number, how, Target(point, lambda _: []), at_s, at_ms)

    def _next_target(self) -> Target:
        """Every target is killed once before any is killed again."""
        if not self._bag:
            self._bag = self._chance.sample(self._targets, len(self._targets))
        return self._bag.pop()

    def _kill(self, number: int, target: Target) -> Fault:
        at_s, at_ms, _ = self._signal(target, signal.SIGKILL)
        if target.part is not None:
            self._stack.mend(target.part)
        return self._wait(number, "kill", target, at_s, at_ms)

    def _pause(self, number: int, target: Target) -> Fault:
        pause_s = round(self._chance.uniform(*PAUSE_S), 1)
        at_s, at_ms, pids = self._signal(target, signal.SIGSTOP)
        time.sleep(pause_s)  # the fault itself, not a wait for something
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # someone may have replaced it meanwhile
                os.kill(pid, signal.SIGCONT)
        return self._wait(number, "pause", target, at_s, at_ms, pause_s)

    def _lose_answers(self, number: int) -> Fault:
        proxy = self._stack.index_proxy
        before, at_s, at_ms = proxy.lost, time.monotonic(), time.time_ns() // 1_000_000
        proxy.lose_answers(self._chance.randint(1, 3))
        wait_until(lambda: proxy.lost, lambda lost: lost > before, "losing an answer", FLOW_TIMEOUT_S)
        return self._wait(number, "lose", Target("index-answers", lambda _: []), at_s, at_ms)

    def _signal(self, target: Target, kind: signal.Signals) -> tuple[float, int, list[int]]:
        """Signal what the target is now; return when (monotonic, ms of the wall clock), and to whom it went."""
        while True:
            pids = wait_until(lambda: target.pids(self._stack), bool, f"there: {target.name}", FLOW_TIMEOUT_S)
            at_s, at_ms = time.monotonic(), time.time_ns() // 1_000_000
            gone = []
            for pid in pids:
                try:
                    os.kill(pid, kind)
                except ProcessLookupError:
                    gone.append(pid)  # a worker that ended by itself
            if gone != pids:
                return at_s, at_ms, pids

    def _wait(self, number: int, kind: str, target: Target, at_s: float, at_ms: int, pause_s: float = 0.0) -> Fault:
        limit_s = FLOW_TIMEOUT_S + pause_s - (time.monotonic() - at_s)
        try:
            found = self._stack.wait_for_results(after_ms=at_ms, timeout_s=max(limit_s, 1.0))
        except AssertionError as error:
            raise AssertionError(f"fault {number}, {kind} of {target.name}: {error}") from error
        flow_s = max(found["committed_ms"] - at_ms, 0) / 1000
        return Fault(number, kind, target.name, at_s - self._began_s, flow_s, pause_s)


Progress = Callable[[str], None]
