"""The log files of processes: bounded in size and number, while the processes go on writing.

A process appends to the file that it was given, and so do its JVM and workers; none of them opens it again. So a log that has
grown is copied and emptied in place. What is written between the copy and the emptying is lost: lines of a few microseconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import structlog

from strandline.core.settings import Settings

logger = structlog.get_logger()

_COPY_BYTES = 1 << 20


def bound_log(log: Path, settings: Settings) -> None:
    """If the log is larger than it may be, move what it holds to `NAME.log.1`, what that held to `NAME.log.2`, and so on up to
    the number that is kept. A copy is no larger than a log may be: of a log that grew too fast it holds the end.

    On a full disk there is no room for the copy, and the log may be what fills it: then it is emptied without one, a warning
    says so, and the older copies stay. Raises OSError.
    """
    if not log.exists() or log.stat().st_size <= settings.log_bytes_max:
        return
    copies = [log.with_name(f"{log.name}.{number}") for number in range(1, settings.logs_kept + 1)]
    with log.open("rb+") as file:
        if copies and _copy_end(file, log.with_name(f"{log.name}.new"), settings.log_bytes_max):
            for older, newer in reversed(list(zip(copies[1:], copies, strict=False))):
                if newer.exists():
                    newer.replace(older)
            log.with_name(f"{log.name}.new").replace(copies[0])
        file.truncate(0)


def _copy_end(file: BinaryIO, copy: Path, bytes_max: int) -> bool:
    """Copy the last `bytes_max` of the file. False, and no copy, where the disk is full. Raises OSError."""
    file.seek(-bytes_max, os.SEEK_END)
    try:
        with copy.open("wb") as output:
            shutil.copyfileobj(file, output, _COPY_BYTES)
    except OSError as error:
        copy.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        logger.warning(
            "the disk is full: the log was emptied, and no copy of what it held is kept; make room",
            action="tidy",
            log=str(copy.with_suffix("")),
        )
        return False
    return True


def keep_newest(files: Iterable[Path], count: int) -> None:
    """Delete all but the newest `count` of the files. Raises OSError."""
    for one in sorted(files, key=lambda one: one.stat().st_mtime, reverse=True)[count:]:
        with contextlib.suppress(FileNotFoundError):
            one.unlink()
