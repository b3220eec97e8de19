"""Snapshots: Spark's checkpoint directories of the runs of one job, kept on durable storage (`recovery: snapshot`).

    ROOT/JOB/EPOCH/made-by.json   the manifest; written last, so a directory without it is incomplete
    ROOT/JOB/EPOCH/checkpoint/    Spark's own: metadata, offsets/, commits/, state/; and our segments/

Each run has a directory of its own, which begins as a tree of hard links to an older run's files. No process changes a
file: a new one is written under a temporary name and renamed. So a superseded run that still writes changes only its own
directory, and files that two directories share never change.

A snapshot only saves the time that a rewind takes to build the same state from the log. If anything is wrong with one, the
job rewinds.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strandline.core.errors import StrandlineError
from strandline.ledger.states import RunRow
from strandline.processing.slices.spark_offset import slice_of_offset

FORMAT = 5
"""Version of the layout of states. Raise it when the state of a bucket or the spread of keys over buckets changes.

Both are defined by the operators (`windows.py`, `open_groups.py`, `cascade.py`, `keys.py`, `dedupe`).
"""
_MADE_BY = "made-by.json"
_CHECKPOINT = "checkpoint"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK}
"""Another file system, one that knows no hard links, or too many of them."""


class SnapshotUnusable(StrandlineError):
    """A run can't begin from this snapshot; the text says why. The job rewinds."""

    code = "snapshot_unusable"


@dataclass(frozen=True)
class SnapshotManifest:
    """Properties that must be equal in the run that made a snapshot and in the run that begins from it."""

    job: str
    digest: str
    """Digest of the pipeline (`CheckedPipeline.digest`). Another version of the pipeline can have the same one."""
    spark: str
    shuffle_partitions: int
    """Number of parts of the state in Spark's checkpoint. A checkpoint can't be read with another number."""
    format: int = FORMAT


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that a run can begin from."""

    epoch: int
    """The run that made it."""
    slice: int
    """The last slice in its state."""
    checkpoint: Path


@dataclass(frozen=True)
class SnapshotBounds:
    """Bounds of the snapshots that the ledger allows, as slice numbers."""

    slice_first: int
    """First slice of a rewind. A snapshot that ends earlier is of no use, because more slices must be replayed."""
    slice_committed: int
    slice_last: int
    """The last committed slice, or the planned one after it."""


class Snapshots:
    """The snapshots of one job, for one of its runs. It never touches those of newer runs: this run may be superseded."""

    def __init__(self, root: Path, manifest: SnapshotManifest, run: RunRow) -> None:
        self._job_directory = root / manifest.job
        self._manifest = manifest
        self._run = run

    def choose(self, bounds: SnapshotBounds, runs: Sequence[RunRow]) -> tuple[Snapshot | None, list[str]]:
        """Return the usable snapshot with the fewest slices to replay, and the reasons for which others are unusable. These are
        removed, because they never become usable again. `runs`: all runs in the ledger. None if no snapshot is usable."""
        fitting: list[Snapshot] = []
        refused: list[str] = []
        known = {run.epoch: run for run in runs if run.epoch < self._run.epoch}
        for epoch, directory in sorted(self._directories().items(), reverse=True):
            try:
                if epoch not in known:
                    raise SnapshotUnusable("the ledger knows no such run before this one")
                fitting.append(read_snapshot(directory, known[epoch], self._manifest, bounds))
            except SnapshotUnusable as error:
                refused.append(f"run {epoch}: {error}")
                self._remove(epoch, directory)
        return max(fitting, key=lambda one: (one.slice, one.epoch), default=None), refused

    def begin(self, snapshot: Snapshot | None) -> Path:
        """Create this run's checkpoint directory, empty or from the snapshot, and return it. Raises SnapshotUnusable, OSError."""
        directory = self._job_directory / str(self._run.epoch)
        shutil.rmtree(directory, ignore_errors=True)
        checkpoint = directory / _CHECKPOINT
        checkpoint.mkdir(parents=True)
        if snapshot is not None:
            try:
                link_tree(snapshot.checkpoint, checkpoint)
            except FileNotFoundError as error:  # its run still lives, and removed files
                raise SnapshotUnusable(
                    f"the snapshot of run {snapshot.epoch} was changed meanwhile: {error}"
                ) from error
        new = directory / f"{_MADE_BY}.new"
        new.write_text(json.dumps(_made_by(self._manifest, self._run)), encoding="utf-8")
        new.replace(directory / _MADE_BY)
        return checkpoint

    def remove_others(self) -> None:
        """Keep only this run's snapshot. Called when the run has committed a slice: its own is the best from then on."""
        for epoch, directory in self._directories().items():
            if epoch != self._run.epoch:
                self._remove(epoch, directory)

    def remove_all(self) -> None:
        for epoch, directory in self._directories().items():
            self._remove(epoch, directory)

    def _remove(self, epoch: int, directory: Path) -> None:
        if epoch <= self._run.epoch:
            shutil.rmtree(directory, ignore_errors=True)  # a superseded run may still write into it

    def _directories(self) -> dict[int, Path]:
        """Epoch -> directory."""
        try:
            found = list(self._job_directory.iterdir())
        except OSError:
            return {}  # the job has none, or none is readable
        return {int(one.name): one for one in found if one.name.isdecimal()}


