"""Keeps one runner process for every job that this control service leads and that should have one.

The ledger says what is desired; the supervisor looks at it again and again and takes the next step. All that it keeps may be
lost: after a crash of the control service the next one kills the runners left over and starts again from the ledger.

Several control services may share a ledger. One of them leads each job, by a lease (`leadership.py`). A supervisor does
nothing for a job that it does not lead, names its lease whenever it moves a job that it leads or ends a run, and kills the runner
of a job that it has lost. (Events name no lease: nothing is decided by them.) When it takes a job over, it kills what the former
leader left running on this machine; on another machine the ledger refuses what the old runner still writes.

The agreement with a runner (`python -m strandline.processing.run.process --job NAME --lease EPOCH --alive-fd NUMBER`):
* it begins a run in the ledger, under the lease, and moves the job starting -> running;
* it writes into the pipe as long as it lives; after a lease's length of silence it is killed;
* desired `stopped`: it ends after the current slice, moves the job to stopped, exits 0;
* a new version: it takes over between two slices by itself, in the same process;
* desired `drained`: it closes all windows, moves the job to drained, exits 0;
* on an error that trying again cannot help it moves the job to failed with the sentence, and exits 1;
* SIGTERM: it ends at once; the next run does its slice again. The job's state and what is desired stay;
* where its job rests it has nothing left to do but to exit: it is told so by SIGTERM, too, and killed when it doesn't;
* once the ledger shows a newer run or lease, or can't be asked for a lease's length, it ends.
Any other end is a death: the rest of its process tree is killed, and a new runner rewinds, after a growing pause. This does not
go on for ever. Progress is a new checkpoint, or a run that lived for long and left no slice undone; without progress
* DEATHS_MAX deaths in a row fail the job, with the last cause;
* a runner that ended because something outside did not answer (Kafka, Elasticsearch, the ledger, a schema registry, another
  store of results, the Spark cluster) is started again for as long as that takes. The supervisor asks the first four itself
  after each such end. If they answered after AWAY_DEATHS_MAX ends in a row, there is no outage, and the job fails with the last
  cause;
* AWAY_DEATHS_MAX times in a row in which no process could be started fail the job, too.

If there is a standby (`standbys.py`), it takes the start.
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
from strandline.services.processes.log_files import keep_newest
from strandline.services.processes.pids import PidFile
from strandline.services.processes.process_tree import kill_tree, tree_mark
from strandline.services.supervision.deaths import AWAY_DEATHS_MAX, DEATHS_MAX, Blame, JobDeaths, blame_of, was_sound
from strandline.services.supervision.leadership import Leadership, ServiceIdentity, is_on_this_machine
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
"""So many logs of an earlier control service's standbys are kept."""
LOOK_INTERVAL_S = 0.25
SETTLE_MAX_S = 60.0
"""For at most so long, no standby starts beside a run that has committed nothing yet."""
_RESTING = {JobState.STOPPED, JobState.DRAINED, JobState.FAILED}


@dataclass(frozen=True)
class _Runner:
    """The live runner of a job."""

    process: RunnerProcess
    lease: int
    """The epoch of the lease under which it was started."""
    restarts: int
    """How often a restart had been requested then."""


@dataclass(frozen=True)
class SupervisionTimes:
    """How long the supervisor waits, and how often it tries again."""

    lease_s: float = 8.0
    """How long the lease of a job lasts, and how long a runner may be silent."""
    pause_first_s: float = 0.5
    """Doubles with each death. After a first death that is the job's own the next runner starts at once: most come from outside,
    and until then the job has no results."""
    pause_max_s: float = 30.0
    away_pause_max_s: float = 10.0
    """The longest pause while something outside does not answer: the job notices its return no later."""
    stop_patience_s: float = 60.0
    """How long a runner that shall stop (after its slice) or was told to end (at once) may take before it is killed; the next one
    rewinds."""
    close_patience_s: float = 15.0
    """The same when the control service itself ends, for all runners together."""
    deaths_max: int = DEATHS_MAX
    away_deaths_max: int = AWAY_DEATHS_MAX


TIMES = SupervisionTimes()


