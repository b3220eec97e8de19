"""Operations on a job by its API while other faults happen.

A request can be sent at any moment, and is repeated until it is answered.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import httpx

from strandline.core.errors import StrandlineError
from strandline.services.client import ControlClient
from tests.support.chaos.checking.pace import PACES
from tests.support.chaos.faults import End, Fault, send_signal
from tests.support.chaos.graph_job import lookup_document
from tests.support.chaos.job_stack import JobStack
from tests.support.waiting import wait_until

BACKFILL_TIMEOUT_S = 600.0
NOTE_ALL = "*=note"
"""Armed while nothing else is: which failpoints the jobs come to."""
ANSWER_TIMEOUT_S = 180.0
"""Maximum time in seconds until an operation is accepted, while other faults happen to the servers."""


class StopAndStart(Fault):
    """Stop a job, and start it again when it has stopped."""

    def __init__(self, job: str, hold_s: float) -> None:
        super().__init__("stop and start", job, hold_s, End.WHEN_OTHERS_ENDED, touches=frozenset({"orders"}))
        self._job = job

    def begin(self, stack: JobStack) -> None:
        ask(stack, "to stop", lambda control: control.order(self._job, "stop"))

    def end(self, stack: JobStack) -> None:
        state = partial(stack.state, self._job)
        wait_until(state, lambda found: found == "stopped", f"stopped: {self._job}", ANSWER_TIMEOUT_S, 0.2)
        ask(stack, "to start", lambda control: control.order(self._job, "start"))


class Upgrade(Fault):
    """Apply the next version of a job's document.

    The other faults of the round may occur before it is accepted, at that moment, and while the new version takes over.
    """

    def __init__(self, job: str) -> None:
        super().__init__("upgrade", job, 0.0, End.WHEN_OTHERS_ENDED, touches=frozenset({"version"}))
        self._job = job
        self._applying = ThreadPoolExecutor(1, "upgrade")
        self._applied: Future[None] | None = None

    def begin(self, stack: JobStack) -> None:
        stack.versions[self._job] += 1
        # Without a stream's document: it is refused where the topic has got more partitions than it says.
        text = stack.text_of_jobs().encode()
        self._applied = self._applying.submit(
            ask, stack, "to upgrade", lambda control: control.apply(text, "chaos.yaml")
        )

    def end(self, stack: JobStack) -> None:
        assert self._applied is not None
        self._applying.shutdown()
        self._applied.result()


class LookupChange(Fault):
    """Apply the next version of the graph job's lookup, while the other faults of the round continue."""

    def __init__(self) -> None:
        super().__init__("lookup change", "", 0.0, End.WHEN_OTHERS_ENDED, touches=frozenset({"version"}))
        self._applying = ThreadPoolExecutor(1, "lookup")
        self._applied: Future[None] | None = None

    def begin(self, stack: JobStack) -> None:
        version = stack.lookups_applied[-1][0] + 1
        self._applied = self._applying.submit(self._apply, stack, version)

    def _apply(self, stack: JobStack, version: int) -> None:
        text = lookup_document(version).encode()
        ask(stack, "to change the lookup", lambda control: control.apply(text, "lookup.yaml"))
        stack.note_lookup_applied(version)

    def end(self, stack: JobStack) -> None:
        assert self._applied is not None
        self._applying.shutdown()
        self._applied.result()


