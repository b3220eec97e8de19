"""Makes the class archive, once for each Java and Spark: a JVM runs the warm-up query and, when it ends, archives the classes
that it loaded.

`python -m strandline.processing.spark.class_archive_maker` makes it if it is not there.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from pyspark import SparkContext

from strandline.core.errors import StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.processing.spark.class_archive import QUIET, archive_directory, archive_key, find_archive, sum_of, sweep
from strandline.processing.spark.scratch import scratch_directory
from strandline.processing.spark.session import start_spark
from strandline.processing.spark.warm_up import warm_up

log = structlog.get_logger()

_LOOK_S = 0.1
_WRITE_S = 120.0
"""How long a JVM may take to write its archive, which needs some 10 s of one core."""
_PROVIDE_S = 300.0
"""How long a standby waits for its archive before it starts without one: on a busy machine a process that yields to all others
may get no time at all."""
_NICENESS = 19


def provide_archive(settings: Settings, is_awaited: Callable[[], bool]) -> None:
    """Make the archive if it is missing, in another process with the lowest priority. Stop when `is_awaited` returns True,
    because a job needs the CPU, or after `_PROVIDE_S` seconds.

    A failure of that process is ignored, because an archive only saves time.
    """
    if find_archive(settings.cache_dir) is not None:
        return
    making = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.DEVNULL, start_new_session=True)
    os.setpriority(os.PRIO_PROCESS, making.pid, _NICENESS)
    gives_up_at = time.monotonic() + _PROVIDE_S
    while making.poll() is None:
        if is_awaited() or time.monotonic() > gives_up_at:
            os.killpg(making.pid, signal.SIGKILL)
            making.wait()
        time.sleep(_LOOK_S)


def make_archive(settings: Settings) -> Path:
    """Make the archive if it doesn't exist, and return its path. If another process makes it, wait for that.

    Raises StrandlineError if Spark can't be started or fails, OSError if the cache can't be written.
    """
    directory = archive_directory(settings.cache_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (archive := find_archive(settings.cache_dir)) is not None:
            return archive
        sweep(directory)
        began = time.monotonic()
        new = directory / f"{archive_key()}.new"
        with scratch_directory(settings, "classes") as scratch:
            spark = start_spark(
                settings.model_copy(update={"spark_master": "local[*]"}),
                "classes",
                scratch,
                java_options=f'"-XX:ArchiveClassesAtExit={new}" {QUIET}',
            )
            warm_up(spark, settings.kafka_bootstrap, scratch / "checkpoint", lambda: False)
            spark.stop()
            _end_java()
        if not new.exists():
            log.warning("this Java writes no class archive; jobs start without one")
            new.touch()
        archive = new.replace(new.with_suffix(f".{sum_of(new)}.jsa"))
        log.info("class archive made", archive=str(archive), seconds=round(time.monotonic() - began, 1))
    return archive


def _end_java() -> None:
    """Let the JVM of this process exit, and wait while it writes its archive. Raises StrandlineError if that fails."""
    java = SparkContext._gateway.proc  # type: ignore[union-attr]  # Spark starts it, and ends it with this process
    java.stdin.close()
    try:
        ended = java.wait(_WRITE_S)
    except subprocess.TimeoutExpired as error:
        java.kill()
        raise StrandlineError(
            f"Spark's JVM did not write its class archive within {_WRITE_S:g} s. Spark starts without it, but "
            "slower; try again when the machine is less loaded"
        ) from error
    if ended != 0:
        raise StrandlineError(
            f"Spark's JVM ended with exit code {ended} while it wrote its class archive. Spark starts without "
            "it, but slower; free space in STRANDLINE_CACHE_DIR, and see the output of the JVM"
        )


def main() -> int:
    settings = Settings()
    configure_logs(as_json=settings.log_json)
    try:
        make_archive(settings)
    except (StrandlineError, OSError) as error:
        log.warning("no class archive could be made; jobs start without one", error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
