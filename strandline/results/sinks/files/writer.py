"""Writes each result once into Parquet files by day: first the files, then one manifest per slice and stage that makes
them count.

    PATH/day=2026-11-01/turbine-health.loads.17-6f1d0c2ab4e9d3f8.parquet
    PATH/_manifests/turbine-health/loads/000000000/000000000017.json

A file that is in no manifest isn't a result: a run that was killed may leave some. The name of a manifest depends on
the slice, and its content on the rows. So a slice that is written again finds its own manifest and adds nothing.
Nothing is ever changed or deleted.

A thousand slices share a directory of manifests, so a run that begins need not list all.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from strandline.core.errors import Divergence, InvalidSettings, SinkUnavailable
from strandline.results.document import DocumentShape
from strandline.results.sinks.typed_rows import TIME, TypedRows, typed_rows
from strandline.results.writer import WriteReport

MANIFESTS = "_manifests"
DAY_MS = 86_400_000
ORIGIN_DAY = date(1970, 1, 1)
_SLICES_A_DIRECTORY = 1_000
_DIGEST_MODULUS = 1 << 128
_ROWS_AT_ONCE = 5_000
"""Maximum number of rows that are converted to documents at a time. Documents contain all field names, so they use far
more memory than the rows, and Arrow stores at most 2 GiB of text in one array."""
_OBJECT_STORES = ("s3", "gcs", "abfs")
"""Arrow's names of object stores: a file appears there when it is complete, and a rename would be a copy."""


class WrittenFile(msgspec.Struct, frozen=True):
    """One file in a manifest."""

    path: str
    """Path below the sink's path."""
    rows: int
    digest: str
    """Depends on its rows, not on their order. See `TypedRows.digest`."""


class Manifest(msgspec.Struct, frozen=True):
    """The files of one stage and slice."""

    job: str
    stage: str
    emission: int
    version: int
    epoch: int
    rows: int
    digest: str
    """Sum of the digests of its files."""
    files: list[WrittenFile]
    slice_digest: str
    """Digest of the slice, as it was planned."""


@dataclass(frozen=True)
class FilesWriter:
    """A CommittedWriter over a directory or an object store. Pickles."""

    path: str
    """A directory, or a URI that pyarrow supports (`s3://`, `gs://`, `hdfs://`). Credentials come from the environment.
    """
    shape: DocumentShape
    takes_whole = True
    """The writer gets all rows of a task in one call, because many small files are slow to read."""

    @property
    def place(self) -> str:
        return f"files {self.shape.stage} {self.path}"

    def prepare(self, next_end_ms: int | None) -> None:
        """Create the directory of the manifests. Raises InvalidSettings, SinkUnavailable."""
        store = _Store.of(self.path)
        store.make(self._manifests)

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        """Write one file for each day.

        The report's `parts` list them: they count after `commit` was called with them.
        """
        report, store = WriteReport(), _Store.of(self.path)
        for batch in batches:
            tables: dict[date, list[pa.RecordBatch]] = {}
            digests: dict[date, list[str]] = {}
            for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
                rows = typed_rows(self.shape, batch.slice(first, _ROWS_AT_ONCE), epoch, emission, slice_digest)
                report.refused += rows.refused
                for day, part in _by_day(rows):
                    tables.setdefault(day, []).append(part.table)
                    digests.setdefault(day, []).append(f"{part.digest():032x}")
            for day in sorted(tables):
                table, digest = pa.Table.from_batches(tables[day]), _sum(digests[day])
                name = f"{self.shape.job}.{self.shape.stage}.{emission}-{_short(digest, table.num_rows)}.parquet"
                place = f"{_directory(day)}/{name}"
                store.write(place, _parquet(table))
                report.parts.append(msgspec.json.encode(WrittenFile(place, table.num_rows, digest)).decode())
                report.created += table.num_rows
                report.add_stored(self.place, table.num_rows)
        return report

    def commit(self, emission: int, epoch: int, parts: Sequence[str], slice_digest: str = "") -> None:
        """Write the manifest of a slice. If it exists, it must contain the same rows: then its files count, not these.

        Raises Divergence, SinkUnavailable.
        """
        files = sorted((msgspec.json.decode(part, type=WrittenFile) for part in parts), key=lambda file: file.path)
        rows, digest = sum(file.rows for file in files), _sum(file.digest for file in files)
        shape, store = self.shape, _Store.of(self.path)
        name = f"{emission:012d}" if shape.is_once else f"{emission:012d}.{epoch}"
        place = f"{self._manifests}/{emission // _SLICES_A_DIRECTORY:09d}/{name}.json"
        manifest = Manifest(shape.job, shape.stage, emission, shape.version, epoch, rows, digest, files, slice_digest)
        if store.create(place, msgspec.json.format(msgspec.json.encode(manifest))):
            return
        held = store.manifest(place)
        if (held.rows, held.digest) != (rows, digest):
            raise Divergence(
                f"manifest {place} in {self.path} has {held.rows} results of slice {emission} of job {shape.job}, but this run "
                f"computed {rows}, or others; nothing was changed. Recompute them from the log to see which are right"
            )

    @property
    def _manifests(self) -> str:
        return f"{MANIFESTS}/{self.shape.job}/{self.shape.stage}"


