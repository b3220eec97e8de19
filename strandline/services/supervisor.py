"""Keeps one runner process for every job that should have one.

The ledger says what is desired; the supervisor looks at it again and again and does the next thing towards it. It keeps
nothing that it could not lose: after a crash of the control service the next one ends the runners left over and starts
again from the ledger.

The agreement with a runner (`python -m strandline.processing.runner --job NAME`):
* it begins a run in the ledger, and moves the job starting -> running;
* desired `stopped`: it ends after the current slice, moves the job to stopped, exits 0;
* a new version: it takes over between two slices by itself, in the same process;
* desired `drained`: it closes all windows, moves the job to drained, exits 0;
* on an error that trying again cannot help it moves the job to failed with the sentence, and exits 1;
* SIGTERM: it ends after the current slice and leaves the job's state and what is desired as they are.
Any other end is a death: the rest of its family is killed, and a new runner rewinds, after a growing pause.

This control service is the only one. When there are several, a job's lease in the ledger will decide in `_attend` which
of them may do anything for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from strandline.core.errors import Conflict, LedgerUnavailable, StackError, StrandlineError
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired, JobRow, JobState
from strandline.services.families import MARK_VARIABLE, family_mark, kill_family
from strandline.services.pids import PidFile

logger = structlog.get_logger()

DEATHS_MAX = 5
"""So many deaths in a row, without a new checkpoint between them, and the job has failed."""
PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 30.0
STOP_PATIENCE_S = 60.0
"""How long a runner that should stop may take for its current slice before it is killed; the next one rewinds."""
CLOSE_PATIENCE_S = 15.0
"""The same when the control service itself ends, for all runners together."""
LOOK_INTERVAL_S = 0.25
_RESTING = {JobState.STOPPED, JobState.DRAINED, JobState.FAILED}


def runner_command(job: str) -> Sequence[str]:
    """How a job's runner is started."""
    return [sys.executable, "-m", "strandline.processing.runner", "--job", job]


@dataclass
class _Runner:
    """One live runner process."""

    process: subprocess.Popen[bytes]
    kill_at: float | None = None
    """Set when it was told to end; by this monotonic time it must have."""
    is_told: bool = False
    """Whether SIGTERM was sent, so that its end is not a death."""

    def has_ended(self) -> bool:
        """True once it has ended, and before it is reaped: until then the kernel can't give its pid to another."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def tell_to_end(self, patience_s: float) -> None:
        if self.is_told:
            return
        self.is_told = True
        self.kill_at = time.monotonic() + patience_s
        # Only the runner itself: its JVM must live to finish the slice. Popen's own method would reap it in passing.
        os.kill(self.process.pid, signal.SIGTERM)


@dataclass
class _Deaths:
    """How often in a row a job's runner died without a new checkpoint."""

    count: int
    slice: int
    """The last committed slice at the last death."""
    next_start: float
    """Monotonic time before which no new one is started."""