def remove_of_deleted(root: Path, is_deleted: Callable[[str], bool]) -> list[str]:
    """Remove the snapshots of deleted jobs, and return these jobs. Only files of snapshots are removed, because `root` may
    contain others. Raises OSError, and the errors of `is_deleted`."""
    removed = []
    for of_job in list(root.iterdir()) if root.is_dir() else []:
        # Listed before the ledger is asked: if the name is reused meanwhile, the new job's runs aren't among them.
        runs = [one for one in of_job.iterdir() if one.name.isdecimal()] if of_job.is_dir() else []
        if not any((one / _CHECKPOINT).is_dir() for one in runs) or not is_deleted(of_job.name):
            continue
        for one in runs:
            shutil.rmtree(one)
        with suppress(OSError):  # something else lies there
            of_job.rmdir()
        removed.append(of_job.name)
    return removed


def read_snapshot(directory: Path, run: RunRow, manifest: SnapshotManifest, bounds: SnapshotBounds) -> Snapshot:
    """Return the snapshot in the directory of `run`. Raises SnapshotUnusable, with the reason, if its manifest or Spark's logs in
    it don't fit `manifest` and `bounds`."""
    _require_made_by(directory / _MADE_BY, _made_by(manifest, run))
    checkpoint = directory / _CHECKPOINT
    committed, pending = _read_logs(checkpoint, manifest)
    if committed > bounds.slice_committed:
        raise SnapshotUnusable(f"it holds slice {committed}, and the ledger's last is {bounds.slice_committed}")
    if committed + 1 < bounds.slice_first:
        raise SnapshotUnusable(
            f"it ends with slice {committed}, so it replays more slices than a rewind, which begins at {bounds.slice_first}"
        )
    # Spark runs a batch that it had begun again as it was: its slices are committed ones, or the planned one.
    goes_on = pending is None or pending <= bounds.slice_committed
    if not goes_on and (committed, pending) != (bounds.slice_committed, bounds.slice_last):
        raise SnapshotUnusable(
            f"its batch of slices {committed + 1} to {pending} is not the one that the ledger has planned"
        )
    return Snapshot(run.epoch, committed, checkpoint)


def _made_by(manifest: SnapshotManifest, run: RunRow) -> dict[str, object]:
    # A ledger that was restored from a copy, or recreated, gives out the same epochs again.
    return asdict(manifest) | {"run_started_ms": run.started_ms}


def _require_made_by(file: Path, wanted: dict[str, object]) -> None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SnapshotUnusable(f"it is incomplete: {error}") from error
    if not isinstance(found, dict) or found.keys() != wanted.keys():
        raise SnapshotUnusable(f"it was made in another format than {FORMAT}")
    for name, value in wanted.items():
        if found[name] != value and name == "digest":
            raise SnapshotUnusable("it was made by a version of the pipeline that computes its windows in another way")
        if found[name] != value:
            raise SnapshotUnusable(f"it was made with {name} {found[name]}, and now it is {value}")


def _read_logs(checkpoint: Path, manifest: SnapshotManifest) -> tuple[int, int | None]:
    """Return the last slice of the last committed batch, and of the batch that was begun after it (None if there is none). They
    are read from Spark's logs of offsets and commits. Raises SnapshotUnusable if a log is missing or damaged.

    Format: one file for each batch, named by its number. The lines of an offsets file are a version, the metadata of the batch,
    and the source's offset (org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog).
    """
    begun, committed = _batches(checkpoint / "offsets"), _batches(checkpoint / "commits")
    if not committed:
        raise SnapshotUnusable("it holds no committed batch yet")
    last = max(committed)
    if not begun or max(begun) not in (last, last + 1):
        raise SnapshotUnusable(
            f"its logs don't fit together: batch {last} is committed, {max(begun, default='none')} begun"
        )
    _lines(checkpoint / "commits" / str(last), 2)
    pending = _slice_of(checkpoint / "offsets" / str(last + 1), manifest) if last + 1 in begun else None
    return _slice_of(checkpoint / "offsets" / str(last), manifest), pending


def _batches(log: Path) -> set[int]:
    try:
        return {int(one.name) for one in log.iterdir() if one.name.isdecimal()}
    except OSError as error:
        raise SnapshotUnusable(f"it has no log {log.name}: {error}") from error


def _slice_of(file: Path, manifest: SnapshotManifest) -> int:
    _, metadata, offset = _lines(file, 3)
    try:
        # Spark would follow this number, not its session's.
        if int(metadata["conf"][_SHUFFLE_PARTITIONS]) != manifest.shuffle_partitions:
            raise ValueError(f"{_SHUFFLE_PARTITIONS} is not {manifest.shuffle_partitions}")
        return slice_of_offset(offset)
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotUnusable(f"its log file offsets/{file.name} is not as it was written: {error!r}") from error


def _lines(file: Path, count: int) -> list[dict[str, Any]]:
    """Return the lines of a log file as JSON objects; an empty one for the first line, the version. Raises SnapshotUnusable if it
    doesn't have `count` lines."""
    try:
        version, *lines = file.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines]
        if version != "v1" or len(found) != count - 1 or not all(isinstance(one, dict) for one in found):
            raise ValueError("not as Spark writes it")
        return [{}, *found]
    except (OSError, ValueError) as error:
        raise SnapshotUnusable(f"its log file {file.parent.name}/{file.name} can't be read: {error}") from error


def link_tree(source: Path, target: Path) -> None:
    """Fill the directory `target` with hard links to all files below `source`; with copies where links can't be made.

    Spark's logs come first: Spark writes state that is newer than the last commit again, but would miss state that is older.
    Raises OSError.
    """
    for place, directories, files in os.walk(source, onerror=_raise):
        directories.sort(key=lambda name: name not in ("offsets", "commits"))
        here = target / Path(place).relative_to(source)
        here.mkdir(exist_ok=True)
        for name in files:
            if name.endswith(".tmp"):
                continue  # a run ended while it wrote it
            try:
                os.link(Path(place) / name, here / name)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                shutil.copy2(Path(place) / name, here / name)


def _raise(error: OSError) -> None:
    raise error