class Supervisor:
    """Runs in a thread of its own between `start` and `close`. The other methods may be called from any thread."""

    def __init__(
        self,
        ledger: SupervisionLedger,
        data_dir: Path,
        *,
        service: ServiceIdentity | None = None,
        times: SupervisionTimes = TIMES,
        standbys: int = 0,
        outside_answers: Callable[[], bool] = lambda: False,
        command: RunnerCommand = runner_command,
    ) -> None:
        """Without `service`, the data directory is its name, which no other service on this machine can have.
        `outside_answers`: whether Kafka and Elasticsearch answer this service now. Without it, no end of a runner that waits
        for them counts against the job."""
        self._ledger = ledger
        self._data_dir = data_dir
        self._command = command
        self._outside_answers = outside_answers
        self._times = times
        service = service or ServiceIdentity(str(data_dir), "", str(data_dir))
        self._leadership = Leadership(ledger, service, times.lease_s, self._end_at_once)
        self._pids = PidFile(data_dir)
        self._standbys = Standbys(data_dir, command, standbys, self._tell_of_standbys)
        self._runners: dict[str, _Runner] = {}
        self._deaths: dict[str, JobDeaths] = {}
        self._errors = RepeatedErrors(logger)
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def start(self) -> None:
        """Kill what an earlier control service left running, then start. Raises StackError when it can't be killed."""
        (self._data_dir / "logs").mkdir(parents=True, exist_ok=True)
        killed = kill_tree(tree_mark(self._data_dir), whole_stack=True)
        for name, pid in self._pids.all().items():
            if name.startswith(("runner-", STANDBY_NAME)):
                self._pids.remove(name, pid)
        # What is left of standbys has names that nobody uses again. None of them lives now.
        keep_newest((self._data_dir / "logs").glob(f"{STANDBY_NAME}*"), STANDBY_LOGS_KEPT)
        if killed:
            logger.info("ended runners left over from before", action="clear", processes=killed)
        self._leadership.start()
        self._thread.start()

    def close(self) -> None:
        """Tell every runner to end, kill what still runs after `close_patience_s`, and give the leases back. What is desired of
        the jobs stays; the next runs do again the slices that were under way."""
        self._is_closing = True
        self._wake.set()
        self._thread.join()
        self._leadership.close()

    def wake(self) -> None:
        """Look at the ledger now, because it has changed."""
        self._wake.set()

    def is_alive(self) -> bool:
        return self._thread.is_alive() and self._leadership.is_alive()

    def leads(self, job: str) -> bool:
        """Whether this control service may act for the job now."""
        return self._leadership.lease_of(job) is not None

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._wake.clear()
                self._look()
                self._wake.wait(LOOK_INTERVAL_S)
            self._end_all()
        except BaseException:
            # A bug. This service looks after no job any more, so it gives up its leases and another service takes over.
            self._leadership.resign()
            raise

    def _look(self) -> None:
        """One look at all jobs. An error of one job does not stop the others.

        1. End the runners of jobs that were lost.
        2. Lead what nobody leads, up to this service's share.
        3. Do the next thing for every job that is led here.
        4. Keep the standbys.
        """
        self._forget_lost()
        try:
            jobs = self._ledger.jobs()
            claimed = self._leadership.claim_free(len(jobs))
            if claimed:
                jobs = self._ledger.jobs()  # as their former leaders left them
        except StrandlineError as error:  # also InvalidSettings: a secret of the ledger that is just being replaced
            self._errors.failed("could not look at the jobs", error, action="look")
            return
        self._errors.worked("the jobs are looked at again", action="look")
        for lease, before in claimed:
            self._take_over(lease, before)
        self._forget_deleted({job.name for job in jobs})
        for job in jobs:
            if self._leadership.lease_of(job.name) is None:
                continue
            try:
                self._attend(job)
                self._errors.worked("the job is attended to again", action="attend", job=job.name)
            except Conflict as error:
                # The runner moved the job between our look and our move. The next look sees its new state.
                logger.debug("the job moved by itself", action="look", job=job.name, error=str(error))
            except Fenced as error:
                logger.warning("the job is led by another control service", action="look", error=str(error))
                self._leadership.drop(job.name)
            except (StrandlineError, OSError) as error:
                self._errors.failed("could not attend to the job", error, action="attend", job=job.name)
        try:
            self._standbys.keep(is_calm=not self._is_settling(jobs))
            self._errors.worked("the standbys are kept again", action="standby")
        except (StrandlineError, OSError) as error:
            self._errors.failed("could not keep a standby", error, action="standby")

    def _is_settling(self, jobs: Sequence[JobRow]) -> bool:
        """True if the run of a job has not committed its first slice yet: until then it needs all cores."""
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
        """Lead a job. First kill all runners that its former leader left running, if that was on this machine: that leader renews
        all its leases together, so when one has run out, none of its runners may go on."""
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
            logger.error("could not take over in order", action="lead", job=lease.job, error=str(error))

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
        """End what runs for a job that was deleted: it was being started meanwhile, and finds no job."""
        for name in self._runners.keys() - present:
            try:
                self._reap(name, self._runners[name])
            except (StackError, OSError) as error:
                logger.error("the runner of a deleted job did not end", action="lose", job=name, error=str(error))

    def _end_at_once(self, job: str, why: str) -> None:
        """Called by the leadership's threads. It does not ask the ledger, which may hang."""
        runner = self._runners.get(job)
        logger.warning("the lease is lost", action="lose", job=job, why=why)
        if runner is not None:
            try:
                runner.process.kill_tree()
            except (StackError, OSError) as error:
                logger.error("the runner of a lost job did not end", action="lose", job=job, error=str(error))

    def _attend(self, job: JobRow) -> None:
        """One job, one look.

        1. A runner that has ended is reaped with its process tree; a death is counted.
        2. A live runner is told to end where it should, and killed where it didn't, or when it is silent.
        3. Without a runner, the job is settled: one is started, or the job comes to rest.
        """
        runner = self._runners.get(job.name)
        if runner is not None and runner.process.has_ended():
            self._handle_end(job.name, runner)
            job = self._ledger.job(job.name)  # the runner may have moved it since the list was read
            runner = None
        if runner is not None:
            self._steer(job, runner)
        else:
            self._settle(job)

    def _steer(self, job: JobRow, runner: _Runner) -> None:
        process = runner.process
        # A job that rests has no use for a process: one that hangs in its exit would keep the next from starting.
        if job.restarts != runner.restarts or _is_taken_back(job) or job.state in _RESTING:
            process.tell_to_end(self._times.stop_patience_s)
        elif job.desired is Desired.STOPPED:
            if job.state in (JobState.RUNNING, JobState.DRAINING):
                self._move(job.name, JobState.STOPPING)
            if process.kill_at is None:
                process.kill_at = time.monotonic() + self._times.stop_patience_s
        elif process.kill_at is not None and not process.is_told:
            process.kill_at = None  # stop was taken back before the runner obeyed
        if job.desired is Desired.DRAINED and job.state is JobState.RUNNING:
            self._move(job.name, JobState.DRAINING)
        if process.kill_at is not None and time.monotonic() > process.kill_at:
            process.is_told = True
            self._kill(job, runner, f"the runner did not stop within {self._times.stop_patience_s:g} s")
        elif process.is_silent(self._times.lease_s) and job.state not in _RESTING:
            self._kill(job, runner, f"the runner gave no sign of life for {self._times.lease_s:g} s or more")

    def _kill(self, job: JobRow, runner: _Runner, why: str) -> None:
        runner.process.kill_tree()
        self._record("runner_killed", job, why, runner.process)

    def _settle(self, job: JobRow) -> None:
        if job.desired is Desired.STOPPED:
            self._come_to_rest(job)
            return
        if job.state is JobState.FAILED or (job.desired is Desired.DRAINED and job.state is JobState.DRAINED):
            return
        deaths = self._deaths.get(job.name)
        if deaths is not None and job.restarts != deaths.restarts:
            del self._deaths[job.name]
        elif deaths is not None and not deaths.may_start():
            return
        if job.state is JobState.STOPPING:
            self._move(job.name, JobState.STOPPED)
        self._start(self._move(job.name, JobState.STARTING))

    def _come_to_rest(self, job: JobRow) -> None:
        self._deaths.pop(job.name, None)
        if job.state in (JobState.STOPPED, JobState.DRAINED):
            return
        if job.state not in (JobState.CREATED, JobState.FAILED, JobState.STOPPING):
            self._move(job.name, JobState.STOPPING)
        self._move(job.name, JobState.STOPPED, job.message)

    def _start(self, job: JobRow) -> None:
        lease = self._lease(job.name)
        process = self._standbys.take(job.name, lease)
        was_waiting = process is not None
        if process is None:
            try:
                process = RunnerProcess(self._data_dir, runner_name(job.name), self._command, job.name, lease)
            except OSError as error:
                self._judge(job, f"could not be started: {error}", Blame.MACHINE)
                return
        self._runners[job.name] = _Runner(process, lease, job.restarts)
        logger.info(
            "runner started", action="start", job=job.name, version=job.version, pid=process.pid, standby=was_waiting
        )

    def _handle_end(self, name: str, runner: _Runner) -> None:
        """Kill what is left of a runner that has ended, and judge how it ended."""
        runner.process.kill_tree()
        job = self._ledger.job(name)  # before the runner is forgotten: without the ledger the next look tries again
        code = self._reap(name, runner)
        if job.state in _RESTING or runner.process.is_told:
            logger.info("runner ended", action="end", job=name, code=code, state=job.state.value)
            return
        self._count_death(job, runner, code)

    def _reap(self, name: str, runner: _Runner) -> int:
        """Kill what is left of a runner and forget it; returns its exit code. Raises StackError."""
        code = runner.process.reap()
        del self._runners[name]
        return code

    def _count_death(self, job: JobRow, runner: _Runner, code: int) -> None:
        """Note a death in the ledger, and say when the next runner starts, or that the job has failed."""
        how = ending(code)
        runs = self._ledger.runs(job.name)
        if runs and runs[-1].pid == runner.process.pid:
            # Under the lease: on another machine, the run of a new leader may have the same pid.
            run = self._ledger.end_run(job.name, runs[-1].epoch, "died", how, lease=runner.lease)
            if run.message and run.message != how:
                how = f"{how} ({run.message})"  # it could still say why
        if was_sound(self._ledger, job, time.monotonic() - runner.process.began_at):
            self._deaths.pop(job.name, None)
        blame = blame_of(code, self._outside_answers)
        self._record("runner_died", job, f"the runner {how}; its log is {self._log(job.name)}", runner.process)
        self._judge(job, how, blame)

    def _judge(self, job: JobRow, how: str, blame: Blame) -> None:
        """Count a death, and say when the next runner starts, or that the job has failed."""
        checkpoint = self._ledger.last_checkpoint(job.name)
        slice_done = checkpoint.slice if checkpoint else 0
        deaths = self._deaths.get(job.name)
        if deaths is None or deaths.progress != slice_done:
            deaths = self._deaths[job.name] = JobDeaths(slice_done)
        deaths.restarts = job.restarts
        if too_often := deaths.note(blame, self._times.deaths_max, self._times.away_deaths_max):
            del self._deaths[job.name]
            message = (
                f"the runner {too_often}; the last time it {how}. Look at the end of {self._log(job.name)}, mend the cause, "
                f"then: strandline job start {job.name}"
            )
            self._move(job.name, JobState.FAILED, message)
            return
        pause_max_s = self._times.pause_max_s if blame is Blame.JOB else self._times.away_pause_max_s
        is_first = deaths.count == 0 and blame is Blame.JOB
        pause_s = deaths.add(0.0 if is_first else self._times.pause_first_s, pause_max_s)
        if job.desired is not Desired.STOPPED:
            how_often = f" ({deaths.count} ends in a row without progress)" if deaths.count > 1 else ""
            message = f"the runner {how}{how_often}; the next starts {f'in {pause_s:g} s' if pause_s else 'at once'}"
            self._move(job.name, JobState.STARTING, message)

    def _end_all(self) -> None:
        self._standbys.close()
        for runner in self._runners.values():
            runner.process.tell_to_end(self._times.close_patience_s)
        deadline = time.monotonic() + self._times.close_patience_s
        while time.monotonic() < deadline and not all(one.process.has_ended() for one in self._runners.values()):
            time.sleep(0.05)
        for name, runner in list(self._runners.items()):
            try:
                self._reap(name, runner)
            except (StackError, OSError) as error:
                logger.error("a runner did not end", action="close", job=name, error=str(error))

    def _lease(self, job: str) -> int:
        """The epoch of the lease on the job. Raises Fenced when this service has none."""
        lease = self._leadership.lease_of(job)
        if lease is None:
            raise Fenced(f"This control service does not lead job {job} any more.")
        return lease

    def _move(self, job: str, to: JobState, message: str = "") -> JobRow:
        return self._ledger.move_job(job, to, message, lease=self._lease(job))

    def _record(self, kind: str, job: JobRow, message: str, process: RunnerProcess) -> None:
        logger.warning(message, action=kind, job=job.name, epoch=job.epoch, pid=process.pid)
        self._ledger.record_event(kind, message, job.name, job.epoch, {"pid": process.pid})

    def _tell_of_standbys(self, message: str) -> None:
        logger.error(message, action="standby")
        self._ledger.record_event("standbys_given_up", message)

    def _log(self, name: str) -> Path:
        return self._data_dir / "logs" / f"{runner_name(name)}.log"


def _is_taken_back(job: JobRow) -> bool:
    """Whether the job is stopping or draining although that is no longer desired. No move leads back: it needs a new run."""
    if job.desired is Desired.RUNNING:
        return job.state in (JobState.STOPPING, JobState.DRAINING)
    return job.desired is Desired.DRAINED and job.state is JobState.STOPPING
