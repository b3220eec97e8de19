"""Examinations of the doctor that clients of a control service order.

Each runs in its own process, because a check can block, and because the service must keep responding. One runs at a time, and the
next can start some seconds after its end. So clients can't load the servers, on which an examination creates and deletes objects.
Only this control service knows the findings.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from pydantic import TypeAdapter, ValidationError

from strandline.core.described import Described
from strandline.core.errors import StackError
from strandline.ledger.database import now_ms
from strandline.services.doctor.examination import DEADLINE_S
from strandline.services.doctor.finding import State
from strandline.services.processes.worker_process import WorkerProcess

logger = structlog.get_logger()

KEPT_S = 10.0
"""Time in seconds after an examination in which no other one starts."""
_SECONDS_MAX = DEADLINE_S + 30.0
"""Maximum duration of the process, with its start."""
_NAME = "doctor"


@dataclass(frozen=True)
class FindingView(Described):
    """Finding of the doctor."""

    subject: str
    """Server or part that was examined, such as `Kafka` or `machine`."""
    state: State
    """`wrong`: something doesn't work. `warning`: a setting has a risk, or a limit is near."""
    message: str
    remedy: str
    """Next step; empty if the state is `ok`."""


@dataclass(frozen=True)
class ExaminationView(Described):
    """Last examination of the servers and the machine of a control service."""

    is_running: bool
    """True while an examination runs. The findings are those of the one before."""
    started_ms: int | None
    """Begin of the running examination, or of the last one. Null if there was none since this control service started."""
    ended_ms: int | None
    """End of the examination with these findings. Null if none has ended."""
    findings: list[FindingView]
    """Findings by subject. Empty if no examination has ended."""


_FINDINGS = TypeAdapter(list[FindingView])


def examination_command() -> Sequence[str]:
    """Return the command of an examination."""
    return [sys.executable, "-m", "strandline.services.jobs.examination_process"]


class Examinations:
    """Starts examinations and keeps the last findings. Can be used from any thread."""

    def __init__(
        self,
        data_dir: Path,
        *,
        command: Callable[[], Sequence[str]] = examination_command,
        kept_s: float = KEPT_S,
        seconds_max: float = _SECONDS_MAX,
    ) -> None:
        self._data_dir = data_dir
        self._command = command
        self._kept_s = kept_s
        self._seconds_max = seconds_max
        self._state = ExaminationView(is_running=False, started_ms=None, ended_ms=None, findings=[])
        self._ended_s: float | None = None
        self._running: tuple[WorkerProcess, threading.Thread] | None = None
        self._lock = threading.Lock()

    def start(self) -> ExaminationView:
        """Start an examination, and return immediately. While one runs, and for KEPT_S after it, this changes nothing."""
        with self._lock:
            is_kept = self._ended_s is not None and time.monotonic() - self._ended_s < self._kept_s
            if self._running is None and not is_kept:
                process = WorkerProcess(self._data_dir, _NAME, self._command(), stdout=subprocess.PIPE)
                thread = threading.Thread(target=self._follow, args=(process,), name=_NAME, daemon=True)
                self._running = process, thread
                self._state = replace(self._state, is_running=True, started_ms=now_ms())
                thread.start()
            return self._state

    def state(self) -> ExaminationView:
        """Return the last findings, and whether an examination runs."""
        with self._lock:
            return self._state

    def close(self) -> None:
        """Kill the running examination, if there is one."""
        with self._lock:
            running = self._running
        if running is not None:
            process, thread = running
            process.kill_tree()
            thread.join()

    def _follow(self, process: WorkerProcess) -> None:
        """Read the findings, and end the process. It ends at the latest after `seconds_max`."""
        killer = threading.Timer(self._seconds_max, process.kill_tree)
        killer.daemon = True
        killer.start()
        findings = None
        try:
            findings = self._read(process)
        finally:
            killer.cancel()
            with self._lock:
                self._running = None
                self._ended_s = time.monotonic()
                self._state = replace(self._state, is_running=False)
                if findings is not None:
                    self._state = replace(self._state, ended_ms=now_ms(), findings=findings)

    def _read(self, process: WorkerProcess) -> list[FindingView]:
        output = process.stdout.read()
        try:
            process.reap()
        except StackError as error:
            logger.warning("an examination can't be ended", action="examine", error=str(error))
        try:
            return _FINDINGS.validate_json(output)
        except ValidationError:  # the process was killed, or could not start
            remedy = f"see {process.log} on the machine of the control service, and run strandline doctor there"
            return [FindingView("doctor", State.WRONG, "the examination ended without findings", remedy)]
