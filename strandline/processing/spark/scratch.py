"""Scratch directories: temporary files of a runner, a standby, a backfill or an audit.

A process deletes its directory when it ends. A killed process can't, so `sweep` deletes the directories of processes that no
longer run. Each name identifies its process: `ROOT/STACK/NAME.PID.TICKS`, with the pid and the start time. STACK identifies a
data directory on a machine: several stacks may share a root, and only the machine of a process knows whether it still runs. Two
containers may have the same host name and the same data path, so each data directory also has an id.
"""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import structlog

from strandline.core.process_identity import start_ticks
from strandline.core.settings import Settings
from strandline.processing.spark.cluster import is_cluster, shared_directories

log = structlog.get_logger()


@contextmanager
def scratch_directory(settings: Settings, name: str) -> Iterator[Path]:
    """Yield a new directory for this process, and delete it at the end. `name`: different for each directory of the process.
    Raises OSError."""
    scratch = _own(_root(settings), settings, name)
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def scratch_checkpoint(settings: Settings, scratch: Path, name: str) -> Iterator[Path]:
    """Yield an empty directory for a query's checkpoint, and delete it at the end. It is below `scratch`, or in the shared
    directory of a cluster. Raises InvalidSettings if that directory isn't set."""
    where = scratch / "checkpoint"
    if is_cluster(settings):
        where = _own(_cluster_root(settings), settings, name)
    shutil.rmtree(where, ignore_errors=True)  # an earlier query of this process may have left some of it
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)


def sweep(settings: Settings) -> list[Path]:
    """Delete the scratch directories of processes of this stack that no longer run, and return them. Raises OSError, and
    InvalidSettings if the shared directory of a cluster isn't set."""
    roots = [_root(settings), *([_cluster_root(settings)] if is_cluster(settings) else [])]
    found = [one for root in roots for one in (root / _stack(settings)).glob("*.*.*")]
    dead = [one for one in found if _is_dead(one)]
    for one in dead:
        shutil.rmtree(one, ignore_errors=True)
    if dead:
        log.info("scratch directories of dead processes deleted", action="sweep", directories=len(dead))
    return dead


def _root(settings: Settings) -> Path:
    return settings.scratch_dir or settings.data_dir / "scratch"


def _cluster_root(settings: Settings) -> Path:
    return shared_directories(settings)[0] / "scratch"


def _stack(settings: Settings) -> str:
    place = f"{socket.gethostname()}:{settings.data_dir.resolve()}:{_id_of(settings.data_dir)}"
    return f"stack-{sha256(place.encode()).hexdigest()[:12]}"


def _id_of(data_dir: Path) -> str:
    """Return the id of the data directory. The first process writes it in one step, because others may read it at that moment."""
    place = data_dir / "scratch.id"
    if not place.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f"scratch.id.{uuid.uuid4().hex}")
        fresh.write_text(uuid.uuid4().hex, encoding="ascii")
        with suppress(FileExistsError):
            os.link(fresh, place)
        fresh.unlink()
    return place.read_text(encoding="ascii")


def _own(root: Path, settings: Settings, name: str) -> Path:
    return root / _stack(settings) / f"{name}.{os.getpid()}.{start_ticks(os.getpid())}"


def _is_dead(scratch: Path) -> bool:
    """Return True if the process of the directory no longer runs. False if the name contains no process."""
    _, pid, ticks = scratch.name.rsplit(".", 2)
    return pid.isdecimal() and ticks.isdecimal() and start_ticks(int(pid)) != ticks
