"""Keeps one runner process for every job that this control service leads and that should have one.

The ledger contains the desired state. The supervisor polls it and takes the next step. All state in memory can be lost: after a
crash of the control service, the next one kills the remaining runners and starts again from the ledger.

Several control services can share a ledger. One of them leads each job, by a lease (`leadership.py`). A supervisor does nothing
for a job that it doesn't lead. It names its lease when it moves a job or ends a run, and it kills the runner of a job that it
has lost. (Events name no lease, because nothing is decided by them.) When it takes over a job, it kills the runners that the
former leader left on this machine. On another machine, the ledger refuses the writes of the old runner.

The contract with a runner (`python -m strandline.processing.run.process --job NAME --lease EPOCH --alive-fd NUMBER`):
* It begins a run in the ledger, under the lease, and moves the job starting -> running.
* It writes into the pipe while it lives. After a silence as long as a lease, it is killed.
* Desired `stopped`: it ends after the current slice, moves the job to stopped, and exits with 0.
* A new version: it takes it over between two slices, in the same process.
* Desired `drained`: it closes all windows, moves the job to drained, and exits with 0.
* On an error that a retry can't fix, it moves the job to failed with the message, and exits with 1.
* SIGTERM: it ends immediately, and the next run repeats its slice. The job's state and desired state don't change.
* In an idle state of its job, it must exit. It also gets SIGTERM, and is killed if it doesn't exit.
* When the ledger shows a newer run or lease, or doesn't respond for the length of a lease, it ends.

Any other end is a failure: the rest of its process tree is killed, and a new runner rewinds, after an increasing pause. The
number of failures is limited. Progress is a new checkpoint, or a run that lived for long and left no slice uncommitted. Without
progress:
* FAILURES_MAX failures in a row fail the job, with the last cause.
* A runner that ended because an external service didn't respond is restarted for as long as the outage lasts. External services
  are Kafka, Elasticsearch, the ledger, a schema registry, another store of results, and the Spark cluster. The supervisor
  checks the first four itself after each such end. If they responded after OUTAGE_EXITS_MAX ends in a row, there is no outage,
  and the job fails with the last cause.
* OUTAGE_EXITS_MAX failed starts in a row fail the job, too.

If there is a standby (`standbys.py`), it is used for the start. With pools (`pools.py`), a job that a pool can run is started in
one (`placement.py`), and its run has the same contract. If a pool ends, its jobs start again in the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from strandline.core.errors import Conflict, Fenced, StackError, StrandlineError
from strandline.ledger.roles import SupervisionLedger
from strandline.ledger.states import Desired, JobRow, JobState, LeaseRow
from strandline.processing.run.exit_codes import EXIT_OTHER_RUNNER
from strandline.processing.run.pool_features import MOVED_OUT, MovedOut
from strandline.services.processes.log_files import keep_newest
from strandline.services.processes.pids import PidFile
from strandline.services.processes.process_tree import kill_tree, tree_mark
from strandline.services.supervision.failures import (
    FAILURES_MAX,
    OUTAGE_EXITS_MAX,
    FailureCause,
    JobFailures,
    cause_of_exit,
    was_sound,
)
from strandline.services.supervision.leadership import Leadership, ServiceIdentity, is_on_this_machine
from strandline.services.supervision.pools import PooledRunner, Pools
from strandline.services.supervision.repeated_errors import RepeatedErrors
from strandline.services.supervision.runner_process import (
    RunnerCommand,
    RunnerProcess,
    ending,
    runner_command,
    runner_name,
)
from strandline.services.supervision.standbys import STANDBY_NAME, Standbys

logger = structlog.get_logger()

STANDBY_LOGS_KEPT = 5
"""Number of logs of an earlier control service's standbys that are kept."""
POLL_INTERVAL_S = 0.25
SETTLE_MAX_S = 60.0
"""Maximum time in seconds for which no standby starts while a run has committed nothing yet."""
_IDLE_STATES = {JobState.STOPPED, JobState.DRAINED, JobState.FAILED}


@dataclass(frozen=True)
class _Runner:
    """The running runner of a job."""

    process: RunnerProcess | PooledRunner
    lease: int
    """Epoch of the lease under which it was started."""
    restarts: int
    """Number of requested restarts at that time."""


