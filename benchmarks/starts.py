"""Cost of the supervisor's rounds that start many jobs: `python -m benchmarks.starts --jobs 1 50 200`.

Uses a ledger in SQLite, and pools that accept orders and do nothing. So it measures the control service only. Prints one JSON
object for each number of jobs: the wall time and the CPU time of four rounds. In the rounds `claimed` and `taken_over`, a service
claims the jobs and starts them. In `pool_killed`, it starts them in the spare pool, and in `idle`, it does nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
import structlog

from benchmarks.jobs import document
from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.database import Database
from strandline.ledger.ledger import Ledger
from strandline.ledger.models import checkpoints, slices
from strandline.ledger.states import NO_TOTALS, CheckpointRow, EventTimeRule, JobState, SliceKind, SliceRow, SliceStatus
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.services.supervision.leadership import ServiceIdentity, new_service_name
from strandline.services.supervision.placement import pool_placement
from strandline.services.supervision.pools import Pools
from strandline.services.supervision.supervision_times import SupervisionTimes
from strandline.services.supervision.supervisor import Supervisor

IDLE = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
"""Command of a pool that does nothing. Its orders wait in the pipe."""
Figures = dict[str, dict[str, float]]


class Bench:
    """A ledger with jobs, and one control service at a time."""

    def __init__(self, directory: Path, job_count: int, slice_count: int) -> None:
        self.directory = directory
        url = f"sqlite:///{directory / 'ledger.sqlite'}"
        self.ledger, self.database = Ledger.open(url), Database(url)
        self.jobs = [f"job-{number}" for number in range(job_count)]
        for job in self.jobs:
            stream, pipeline = read_documents(document(job), "benchmark")
            self.ledger.put_stream(f"of-{job}", StreamSpec.parse(stream).as_document())
            self.ledger.submit_job(job, "", PipelineSpec.parse(pipeline).as_document())
            self.ledger.begin_run(job, 1)
            self._add_slices(job, slice_count)

    def _add_slices(self, job: str, count: int) -> None:
        offsets = [{f"of-{job}": {0: 10 * number, 1: 10 * number}} for number in range(count + 1)]
        rule, now_ms = EventTimeRule(1_000, None), time.time_ns() // 1_000_000
        rows = [
            SliceRow(
                job, at, 1, 1, offsets[at - 1], offsets[at], now_ms, now_ms, rule, {}, {}, SliceKind.LIVE, SliceStatus.COMMITTED,
                now_ms,
            )
            for at in range(1, count + 1)
        ]  # fmt: skip
        done = [
            CheckpointRow(job, at, 1, 1, {"tens": now_ms}, now_ms, now_ms, 20, 20, {}, {"tens": 10}, {0: 0}, now_ms)
            for at in range(1, count + 1)
        ]
        with self.database.writing("add slices") as connection:
            connection.execute(sa.insert(slices), [vars(row) for row in rows])
            connection.execute(sa.insert(checkpoints), [vars(row) | NO_TOTALS.columns for row in done])

    @contextmanager
    def service(self, number: int) -> Iterator[Supervisor]:
        """Yield the supervisor of a control service that is announced. It does nothing by itself: call `_look`."""
        directory = self.directory / f"service-{number}"
        (directory / "logs").mkdir(parents=True)
        service = ServiceIdentity(new_service_name(), "", str(directory))
        pools = Pools(directory, 10_000, lambda _directory, _alive_fd: IDLE, has_spare=True)
        supervisor = Supervisor(
            self.ledger,
            directory,
            service=service,
            pools=pools,
            placement=pool_placement(self.ledger, []),
            times=SupervisionTimes(close_patience_s=0),
        )
        supervisor._leadership.start()
        while not supervisor._leadership._is_announced:
            time.sleep(0.01)
        pools.keep()
        try:
            yield supervisor
        finally:
            supervisor._end_all()
            supervisor._leadership.close()

    def run_all(self) -> None:
        """Do in the ledger what the runs of a real pool do."""
        for job in self.jobs:
            run = self.ledger.begin_run(job, 1)
            self.ledger.move_job(job, JobState.RUNNING, epoch=run.epoch)

    def measure(self) -> Figures:
        figures: Figures = {}
        with self.service(1) as supervisor:
            figures["claimed"] = self._round(supervisor)
            self.run_all()
            figures["idle"] = self._round(supervisor)
            assert supervisor._pools is not None
            (pool,) = supervisor._pools._pools
            os.kill(pool.pid, signal.SIGKILL)
            while not pool.has_ended():
                time.sleep(0.01)
            figures["pool_killed"] = self._round(supervisor)
            self.run_all()
        with self.service(2) as supervisor:
            figures["taken_over"] = self._round(supervisor)
        return figures

    def _round(self, supervisor: Supervisor) -> dict[str, float]:
        """Return the wall time and CPU time of one round, after which all jobs are in a pool."""
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        supervisor._look()
        wall_s, cpu_s = time.monotonic() - began_s, time.thread_time() - began_cpu_s
        assert supervisor._pools is not None
        placed = {one.job for pool in supervisor._pools._pools for one in pool.runners.values()}
        assert placed == set(self.jobs), "all jobs are started"
        return {"wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3)}


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 50, 200])
    parser.add_argument("--slices", type=int, default=100, help="committed slices of each job")
    parser.add_argument("--directory", type=Path, help="disk to measure; by default, that of temporary files")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for count in asked.jobs:
        with tempfile.TemporaryDirectory(prefix="strandline-starts-", dir=asked.directory) as directory:
            print(json.dumps({"jobs": count} | Bench(Path(directory), count, asked.slices).measure()), flush=True)


if __name__ == "__main__":
    main()
