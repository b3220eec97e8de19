"""What an operator does to a job by its API while other things happen to it: it may be asked at any moment, and is asked again
until there is an answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import httpx

from strandline.core.errors import StrandlineError
from strandline.services.client import ControlClient
from tests.support.chaos.faults import End, Fault
from tests.support.chaos.job_stack import JobStack
from tests.support.waiting import wait_until

ANSWER_TIMEOUT_S = 180.0
"""So long may it take until an act is taken, beside everything else that is done to the servers."""


class StopAndStart(Fault):
    """Somebody stops the job, and starts it again when it has stopped."""

    def __init__(self, hold_s: float) -> None:
        super().__init__("stop and start", "", hold_s, End.WHEN_OTHERS_ENDED, touches=frozenset({"orders"}))

    def begin(self, stack: JobStack) -> None:
        ask(stack, "to stop", lambda control: control.order(stack.job, "stop"))

    def end(self, stack: JobStack) -> None:
        wait_until(stack.state, lambda state: state == "stopped", "stopped: the job", ANSWER_TIMEOUT_S, 0.2)
        ask(stack, "to start", lambda control: control.order(stack.job, "start"))


class Upgrade(Fault):
    """Somebody applies the next version of the job's document. The other faults of the round may fall before it is taken, at that
    moment, and while the new version takes over."""

    def __init__(self) -> None:
        super().__init__("upgrade", "", 0.0, End.WHEN_OTHERS_ENDED, touches=frozenset({"version"}))
        self._applying = ThreadPoolExecutor(1, "upgrade")
        self._applied: Future[None] | None = None

    def begin(self, stack: JobStack) -> None:
        stack.version += 1
        text = stack.text().encode()
        self._applied = self._applying.submit(
            ask, stack, "to upgrade", lambda control: control.apply(text, "chaos.yaml")
        )

    def end(self, stack: JobStack) -> None:
        assert self._applied is not None
        self._applying.shutdown()
        self._applied.result()


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
