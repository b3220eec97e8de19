"""Which jobs this control service leads: it claims leases, renews them, and ends the runner of a job whose lease it loses.

The monotonic clock counts a lease here from before the request that granted or renewed it. So the lease ends here no later
than in the ledger. When two thirds of it have passed without a renewal, the runner is killed; the last third is time for
that, before another control service may start one. When a renewal is refused, the runner is killed at once.

After a pause of this process (its machine slept, or someone stopped it) the two thirds may have passed. Then this service
starts and writes nothing for the job, but leaves its runner WAKE_GRACE_S for a renewal: if nobody has taken the job over,
the pause costs no rewind. If somebody has, the ledger refuses what the runner writes meanwhile.

Two threads: one renews, and may hang as long as the database does; one watches the time, and waits for nothing.
"""

from __future__ import annotations

import math
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from strandline.core.errors import LedgerUnavailable, NotFound, StrandlineError
from strandline.ledger.leases import Leases
from strandline.ledger.states import LeaseRow
from strandline.services.supervision.repeated_errors import RepeatedErrors

logger = structlog.get_logger()

RENEWALS_A_LEASE = 4
TRUSTED_SHARE = 2 / 3
"""The share of a lease that may pass without a renewal before the runner is killed."""
WAKE_GRACE_S = 1.0
_WATCH_S = 0.1
_PAUSE_S = 1.0
"""A longer time between two looks means that this process was paused."""


@dataclass(frozen=True)
class ServiceIdentity:
    """What the ledger tells other services of a control service."""

    name: str
    address: str
    """Its REST API."""
    data_dir: str


