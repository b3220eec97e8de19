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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from strandline.core.errors import Conflict, Fenced, StackError, StrandlineError
from strandline.ledger.jobs import JobMove
from strandline.ledger.journal import NewEvent
from strandline.ledger.roles import SupervisionLedger
from strandline.ledger.states import Desired, JobRow, JobState, LeaseRow
from strandline.processing.run.exit_codes import EXIT_OTHER_RUNNER
from strandline.processing.run.pool_features import MOVED_OUT, MovedOut
from strandline.services.processes.log_files import keep_newest
from strandline.services.processes.pids import PidFile
from strandline.services.processes.process_tree import kill_tree, tree_mark
from strandline.services.supervision.failures import FailureCause
from strandline.services.supervision.leadership import Leadership, ServiceIdentity, is_on_this_machine
from strandline.services.supervision.placement import PlacementReader
from strandline.services.supervision.pools import PooledRunner, Pools
from strandline.services.supervision.repeated_errors import RepeatedErrors
from strandline.services.supervision.run_failures import EndedRunner, RunFailures
from strandline.services.supervision.runner_process import (
    RunnerCommand,
    RunnerProcess,
    ending,
    runner_command,
    runner_name,
)
from strandline.services.supervision.standbys import STANDBY_NAME, Standbys
from strandline.services.supervision.supervision_times import TIMES, SupervisionTimes

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
        placement: PlacementReader = lambda jobs: lambda job: True,
    ) -> None:
        """Args: service: Name of the service. Default: the data directory, which no other service on this machine can use.
        `external_services_up`: Returns True if Kafka and Elasticsearch respond to this service now. Default: exits of runners
        that wait for them never count against the job. `placement`: Decides which jobs run in `pools`."""
        self._pools, self._placement = pools, placement
        self._ledger = ledger
        self._data_dir = data_dir
        self._command = command
        self._times = times
        service = service or ServiceIdentity(str(data_dir), "", str(data_dir))
        self._leadership = Leadership(ledger, service, times.lease_s, self._end_at_once)
        self._pids = PidFile(data_dir)
        self._standbys = Standbys(data_dir, command, standbys, self._tell_of_standbys)
        self._runners: dict[str, _Runner] = {}
        self._failures = RunFailures(ledger, times, external_services_up)
        self._troubled: set[str] = set()
        """Jobs that can't be supervised in this round."""
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
        self._take_over(claimed)
        self._forget_deleted({job.name for job in jobs})
        self._reconcile([job for job in jobs if self._leadership.lease_of(job.name) is not None])
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

    def _take_over(self, claimed: Sequence[tuple[LeaseRow, LeaseRow | None]]) -> None:
        """Lead these jobs. First kill all runners that their former leaders left on this machine. A leader renews all its leases
        together, so if one has expired, none of its runners may continue."""
        events: dict[str, list[NewEvent]] = {}
        """Data directory of a former leader on this machine, or empty -> events of the jobs."""
        for lease, before in claimed:
            if before is None or before.holder == lease.holder:
                logger.info("leading", action="lead", job=lease.job, lease=lease.epoch)
                continue
            message = f"control service {lease.holder} took over from {before.holder}"
            logger.warning(message, action="lead", job=lease.job, lease=lease.epoch)
            facts = {"lease": lease.epoch, "from": before.holder, "to": lease.holder}
            directory = before.data_dir if is_on_this_machine(before.holder) else ""
            events.setdefault(directory, []).append(NewEvent("leader_changed", message, lease.job, facts=facts))
        for directory, of_directory in events.items():
            try:
                if directory and Path(directory).resolve() != self._data_dir.resolve():
                    kill_tree(tree_mark(Path(directory)), whole_stack=True)
                self._ledger.record_events(of_directory)
            except (StrandlineError, OSError) as error:
                names = [event.job for event in of_directory]
                logger.error("can't take over the jobs", action="lead", jobs=names, error=str(error))

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

    @contextmanager
    def _isolated(self, jobs: Collection[str]) -> Iterator[None]:
        """Keep an error of the work for these jobs from stopping the work for others. These jobs wait for the next round."""
        try:
            yield
        except (StrandlineError, OSError) as error:
            for job in jobs:
                self._give_up(job, error)

    def _give_up(self, job: str, error: Exception) -> None:
        """Log an error of a job. It waits for the next round."""
        self._troubled.add(job)
        if isinstance(error, Conflict):
            # The runner moved the job between our read and our move. The next poll sees its new state.
            logger.debug("the job moved by itself", action="look", job=job, error=str(error))
        elif isinstance(error, Fenced):
            logger.warning("the job is led by another control service", action="look", error=str(error))
            self._leadership.drop(job)
        else:
            self._errors.failed("can't supervise the job", error, action="attend", job=job)

    def _reconcile(self, jobs: Sequence[JobRow]) -> None:
        """Take one step for each of these jobs. An error of one job doesn't stop the others.

        1. Reap ended runners with their process trees, and count failures.
        2. Request running runners to stop if they should. Kill those that didn't, or that are silent.
        3. For jobs without a runner, start one, or mark the job as stopped.

        If a pool ends, all its jobs take the steps 1 and 3. So these read and write the rows of all jobs together.
        """
        self._troubled.clear()
        rows = {job.name: job for job in jobs}
        ended = {
            name: runner
            for name in rows
            if (runner := self._runners.get(name)) is not None and runner.process.has_ended()
        }
        with self._isolated(ended):
            rows |= self._handle_ends(ended)
        starting, killed = list[JobRow](), list[NewEvent]()
        for job in rows.values():
            runner = self._runners.get(job.name)
            if job.name in ended and (job.name in self._troubled or runner is not None):
                continue
            with self._isolated([job.name]):
                if runner is not None:
                    self._reconcile_runner(job, runner, killed)
                elif self._needs_runner(job):
                    starting.append(job)
        with self._isolated([str(event.job) for event in killed]):
            self._ledger.record_events(killed)
        with self._isolated([job.name for job in starting]):
            self._start(starting)
        for name in rows.keys() - self._troubled:
            self._errors.worked("the job is supervised again", action="attend", job=name)

    def _reconcile_runner(self, job: JobRow, runner: _Runner, killed: list[NewEvent]) -> None:
        """Request the runner to stop if it should. If it is killed, add the event to `killed`."""
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
            killed.append(self._kill(job, process, f"the runner did not stop within {self._times.stop_patience_s:g} s"))
        elif process.is_silent(self._times.lease_s) and job.state not in _IDLE_STATES:
            silent = f"the runner sent no heartbeat for {self._times.lease_s:g} s or more"
            killed.append(self._kill(job, process, silent))

    @staticmethod
    def _kill(job: JobRow, process: RunnerProcess | PooledRunner, why: str) -> NewEvent:
        """Kill the runner, and return the event that reports it."""
        process.kill_tree()
        logger.warning(why, action="runner_killed", job=job.name, epoch=job.epoch, pid=process.pid)
        return NewEvent("runner_killed", why, job.name, job.epoch, {"pid": process.pid})

    def _needs_runner(self, job: JobRow) -> bool:
        """Return True if a runner must start now for a job that has none. Mark the job as stopped if it should be."""
        if job.desired is Desired.STOPPED:
            self._mark_stopped(job)
            return False
        if job.state is JobState.FAILED or (job.desired is Desired.DRAINED and job.state is JobState.DRAINED):
            return False
        return self._failures.may_start(job)

    def _mark_stopped(self, job: JobRow) -> None:
        self._failures.forget(job.name)
        if job.state in (JobState.STOPPED, JobState.DRAINED):
            return
        if job.state not in (JobState.CREATED, JobState.FAILED, JobState.STOPPING):
            self._move(job.name, JobState.STOPPING)
        self._move(job.name, JobState.STOPPED, job.message)

    def _start(self, jobs: Sequence[JobRow]) -> None:
        """Move these jobs to starting, and start a runner for each of them."""
        if not jobs:
            return
        stopping = [job.name for job in jobs if job.state is JobState.STOPPING]
        self._move_all([JobMove(name, JobState.STOPPED) for name in stopping])
        names = [job.name for job in jobs if job.name not in self._troubled]
        moved = self._move_all([JobMove(name, JobState.STARTING) for name in names])
        is_for_pool = self._placement(list(moved.values()))
        unstarted = list[JobMove]()
        for job in moved.values():
            with self._isolated([job.name]):
                try:
                    self._start_one(job, self._pools if self._pools is not None and is_for_pool(job) else None)
                except OSError as error:
                    last = self._ledger.last_checkpoint(job.name)
                    how, done = f"could not be started: {error}", last.slice if last else 0
                    move = self._failures.note(job, how, FailureCause.MACHINE, done, self._log(job.name))
                    unstarted += [move] if move is not None else []
        self._move_all(unstarted)

    def _start_one(self, job: JobRow, pools: Pools | None) -> None:
        """Start a runner. Raises OSError."""
        lease = self._lease(job.name)
        process: RunnerProcess | PooledRunner | None
        process = self._standbys.take(job.name, lease) if pools is None else pools.start(job.name, lease)
        was_waiting = process is not None
        if process is None:
            process = RunnerProcess(self._data_dir, runner_name(job.name), self._command, job.name, lease)
        self._runners[job.name] = _Runner(process, lease, job.restarts)
        logger.info(
            "runner started", action="start", job=job.name, version=job.version, pid=process.pid, standby=was_waiting
        )

    def _handle_ends(self, ended: Mapping[str, _Runner]) -> dict[str, JobRow]:
        """Kill the remaining processes of ended runners, and evaluate their ends. Return the present rows of their jobs."""
        if not ended:
            return {}
        # Before a runner is forgotten: without the ledger, the next poll tries again.
        rows = self._ledger.jobs_named(ended)
        failed, moves, moved_out = list[EndedRunner](), list[JobMove](), list[NewEvent]()
        for name, job in rows.items():  # without the deleted ones, which the next round forgets
            with self._isolated([name]):
                runner = ended[name]
                runner.process.kill_tree()
                code = self._reap(name, runner)
                if job.state in _IDLE_STATES or runner.process.is_stop_requested:
                    logger.info("runner ended", action="end", job=name, code=code, state=job.state.value)
                elif code == EXIT_OTHER_RUNNER and job.desired is not Desired.STOPPED:
                    where = (
                        "its own runner" if isinstance(runner.process, PooledRunner) else "the runner of its placement"
                    )
                    logger.warning(f"the job gets {where}", action="end", job=name)
                    moves.append(JobMove(name, JobState.STARTING, f"the job is started in {where}"))
                else:
                    failed.append(self._ended_runner(job, runner, code))
                    if self._pools is not None and failed[-1].has_lost_pool and name in self._pools.guilty:
                        why = MovedOut.of(name, f"the pool {ending(code)} while it processed this job alone")
                        facts = {"restarts": job.restarts}
                        moved_out.append(NewEvent(MOVED_OUT, str(why), name, job.epoch, facts))
        self._ledger.record_events(moved_out)
        if self._pools is not None:
            self._pools.guilty.difference_update(event.job for event in moved_out)
        counted, refusals = self._failures.count(failed)
        for name, error in refusals.items():
            self._give_up(name, error)
        return rows | self._move_all([*moves, *counted])

    def _ended_runner(self, job: JobRow, runner: _Runner, code: int) -> EndedRunner:
        process = runner.process
        lived_s = time.monotonic() - process.began_at
        return EndedRunner(job, runner.lease, process.pid, code, lived_s, self._log(job.name), process.has_lost_pool)

    def _reap(self, name: str, runner: _Runner) -> int:
        """Kill the remaining processes of a runner, forget it, and return its exit code. Raises StackError."""
        code = runner.process.reap()
        del self._runners[name]
        return code

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

    def _move_all(self, moves: Sequence[JobMove]) -> dict[str, JobRow]:
        """Move jobs under their leases, in one transaction. Return the rows of the moved jobs. The others are given up."""
        leased = list[JobMove]()
        for move in moves:
            try:
                leased.append(move._replace(lease=self._lease(move.job)))
            except Fenced as error:
                self._give_up(move.job, error)
        moved, refusals = self._ledger.move_jobs(leased)
        for name, refusal in refusals.items():
            self._give_up(name, refusal)
        return moved

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
