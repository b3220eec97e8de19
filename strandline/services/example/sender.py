"""Sends the fleet's reports to the HTTP gateway, from a thread of its own, and counts what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from strandline.core.errors import PermanentError, StrandlineError
from strandline.services.example.fleet import TICK_MS, Fleet, Report

BATCH_TICKS_MAX = 25
"""In one request: after a pause of the gateway the fleet catches up in steps of this size."""
PAUSE_S = 0.1
RETRY_S = 1.0
RETRY_S_MAX = 10.0
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class EventClock:
    """Event time, which runs `speed` times as fast as the wall clock until it has caught up with it."""

    event_start_ms: int
    wall_start_ms: int
    speed: float

    def event_ms(self, wall_ms: int) -> int:
        """Event time at a moment of the wall clock; never ahead of it, so that no report comes from the future."""
        return min(wall_ms, self.event_start_ms + int((wall_ms - self.wall_start_ms) * self.speed))


@dataclass
class Sent:
    """What the fleet has done so far."""

    sent: int = 0
    """Reports in requests that were made at least once."""
    acknowledged: int = 0
    repeats: int = 0
    """Requests made again, because the gateway asked for it or its answer did not come."""
    spoiled: Counter[str] = field(default_factory=Counter)
    """Acknowledged reports that were spoiled on purpose: the reason that their dead letters must carry -> reports."""
    event_ms: int | None = None
    """Up to where in event time reports were acknowledged."""


class FleetSender:
    """One sender. `start` it once; `stop` it once.

    Invariant: a request is made again, with the same lines, until the gateway has acknowledged it. A repeat after a lost
    answer may put its records into the log twice; that is the price of losing none, and `repeats` says how often it
    could have happened.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        fleet: Fleet,
        clock: EventClock,
        *,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._path = f"/v1/streams/{stream}/records"
        # A proxy from the environment has no business on loopback.
        self._http = httpx.Client(base_url=url, timeout=ANSWER_TIMEOUT_S, trust_env=False, transport=transport)
        self._fleet = fleet
        self._clock = clock
        self._wall_ms = wall_ms
        self._late_allowed = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._sent = Sent()
        self._error: StrandlineError | None = None
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def allow_late(self) -> None:
        """Let some reports be late from now on; for when a watermark is in force."""
        self._late_allowed.set()

    def stop(self) -> None:
        """End after the request that is under way; returns when its outcome is known or its time is over."""
        self._stopping.set()
        self._thread.join()
        self._http.close()

    def sent(self) -> Sent:
        """What was done so far. Raises PermanentError when the gateway refused the reports for good."""
        if self._error is not None:
            raise self._error
        with self._lock:
            one = self._sent
            return Sent(one.sent, one.acknowledged, one.repeats, Counter(one.spoiled), one.event_ms)

    def _run(self) -> None:
        try:
            tick = -(-self._clock.event_start_ms // TICK_MS)
            while not self._stopping.is_set():
                # A tick is sent when it is over: no report is ahead of the event clock.
                tick_next = min(self._clock.event_ms(self._wall_ms()) // TICK_MS, tick + BATCH_TICKS_MAX)
                if tick_next <= tick:
                    self._stopping.wait(PAUSE_S)
                    continue
                reports = [
                    report
                    for number in range(tick, tick_next)
                    for report in self._fleet.reports(number, self._late_allowed.is_set())
                ]
                if self._send(reports):
                    tick = tick_next
                    with self._lock:
                        self._sent.event_ms = tick * TICK_MS
        except StrandlineError as error:
            self._error = error

    def _send(self, reports: list[Report]) -> bool:
        """Send until acknowledged; False when stopped before that. Raises PermanentError when that can't succeed."""
        body = b"\n".join(report.line for report in reports)
        with self._lock:
            self._sent.sent += len(reports)
        while True:
            wait_s = self._attempt(body, len(reports))
            if wait_s is None:
                break
            if self._stopping.wait(wait_s):
                return False
            with self._lock:
                self._sent.repeats += 1
        with self._lock:
            self._sent.acknowledged += len(reports)
            self._sent.spoiled.update(report.spoiled.reason for report in reports if report.spoiled)
        return True

    def _attempt(self, body: bytes, count: int) -> float | None:
        """Make the request once: None when all was acknowledged, else how long to wait before making it again."""
        try:
            answer = self._http.post(self._path, content=body, headers={"Content-Type": "application/x-ndjson"})
        except httpx.TransportError:
            return RETRY_S
        if answer.status_code == 200:
            accepted = answer.json()["accepted"]
            if accepted != count:
                raise PermanentError(f"the gateway acknowledged {accepted} of {count} reports; it must be all or none")
            return None
        if answer.status_code in (429, 503):
            return _retry_after_s(answer)
        raise PermanentError(
            f"the gateway refused the fleet's reports with {answer.status_code}: {answer.text[:300]}; its log says more"
        )


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return min(RETRY_S_MAX, max(0.1, float(answer.headers.get("Retry-After", RETRY_S))))
    except ValueError:
        return RETRY_S