def new_service_name() -> str:
    """A name for a new control service: this machine's name, `-` and 8 hex digits."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"


def is_on_this_machine(service: str) -> bool:
    """Whether the control service of this name keeps its files on this machine. Its data directory alone does not say so: in
    containers, and on machines that are set up alike, all have the same path."""
    return service.rpartition("-")[0] == socket.gethostname()


@dataclass(frozen=True)
class _Held:
    epoch: int
    counted_from_s: float
    """Monotonic, before the request was sent."""


class Leadership:
    """The leases of one control service. The methods may be called from any thread."""

    def __init__(
        self, ledger: Leases, service: ServiceIdentity, lease_s: float, end_runner: Callable[[str, str], None]
    ) -> None:
        """`end_runner(job, why)` kills the job's runner at once, without asking the ledger. It is called when the lease is lost
        or in doubt."""
        self._ledger = ledger
        self._service = service
        self._lease_s = lease_s
        self._length_ms = int(lease_s * 1000)
        self._end_runner = end_runner
        self._held: dict[str, _Held] = {}
        self._seen_free_s: dict[str, float] = {}
        """Each job that was free at the last look -> since when it was at all of them. Monotonic."""
        self._is_announced = False
        self._lock = threading.Lock()
        self._closing, self._resigned = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("lease-renewal", self._renew_on), ("lease-watch", self._watch_on))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Give every lease back. The runners must have ended before."""
        self._closing.set()
        for thread in self._threads:
            thread.join(self._lease_s)
        with self._lock:
            held, self._held = self._held, {}
        try:
            for job, lease in held.items():
                self._ledger.release_lease(job, self._service.name, lease.epoch)
            self._ledger.withdraw_service(self._service.name)
        except LedgerUnavailable as error:
            logger.warning("leases were not given back and will run out", action="release", error=str(error))

    def resign(self) -> None:
        """Stop renewing: at two thirds of the lease the runners are killed, and then others may lead."""
        self._resigned.set()

    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def lease_of(self, job: str) -> int | None:
        """The epoch under which this service may act for the job now; None when it doesn't lead, or can't be sure."""
        with self._lock:
            held = self._held.get(job)
        if held is None or time.monotonic() > self._trusted_until_s(held):
            return None
        return held.epoch

    def holds(self, job: str, epoch: int) -> bool:
        """Whether the lease of that epoch is not known to be lost."""
        with self._lock:
            held = self._held.get(job)
        return held is not None and held.epoch == epoch

    def drop(self, job: str) -> None:
        """Forget a lease that is over by the ledger."""
        with self._lock:
            self._held.pop(job, None)

    def claim_free(self, job_count: int) -> list[tuple[LeaseRow, LeaseRow | None]]:
        """Claim jobs that nobody leads, up to this service's share of all jobs; returns each new lease and the one before.

        A job that has been free for a lease's length is claimed beyond the share: the service that should have claimed it
        does not. By the ledger's clock or by ours: after the ledger's was set back, what ended long ago seems to be still ahead.
        Raises LedgerUnavailable.
        """
        if not self._is_announced:
            return []
        with self._lock:
            ours = set(self._held)
        free = [job for job in self._ledger.free_jobs(self._service.name) if job.name not in ours]
        looked_s, seen_s = time.monotonic(), self._seen_free_s
        self._seen_free_s = {job.name: seen_s.get(job.name, looked_s) for job in free}
        if not free:
            return []
        share = math.ceil(job_count / max(1, self._ledger.living_services()))
        claimed = []
        for job in free:
            with self._lock:
                leading = len(self._held)
            seen_for_s = looked_s - self._seen_free_s[job.name]
            if leading >= share and job.free_for_ms < self._length_ms and seen_for_s < self._lease_s:
                continue
            counted_from_s = time.monotonic()
            try:
                granted = self._ledger.claim_lease(job.name, self._service.name, self._length_ms)
            except NotFound:
                continue  # it was deleted since
            if granted is None:
                continue
            with self._lock:
                self._held[job.name] = _Held(granted[0].epoch, counted_from_s)
            claimed.append(granted)
        return claimed

    def _trusted_until_s(self, held: _Held) -> float:
        return held.counted_from_s + TRUSTED_SHARE * self._lease_s

    def _renew_on(self) -> None:
        errors = RepeatedErrors(logger)
        while not self._resigned.is_set():
            try:
                self._renew()
                errors.worked("the leases are renewed again", action="renew")
                pause_s = self._lease_s / RENEWALS_A_LEASE
            except StrandlineError as error:
                errors.failed("could not renew the leases", error, action="renew")
                pause_s = 0.1  # try again at once: the lease runs out
            if self._closing.wait(pause_s):
                return

    def _renew(self) -> None:
        service = self._service
        # First: a service that dies then stops counting as alive no later than its leases run out.
        self._ledger.announce_service(service.name, service.address, service.data_dir, self._length_ms)
        self._is_announced = True
        with self._lock:
            asked = dict(self._held)
        counted_from_s = time.monotonic()
        epochs = {job: held.epoch for job, held in asked.items()}
        renewed = self._ledger.renew_leases(service.name, epochs, self._length_ms)
        lost = []
        with self._lock:
            for job, epoch in epochs.items():
                if job not in self._held or self._held[job].epoch != epoch:
                    continue
                if job in renewed:
                    self._held[job] = _Held(epoch, counted_from_s)
                else:
                    del self._held[job]
                    lost.append(job)
        for job in lost:
            self._end_runner(job, "another control service has taken the job over")

    def _watch_on(self) -> None:
        looked_s = woke_s = time.monotonic()
        while not self._closing.wait(_WATCH_S):
            now_s = time.monotonic()
            if now_s - looked_s > _PAUSE_S:
                woke_s = now_s
            looked_s = now_s
            with self._lock:
                doubtful = [
                    job
                    for job, held in self._held.items()
                    if now_s > max(self._trusted_until_s(held), woke_s + WAKE_GRACE_S)
                ]
                for job in doubtful:
                    del self._held[job]
            for job in doubtful:
                self._end_runner(job, f"the lease could not be renewed for {TRUSTED_SHARE * self._lease_s:.1f} s")
