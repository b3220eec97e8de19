"""The process of a runner: `python -m strandline.processing.run.process --job NAME`. With `--standby` it gets its job later, as a
line of JSON on stdin: `{"job": ..., "lease": ..., "log": ...}`. With `--pool JOB JOB`, it runs several jobs.

Its exit codes are in `exit_codes.py`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import structlog
from pyspark.sql import SparkSession

from strandline.core.errors import StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.processing.run.exit_codes import exit_code_of
from strandline.processing.run.pool_runner import run_pool
from strandline.processing.run.runner import Runner
from strandline.processing.run.standby import stand_by

log = structlog.get_logger()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="strandline-runner", description="Runs jobs until they are stopped.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--job", help="the job's name")
    what.add_argument("--pool", metavar="JOB", nargs="*", help="names of jobs that one Spark application runs")
    what.add_argument("--standby", action="store_true", help="warm up Spark, then wait on stdin for a job")
    parser.add_argument("--pool-dir", type=Path, help="with --pool: run the jobs of orders on stdin, and report here")
    parser.add_argument("--lease", type=int, help="the epoch of the leader's lease; none: run without a leader")
    parser.add_argument("--alive-fd", type=int, help="a file descriptor to show signs of life in")
    options = parser.parse_args(arguments)
    settings = Settings()
    logs = settings.data_dir / "logs"
    configure_logs(as_json=settings.log_json, logs_of_jobs=logs if options.pool_dir is not None else None)

    def run_job(job: str, lease: int | None, spark: SparkSession | None = None) -> int:
        try:
            runner = Runner(settings, job, spark, lease=lease, alive_fd=options.alive_fd, is_alone=True)
        except StrandlineError as error:
            log.error("the runner cannot start", job=job, code=error.code, message=str(error))
            return exit_code_of(error)
        signal.signal(signal.SIGTERM, runner.stop_now)
        signal.signal(signal.SIGINT, runner.stop_now)
        return runner.run()

    if options.pool is not None:
        return run_pool(settings, options.pool, options.pool_dir, options.alive_fd)
    if options.standby:
        return stand_by(settings, run_job)
    return run_job(options.job, options.lease)


if __name__ == "__main__":
    sys.exit(main())
