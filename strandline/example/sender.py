"""Sends the fleet's reports over all protocols in parallel, in a separate thread, and counts the acknowledged reports."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from strandline.core.errors import StrandlineError
from strandline.example.carriers import Carrier
from strandline.example.fleet import TICK_MS, Fleet, Report

BATCH_TICKS_MAX = 25
"""Maximum number of ticks in one step. After a pause of the gateway, the fleet catches up in steps of this size."""
PAUSE_S = 0.1


@dataclass(frozen=True)
class EventClock:
    """Event time, which runs `speed` times as fast as the wall clock until it has caught up with it."""

    event_start_ms: int
    wall_start_ms: int
    speed: float

    def event_ms(self, wall_ms: int) -> int:
        """Return event time at a moment of the wall clock. It is never ahead of it, so no report comes from the future."""
        return min(wall_ms, self.event_start_ms + int((wall_ms - self.wall_start_ms) * self.speed))


@dataclass
class Sent:
    """Counts of the fleet so far."""

    sent: int = 0
    """Reports that were sent at least once."""
    acknowledged: int = 0
    """Reports that the HTTP gateway or the MQTT broker acknowledged."""
    unacknowledged: int = 0
    """Reports sent by UDP, which has no acknowledgements."""
    repeats: int = 0
    """Reports that were sent again, because no acknowledgement arrived."""
    by_protocol: Counter[str] = field(default_factory=Counter)
    """Protocol -> reports that were acknowledged, or sent by UDP."""
    spoiled: Counter[str] = field(default_factory=Counter)
    """Reason of the expected dead letter -> reports that were spoiled on purpose."""
    event_ms: int | None = None
    """Event time up to which every report was sent."""


class FleetSender:
    """Sends the reports of all turbines in a thread, over HTTP, MQTT, and UDP. Call `start` once and `stop` once.
    Invariant: event time advances only when every report so far is acknowledged (or sent, by UDP), so no protocol is
    far ahead of another.
    """

    def __init__(
        self,
        carriers: Mapping[str, Carrier],
        fleet: Fleet,
        clock: EventClock,
        *,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._carriers = carriers
        """Site -> transport of its turbines' reports."""
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
        """Make some reports late from now on. Call it when the job has a watermark."""
        self._late_allowed.set()

    def stop(self) -> None:
        """Stop sending. Returns when the reports in progress are acknowledged, or their time is over."""
        self._stopping.set()
        self._thread.join()
        for carrier in set(self._carriers.values()):
            carrier.close()

    def sent(self) -> Sent:
        """Return the counts so far. Raises PermanentError if the gateway refused the reports permanently."""
        if self._error is not None:
            raise self._error
        with self._lock:
            one = self._sent
            return replace(one, by_protocol=Counter(one.by_protocol), spoiled=Counter(one.spoiled))

    def _run(self) -> None:
        try:
            tick = -(-self._clock.event_start_ms // TICK_MS)
            while not self._stopping.is_set():
                # A tick is sent after its end: no report is ahead of the event clock.
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
        """Send over all protocols in parallel, until acknowledged. Return False if stopped earlier. Raises PermanentError if
        the gateway refuses the reports permanently."""
        shares: dict[Carrier, list[Report]] = {}
        for report in reports:
            shares.setdefault(self._carriers[report.site], []).append(report)
        with self._lock:
            self._sent.sent += len(reports)
        for carrier, share in shares.items():
            carrier.hand_over(share)
        return all([self._wait(carrier, share) for carrier, share in shares.items()])

    def _wait(self, carrier: Carrier, share: list[Report]) -> bool:
        is_done = carrier.wait(self._stopping)
        with self._lock:
            sent = self._sent
            sent.repeats = sum(one.repeats for one in set(self._carriers.values()))
            if is_done:
                sent.by_protocol[carrier.protocol] += len(share)
                if carrier.is_acknowledging:
                    sent.acknowledged += len(share)
                else:
                    sent.unacknowledged += len(share)
                sent.spoiled.update(report.spoiled.reason for report in share if report.spoiled)
        return is_done
