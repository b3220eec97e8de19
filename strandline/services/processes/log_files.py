"""Log files of processes: limited in size and number, while the processes keep writing.

A process appends to the open file that it got at its start, and so do its JVM and workers. None of them opens it again. So a
log that is too large is copied and emptied in place. Lines that are written in the microseconds between copying and emptying
are lost.
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
    """If the log is too large, move its content to `NAME.log.1`, the content of that file to `NAME.log.2`, and so on.

    A copy has at most the maximum size of a log: if a log grew too fast, the copy contains its end. On a full disk, there is no
    space for the copy, and the log may be the cause. Then it is emptied without a copy, a warning reports this, and the older
    copies stay. Raises OSError.
    """
    if not log.exists() or log.stat().st_size <= settings.log_bytes_max:
        return
    copies = [log.with_name(f"{log.name}.{number}") for number in range(1, settings.logs_max + 1)]
    with log.open("rb+") as file:
        if copies and _copy_end(file, log.with_name(f"{log.name}.new"), settings.log_bytes_max):
            for older, newer in reversed(list(zip(copies[1:], copies, strict=False))):
                if newer.exists():
                    newer.replace(older)
            log.with_name(f"{log.name}.new").replace(copies[0])
        file.truncate(0)


def _copy_end(file: BinaryIO, copy: Path, bytes_max: int) -> bool:
    """Copy the last `bytes_max` of the file. Return False, without a copy, if the disk is full. Raises OSError."""
    file.seek(-bytes_max, os.SEEK_END)
    try:
        with copy.open("wb") as output:
            shutil.copyfileobj(file, output, _COPY_BYTES)
    except OSError as error:
        copy.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        logger.warning(
            "the disk is full: the log was emptied without a copy; free some space",
            action="tidy",
            log=str(copy.with_suffix("")),
        )
        return False
    return True


def keep_newest(files: Iterable[Path], count: int) -> None:
    """Delete the files except the newest `count`. Raises OSError."""
    for one in sorted(files, key=lambda one: one.stat().st_mtime, reverse=True)[count:]:
        with contextlib.suppress(FileNotFoundError):
            one.unlink()