def _by_day(rows: TypedRows) -> Iterator[tuple[date, TypedRows]]:
    """Yield each day of these rows, with its rows."""
    days = rows.table.column(TIME).cast(pa.date32())
    for day in days.unique().to_pylist():
        places = pc.indices_nonzero(pc.equal(days, pa.scalar(day, pa.date32()))).to_pylist()
        if len(places) == len(days):
            yield day, rows
        else:
            yield day, TypedRows(rows.table.take(pa.array(places)), rows.documents.taken(places), [])


def day_directory(time_ms: int) -> str:
    """Return the directory of the files with results of this time."""
    return _directory(ORIGIN_DAY + timedelta(days=time_ms // DAY_MS))


def _directory(day: date) -> str:
    return f"day={day.isoformat()}"


def committed_files(path: str, job: str | None = None, stage: str | None = None) -> Iterator[str]:
    """Yield the path of each file that counts, of one job and stage or of all. Raises SinkUnavailable."""
    store = _Store.of(path)
    below = "/".join(part for part in (MANIFESTS, job, stage if job else None) if part)
    for place in store.listed(below):
        manifest = store.manifest(place)
        if stage in (None, manifest.stage):
            yield from (f"{path.rstrip('/')}/{file.path}" for file in manifest.files)


def manifests_of(path: str, job: str, stage: str) -> list[str] | None:
    """Return the manifests of a stage, below the sink's path, by their slices. None if their directory doesn't exist.

    Raises SinkUnavailable.
    """
    store, below = _Store.of(path), f"{MANIFESTS}/{job}/{stage}"
    return store.listed(below) if store.holds(below) else None


def emission_of(manifest: str) -> int | None:
    """Return the slice in a manifest's name. None if the name contains no number."""
    number = manifest.rpartition("/")[2].partition(".")[0]
    return int(number) if number.isdecimal() else None


def newest_manifests(path: str, job: str, stage: str, first: int | None = None) -> list[str]:
    """Return the manifests of the last emissions in order, below the sink's path: those from `first` on, and perhaps
    older ones.

    Without `first`, at least the newest. Lists few directories. Raises SinkUnavailable, InvalidSettings.
    """
    store, below = _Store.of(path), f"{MANIFESTS}/{job}/{stage}"
    manifests: list[str] = []
    for directory in reversed(store.directories(below)):
        found = store.listed(directory)
        manifests += found
        # A killed run can leave an empty directory.
        if found and (first is None or int(directory.rpartition("/")[2]) * _SLICES_A_DIRECTORY <= first):
            break
    return sorted(manifests, key=lambda manifest: emission_of(manifest) or 0)


def read_manifest(path: str, place: str) -> Manifest:
    """Return a manifest of the sink. Raises SinkUnavailable, and ValueError if the file isn't a manifest."""
    return _Store.of(path).manifest(place)


def open_file(path: str, place: str) -> pa.NativeFile | None:
    """Return an opened file of a manifest. None if it doesn't exist. Raises SinkUnavailable."""
    store = _Store.of(path)
    return store.open(place) if store.holds(place) else None


def _parquet(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _short(digest: str, rows: int) -> str:
    return hashlib.sha256(f"{digest} {rows}".encode()).hexdigest()[:16]


def _sum(digests: Iterable[str]) -> str:
    return f"{sum(int(one, 16) for one in digests) % _DIGEST_MODULUS:032x}"


@dataclass(frozen=True)
class _Store:
    """The filesystem with the files. On a local disk a file is synced before it gets its name."""

    filesystem: pafs.FileSystem
    root: str
    is_local: bool

    @staticmethod
    def of(path: str) -> _Store:
        try:
            filesystem, root = pafs.FileSystem.from_uri(path)
        except (pa.ArrowInvalid, ValueError, OSError) as error:
            raise InvalidSettings(
                f"{path} can't contain files: {error}; write an absolute directory or a URI"
            ) from error
        return _Store(filesystem, root.rstrip("/"), isinstance(filesystem, pafs.LocalFileSystem))

    def make(self, place: str) -> None:
        with _translate_errors(self.root):
            self.filesystem.create_dir(f"{self.root}/{place}", recursive=True)

    def write(self, place: str, content: pa.Buffer | bytes) -> None:
        """Write a Parquet file whose name depends on its content: an existing file stays, or is replaced by an equal
        one."""
        with _translate_errors(self.root):
            if self.is_local:
                unnamed = self._write_unnamed(place, content)
                os.replace(unnamed, f"{self.root}/{place}")
                _sync_directory(Path(f"{self.root}/{place}").parent)
                return
            named = f"{self.root}/{place}"
            if self.filesystem.type_name in _OBJECT_STORES:
                with self.filesystem.open_output_stream(named) as stream:
                    stream.write(content)
                return
            # On HDFS a file appears with its first byte, and a manifest may contain it: a complete file is never opened
            # for writing.
            if self.holds(place):
                return
            unnamed = f"{named.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp"
            with self.filesystem.open_output_stream(unnamed) as stream:
                stream.write(content)
            self.filesystem.move(unnamed, named)

    def create(self, place: str, content: bytes) -> bool:
        """Write a file unless it exists. Return True if it was written."""
        with _translate_errors(self.root):
            if self.is_local:
                unnamed = self._write_unnamed(place, content)
                try:
                    os.link(unnamed, f"{self.root}/{place}")
                except FileExistsError:
                    return False
                finally:
                    os.unlink(unnamed)
                _sync_directory(Path(f"{self.root}/{place}").parent)
                return True
            # No filesystem of Arrow can create exclusively. Two runs that both write a manifest of one slice write the
            # same rows.
            named = f"{self.root}/{place}"
            if self.filesystem.get_file_info(named).type is not pafs.FileType.NotFound:
                return False
            # On HDFS a file appears with its first byte: an incomplete file of a killed run would count as complete.
            begun = named if self.filesystem.type_name in _OBJECT_STORES else f"{named}.{uuid.uuid4().hex}.tmp"
            with self.filesystem.open_output_stream(begun) as stream:
                stream.write(content)
            if begun != named:
                self.filesystem.move(begun, named)
            return True

    def read(self, place: str) -> bytes:
        with _translate_errors(self.root), self.filesystem.open_input_stream(f"{self.root}/{place}") as stream:
            return bytes(stream.read())

    def manifest(self, place: str) -> Manifest:
        """Return the manifest in this file. Raises ValueError if it isn't one."""
        return msgspec.json.decode(self.read(place), type=Manifest)

    def open(self, place: str) -> pa.NativeFile:
        with _translate_errors(self.root):
            return self.filesystem.open_input_file(f"{self.root}/{place}")

    def holds(self, place: str) -> bool:
        """Return True if this file or directory exists."""
        with _translate_errors(self.root):
            return bool(self.filesystem.get_file_info(f"{self.root}/{place}").type is not pafs.FileType.NotFound)

    def listed(self, place: str) -> list[str]:
        """Return the manifests below this directory, in the order of stages and slices."""
        found = self._entries(place, pafs.FileType.File, is_recursive=True)
        return [name for name in found if name.endswith(".json")]

    def directories(self, place: str) -> list[str]:
        """Return the directories in this directory, by name."""
        return self._entries(place, pafs.FileType.Directory)

    def _entries(self, place: str, kind: pafs.FileType, *, is_recursive: bool = False) -> list[str]:
        with _translate_errors(self.root):
            selector = pafs.FileSelector(f"{self.root}/{place}", allow_not_found=True, recursive=is_recursive)
            found = self.filesystem.get_file_info(selector)
        return sorted(one.path.removeprefix(f"{self.root}/") for one in found if one.type is kind)

    def _write_unnamed(self, place: str, content: pa.Buffer | bytes) -> str:
        path = Path(f"{self.root}/{place}")
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            _sync_directory(path.parent.parent)
        unnamed = path.with_name(f".{uuid.uuid4().hex}.tmp")
        with unnamed.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return str(unnamed)


@dataclass(frozen=True)
class _translate_errors:  # noqa: N801
    """Converts errors of the store to SinkUnavailable."""

    root: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileExistsError):
            raise SinkUnavailable(
                f"files below {self.root} could not be written or read: {error}; check that the directory exists, its "
                "free space, and its rights"
            ) from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
