"""Breaks things in rounds, by a seed: a few faults overlap, then results have to flow again, then comes the next round.

That results flow is seen in the ledger's numbers of slices, and timed by this process's monotonic clock: no clock of the
stack is asked.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from strandline.core.failpoints import BACKFILL_FAILPOINTS
from tests.support.chaos.acts import Backfill, LookupChange
from tests.support.chaos.faults import PAUSE_S, End, Fault, Kill, LoseAnswers, Maker, Pause, Target, targets
from tests.support.chaos.job_stack import JobStack
from tests.support.chaos.kinds import makers, with_windows
from tests.support.waiting import stretched, wait_until

FLOW_LIMIT_S = 60.0
"""Seconds within which results must flow again after a single fault. A longer time is counted and reported."""
FLOW_LIMIT_MORE_S = 30.0
"""Additional seconds for each fault of the same round."""
FLOW_TIMEOUT_S = 600.0
"""Seconds after which results count as lost."""
PAUSE_SHARE, LOSS_SHARE, LOOKUP_SHARE = 0.15, 0.1, 0.25
"""Shares of all faults; the others are kills and further kinds. Lookups change under the graph job only."""
TOGETHER_MAX = 3
DRAWS_MAX = 20
"""For a round; those that touch the same as another are put back."""
DRAIN_KILL_S = (0.0, 0.9)
"""How long after the order to drain something is killed: most drains take longer."""
QUIET_S = (0.2, 3.0)
"""How long after results flow the next round begins: at any instant of a slice."""


@dataclass(frozen=True)
class Round:
    """Faults of one round, and the time until results flowed."""

    number: int
    faults: tuple[Fault, ...]
    at_s: float
    """Since the nemesis began."""
    flow_s: float
    """From the first fault to the commit of results of a slice that was planned when nothing was held any more."""
    held_s: float = 0.0
    """How long something was held, which is in `flow_s`."""
    load: float = 1.0
    """How much longer limits are: on a machine as busy as this was, and with several jobs, because a start takes all cores."""

    @property
    def recovery_s(self) -> float:
        """Without the holding itself."""
        return max(self.flow_s - self.held_s, 0.0)

    @property
    def limit_s(self) -> float:
        return (FLOW_LIMIT_S + FLOW_LIMIT_MORE_S * (len(self.faults) - 1)) * self.load

    @property
    def is_slow(self) -> bool:
        return self.recovery_s > self.limit_s

    def __str__(self) -> str:
        held = f", held for {self.held_s:.1f} s" if self.held_s else ""
        return f"round {self.number}: {' + '.join(fault.name for fault in self.faults)}{held}"


class Nemesis:
    """Draws and does faults. The same seed draws the same faults and times; what they meet there differs."""

    def __init__(
        self, stack: JobStack, seed: int, *, only: Sequence[str] = (), together_max: int = TOGETHER_MAX
    ) -> None:
        """`only`: the names of kinds and of what is killed; none: all. `together_max`: how many faults a round may have."""
        self._stack = stack
        self._chance = random.Random(seed)
        self._together_max = together_max
        victims = targets(stack, random.Random(seed))
        self._targets = [one for one in victims if not only or one.name in only]
        others = {name: make for name, make in makers(stack).items() if not only or name in only}
        self._makers: dict[str, Maker] = {one.name: _killing(one) for one in self._targets} | others
        known = {one.name for one in victims} | makers(stack).keys() | {"index-answers", "lookup-change"}
        if unknown := [name for name in only if name not in known | stack.left_out.keys()]:
            raise ValueError(f"{', '.join(unknown)}: unknown here; there are {', '.join(sorted(known))}")
        self._loses = not only or "index-answers" in only
        self._changes = stack.job_set.has_lookup and (not only or "lookup-change" in only)
        self._began_s = time.monotonic()
        self._bag: list[str] = []

    @property
    def names(self) -> list[str]:
        """Names of the drawn faults, without pauses, lost answers, and changes of a lookup."""
        return list(self._makers)

    def break_things(self, kills: float, rounds: float = math.inf) -> Iterator[Round]:
        """Yield each round when results flow again, until `kills` faults or `rounds` rounds are done.

        Pauses, lost answers, and changes of a lookup are added and don't count as faults. Raises AssertionError if
        results don't flow again in time.
        """
        number, done = 0, 0
        while done < kills and number < rounds:
            number += 1
            time.sleep(self._chance.uniform(*QUIET_S))  # sleeps: the instant of the fault
            faults, counted = self.draw(kills - done)
            done += counted
            yield self.break_together(number, faults)

    def fail_at(self, points: Sequence[str], how: str = "kill") -> Iterator[Round]:
        """Yield a round for each failpoint, when it is overcome: whichever process comes there next is killed.

        Raises AssertionError when none comes there, or results don't flow again in time.
        """
        for number, point in enumerate(points, 1):
            if point in BACKFILL_FAILPOINTS:
                yield self._fail_backfill_at(number, point)
                continue
            self._stack.arm(f"{point}={how}")
            if point.startswith(("run.", "rewind.")):
                # Only a start comes there.
                kill = Kill(Target("runner-python", lambda stack: stack.runner(stack.job)))
                kill.prepare(self._stack)
                kill.begin(self._stack)
            wait_until(self._stack.has_fired, bool, f"reached: {point}", FLOW_TIMEOUT_S, 0.05)
            at_s = time.monotonic()
            yield self._wait(number, (Fault(how, point),), at_s, self._stack.slices_last())

    def _fail_backfill_at(self, number: int, point: str) -> Round:
        """Recompute all closed windows by a backfill whose process is killed at this point."""
        fault = Backfill(self._chance.choice(with_windows(self._stack)).name, 0.0, None, [point])
        one = self.break_together(number, [fault])
        assert not fault.missed, f"round {number}, {fault.name}"
        return one

    def break_drain(self) -> str:
        """Kill one thing that a drain needs, soon after the order, and start it again. Returns what was killed."""
        stack = self._stack
        kill = Kill(self._chance.choice([one for one in targets(stack, self._chance) if one.name != "gateway"]))
        time.sleep(self._chance.uniform(*DRAIN_KILL_S))  # sleeps: the instant of the fault
        at_ms = time.time_ns() // 1_000_000
        kill.begin(stack)
        self._mend(kill.parts_killed, at_ms)
        return kill.name

    def draw(self, counted_max: float) -> tuple[list[Fault], int]:
        """The faults of a round, no two at the same thing; and how many of them count."""
        wanted = self._chance.randint(1, self._together_max)
        faults: list[Fault] = []
        touched: set[str] = set()
        counted = 0
        again: list[str] = []
        for _ in range(DRAWS_MAX):
            if len(faults) == wanted or counted == counted_max:
                break
            kind = self._chance.random()
            name = None
            if kind < LOSS_SHARE and self._loses:
                fault: Fault = LoseAnswers(self._chance.randint(1, 3))
            elif kind < LOSS_SHARE + PAUSE_SHARE and self._targets:
                fault = Pause(self._chance.choice(self._targets), round(self._chance.uniform(*PAUSE_S), 1))
            elif kind >= 1 - LOOKUP_SHARE and self._changes:
                fault = LookupChange()
            else:
                name = self._next_name()
                fault = self._makers[name](self._chance)
            if fault.touches & touched or (faults and (fault.is_alone or faults[0].is_alone)):
                again += [name] if name is not None else []
                continue
            faults.append(fault)
            touched |= fault.touches
            counted += name is not None
        self._bag += again  # for one of the next rounds
        return faults, counted

    def _next_name(self) -> str:
        """Every kind comes once before any comes again."""
        if not self._bag:
            self._bag = self._chance.sample(list(self._makers), len(self._makers))
        return self._bag.pop()

    def break_together(self, number: int, faults: list[Fault]) -> Round:
        """Begin all, start again what was killed, let go each when its time has come, and wait until results flow."""
        stack = self._stack
        for fault in faults:
            fault.prepare(stack)
        at_s, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        for fault in sorted(faults, key=lambda one: one.is_violent):
            fault.begin(stack)
        held = [fault for fault in faults if fault.end_when is not End.AT_ONCE]
        planned = None if held else stack.slices_last()
        parts = [part for fault in faults for part in fault.parts_killed]
        with ThreadPoolExecutor(1) as mending:  # what is held may keep a server from starting
            mended = mending.submit(self._mend, self._chance.sample(parts, len(parts)), at_ms)
            self._end([fault for fault in held if fault.end_when is End.AFTER_HOLD], at_s)
            mended.result()
        self._end([fault for fault in held if fault.end_when is not End.AFTER_HOLD], at_s)
        held_s = time.monotonic() - at_s if held else 0.0
        return self._wait(number, tuple(faults), at_s, planned, held_s)

    def _mend(self, parts: list[str], since_ms: int) -> None:
        self._stack.mend_all(parts)
        if "kafka" in parts:
            self._stack.note_kafka_away(since_ms)

    def _end(self, faults: list[Fault], at_s: float) -> None:
        for fault in sorted(faults, key=lambda one: (one.end_when, one.hold_s)):
            time.sleep(max(0.0, at_s + fault.hold_s - time.monotonic()))  # sleeps: the fault itself
            fault.end(self._stack)

    def _wait(
        self,
        number: int,
        faults: tuple[Fault, ...],
        at_s: float,
        planned: dict[str, int] | None,
        held_s: float = 0.0,
    ) -> Round:
        """`planned`: the last slices that were planned when the faults were over; None if the ledger couldn't be asked then."""
        over_s = at_s + held_s
        try:
            if planned is None:
                planned = wait_until(self._stack.slices_last, lambda last: last is not None, "telling", FLOW_TIMEOUT_S)
            assert planned is not None
            limit_s = max(FLOW_TIMEOUT_S - (time.monotonic() - over_s), 1.0)
            flowed_s = self._stack.wait_for_results(after_slices=planned, since_s=over_s, timeout_s=limit_s)
        except AssertionError as error:
            names = " + ".join(fault.name for fault in faults)
            raise AssertionError(f"round {number}, {names}: {error}") from error
        return Round(
            number, faults, at_s - self._began_s, flowed_s - at_s, held_s, stretched(1.0) * len(self._stack.jobs)
        )


def _killing(target: Target) -> Maker:
    return lambda _: Kill(target)


Progress = Callable[[str], None]
