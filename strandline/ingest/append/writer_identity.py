"""Who writes: a writer id that only one process has at a time, and an epoch that only one start of it ever had.

The epoch is kept in a small file, which is also the lock. A file that was lost must not bring an old epoch back, so the
epoch is never below the clock's seconds; a clock that was set back is no harm as long as the file is there
(docs/decisions/0005-epoch-in-a-file.md).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from strandline.core.errors import StackError

_DIRECTORY = "ingest"


class WriterIdentity:
    """Holds the lock of a writer id until it is closed or the process ends, however it ends."""

    def __init__(self, writer_id: str, epoch: int, file: int, directory: Path) -> None:
        self.writer_id = writer_id
        self.epoch = epoch
        self.directory = directory
        """Where this writer may keep files of its own; nobody else's are there."""
        self._file = file

    @classmethod
    def take(
        cls, data_dir: Path, writer_id: str, clock_s: Callable[[], int] = lambda: int(time.time())
    ) -> WriterIdentity:
        """Take the identity with a new epoch, which is on disk before this returns.

        Raises StackError when another process has the same writer id, or the directory can't be written.
        """
        directory = data_dir / _DIRECTORY / writer_id
        path = directory / "epoch"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StackError(
                f"writer {writer_id} can't keep its epoch in {path}: {error.strerror}; set STRANDLINE_DATA_DIR"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before = os.pread(file, 20, 0).strip()
            epoch = max(int(before) + 1 if before.isdigit() else 1, clock_s())
            os.pwrite(file, b"%-19d\n" % epoch, 0)
            os.fsync(file)
            _sync_directory(directory)
        except BlockingIOError as error:
            os.close(file)
            raise StackError(
                f"another process writes as {writer_id} (it holds {path}); stop it, or give this gateway another port"
            ) from error
        except OSError as error:
            os.close(file)
            raise StackError(
                f"writer {writer_id} can't keep its epoch in {path}: {error.strerror}; free some space there"
            ) from error
        return cls(writer_id, epoch, file, directory)

    def close(self) -> None:
        """Let another process have the writer id."""
        os.close(self._file)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
