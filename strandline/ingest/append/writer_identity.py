"""The identity of a writer: an id that one process holds at a time, and an epoch that increases at each start.

A small file stores the epoch and serves as the lock. If the file is lost, an earlier epoch must not be used again:
therefore the epoch is never below the clock's seconds. A clock that was set back does no harm while the file exists
(docs/decisions/0005-epoch-in-a-file.md).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from strandline.core.errors import StackError
from strandline.core.settings import make_data_dir

_DIRECTORY = "ingest"


class WriterIdentity:
    """Holds the lock of a writer id until it is closed or the process ends, however it ends."""

    def __init__(self, writer_id: str, epoch: int, file: int, directory: Path) -> None:
        self.writer_id = writer_id
        self.epoch = epoch
        self.directory = directory
        """Directory for the files of this writer. No other process uses it."""
        self._file = file

    @classmethod
    def take(
        cls, data_dir: Path, writer_id: str, clock_s: Callable[[], int] = lambda: int(time.time())
    ) -> WriterIdentity:
        """Lock the identity and raise its epoch. The new epoch is on disk before this returns.

        Raises StackError if another process has the same writer id, or if the directory can't be written.
        """
        directory = data_dir / _DIRECTORY / writer_id
        path = directory / "epoch"
        try:
            make_data_dir(data_dir)
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
        """Unlock the writer id for another process."""
        os.close(self._file)


def writer_directories(data_dir: Path) -> dict[str, Path]:
    """Return the directories of all writers that ever ran with this data directory, by the writers' ids."""
    try:
        return {path.name: path for path in (data_dir / _DIRECTORY).iterdir() if path.is_dir()}
    except OSError:
        return {}  # no gateway ran yet; a gateway that can't write here reports that when it opens its identity


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
