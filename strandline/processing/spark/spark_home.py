"""Spark's home, without the archive of PySpark's sources.

The JVM puts `python/lib/pyspark.zip` of its home in front of the path of each Python process that it starts. PySpark isn't
compiled in this archive, so each of the five processes of a cold start would compile it again: 0.6 CPU-seconds a process. Without
the archive, they find the compiled modules of the installation.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import pyspark
import structlog

log = structlog.get_logger()

HOME_KIND = "links"
"""A class archive that was made for another kind of home fits no class."""
_PARTS = ("bin", "jars")
"""What starting a JVM needs."""


def use_spark_home(cache_dir: Path) -> None:
    """Create a home of Spark without `pyspark.zip`, and set SPARK_HOME to it for the JVM that this process starts later.

    Do nothing if SPARK_HOME is set. The home is a directory of links in the cache. Its path is always the same for an
    installation of PySpark, because the class archive contains the paths of classes. If it can't be created, log a warning: the
    start is slower.
    """
    if "SPARK_HOME" in os.environ:
        return
    installed = Path(pyspark.__file__).parent
    home = cache_dir / "spark-home" / hashlib.sha256(str(installed).encode()).hexdigest()[:16]
    try:
        home.mkdir(parents=True, exist_ok=True)
        for part in _PARTS:
            with contextlib.suppress(FileExistsError):  # from an earlier start, or from one at the same time
                (home / part).symlink_to(installed / part)
    except OSError as error:
        log.warning("Spark starts slowly: no home for it could be made in the cache", home=str(home), error=str(error))
        return
    os.environ["SPARK_HOME"] = str(home)
