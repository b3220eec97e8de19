"""A runner of several jobs: one Spark application, one pool, and one thread for each job, which begins and ends its runs."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import structlog
from pyspark.sql import SparkSession

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.ledger.roles import RunLedger
from strandline.log.index import LogIndex
from strandline.processing.emission.pool_task import PoolDirectory, PoolTask
from strandline.processing.emission.work_marks import FoundMark, forget_marks, marks_of_living
from strandline.processing.pipelines.stored import load_parts
from strandline.processing.run.exit_codes import EXIT_DONE, EXIT_TRY_AGAIN, exit_code_of
from strandline.processing.run.pool import Pool
from strandline.processing.run.pool_orders import EndOrder, PoolReports, StartOrder, decode_order
from strandline.processing.run.pool_watch import PoolWatch
from strandline.processing.run.query import SharedPool
from strandline.processing.run.runner import Runner
from strandline.processing.run.shared_starts import SharedStarts
from strandline.processing.run.start_turn import StartTurns
from strandline.processing.run.watchdog import end_process_group
from strandline.processing.spark.pool_batches import PoolBatches
from strandline.processing.spark.scratch import scratch_checkpoint, scratch_directory
from strandline.processing.spark.session import start_spark

log = structlog.get_logger()

_NAME = "pool"
_POLL_S, _POLL_MAX_S = 0.1, 1.0
"""How often the log is looked at for members without new records: at first, and later. Hundreds of them must cost little."""
_FETCH_S, _STORE_S = 10.0, 15.0
"""Maximum time in seconds for which a batch waits for the log and for Elasticsearch. Other members wait meanwhile."""
_LOOK_S = 0.2
_ORDERS_BYTES = 65_536
_STARTS_MAX = 10
"""Number of runs that prepare at once. They share requests, and mostly wait for servers. With more of them, the thread of the
pool, which all members need, would rarely have its turn in Python."""
_REPORT_PAUSE_S = 1.0


class _Started(NamedTuple):
    """The newest start of a job in the pool."""

    runner: Runner
    thread: threading.Thread
    number: int
    """Number of the order."""


class PoolRunner:
    """Runs jobs in one Spark application until each of them is stopped or drained, or fails."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession | None = None,
        *,
        reports: PoolReports | None = None,
        alive_fd: int | None = None,
    ) -> None:
        """With `spark`, that session is used, and left running. `reports`: where the control service finds the ends of runs."""
        self._settings, self._spark = settings, spark
        self._reports, self._alive_fd = reports, alive_fd
        self._closing = ExitStack()
        self._shared: SharedPool | None = None
        self._started: dict[str, _Started] = {}
        self._codes: dict[str, int] = {}
        self._stop_now = threading.Event()

    def run(self, jobs: Sequence[str], orders_fd: int | None = None) -> int:
        """Run these jobs, and those of the orders. Return the exit code: that of the first job that ended otherwise than as
        ordered, and EXIT_DONE for orders."""
        with self._closing:
            self._open()
            for number, job in enumerate(jobs):
                self.join(StartOrder(job, None, number))
            if orders_fd is not None:
                self._obey(orders_fd)
            for one in list(self._started.values()):
                one.thread.join()
        return next((code for code in self._codes.values() if code != EXIT_DONE), EXIT_DONE)

    def stop_now(self, *_signal: int | FrameType | None) -> None:
        """End all runs at once; the next runs do their slices again. The desired states of the jobs stay."""
        self._stop_now.set()
        for one in list(self._started.values()):
            one.runner.stop_now()

    def join(self, order: StartOrder) -> None:
        """Let this job run in the pool, beginning with a new run. The other jobs go on."""
        assert self._shared is not None and self._spark is not None, "the pool is open"
        before = self._started.get(order.job)
        runner = Runner(
            self._settings,
            order.job,
            self._spark,
            lease=order.lease,
            pool=replace(self._shared, is_alone_at_first=order.alone),
        )
        if self._stop_now.is_set():
            runner.stop_now()
        thread = threading.Thread(
            target=self._run_job, args=(order, runner, before), name=f"run-{order.job}", daemon=True
        )
        self._started[order.job] = _Started(runner, thread, order.number)
        thread.start()

    def end(self, order: EndOrder) -> None:
        """End this run of the job, if it still runs."""
        found = self._started.get(order.job)
        if found is not None and found.number == order.number:
            found.runner.stop_now()

    def _obey(self, orders_fd: int) -> None:
        """Execute orders until a signal, or until the control service has ended and no run is left."""
        assert self._shared is not None, "the pool is open"
        held = b""
        while not self._stop_now.is_set():
            if not self._shared.pool.is_alive:
                self._codes["the pool"] = EXIT_TRY_AGAIN  # a new process is needed
                return
            if not select.select([orders_fd], [], [], _LOOK_S)[0]:
                continue
            found = os.read(orders_fd, _ORDERS_BYTES)
            if not found:
                return  # the control service has ended; the ledger decides whether the runs go on
            *lines, held = (held + found).split(b"\n")
            self._obey_each(decode_order(line) for line in lines)

    def _obey_each(self, orders: Iterable[StartOrder | EndOrder]) -> None:
        for order in orders:
            if isinstance(order, StartOrder):
                self.join(order)
            else:
                self.end(order)

    def _run_job(self, order: StartOrder, runner: Runner, before: _Started | None) -> None:
        code = EXIT_TRY_AGAIN
        try:
            if before is not None:
                before.runner.stop_now()
                before.thread.join()
            code = runner.run()
        except Exception:
            log.exception("a member of the pool met a defect", job=order.job)
        self._codes[order.job] = code
        log.info("job left the pool", job=order.job, exit_code=code)
        if self._reports is not None:
            self._report_end(self._reports, order, code)

    def _report_end(self, reports: PoolReports, order: StartOrder, code: int) -> None:
        while True:
            try:
                reports.ended(order.number, code)
                return
            except OSError as error:  # the disk is full
                log.error("can't report the end of a run", job=order.job, error=str(error))
                time.sleep(_REPORT_PAUSE_S)  # sleeps: until there is space

    def _report_batch(self, jobs: Sequence[str]) -> None:
        if self._reports is None:
            return
        try:
            self._reports.batch(jobs)
        except OSError as error:  # the disk is full; only the name of a job that ends the pool is missing
            log.warning("can't report a batch", error=str(error))

    def _open(self) -> None:
        settings, opened = self._settings, self._closing
        scratch = opened.enter_context(scratch_directory(settings, _NAME))
        checkpoint = opened.enter_context(scratch_checkpoint(settings, scratch, _NAME))
        directory = PoolDirectory(checkpoint)
        watch = PoolWatch(
            self._alive_fd, lambda: marks_of_living(directory.marks), settings.pool_slice_s_max, self._move_out
        )
        watch.start()
        opened.callback(watch.close)
        if self._spark is None:
            self._spark = start_spark(settings, _NAME, scratch)
            opened.callback(self._spark.stop)
        watch.require_java = self._spark._jsc.sc().isStopped
        ledger = opened.enter_context(closing(RunLedger.open(settings.ledger_url)))
        index = opened.enter_context(LogIndex(settings.kafka_bootstrap, patience_s=0))
        turns = opened.enter_context(closing(StartTurns(_STARTS_MAX, lambda: LogIndex(settings.kafka_bootstrap))))
        task = PoolTask(
            directory,
            settings.kafka_bootstrap,
            fetch_timeout_s=_FETCH_S,
            store_timeout_s=_STORE_S,
            is_tried_once=True,
        )
        batches = PoolBatches(self._spark, task, on_lost_java=end_process_group)
        batches.warm_up(self._spark.sparkContext.defaultParallelism)
        load_parts()
        pool = Pool(
            batches,
            ledger,
            index,
            self._spark.sparkContext.defaultParallelism,
            poll_s=_POLL_S,
            poll_max_s=_POLL_MAX_S,
            state_bytes_max=settings.pool_state_bytes_max,
            cores_max=settings.pool_cores_max,
            on_batch=self._report_batch,
        )
        opened.callback(pool.start().stop)
        self._shared = SharedPool(pool, directory, index, ledger, turns, SharedStarts(ledger))
        log.info("standing by")

    def _move_out(self, mark: FoundMark, why: str) -> None:
        assert self._shared is not None, "workers have marks only after the pool is open"
        self._shared.pool.move_out(mark.job, why)
        with suppress(ProcessLookupError):
            os.kill(mark.pid, signal.SIGKILL)  # Spark waits for a worker that hangs in native code
        forget_marks(self._shared.directory.marks, [mark.pid])


def run_pool(
    settings: Settings, jobs: Sequence[str], directory: Path | None = None, alive_fd: int | None = None
) -> int:
    """Run these jobs in this process, until a signal or their end. Return the exit code. With `directory`, the jobs come by
    orders on stdin, and the reports go to this directory."""
    reports = PoolReports(directory) if directory is not None else None
    runner = PoolRunner(settings, reports=reports, alive_fd=alive_fd)
    signal.signal(signal.SIGTERM, runner.stop_now)
    signal.signal(signal.SIGINT, runner.stop_now)
    try:
        return runner.run(list(dict.fromkeys(jobs)), sys.stdin.fileno() if directory is not None else None)
    except StrandlineError as error:
        log.error("the pool cannot start", code=error.code, message=str(error))
        return exit_code_of(error)