@dataclass(frozen=True)
class SupervisionTimes:
    """Waiting times of the supervisor."""

    lease_s: float = 8.0
    """Length of a job's lease in seconds, and maximum silence of a runner."""
    pause_first_s: float = 0.5
    """First pause in seconds. It doubles with each failure. After a first failure of the job itself, the next runner starts
    immediately: most have external causes, and until then the job has no results."""
    pause_max_s: float = 30.0
    outage_pause_max_s: float = 10.0
    """Maximum pause while an external service doesn't respond, so that the job soon notices its return."""
    stop_patience_s: float = 60.0
    """Seconds that a runner has to stop, after its slice or immediately, before the supervisor kills it. The next run rewinds."""
    close_patience_s: float = 15.0
    """Seconds that all runners together have to stop when the control service ends."""
    failures_max: int = FAILURES_MAX
    outage_exits_max: int = OUTAGE_EXITS_MAX


TIMES = SupervisionTimes()


class Supervisor:
    """Runs in its own thread between `start` and `close`. The other methods can be called from any thread."""

    def __init__(
        self,
        ledger: SupervisionLedger,
        data_dir: Path,
        *,
        service: ServiceIdentity | None = None,
        times: SupervisionTimes = TIMES,
        standbys: int = 0,
        external_services_up: Callable[[], bool] = lambda: False,
        command: RunnerCommand = runner_command,
        pools: Pools | None = None,
        is_for_pool: Callable[[JobRow], bool] = lambda job: True,
    ) -> None:
        """Args: service: Name of the service. Default: the data directory, which no other service on this machine can use.
        `external_services_up`: Returns True if Kafka and Elasticsearch respond to this service now. Default: exits of runners
        that wait for them never count against the job. `is_for_pool`: Returns True if a job runs in one of `pools`."""
        self._pools, self._is_for_pool = pools, is_for_pool
        self._ledger = ledger
        self._data_dir = data_dir
        self._command = command
        self._external_services_up = external_services_up
        self._times = times
        service = service or ServiceIdentity(str(data_dir), "", str(data_dir))
        self._leadership = Leadership(ledger, service, times.lease_s, self._end_at_once)
        self._pids = PidFile(data_dir)
        self._standbys = Standbys(data_dir, command, standbys, self._tell_of_standbys)
        self._runners: dict[str, _Runner] = {}
        self._failures: dict[str, JobFailures] = {}
        self._errors = RepeatedErrors(logger)
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Kill the runners of an earlier control service, then start. Raises StackError if they can't be killed."""
        (self._data_dir / "logs").mkdir(parents=True, exist_ok=True)
        killed = kill_tree(tree_mark(self._data_dir), whole_stack=True)
        for name, pid in self._pids.all().items():
            if name.startswith(("runner-", STANDBY_NAME)):
                self._pids.remove(name, pid)
        # No standby of before lives now, and their names aren't used again.
        keep_newest((self._data_dir / "logs").glob(f"{STANDBY_NAME}*"), STANDBY_LOGS_KEPT)
        if killed:
            logger.info("killed the runners of an earlier control service", action="clear", processes=killed)
        self._leadership.start()
        self._thread.start()

    def close(self) -> None:
        """Request every runner to stop, kill the remaining ones after `close_patience_s`, and release the leases. The desired
        states of the jobs don't change. The next runs repeat the uncommitted slices."""
        self._is_closing = True
        self._wake.set()
        self._thread.join()
        self._leadership.close()

    def wake(self) -> None:
        """Poll the ledger now, because it has changed."""
        self._wake.set()

    def is_alive(self) -> bool:
        return self._thread.is_alive() and self._leadership.is_alive()

    def leads(self, job: str) -> bool:
        """Return True if this control service can act for the job now."""
        return self._leadership.lease_of(job) is not None

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._wake.clear()
                self._look()
                self._wake.wait(POLL_INTERVAL_S)
            self._end_all()
        except BaseException:
            # A bug. This service processes no job any more, so it gives up its leases, and another service takes over.
            self._leadership.resign()
            raise

    def _look(self) -> None:
        """Poll all jobs once. An error of one job does not stop the others.

        1. End the runners of lost jobs.
        2. Claim free jobs, up to this service's share.
        3. Take the next step for every job that is led here.
        4. Keep the standbys and a spare pool.
        """
        self._keep_pools()
        self._forget_lost()
        try:
            jobs = self._ledger.jobs()
            claimed = self._leadership.claim_free(len(jobs))
            if claimed:
                jobs = self._ledger.jobs()  # in the state of their former leaders
        except StrandlineError as error:  # also InvalidSettings: a secret of the ledger that is being replaced
            self._errors.failed("can't poll the jobs", error, action="look")
            return
        self._errors.worked("the jobs are polled again", action="look")
        for lease, before in claimed:
            self._take_over(lease, before)
        self._forget_deleted({job.name for job in jobs})
        for job in jobs:
            if self._leadership.lease_of(job.name) is None:
                continue
            try:
                self._reconcile_job(job)
                self._errors.worked("the job is supervised again", action="attend", job=job.name)
            except Conflict as error:
                # The runner moved the job between our read and our move. The next poll sees its new state.
                logger.debug("the job moved by itself", action="look", job=job.name, error=str(error))
            except Fenced as error:
                logger.warning("the job is led by another control service", action="look", error=str(error))
                self._leadership.drop(job.name)
            except (StrandlineError, OSError) as error:
                self._errors.failed("can't supervise the job", error, action="attend", job=job.name)
        try:
            is_calm = not self._is_settling(jobs)
            if self._pools is not None:
                self._pools.keep_spare(is_calm=is_calm)
            self._standbys.keep(is_calm=is_calm and self._has_own_runners())
            self._errors.worked("standbys are started again", action="standby")
        except (StrandlineError, OSError) as error:
            self._errors.failed("can't start a standby", error, action="standby")

    def _has_own_runners(self) -> bool:
        """Return True if a standby can replace a runner: without pools, or if a job runs outside of them."""
        return self._pools is None or any(isinstance(one.process, RunnerProcess) for one in self._runners.values())

    def _keep_pools(self) -> None:
        if self._pools is None:
            return
        try:
            self._pools.keep()
            self._errors.worked("pools are started again", action="pool")
        except (StrandlineError, OSError) as error:
            self._errors.failed("can't start a pool", error, action="pool")

    def _is_settling(self, jobs: Sequence[JobRow]) -> bool:
        """Return True if the run of a job has not committed its first slice yet. Until then, it needs all cores."""
        running = [job for job in jobs if job.name in self._runners]
        if any(job.state is JobState.STARTING for job in running):
            return True
        since_s = time.monotonic() - SETTLE_MAX_S
        young = [job.name for job in running if self._runners[job.name].process.began_at >= since_s]
        progress = self._ledger.progress_of(young) if young else {}
        return any(
            one.last_checkpoint is None or one.last_checkpoint.epoch < one.job.epoch for one in progress.values()
        )

    def _take_over(self, lease: LeaseRow, before: LeaseRow | None) -> None:
        """Lead a job. First kill all runners that its former leader left on this machine. That leader renews all its leases
        together, so if one has expired, none of its runners may continue."""
        if before is None or before.holder == lease.holder:
            logger.info("leading", action="lead", job=lease.job, lease=lease.epoch)
            return
        message = f"control service {lease.holder} took over from {before.holder}"
        logger.warning(message, action="lead", job=lease.job, lease=lease.epoch)
        facts = {"lease": lease.epoch, "from": before.holder, "to": lease.holder}
        try:
            is_neighbour = is_on_this_machine(before.holder) and before.data_dir
            if is_neighbour and Path(before.data_dir).resolve() != self._data_dir.resolve():
                kill_tree(tree_mark(Path(before.data_dir)), whole_stack=True)
            self._ledger.record_event("leader_changed", message, lease.job, facts=facts)
        except (StrandlineError, OSError) as error:
            logger.error("can't take over the job", action="lead", job=lease.job, error=str(error))

    def _forget_lost(self) -> None:
        for name, runner in list(self._runners.items()):
            if self._leadership.holds(name, runner.lease):
                continue
            try:
                self._reap(name, runner)
            except (StackError, OSError) as error:
                logger.error("the runner of a lost job did not end", action="lose", job=name, error=str(error))
                continue
            logger.warning("the job is no longer led here", action="lose", job=name, lease=runner.lease)

    def _forget_deleted(self, present: set[str]) -> None:
        """End the runner of a deleted job: it was started in the meantime, and finds no job."""
        for name in self._runners.keys() - present:
            try:
                self._reap(name, self._runners[name])
            except (StackError, OSError) as error:
                logger.error("the runner of a deleted job did not end", action="lose", job=name, error=str(error))

    def _end_at_once(self, job: str, why: str) -> None:
        """Kill the runner of a job. Called by the leadership's threads. It doesn't use the ledger, which can hang."""
        runner = self._runners.get(job)
        logger.warning("the lease is lost", action="lose", job=job, why=why)
        if runner is not None:
            try:
                runner.process.let_go()
            except (StackError, OSError) as error:
                logger.error("the runner of a lost job did not end", action="lose", job=job, error=str(error))

    def _reconcile_job(self, job: JobRow) -> None:
        """Take one step for one job.

        1. Reap an ended runner with its process tree, and count a failure.
        2. Request a running runner to stop if it should, and kill it if it didn't, or if it is silent.
        3. Without a runner, start one, or mark the job as stopped.
        """
        runner = self._runners.get(job.name)
        if runner is not None and runner.process.has_ended():
            self._handle_end(job.name, runner)
            job = self._ledger.job(job.name)  # the runner may have moved it since the list was read
            runner = None
        if runner is not None:
            self._reconcile_runner(job, runner)
        else:
            self._reconcile_without_runner(job)

    def _reconcile_runner(self, job: JobRow, runner: _Runner) -> None:
        process = runner.process
        # A job in an idle state needs no process: one that hangs in its exit would block the next one.
        if job.restarts != runner.restarts or _is_taken_back(job) or job.state in _IDLE_STATES:
            process.request_stop(self._times.stop_patience_s)
        elif job.desired is Desired.STOPPED:
            if job.state in (JobState.RUNNING, JobState.DRAINING):
                self._move(job.name, JobState.STOPPING)
            if process.kill_at is None:
                process.kill_at = time.monotonic() + self._times.stop_patience_s
        elif process.kill_at is not None and not process.is_stop_requested:
            process.kill_at = None  # the order to stop was revoked before the runner obeyed
        if job.desired is Desired.DRAINED and job.state is JobState.RUNNING:
            self._move(job.name, JobState.DRAINING)
        if process.kill_at is not None and time.monotonic() > process.kill_at:
            process.is_stop_requested = True
            self._kill(job, runner, f"the runner did not stop within {self._times.stop_patience_s:g} s")
        elif process.is_silent(self._times.lease_s) and job.state not in _IDLE_STATES:
            self._kill(job, runner, f"the runner sent no heartbeat for {self._times.lease_s:g} s or more")

    def _kill(self, job: JobRow, runner: _Runner, why: str) -> None:
        runner.process.kill_tree()
        self._record("runner_killed", job, why, runner.process)

    def _reconcile_without_runner(self, job: JobRow) -> None:
        if job.desired is Desired.STOPPED:
            self._mark_stopped(job)
            return
        if job.state is JobState.FAILED or (job.desired is Desired.DRAINED and job.state is JobState.DRAINED):
            return
        failures = self._failures.get(job.name)
        if failures is not None and job.restarts != failures.restarts:
            del self._failures[job.name]
        elif failures is not None and not failures.may_start():
            return
        if job.state is JobState.STOPPING:
            self._move(job.name, JobState.STOPPED)
        self._start(self._move(job.name, JobState.STARTING))

    def _mark_stopped(self, job: JobRow) -> None:
        self._failures.pop(job.name, None)
        if job.state in (JobState.STOPPED, JobState.DRAINED):
            return
        if job.state not in (JobState.CREATED, JobState.FAILED, JobState.STOPPING):
            self._move(job.name, JobState.STOPPING)
        self._move(job.name, JobState.STOPPED, job.message)

    def _start(self, job: JobRow) -> None:
        lease = self._lease(job.name)
        process: RunnerProcess | PooledRunner | None = None
        try:
            if self._pools is not None and self._is_for_pool(job):
                process = self._pools.start(job.name, lease)
            else:
                process = self._standbys.take(job.name, lease)
            was_waiting = process is not None
            if process is None:
                process = RunnerProcess(self._data_dir, runner_name(job.name), self._command, job.name, lease)
        except OSError as error:
            self._restart_or_fail(job, f"could not be started: {error}", FailureCause.MACHINE)
            return
        self._runners[job.name] = _Runner(process, lease, job.restarts)
        logger.info(
            "runner started", action="start", job=job.name, version=job.version, pid=process.pid, standby=was_waiting
        )

    def _handle_end(self, name: str, runner: _Runner) -> None:
        """Kill the remaining processes of an ended runner, and evaluate its end."""
        runner.process.kill_tree()
        job = self._ledger.job(name)  # before the runner is forgotten: without the ledger, the next poll tries again
        code = self._reap(name, runner)
        if job.state in _IDLE_STATES or runner.process.is_stop_requested:
            logger.info("runner ended", action="end", job=name, code=code, state=job.state.value)
            return
        if code == EXIT_OTHER_RUNNER and job.desired is not Desired.STOPPED:
            where = "its own runner" if isinstance(runner.process, PooledRunner) else "the runner of its placement"
            logger.warning(f"the job gets {where}", action="end", job=name)
            self._move(name, JobState.STARTING, f"the job is started in {where}")
            return
        if self._pools is not None and runner.process.has_lost_pool and name in self._pools.guilty:
            why = MovedOut.of(name, f"the pool {ending(code)} while it processed this job alone")
            self._ledger.record_event(MOVED_OUT, str(why), name, job.epoch, {"restarts": job.restarts})
            self._pools.guilty.discard(name)
        self._count_failure(job, runner, code)

    def _reap(self, name: str, runner: _Runner) -> int:
        """Kill the remaining processes of a runner, forget it, and return its exit code. Raises StackError."""
        code = runner.process.reap()
        del self._runners[name]
        return code

    def _count_failure(self, job: JobRow, runner: _Runner, code: int) -> None:
        """Record a failure in the ledger, and report the next start of a runner, or that the job has failed."""
        how = ending(code)
        runs = self._ledger.runs(job.name)
        if runs and runs[-1].pid == runner.process.pid:
            # Under the lease: on another machine, the run of a new leader can have the same pid.
            run = self._ledger.end_run(job.name, runs[-1].epoch, "died", how, lease=runner.lease)
            if run.message and run.message != how:
                how = f"{how} ({run.message})"  # the runner recorded its reason before it ended
        if was_sound(self._ledger, job, time.monotonic() - runner.process.began_at):
            self._failures.pop(job.name, None)
        cause = FailureCause.POOL if runner.process.has_lost_pool else cause_of_exit(code, self._external_services_up)
        self._record("runner_died", job, f"the runner {how}; see its log {self._log(job.name)}", runner.process)
        self._restart_or_fail(job, how, cause)

    def _restart_or_fail(self, job: JobRow, how: str, cause: FailureCause) -> None:
        """Count a failure, and report the next start of a runner, or that the job has failed."""
        checkpoint = self._ledger.last_checkpoint(job.name)
        slice_done = checkpoint.slice if checkpoint else 0
        failures = self._failures.get(job.name)
        if failures is None or failures.progress != slice_done:
            failures = self._failures[job.name] = JobFailures(slice_done)
        failures.restarts = job.restarts
        if too_often := failures.note(cause, self._times.failures_max, self._times.outage_exits_max):
            del self._failures[job.name]
            message = (
                f"the runner {too_often}; the last time it {how}. See the end of {self._log(job.name)}, fix the cause, then run "
                f"strandline job start {job.name}"
            )
            self._move(job.name, JobState.FAILED, message)
            return
        pause_max_s = self._times.pause_max_s if cause is FailureCause.JOB else self._times.outage_pause_max_s
        is_first = failures.count == 0 and cause in (FailureCause.JOB, FailureCause.POOL)
        pause_s = failures.add(0.0 if is_first else self._times.pause_first_s, pause_max_s)
        if job.desired is not Desired.STOPPED:
            how_often = f" ({failures.count} ends in a row without progress)" if failures.count > 1 else ""
            message = (
                f"the runner {how}{how_often}; the next one starts {f'in {pause_s:g} s' if pause_s else 'immediately'}"
            )
            self._move(job.name, JobState.STARTING, message)

    def _end_all(self) -> None:
        self._standbys.close()
        for runner in self._runners.values():
            runner.process.request_stop(self._times.close_patience_s)
        deadline = time.monotonic() + self._times.close_patience_s
        while time.monotonic() < deadline and not all(one.process.has_ended() for one in self._runners.values()):
            time.sleep(0.05)
            if self._pools is not None:
                self._pools.look()
        for name, runner in list(self._runners.items()):
            try:
                self._reap(name, runner)
            except (StackError, OSError) as error:
                logger.error("a runner did not end", action="close", job=name, error=str(error))
        if self._pools is not None:
            self._pools.close()

    def _lease(self, job: str) -> int:
        """Return the epoch of the lease on the job. Raises Fenced if this service has none."""
        lease = self._leadership.lease_of(job)
        if lease is None:
            raise Fenced(f"this control service no longer leads job {job}")
        return lease

    def _move(self, job: str, to: JobState, message: str = "") -> JobRow:
        return self._ledger.move_job(job, to, message, lease=self._lease(job))

    def _record(self, kind: str, job: JobRow, message: str, process: RunnerProcess | PooledRunner) -> None:
        logger.warning(message, action=kind, job=job.name, epoch=job.epoch, pid=process.pid)
        self._ledger.record_event(kind, message, job.name, job.epoch, {"pid": process.pid})

    def _tell_of_standbys(self, message: str) -> None:
        logger.error(message, action="standby")
        self._ledger.record_event("standbys_given_up", message)

    def _log(self, name: str) -> Path:
        return self._data_dir / "logs" / f"{runner_name(name)}.log"


def _is_taken_back(job: JobRow) -> bool:
    """Return True if the job is stopping or draining although that is no longer desired. No transition leads back, so it needs
    a new run."""
    if job.desired is Desired.RUNNING:
        return job.state in (JobState.STOPPING, JobState.DRAINING)
    return job.desired is Desired.DRAINED and job.state is JobState.STOPPING
