"""An archive of the classes that Spark loads, so that a JVM maps them instead of reading, checking and linking each again.

It is a dynamic archive of the JVM (JEP 350) in the cache, one for each Java and Spark. Without it, loading classes takes a good
part of a cold start's CPU time. The JVM itself checks that an archive fits, and starts without one that doesn't.
`class_archive_maker.py` makes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

import pyspark
import structlog

from strandline.processing.spark.spark_home import HOME_KIND

log = structlog.get_logger()

QUIET = "-Xlog:cds*=off"
"""Else the JVM logs each class that it can't archive, and at each start that an archive doesn't fit."""
UNUSED_S = 30 * 86_400
"""Time in seconds without a read after which an archive is removed. If the file system records no read times, the age of the
archive counts: it is then recreated after this time."""


def use_archive(cache_dir: Path) -> str:
    """Return the options with which a JVM loads its classes from the archive. Empty if there is no archive.

    A damaged archive is removed, because it makes a JVM crash.
    """
    try:
        archive = find_archive(cache_dir)
        if archive is None or archive.stat().st_size == 0:
            return ""
        if sum_of(archive) in archive.name:
            return f'"-XX:SharedArchiveFile={archive}" {QUIET}'
        log.warning("the class archive is damaged; it is removed", archive=str(archive))
        archive.unlink()
    except OSError as error:  # another process may have removed it
        log.warning("the class archive can't be read", error=str(error))
    return ""


def find_archive(cache_dir: Path) -> Path | None:
    """Return the archive file for this Java and this Spark, `archive_key().sum_of(file).jsa`. None if none was made.

    An empty file is returned, too: it records that this Java can't make an archive."""
    return next(archive_directory(cache_dir).glob(f"{archive_key()}.*.jsa"), None)


def archive_directory(cache_dir: Path) -> Path:
    """Return the directory of the archives."""
    return cache_dir / "java-classes"


def sweep(directory: Path) -> None:
    """Remove incomplete archives, and archives that no JVM has read for UNUSED_S: after a new Java or Spark, an archive of 160 MB
    is of no use. The caller must hold the lock of `make_archive`."""
    for left in directory.glob("*.new"):
        left.unlink(missing_ok=True)
    for archive in directory.glob("*.jsa"):
        if time.time() - archive.stat().st_atime > UNUSED_S:
            archive.unlink(missing_ok=True)


def archive_key() -> str:
    """Return a hash that identifies this Java and this Spark."""
    home = os.environ.get("JAVA_HOME")
    java = Path(f"{home}/bin/java" if home else shutil.which("java") or "java").resolve()
    jars = Path(pyspark.__file__).parent / "jars"
    made_for = [f"{path} {path.stat().st_mtime_ns if path.exists() else 0}" for path in (java, jars)]
    return hashlib.sha256("\n".join([*made_for, pyspark.__version__, HOME_KIND]).encode()).hexdigest()[:16]


def sum_of(archive: Path) -> str:
    """Return the checksum of an archive's content, which is part of its name."""
    with archive.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]
