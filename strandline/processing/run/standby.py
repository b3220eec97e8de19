"""A standby: a process that has Spark running and warm before it has a job."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable

import structlog
from pyspark.sql import SparkSession

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.processing.run.exit_codes import EXIT_DONE, EXIT_TRY_AGAIN
from strandline.processing.spark.class_archive_maker import provide_archive
from strandline.processing.spark.scratch import scratch_checkpoint, scratch_directory
from strandline.processing.spark.session import start_spark
from strandline.processing.spark.warm_up import warm_up

log = structlog.get_logger()


def stand_by(settings: Settings, run_job: Callable[[str, int, SparkSession], int]) -> int:
    """Warm up, wait for a job, run it with `run_job` (job, lease, session), and return the exit code.

    1. Make the class archive if there is none, start Spark, and run a small query, step by step, until a job comes.
    2. Read the job from stdin: one line of JSON. When stdin ends without one, the control service has ended; so does the standby.
    3. Run the job on the warm session, with the job's own log file.
    """
    try:
        with scratch_directory(settings, "standby") as scratch:
            provide_archive(settings, _is_job_waiting)
            spark = start_spark(settings, "standby", scratch)
            with scratch_checkpoint(settings, scratch, "standby") as checkpoint:
                warm_up(spark, settings.kafka_bootstrap, checkpoint, _is_job_waiting)
            log.info("standing by")
            line = sys.stdin.readline()
            if not line:
                return EXIT_DONE
            order = json.loads(line)
            with open(order["log"], "ab") as output:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                    os.dup2(output.fileno(), stream.fileno())
            return run_job(order["job"], order["lease"], spark)
    except StrandlineError as error:
        log.error("the standby cannot start", code=error.code, message=str(error))
        return EXIT_TRY_AGAIN


def _is_job_waiting() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])