class Supervisor:
    """Runs in a thread of its own between `start` and `close`. The other methods may be called from any thread."""

    def __init__(
        self,
        ledger: Ledger,
        data_dir: Path,
        *,
        command: Callable[[str], Sequence[str]] = runner_command,
        pause_first_s: float = PAUSE_FIRST_S,
        stop_patience_s: float = STOP_PATIENCE_S,
        close_patience_s: float = CLOSE_PATIENCE_S,
    ) -> None:
        self._ledger = ledger
        self._data_dir = data_dir
        self._command = command
        self._pause_first_s = pause_first_s
        self._stop_patience_s = stop_patience_s
        self._close_patience_s = close_patience_s
        self._pids = PidFile(data_dir)
        self._runners: dict[str, _Runner] = {}
        self._deaths: dict[str, _Deaths] = {}
        self._to_restart: set[str] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """End what an earlier control service left running, then begin. Raises StackError when that doesn't end."""
        (self._data_dir / "logs").mkdir(parents=True, exist_ok=True)
        killed = kill_family(family_mark(self._data_dir), whole_stack=True)
        for name, pid in self._pids.all().items():
            if name.startswith("runner-"):
                self._pids.remove(name, pid)
        if killed:
            logger.info("ended runners left over from before", action="clear", processes=killed)
        self._thread.start()

    def close(self) -> None:
        """End every runner after its current slice, or by force when the patience is over. What is desired stays."""
        self._is_closing = True
        self._wake.set()
        self._thread.join()

    def wake(self) -> None:
        """Look at the ledger now: something was changed there."""
        self._wake.set()

    def restart(self, job: str) -> None:
        """Replace the job's runner by a new one after its current slice; forgives earlier deaths."""
        with self._lock:
            self._to_restart.add(job)
        self._wake.set()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.clear()
            self._look()
            self._wake.wait(LOOK_INTERVAL_S)
        self._end_all()

    def _look(self) -> None:
        """Do the next thing for every job. An error of one job never costs the others their turn."""
        try:
            jobs = self._ledger.jobs()
        except LedgerUnavailable as error:
            logger.warning("could not look at the jobs", action="look", error=str(error))
            return
        for job in jobs:
            try:
                self._attend(job)
            except Conflict as error:
                # The runner moved the job between our look and our move. The next look sees where it is now.
                logger.debug("the job moved by itself", action="look", job=job.name, error=str(error))
            except (StrandlineError, OSError) as error:
                logger.error("could not attend to the job", action="look", job=job.name, error=str(error))

    def _attend(self, job: JobRow) -> None:
        """One job, one look.

        1. A runner that has ended is buried, with all its family; a death is counted.
        2. A live runner is told to end where it should, and killed where it didn't.
        3. Without a runner, the job is settled: one is started, or the job comes to rest.
        """
        runner = self._runners.get(job.name)
        if runner is not None and runner.has_ended():
            self._bury(job.name, runner)
            job = self._ledger.job(job.name)  # the runner may have moved it since the list was read
            runner = None
        if runner is not None:
            self._steer(job, runner)
        else:
            self._settle(job)

    def _steer(self, job: JobRow, runner: _Runner) -> None:
        if self._take_restart(job.name) or _is_taken_back(job):
            runner.tell_to_end(self._stop_patience_s)
        elif job.desired is Desired.STOPPED:
            if job.state in (JobState.RUNNING, JobState.DRAINING):
                self._ledger.move_job(job.name, JobState.STOPPING)
            if runner.kill_at is None:
                runner.kill_at = time.monotonic() + self._stop_patience_s
        elif runner.kill_at is not None and not runner.is_told:
            runner.kill_at = None  # stop was taken back before the runner obeyed
        if job.desired is Desired.DRAINED and job.state is JobState.RUNNING:
            self._ledger.move_job(job.name, JobState.DRAINING)
        if runner.kill_at is not None and time.monotonic() > runner.kill_at:
            runner.is_told = True
            self._record("runner_killed", job, f"the runner did not stop within {self._stop_patience_s:g} s", runner)
            kill_family(family_mark(self._data_dir, job.name))

    def _settle(self, job: JobRow) -> None:
        if job.desired is Desired.STOPPED:
            self._come_to_rest(job)
            return
        is_done = job.state is JobState.FAILED or (job.desired is Desired.DRAINED and job.state is JobState.DRAINED)
        if is_done:
            self._take_restart(job.name)
            return
        deaths = self._deaths.get(job.name)
        if self._take_restart(job.name):
            self._deaths.pop(job.name, None)
        elif deaths is not None and time.monotonic() < deaths.next_start:
            return
        if job.state is JobState.STOPPING:
            self._ledger.move_job(job.name, JobState.STOPPED)
        self._start(self._ledger.move_job(job.name, JobState.STARTING))

    def _come_to_rest(self, job: JobRow) -> None:
        self._deaths.pop(job.name, None)
        self._take_restart(job.name)
        if job.state in (JobState.STOPPED, JobState.DRAINED):
            return
        if job.state not in (JobState.CREATED, JobState.FAILED, JobState.STOPPING):
            self._ledger.move_job(job.name, JobState.STOPPING)
        self._ledger.move_job(job.name, JobState.STOPPED, job.message)

    def _start(self, job: JobRow) -> None:
        environment = {**os.environ, MARK_VARIABLE: family_mark(self._data_dir, job.name)}
        with self._log(job.name).open("ab") as log:
            process = subprocess.Popen(
                self._command(job.name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._runners[job.name] = _Runner(process)
        try:
            self._pids.add(f"runner-{job.name}", process.pid)
        except StackError:
            logger.info("the runner ended at once", action="start", job=job.name)  # the next look buries it
        logger.info("runner started", action="start", job=job.name, version=job.version, pid=process.pid)

    def _bury(self, name: str, runner: _Runner) -> None:
        """End the family of a runner that has ended, and judge its end."""
        kill_family(family_mark(self._data_dir, name))
        job = self._ledger.job(name)  # before the runner is forgotten: without the ledger the next look tries again
        code = runner.process.wait()
        self._pids.remove(f"runner-{name}", runner.process.pid)
        del self._runners[name]
        if job.state in _RESTING or runner.is_told:
            logger.info("runner ended", action="end", job=name, code=code, state=job.state.value)
            return
        self._count_death(job, runner, _ending(code))

    def _count_death(self, job: JobRow, runner: _Runner, ending: str) -> None:
        runs = self._ledger.runs(job.name)
        if runs and runs[-1].pid == runner.process.pid:
            run = self._ledger.end_run(job.name, runs[-1].epoch, "died", ending)
            if run.message and run.message != ending:
                ending = f"{ending} ({run.message})"  # it could still say why
        checkpoint = self._ledger.last_checkpoint(job.name)
        slice_done = checkpoint.slice if checkpoint else 0
        before = self._deaths.get(job.name)
        count = before.count + 1 if before is not None and before.slice == slice_done else 1
        self._record("runner_died", job, f"the runner {ending}; its log is {self._log(job.name)}", runner)
        if count >= DEATHS_MAX:
            self._deaths.pop(job.name, None)
            message = (
                f"the runner died {count} times without progress; the last time it {ending}. Look at the end of "
                f"{self._log(job.name)}, mend the cause, then: strandline job start {job.name}"
            )
            self._ledger.move_job(job.name, JobState.FAILED, message)
            return
        pause_s = min(PAUSE_MAX_S, self._pause_first_s * 2 ** (count - 1))
        self._deaths[job.name] = _Deaths(count, slice_done, time.monotonic() + pause_s)
        if job.desired is not Desired.STOPPED:
            self._ledger.move_job(job.name, JobState.STARTING, f"the runner {ending}; the next starts in {pause_s:g} s")

    def _end_all(self) -> None:
        for runner in self._runners.values():
            runner.tell_to_end(self._close_patience_s)
        deadline = time.monotonic() + self._close_patience_s
        while time.monotonic() < deadline and not all(runner.has_ended() for runner in self._runners.values()):
            time.sleep(0.05)
        for name, runner in self._runners.items():
            try:
                kill_family(family_mark(self._data_dir, name))
            except StackError as error:
                logger.error("a runner did not end", action="close", job=name, error=str(error))
                continue
            runner.process.wait()
            self._pids.remove(f"runner-{name}", runner.process.pid)

    def _take_restart(self, name: str) -> bool:
        with self._lock:
            is_asked = name in self._to_restart
            self._to_restart.discard(name)
            return is_asked

    def _record(self, kind: str, job: JobRow, message: str, runner: _Runner) -> None:
        logger.warning(message, action=kind, job=job.name, epoch=job.epoch, pid=runner.process.pid)
        self._ledger.record_event(kind, message, job.name, job.epoch, {"pid": runner.process.pid})

    def _log(self, name: str) -> Path:
        return self._data_dir / "logs" / f"runner-{name}.log"


def _is_taken_back(job: JobRow) -> bool:
    """Whether the job is on its way to an end that is no longer desired: no state leads back, only a new run does."""
    if job.desired is Desired.RUNNING:
        return job.state in (JobState.STOPPING, JobState.DRAINING)
    return job.desired is Desired.DRAINED and job.state is JobState.STOPPING


def _ending(code: int) -> str:
    """`was killed by SIGKILL`, `ended with code 3`."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code} and left the job unfinished"
