"""An archive of the classes that Spark loads, so that a JVM maps them instead of reading, checking and linking each again.

It is a dynamic archive of the JVM (JEP 350), made once for a Java and a Spark in the cache, by a JVM that runs the warm-up query
and writes down at its end what it has loaded. A good part of a cold start's CPU time goes into that otherwise. The JVM
itself checks that an archive fits, and goes on without one that doesn't.

`python -m strandline.processing.class_archive` makes it if it is not there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyspark
import structlog
from pyspark import SparkContext

from strandline.core.errors import StrandlineError
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings

log = structlog.get_logger()

_LOOK_S = 0.1
_WRITE_S = 120.0
"""So long a JVM may take to write its classes down: some 10 s of one core."""
_WRITERS_NICENESS = 19
_QUIET = "-Xlog:cds*=off"
"""It would tell of each class that can't be archived, and each start when an archive doesn't fit."""


def use_archive(cache_dir: Path) -> str:
    """The options by which a JVM takes its classes from the archive; none where there is none.

    One that is not as it was written is removed: a JVM dies of a torn one.
    """
    try:
        archive = find_archive(cache_dir)
        if archive is None or archive.stat().st_size == 0:
            return ""
        if _sum_of(archive) in archive.name:
            return f'"-XX:SharedArchiveFile={archive}" {_QUIET}'
        log.warning("the class archive is not as it was written; it is removed", archive=str(archive))
        archive.unlink()
    except OSError as error:  # another process may have removed it
        log.warning("the class archive can't be read", error=str(error))
    return ""


def find_archive(cache_dir: Path) -> Path | None:
    """The archive for this Java and this Spark: KEY.SUM.jsa. An empty one says that this Java can't make any."""
    return next(_directory(cache_dir).glob(f"{_key()}.*.jsa"), None)


def _directory(cache_dir: Path) -> Path:
    return cache_dir / "java-classes"


def _key() -> str:
    home = os.environ.get("JAVA_HOME")
    java = Path(f"{home}/bin/java" if home else shutil.which("java") or "java").resolve()
    jars = Path(pyspark.__file__).parent / "jars"
    made_for = [f"{path} {path.stat().st_mtime_ns if path.exists() else 0}" for path in (java, jars)]
    return hashlib.sha256("\n".join([*made_for, pyspark.__version__]).encode()).hexdigest()[:16]


def _sum_of(archive: Path) -> str:
    with archive.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]


def provide_archive(settings: Settings, is_awaited: Callable[[], bool]) -> None:
    """Have the archive made if it is not there, in another process; give up when a job `is_awaited`.

    Never fails for want of one: it only saves time.
    """
    if find_archive(settings.cache_dir) is not None:
        return
    making = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.DEVNULL, start_new_session=True)
    while making.poll() is None:
        if is_awaited():
            os.killpg(making.pid, 9)
            making.wait()
        time.sleep(_LOOK_S)


def make_archive(settings: Settings) -> Path:
    """Make the archive, unless it is there or another process is at it; return where it is.

    Raises StrandlineError when Spark can't be started, OSError when the cache can't be written.
    """
    # Both import this module.
    from strandline.processing.spark_session import start_spark
    from strandline.processing.warm_up import warm_up

    directory = _directory(settings.cache_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (archive := find_archive(settings.cache_dir)) is not None:
            return archive
        began = time.monotonic()
        new = directory / f"{_key()}.new"
        new.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="strandline-classes-") as scratch:
            spark = start_spark(
                settings, "classes", Path(scratch), java_options=f'"-XX:ArchiveClassesAtExit={new}" {_QUIET}'
            )
            warm_up(spark, settings.kafka_bootstrap, Path(scratch), lambda: False)
            spark.stop()
            _end_java()
        if not new.exists():
            log.warning("this Java writes no class archive; jobs start without one")
            new.touch()
        archive = new.replace(new.with_suffix(f".{_sum_of(new)}.jsa"))
        log.info("class archive made", archive=str(archive), seconds=round(time.monotonic() - began, 1))
    return archive


def _end_java() -> None:
    """Let the JVM of this process end by itself: it writes its archive then."""
    java = SparkContext._gateway.proc  # type: ignore[union-attr]  # Spark starts it, and ends it with this process
    java.stdin.close()
    try:
        ended = java.wait(_WRITE_S)
    except subprocess.TimeoutExpired as error:
        java.kill()
        raise StrandlineError(f"Spark's JVM did not write its class archive within {_WRITE_S:g} s") from error
    if ended != 0:
        raise StrandlineError(f"Spark's JVM ended with {ended} while it wrote its class archive")


def main() -> int:
    os.nice(_WRITERS_NICENESS)
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
