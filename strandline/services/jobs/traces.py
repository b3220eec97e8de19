"""Traces of records and results: each runs in a process of its own, with limits of time and memory."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import BoundedSemaphore, Lock

from strandline.core.errors import NotFound, PermanentError, TooExpensive, TransientError
from strandline.ledger.roles import LedgerReader
from strandline.processing.lineage.process import MEMORY_BYTES_MAX, SECONDS_MAX, TraceOutcome
from strandline.processing.lineage.views import (
    UPDATES_REMEDY,
    OpenWindows,
    RecordLife,
    ResultSources,
    SourceRecord,
)
from strandline.processing.pipelines.stored import inputs_of
from strandline.services.jobs.result_records import origin_of
from strandline.services.processes.worker_process import WorkerProcess

_WAIT_S = 20.0
_WAITING_MAX = 4


def trace_command(job: str, arguments: Sequence[str]) -> Sequence[str]:
    """Return the command of a trace."""
    return [sys.executable, "-m", "strandline.processing.lineage.process", "--job", job, *arguments]


class Traces:
    """Runs one trace at a time. Thread-safe."""

    def __init__(
        self, data_dir: Path, *, command: Callable[[str, Sequence[str]], Sequence[str]] = trace_command
    ) -> None:
        self._data_dir = data_dir
        self._command = command
        self._numbers = count(1)
        self._turn = Lock()
        self._places = BoundedSemaphore(_WAITING_MAX)

    def of_record(self, ledger: LedgerReader, job: str, stream: str, partition: int, offset: int) -> RecordLife:
        """Return the life of a record in a job.

        Raises NotFound; Conflict for a job whose results can lack records; TooExpensive; TransientError while too many traces
        wait; LogTruncated if the log no longer contains records that the trace reads.
        """
        streams = inputs_of(ledger, job, ledger.job(job).version)
        if stream not in streams:
            raise NotFound(f"job {job} doesn't read stream {stream}; it reads {' and '.join(streams)}")
        found = self._run(job, ["record", stream, str(partition), str(offset)])
        assert isinstance(found, RecordLife)
        return found

    def of_result(
        self, ledger: LedgerReader, elasticsearch_url: str, job: str, alias: str, document: str
    ) -> ResultSources:
        """Return the records of a result of an alias. Raises as `of_record`, and IndexUnavailable."""
        ledger.job(job)
        origin = origin_of(elasticsearch_url, alias, document)
        if "offset" in origin:  # an emitted record
            place = SourceRecord(origin["stream"], origin["partition"], origin["offset"])
            facts = origin["stage"], document, origin["version"], origin["emission"]
            return ResultSources(job, *facts, records=[place], record_count=1, records_read=0)
        arguments = [origin["stage"], document, str(origin["version"]), str(origin["emission"])]
        found = self._run(job, ["result", *arguments])
        assert isinstance(found, ResultSources)
        return found

    def of_windows(self, ledger: LedgerReader, job: str, stage: str | None, key: str) -> OpenWindows:
        """Return the open windows of a job after its last committed slice. Raises as `of_record`.

        Args: stage: Only windows of this stage. None for all. key: Only windows with a key value that contains this text.
        """
        ledger.job(job)
        options = ["windows", f"--key={key}", *([] if stage is None else [f"--stage={stage}"])]
        found = self._run(job, options, UPDATES_REMEDY)
        assert isinstance(found, OpenWindows)
        return found

    def _run(self, job: str, arguments: Sequence[str], remedy: str = "") -> RecordLife | ResultSources | OpenWindows:
        """`remedy`: what to do if the process exceeds its limits. Empty for traces of records and results."""
        with self._one_at_a_time():
            name = f"trace-{next(self._numbers)}"
            process = WorkerProcess(
                self._data_dir, name, self._command(job, arguments), mark=".trace", stdout=subprocess.PIPE
            )
            try:
                pickled = process.stdout.read()  # the process ends itself after SECONDS_MAX
            finally:
                process.reap()
                log = process.log.read_text(errors="replace")[-500:] if process.log.exists() else ""
                process.log.unlink(missing_ok=True)
        if not pickled:
            raise TooExpensive(
                f"the trace took longer than {SECONDS_MAX} s, or needed more than {MEMORY_BYTES_MAX >> 30} GiB, and was ended. "
                + (remedy or f"Choose a record whose windows are shorter, or audit the job: strandline job audit {job}")
                + (f". Its last output: {log.strip()}" if log.strip() else "")
            )
        answer = pickle.loads(pickled)  # noqa: S301  # from our own child
        assert isinstance(answer, TraceOutcome)
        if answer.error is not None:
            raise answer.error
        if answer.value is None:
            raise PermanentError("the trace has no result; see the log of the control service")
        return answer.value

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise TransientError("other traces are waiting; try again in some seconds")
        try:
            if not self._turn.acquire(timeout=_WAIT_S):
                raise TransientError("another trace is running; try again in some seconds")
            try:
                yield
            finally:
                self._turn.release()
        finally:
            self._places.release()
