"""Pools from the view of the supervisor: processes that each run many jobs in one Spark application.

A job in a pool has a `PooledRunner`, which has the methods of a runner's process. Orders and reports: `run/pool_orders.py`.

A pool whose process has ended is replaced, and its jobs start again in the next one. That is the spare pool, if there is one: a
pool without jobs that has Spark running. It starts only while no run starts, because a start uses all cores for seconds.

A kill from outside also ends a pool, so one end accuses no job. If the next pool ends soon, too, the jobs that were in the last
batches of both are suspects. Each of them runs alone in a batch of the next pool until it has committed a slice. A suspect that
was the only job in its batch ended the pool. So a job that ends pools is named after the third end at the latest.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from strandline.core.errors import StackError
from strandline.processing.run.pool_orders import EndOrder, StartOrder, encode_order, read_batch, read_ended
from strandline.services.supervision.failures import SOUND_S, FailureCounter
from strandline.services.supervision.runner_process import RunnerProcess, ending
from strandline.services.supervision.standbys import CALM_S, PAUSE_MAX_S

logger = structlog.get_logger()

POOL_NAME = "runner-.pool-"
"""Prefix of the names of pools in `pids.json` and for logs. No job has a dot in its name."""
_DIRECTORY = "pools"
_PAUSE_FIRST_S = 0.5
"""Pause in seconds before the next pool, after one without jobs has ended. It doubles with each such end."""
PoolCommand = Callable[[Path, int], Sequence[str]]
"""Function of (directory, file descriptor for heartbeats) that returns the command of a pool."""


def pool_command(directory: Path, alive_fd: int) -> Sequence[str]:
    """Return the command of a pool."""
    module = "strandline.processing.run.process"
    return [sys.executable, "-m", module, "--pool", "--pool-dir", str(directory), "--alive-fd", str(alive_fd)]


class PoolProcess(RunnerProcess):
    """The process of a pool."""

    def __init__(self, data_dir: Path, name: str, command: PoolCommand) -> None:
        """Raises OSError."""
        self.directory = data_dir / _DIRECTORY / name
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        super().__init__(data_dir, name, lambda _job, _lease, alive_fd: command(self.directory, alive_fd), None, None)
        # An order never waits for a pool that hangs.
        os.set_blocking(self.stdin.fileno(), False)
        self.runners: dict[int, PooledRunner] = {}
        self._ended_position = 0
        """Up to where the ends of runs were read."""
        self.code: int | None = None
        """Exit code of the process, once it is reaped."""

    def order(self, order: StartOrder | EndOrder) -> None:
        """Send an order. Raises OSError."""
        os.write(self.stdin.fileno(), encode_order(order))

    def look(self) -> None:
        """Note which runs have ended."""
        found, self._ended_position = read_ended(self.directory, self._ended_position)
        for number, code in found.items():
            if number in self.runners:
                self.runners[number].code = code


class PooledRunner:
    """The runner of a job in a pool, with the methods of `RunnerProcess` that a supervisor uses."""

    def __init__(self, pool: PoolProcess, job: str, number: int) -> None:
        self._pool, self.job, self._number = pool, job, number
        self.code: int | None = None
        """Exit code of the run. None while it runs, and if its pool ended first."""
        self.is_stop_requested = False
        self.kill_at: float | None = None
        self.began_at = time.monotonic()

    @property
    def pid(self) -> int:
        """Process of the pool."""
        return self._pool.pid

    @property
    def has_lost_pool(self) -> bool:
        """True if the pool ended before the run did."""
        return self.code is None and self._pool.code is not None

    def has_ended(self) -> bool:
        """Return True if the run or its pool has ended."""
        return self.code is not None or self._pool.code is not None

    def is_silent(self, patience_s: float) -> bool:
        """Return True if the pool sent no heartbeat. See `RunnerProcess.is_silent`."""
        return self._pool.code is None and self._pool.is_silent(patience_s)

    def request_stop(self, patience_s: float) -> None:
        """Request the run to end immediately. The next run repeats its slice. A second call does nothing."""
        if not self.is_stop_requested:
            self.is_stop_requested = True
            self.kill_at = time.monotonic() + patience_s
            self.let_go()

    def let_go(self) -> None:
        """End the run without a wait. The ledger refuses what it still writes."""
        try:
            self._pool.order(EndOrder(self.job, self._number))
        except OSError as error:
            logger.warning("can't order the end of a run", action="end", job=self.job, error=str(error))

    def kill_tree(self) -> None:
        """Kill the pool if the run has not ended. Raises StackError.

        Only the first of its runs kills it: to search for its processes takes time, and all its runs can be silent.
        """
        if not self.has_ended() and not self._pool.has_ended():
            self._pool.kill_tree()

    def reap(self) -> int:
        """Forget the run, and return its exit code. A run that has not ended is requested to end."""
        self._pool.runners.pop(self._number, None)
        if self.code is not None:
            return self.code
        if self._pool.code is not None:
            return self._pool.code
        self.let_go()
        return 0


class Pools:
    """The pools of one control service. Only the supervisor's thread calls it."""

    def __init__(
        self, data_dir: Path, jobs_max: int, command: PoolCommand = pool_command, *, has_spare: bool = False
    ) -> None:
        """`jobs_max`: maximum number of jobs in a pool. `has_spare`: whether a pool exists before a job needs it."""
        self._data_dir, self._jobs_max, self._command, self._has_spare = data_dir, jobs_max, command, has_spare
        self._pools: list[PoolProcess] = []
        self._names = itertools.count(1)
        self._numbers = itertools.count(1)
        self._failures = FailureCounter(None)
        """Ends of pools without jobs."""
        self._busy_at = time.monotonic()
        self._suspects: set[str] = set()
        self._in_last_end: set[str] = set()
        """Jobs in the batch of the pool that ended last."""
        self.guilty: set[str] = set()
        """Jobs that ended a pool. The supervisor removes those that it has moved out."""

    def keep(self) -> None:
        """Note which runs and pools have ended. Start a spare pool if there is no pool. Raises OSError, StackError."""
        self.look()
        if self._has_spare and not self._pools and self._failures.may_start():
            self._new_pool()

    def keep_spare(self, *, is_calm: bool) -> None:
        """Start a spare pool if all pools have jobs, and no run has started for CALM_S. Raises OSError."""
        if not is_calm:
            self._busy_at = time.monotonic()
        if not self._has_spare or time.monotonic() - self._busy_at < CALM_S or not self._failures.may_start():
            return
        if self._pools and all(one.runners for one in self._pools):
            self._busy_at = time.monotonic()
            self._new_pool()

    def look(self) -> None:
        """Note which runs and pools have ended. Raises OSError, StackError."""
        for pool in list(self._pools):
            pool.look()
            if pool.has_ended():
                self._handle_end(pool)

    def start(self, job: str, lease: int) -> PooledRunner:
        """Start a run of the job in the fullest pool with room, or in a new one. Raises OSError."""
        with_room = [one for one in self._pools if len(one.runners) < self._jobs_max and not one.has_ended()]
        pool = max(with_room, key=lambda one: len(one.runners), default=None) or self._new_pool()
        self._busy_at = time.monotonic()
        number = next(self._numbers)
        pool.order(StartOrder(job, lease, number, alone=job in self._suspects))
        self._suspects.discard(job)
        runner = pool.runners[number] = PooledRunner(pool, job, number)
        return runner

    def close(self) -> None:
        """End all pools. Their runs have ended."""
        for pool in self._pools:
            try:
                pool.reap()
                shutil.rmtree(pool.directory, ignore_errors=True)
            except (StackError, OSError) as error:
                logger.error("a pool did not end", action="close", error=str(error))

    def _new_pool(self) -> PoolProcess:
        pool = PoolProcess(self._data_dir, f"{POOL_NAME}{next(self._names)}", self._command)
        self._pools.append(pool)
        logger.info("pool started", action="pool", name=pool.name, pid=pool.pid)
        return pool

    def _handle_end(self, pool: PoolProcess) -> None:
        pool.code = pool.reap()
        self._pools.remove(pool)
        if pool.runners or time.monotonic() - pool.began_at > SOUND_S:
            self._failures = FailureCounter(None)
        else:
            self._failures.add(_PAUSE_FIRST_S, PAUSE_MAX_S)
        jobs = {one.job for one in pool.runners.values() if one.code is None}
        in_batch = jobs.intersection(read_batch(pool.directory))
        young = {one.job for one in pool.runners.values() if time.monotonic() - one.began_at < SOUND_S}
        again = in_batch & self._in_last_end & young
        (self.guilty if len(in_batch) == 1 else self._suspects).update(again)
        self._in_last_end = in_batch
        shutil.rmtree(pool.directory, ignore_errors=True)
        logger.warning(
            f"pool {pool.name} {ending(pool.code)}; see its log {pool.log}",
            action="pool",
            jobs=len(jobs),
            in_batch=sorted(in_batch)[:10],
        )
