"""Leadership of jobs: claims leases, renews them, and ends the runner of a job whose lease is lost.

The monotonic clock counts a lease here from before the request that granted or renewed it. So the lease ends here no later than
in the ledger. If two thirds of it have passed without a renewal, the runner is killed. The last third is time for that, before
another control service can start one. If a renewal is refused, the runner is killed immediately.

After a pause of this process (its machine slept, or a user stopped it), the two thirds may have passed. Then this service
starts and writes nothing for the job, but leaves its runner WAKE_GRACE_S for a renewal. If no other service has taken over the
job, the pause costs no rewind. If one has, the ledger refuses the runner's writes in the meantime.

There are two threads: one renews, and can hang as long as the database does; one watches the time, and never waits.
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

from strandline.core.errors import LedgerUnavailable, StrandlineError
from strandline.ledger.leases import Leases
from strandline.ledger.states import LeaseRow
from strandline.services.supervision.repeated_errors import RepeatedErrors

logger = structlog.get_logger()

RENEWALS_A_LEASE = 4
TRUSTED_SHARE = 2 / 3
"""Share of a lease that can pass without a renewal before the runner is killed."""
WAKE_GRACE_S = 1.0
_WATCH_S = 0.1
_PAUSE_S = 1.0
"""Time in seconds between two checks from which this process counts as paused."""


@dataclass(frozen=True)
class ServiceIdentity:
    """Data of a control service that the ledger shows to other services."""

    name: str
    address: str
    """Address of its REST API."""
    data_dir: str


def new_service_name() -> str:
    """Return a name for a new control service: this machine's name, `-`, and 8 hex digits."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"


def is_on_this_machine(service: str) -> bool:
    """Return True if the control service of this name has its files on this machine. The data directory alone doesn't show
    this: in containers, and on machines with equal setups, all have the same path."""
    return service.rpartition("-")[0] == socket.gethostname()


@dataclass(frozen=True)
class _Held:
    epoch: int
    counted_from_s: float
    """Monotonic time before the request was sent."""


class Leadership:
    """Leases of one control service. The methods can be called from any thread."""

    def __init__(
        self, ledger: Leases, service: ServiceIdentity, lease_s: float, end_runner: Callable[[str, str], None]
    ) -> None:
        """Args: end_runner: Kills the runner of a job immediately, without the ledger; gets job and reason. Called if the lease
        is lost or in doubt."""
        self._ledger = ledger
        self._service = service
        self._lease_s = lease_s
        self._length_ms = int(lease_s * 1000)
        self._end_runner = end_runner
        self._held: dict[str, _Held] = {}
        self._seen_free_s: dict[str, float] = {}
        """Job that was free at the last poll -> monotonic time since which it has been free at all polls."""
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
        """Release every lease. The runners must have ended before."""
        self._closing.set()
        for thread in self._threads:
            thread.join(self._lease_s)
        with self._lock:
            held, self._held = self._held, {}
        try:
            self._ledger.release_leases(self._service.name, {job: lease.epoch for job, lease in held.items()})
            self._ledger.withdraw_service(self._service.name)
        except LedgerUnavailable as error:
            logger.warning("can't release the leases; they will expire", action="release", error=str(error))

    def resign(self) -> None:
        """Stop renewing. After two thirds of the lease, the runners are killed, and then other services can lead."""
        self._resigned.set()

    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def lease_of(self, job: str) -> int | None:
        """Return the epoch under which this service can act for the job now. None if it doesn't lead, or can't be sure."""
        with self._lock:
            held = self._held.get(job)
        if held is None or time.monotonic() > self._trusted_until_s(held):
            return None
        return held.epoch

    def holds(self, job: str, epoch: int) -> bool:
        """Return True unless the lease of that epoch is known to be lost."""
        with self._lock:
            held = self._held.get(job)
        return held is not None and held.epoch == epoch

    def drop(self, job: str) -> None:
        """Forget a lease that has ended according to the ledger."""
        with self._lock:
            self._held.pop(job, None)

    def claim_free(self, job_count: int) -> list[tuple[LeaseRow, LeaseRow | None]]:
        """Claim free jobs, up to this service's share of all jobs. Return each new lease and the lease before.

        A job that has been free for the length of a lease is claimed beyond the share, because the service that should have
        claimed it doesn't. The time is measured by the ledger's clock or by ours: if the ledger's clock was set back, old ends
        of leases seem to be in the future. Raises LedgerUnavailable.
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
        with self._lock:
            leading = len(self._held)
        wanted: list[str] = []
        for job in free:
            seen_for_s = looked_s - self._seen_free_s[job.name]
            is_overdue = job.free_for_ms >= self._length_ms or seen_for_s >= self._lease_s
            if leading + len(wanted) < share or is_overdue:
                wanted.append(job.name)
        counted_from_s = time.monotonic()
        granted = self._ledger.claim_leases(wanted, self._service.name, self._length_ms)
        with self._lock:
            for name, (lease, _) in granted.items():
                self._held[name] = _Held(lease.epoch, counted_from_s)
        return list(granted.values())

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
                errors.failed("can't renew the leases", error, action="renew")
                pause_s = 0.1  # try again immediately, because the lease expires
            if self._closing.wait(pause_s):
                return

    def _renew(self) -> None:
        service = self._service
        # First: a service that crashes afterwards stops counting as alive no later than its leases expire.
        self._ledger.announce_service(service.name, service.address, service.data_dir, self._length_ms)
        self._is_announced = True
        with self._lock:
            requested = dict(self._held)
        counted_from_s = time.monotonic()
        epochs = {job: held.epoch for job, held in requested.items()}
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
            self._end_runner(job, "another control service has taken over the job")

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
