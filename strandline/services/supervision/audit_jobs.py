"""Audits in the background: one process per audit, one audit at a time, and the state of each job's last audit.

Only this control service knows the states. An audit changes nothing, so a lost audit can be repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import structlog
from pydantic import TypeAdapter

from strandline.core.described import Described
from strandline.core.errors import Conflict, NotFound, StackError, StrandlineError
from strandline.ledger.roles import JournalLedger
from strandline.processing.audit.reconciliation import DIFFERENCES
from strandline.processing.audit.report import AuditReport, Outcome
from strandline.services.processes.worker_process import WorkerProcess

logger = structlog.get_logger()

_REPORT = TypeAdapter(AuditReport)


@dataclass(frozen=True)
class AuditState(Described):
    """Last audit of a job."""

    job: str
    state: Literal["running", "done", "failed"]
    requested_after_ms: int | None
    requested_up_to_ms: int | None
    started_ms: int
    step: str
    done: int
    total: int
    """Number of parts of the step; 0 while it is unknown."""
    message: str
    """Reason of a failure; empty otherwise."""
    report: AuditReport | None
    """Result of the audit; null until it is done."""


@dataclass(frozen=True)
class AuditSummary(Described):
    """Last audit of a job, without its report."""

    job: str
    state: Literal["running", "done", "failed"]
    requested_after_ms: int | None
    requested_up_to_ms: int | None
    started_ms: int
    step: str
    done: int
    total: int
    """Number of parts of the step; 0 while it is unknown."""
    message: str
    """Reason of a failure; empty otherwise."""
    outcome: Outcome | None
    """Outcome in the report; null until the audit is done."""
    differences: int | None
    """Number of all differences; null until the audit is done."""
    seconds: float | None
    """Duration of the audit; null until it is done."""


def audit_command(job: str, after_ms: int | None, up_to_ms: int | None) -> Sequence[str]:
    """Return the command of an audit."""
    command = [sys.executable, "-m", "strandline.processing.audit.process", "--job", job]
    if after_ms is not None:
        command += ["--after-ms", str(after_ms)]
    return command if up_to_ms is None else [*command, "--up-to-ms", str(up_to_ms)]


@dataclass(frozen=True)
class _Running:
    """The running audit."""

    job: str
    process: WorkerProcess
    thread: threading.Thread


class AuditJobs:
    """Starts audits and follows them. Can be used from any thread."""

    def __init__(
        self,
        ledger: JournalLedger,
        data_dir: Path,
        *,
        command: Callable[[str, int | None, int | None], Sequence[str]] = audit_command,
    ) -> None:
        self._ledger = ledger
        self._data_dir = data_dir
        self._command = command
        self._states: dict[str, AuditState] = {}
        self._running: _Running | None = None
        self._lock = threading.Lock()

    def start(self, job: str, after_ms: int | None, up_to_ms: int | None) -> AuditState:
        """Start an audit, and return immediately. While it runs, the same call again changes nothing.

        Raises NotFound. Raises Conflict while another audit runs, because each uses all cores, and for a job that can write a
        result twice.
        """
        guarantee = self._ledger.job_version(job).document.get("guarantee", "exactly_once")
        if guarantee != "exactly_once":
            raise Conflict(
                f"can't audit job {job} with the guarantee {guarantee}: each of its runs writes results under its own ids, so a "
                "result can occur twice. Only jobs with exactly_once can be audited"
            )
        with self._lock:
            if self._running is not None:
                present = self._states[self._running.job]
                if (job, after_ms, up_to_ms) == (present.job, present.requested_after_ms, present.requested_up_to_ms):
                    return present
                raise Conflict(
                    f"an audit of job {present.job} is running ({present.step}); try again when it has ended"
                )
            started_ms = time.time_ns() // 1_000_000
            state = AuditState(job, "running", after_ms, up_to_ms, started_ms, "starting", 0, 0, "", None)
            log = self._data_dir / "logs" / f"audit-{job}.log"
            log.unlink(missing_ok=True)
            command = self._command(job, after_ms, up_to_ms)
            process = WorkerProcess(self._data_dir, f"audit-{job}", command, stdout=subprocess.PIPE)
            thread = threading.Thread(target=self._follow, args=(job, process), name=f"audit-{job}", daemon=True)
            self._states[job], self._running = state, _Running(job, process, thread)
            thread.start()
            return state

    def state(self, job: str) -> AuditState:
        """Return the job's last audit. Raises NotFound if there was none since this control service started."""
        self._ledger.job(job)
        with self._lock:
            if job not in self._states:
                raise NotFound(
                    f"job {job} was not audited since the control service started; to audit it, POST to this path"
                )
            return self._states[job]

    def summaries(self) -> list[AuditSummary]:
        """Return the last audit of each job that was audited since this control service started, the newest first."""
        with self._lock:
            states = sorted(self._states.values(), key=lambda state: state.started_ms, reverse=True)
        return [_summary(state) for state in states]

    def is_idle(self) -> bool:
        """Return True if no audit runs."""
        with self._lock:
            return self._running is None

    def close(self) -> None:
        """Kill the running audit, if there is one."""
        with self._lock:
            running = self._running
        if running is not None:
            running.process.kill_tree()
            running.thread.join()

    def _follow(self, job: str, process: WorkerProcess) -> None:
        """Record the reports of the process until it ends, then kill its remaining child processes."""
        message = ""
        try:
            for line in process.stdout:
                self._hear(job, line)
            process.wait()
            message = f"the audit ended with code {process.reap()}; its log is {process.log}"
        except (StackError, OSError) as error:
            message = f"can't end the audit: {error}"
        finally:
            with self._lock:
                state = self._states[job]
                if state.state == "running":
                    self._states[job] = replace(state, state="failed", message=message)
                self._running = None
        logger.info("audit ended", action="audit", job=job, state=self._states[job].state)
        self._record_differences(job)

    def _record_differences(self, job: str) -> None:
        """Record an event if the audit found differences, so that notices and programs can react."""
        report = self._states[job].report
        if report is None or not report.differences:
            return
        found = [
            f"{store.store}: {', '.join(f'{count:,} {kind}' for kind, count in counts.items())}"
            for store in report.stores
            if (counts := {kind: store.counts[kind] for kind in DIFFERENCES if store.counts.get(kind)})
        ]
        found += [*report.totals_differences[:3], *report.event_time_differences[:3]]
        message = f"an audit of job {job} found {report.differences:,} differences: {'; '.join(found)}"
        facts = {"differences": report.differences, "slice_first": report.slice_first, "slice_last": report.slice_last}
        try:
            self._ledger.record_event("audit_found_differences", message, job, facts=facts)
        except StrandlineError as error:
            logger.error("can't record the differences of an audit", action="audit", job=job, error=str(error))

    def _hear(self, job: str, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return
        if not isinstance(said, dict):
            return
        with self._lock:
            state = self._states[job]
            if "progress" in said:
                self._states[job] = replace(state, **said["progress"])
            elif "report" in said:
                self._states[job] = replace(state, state="done", report=_REPORT.validate_python(said["report"]))
            elif "error" in said:
                self._states[job] = replace(state, state="failed", message=said["error"]["message"])


def _summary(state: AuditState) -> AuditSummary:
    report = state.report
    shown = {name: value for name, value in vars(state).items() if name != "report"}
    return AuditSummary(
        **shown,
        outcome=None if report is None else report.outcome,
        differences=None if report is None else report.differences,
        seconds=None if report is None else report.seconds,
    )
