"""Processes of a stack: `DIR/pids.json` (name -> pid), written by `up` and by the control service.

Invariant: a pid is signalled only while it belongs to the recorded process. The kernel reuses pids, so `DIR/pids-identity.json`
contains the boot and the start time of each process. Both files change under one lock and are replaced atomically, so a reader
never sees a partial file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.core.errors import StackError
from strandline.core.process_identity import process_identity

PIDS_FILE = "pids.json"
IDENTITY_FILE = "pids-identity.json"
LOCK_FILE = "pids.lock"


class PidFile:
    """Recorded processes of one data directory. Several processes can use it at the same time."""

    def __init__(self, data_dir: Path) -> None:
        self._pids = data_dir / PIDS_FILE
        self._identities = data_dir / IDENTITY_FILE
        self._lock = data_dir / LOCK_FILE

    def add(self, name: str, pid: int) -> None:
        """Record that `name` is process `pid`. Replaces an earlier record of that name.

        Raises StackError if the process doesn't exist: it ended before it could be recorded.
        """
        identity = process_identity(pid)
        if identity is None:
            raise StackError(f"process {pid} ({name}) ended before it could be recorded; see its log")
        with self._locked():
            # The identity first: a pid without an identity is never signalled, so a crash in between is harmless.
            _replace(self._identities, {**_read(self._identities), name: f"{pid}:{identity}"})
            _replace(self._pids, {**_read(self._pids), name: pid})

    def remove(self, name: str, pid: int) -> None:
        """Remove the record of `name`, unless it names another process now."""
        with self._locked():
            pids = _read(self._pids)
            if pids.get(name) != pid:
                return
            _replace(self._pids, {other: value for other, value in pids.items() if other != name})
            identities = _read(self._identities)
            _replace(self._identities, {other: value for other, value in identities.items() if other != name})

    def all(self) -> dict[str, int]:
        """Return every recorded process, running or ended, in the order of recording."""
        return {name: int(str(pid)) for name, pid in _read(self._pids).items()}

    def alive(self) -> dict[str, int]:
        """Return the recorded processes that still run, in the order of recording."""
        identities = _read(self._identities)
        return {
            name: pid
            for name, pid in self.all().items()
            if (identity := process_identity(pid)) is not None and identities.get(name) == f"{pid}:{identity}"
        }

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _read(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StackError(
            f"{path} is not readable JSON; stop its processes by hand and delete the file ({error})"
        ) from error
    if not isinstance(content, dict):
        raise StackError(f"{path} does not contain a JSON object; stop its processes by hand and delete the file")
    return content


def _replace(path: Path, content: dict[str, object]) -> None:
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
