"""A runner of several jobs: one Spark application, one pool, and one thread for each job, which begins and ends its runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from types import FrameType

import structlog
from pyspark.sql import SparkSession

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.ledger.roles import RunLedger
from strandline.log.index import LogIndex
from strandline.processing.emission.pool_task import PoolDirectory, PoolTask
from strandline.processing.run.exit_codes import EXIT_DONE, EXIT_TRY_AGAIN, exit_code_of
from strandline.processing.run.pool import Pool
from strandline.processing.run.query import SharedPool
from strandline.processing.run.runner import Runner
from strandline.processing.spark.pool_batches import PoolBatches
from strandline.processing.spark.scratch import scratch_checkpoint, scratch_directory
from strandline.processing.spark.session import start_spark

log = structlog.get_logger()

_NAME = "pool"
_POLL_S = 0.1
"""How often the log is looked at for members without new records."""


class PoolRunner:
    """Runs jobs in one Spark application until each of them is stopped or drained, or fails."""

    def __init__(self, settings: Settings, spark: SparkSession | None = None) -> None:
        """With `spark`, that session is used, and left running."""
        self._settings, self._spark = settings, spark
        self._closing = ExitStack()
        self._shared: SharedPool | None = None
        self._runners: dict[str, tuple[Runner, threading.Thread]] = {}
        self._codes: dict[str, int] = {}
        self._stop_now = threading.Event()

    def run(self, jobs: Sequence[str]) -> int:
        """Run these jobs, and return the exit code: that of the first job that ended otherwise than as ordered."""
        with self._closing:
            self._open()
            for job in jobs:
                self.join(job)
            for _, thread in self._runners.values():
                thread.join()
        return next((code for code in self._codes.values() if code != EXIT_DONE), EXIT_DONE)

    def stop_now(self, *_: int | FrameType | None) -> None:
        """End all runs at once; the next runs do their slices again. The desired states of the jobs stay."""
        self._stop_now.set()
        for runner, _thread in self._runners.values():
            runner.stop_now()

    def join(self, job: str) -> None:
        """Let this job run in the pool, beginning with a new run. The other jobs go on."""
        assert self._shared is not None and self._spark is not None, "the pool is open"
        runner = Runner(self._settings, job, self._spark, pool=self._shared)
        if self._stop_now.is_set():
            runner.stop_now()
        thread = threading.Thread(target=self._run_job, args=(job, runner), name=f"run-{job}", daemon=True)
        self._runners[job] = runner, thread
        thread.start()

    def _run_job(self, job: str, runner: Runner) -> None:
        code = EXIT_TRY_AGAIN
        try:
            code = runner.run()
        except Exception:
            log.exception("a member of the pool met a defect", job=job)
        self._codes[job] = code
        log.info("job left the pool", job=job, exit_code=code)

    def _open(self) -> None:
        settings, opened = self._settings, self._closing
        scratch = opened.enter_context(scratch_directory(settings, _NAME))
        if self._spark is None:
            self._spark = start_spark(settings, _NAME, scratch)
            opened.callback(self._spark.stop)
        checkpoint = opened.enter_context(scratch_checkpoint(settings, scratch, _NAME))
        ledger = opened.enter_context(closing(RunLedger.open(settings.ledger_url)))
        index = opened.enter_context(LogIndex(settings.kafka_bootstrap, patience_s=0))
        directory = PoolDirectory(checkpoint)
        batches = PoolBatches(self._spark, PoolTask(directory, settings.kafka_bootstrap, is_tried_once=True))
        pool = Pool(batches, ledger, index, self._spark.sparkContext.defaultParallelism, poll_s=_POLL_S)
        opened.callback(pool.start().stop)
        self._shared = SharedPool(pool, directory, index, ledger)


def run_pool(settings: Settings, jobs: Sequence[str]) -> int:
    """Run these jobs in this process, until a signal or their end. Return the exit code."""
    runner = PoolRunner(settings)
    signal.signal(signal.SIGTERM, runner.stop_now)
    signal.signal(signal.SIGINT, runner.stop_now)
    try:
        return runner.run(list(dict.fromkeys(jobs)))
    except StrandlineError as error:
        log.error("the pool cannot start", code=error.code, message=str(error))
        return exit_code_of(error)