class Backfill(Fault):
    """Request a recomputation of past windows, and kill its process a few times.

    The backfill continues during other rounds: only the next backfill, and the end of the run, wait for it.
    """

    def __init__(self, job: str, from_share: float, to_share: float | None, kills: Sequence[float | str] = ()) -> None:
        """The range, in shares of what is closed; `to_share` None: up to what is emitted then. `kills`: one after the other; each
        is the seconds that the process may live, or the failpoint at which it ends."""
        points = [f"killed at {one}" for one in kills if isinstance(one, str)]
        target = ", ".join([job, *points])
        super().__init__("backfill", target, 0.0, End.WHEN_ALL_RUNS, touches=frozenset({"backfill"}))
        self._job = job
        self._shares = from_share, to_share
        self._kills = kills
        self.missed: list[str] = []
        """The failpoints to which no process of it came any more."""
        self._asking = ThreadPoolExecutor(1, "backfill")
        self._asked: Future[None] | None = None

    def prepare(self, stack: JobStack) -> None:
        wait_for_backfills(stack)

    def begin(self, stack: JobStack) -> None:
        job = self._job
        statement = f"SELECT min(closes_ms) AS first, max(closes_ms) AS last FROM checkpoints WHERE job = '{job}'"
        (closed,) = wait_until(lambda: stack.ask_ledger(statement), bool, "known: what is closed", ANSWER_TIMEOUT_S)
        from_share, to_share = self._shares
        length_ms = closed["last"] - closed["first"]
        from_ms = closed["first"] + int(length_ms * from_share)
        shortest_ms = PACES[stack.speed].long_ms  # what is shorter may hold no window
        to_ms = None if to_share is None else from_ms + max(shortest_ms, int(length_ms * (to_share - from_share)))
        if self._kills and isinstance(self._kills[0], str):
            stack.arm(_killing_at(self._kills[0]))  # now: its first process may come there before `end`
        self._asked = self._asking.submit(
            ask, stack, "to backfill", lambda control: control.start_backfill(job, from_ms, to_ms)
        )

    def end(self, stack: JobStack) -> None:
        assert self._asked is not None
        self._asking.shutdown()
        self._asked.result()
        for number, kill in enumerate(self._kills):
            if isinstance(kill, str):
                self._kill_at(stack, kill, is_armed=number == 0)
            else:
                self._kill_after(stack, kill)

    def _kill_after(self, stack: JobStack, after_s: float) -> None:
        name = f"backfill-{self._job}"
        wait_until(
            lambda: stack.named(name) or open_backfills(stack) == 0,
            bool,
            "there: a process of the backfill",
            ANSWER_TIMEOUT_S,
        )
        time.sleep(after_s)  # sleeps: anywhere in its work
        send_signal(stack.named(name), signal.SIGKILL)

    def _kill_at(self, stack: JobStack, point: str, *, is_armed: bool) -> None:
        """Wait until a process has killed itself there, or the backfill is complete: one that was killed by another fault may
        have gone past it for good."""
        if not is_armed:
            stack.arm(_killing_at(point))
        wait_until(
            lambda: stack.has_fired() or open_backfills(stack) == 0, bool, f"reached: {point}", BACKFILL_TIMEOUT_S, 0.05
        )
        if not stack.has_fired():
            self.missed.append(point)
            self.target += f", which never came to {point}"
        stack.arm(NOTE_ALL)


def _killing_at(point: str) -> str:
    return f"{point}=kill,{NOTE_ALL}"


def open_backfills(stack: JobStack) -> int | None:
    """Return the number of unfinished backfills of all jobs. None while the ledger can't be queried."""
    rows = stack.ask_ledger(
        "SELECT count(*) AS count FROM backfills WHERE state IN ('requested', 'running', 'swapping')"
    )
    return int(rows[0]["count"]) if rows else None


def wait_for_backfills(stack: JobStack) -> None:
    """Until all have ended."""
    wait_until(lambda: open_backfills(stack), lambda count: count == 0, "ended: the backfills", BACKFILL_TIMEOUT_S, 0.2)


def ask(stack: JobStack, what: str, order: Callable[[ControlClient], object]) -> None:
    """Ask until it is taken. The same again changes nothing, so an answer that was lost does no harm."""

    def refusal() -> str:
        try:
            with ControlClient(stack.stack.addresses.api_url) as control:
                order(control)
        except (StrandlineError, httpx.HTTPError) as error:
            return str(error)
        return ""

    wait_until(refusal, lambda why: not why, f"taken: the order {what}", ANSWER_TIMEOUT_S, 0.5)
