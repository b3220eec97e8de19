"""Writes results as Parquet files by day, each once: files first, then one manifest a slice and stage, which makes them count.

    PATH/day=2026-11-01/turbine-health.loads.17-6f1d0c2ab4e9d3f8.parquet
    PATH/_manifests/turbine-health/loads/000000000/000000000017.json

A file without a manifest is no result: a run that was killed may leave some. The name of a manifest follows from the slice, its
content from the rows, so a slice that is done again finds its own manifest and adds nothing. Nothing is ever changed or deleted.

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
"""So many rows are documents at a time: each names all fields, so they take far more room than the rows, and Arrow holds at most
2 GiB of text in one array."""
_OBJECT_STORES = ("s3", "gcs", "abfs")
"""As Arrow names them: a file is there once it is whole, and a rename would be a copy."""


class WrittenFile(msgspec.Struct, frozen=True):
    """One file, as the manifest names it."""

    path: str
    """Below the sink's path."""
    rows: int
    digest: str
    """Follows from its rows, not from their order; see `TypedRows.digest`."""


class Manifest(msgspec.Struct, frozen=True):
    """The files of one stage and slice."""

    job: str
    stage: str
    emission: int
    version: int
    epoch: int
    rows: int
    digest: str
    """The sum of those of its files."""
    files: list[WrittenFile]
    slice_digest: str
    """Digest of the slice, as it was planned."""


@dataclass(frozen=True)
class FilesWriter:
    """A CommittedWriter over a directory or an object store. Pickles."""

    path: str
    """A directory, or a URI that pyarrow knows (`s3://`, `gs://`, `hdfs://`): credentials come from the environment."""
    shape: DocumentShape
    takes_whole = True
    """Whether it gets all rows of a task at once: small files are dear to read."""

    @property
    def place(self) -> str:
        return f"files {self.shape.stage} {self.path}"

    def prepare(self, next_end_ms: int | None) -> None:
        """Make the directory of the manifests. Raises InvalidSettings, SinkUnavailable."""
        store = _Store.of(self.path)
        store.make(self._manifests)

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        """Write one file for each day. The report's `parts` name them: they count when `commit` has been told of them."""
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
        """Write the manifest of a slice. Where it is there, it must say the same of the rows: then its files count, not these.

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
                f"manifest {place} in {self.path} holds {held.rows} results of slice {emission} of job {shape.job}, and this run "
                f"computed {rows}, or others; nothing was changed. Recompute them from the log to see which are right"
            )

    @property
    def _manifests(self) -> str:
        return f"{MANIFESTS}/{self.shape.job}/{self.shape.stage}"


def _by_day(rows: TypedRows) -> Iterator[tuple[date, TypedRows]]:
    """Each day of these rows, with its rows."""
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
    """The path of each file that counts, of one job and stage or of all. Raises SinkUnavailable."""
    store = _Store.of(path)
    below = "/".join(part for part in (MANIFESTS, job, stage if job else None) if part)
    for place in store.listed(below):
        manifest = store.manifest(place)
        if stage in (None, manifest.stage):
            yield from (f"{path.rstrip('/')}/{file.path}" for file in manifest.files)


def manifests_of(path: str, job: str, stage: str) -> list[str] | None:
    """The manifests of a stage, below the sink's path, by their slices; None where their directory isn't there. Raises
    SinkUnavailable."""
    store, below = _Store.of(path), f"{MANIFESTS}/{job}/{stage}"
    return store.listed(below) if store.holds(below) else None


def emission_of(manifest: str) -> int | None:
    """The slice that a manifest's name tells; None where it tells none."""
    number = manifest.rpartition("/")[2].partition(".")[0]
    return int(number) if number.isdecimal() else None


def newest_manifests(path: str, job: str, stage: str, first: int | None = None) -> list[str]:
    """Return the manifests of the last emissions in order, below the sink's path: those from `first` on, and perhaps older ones.
    Without `first`, at least the newest. Lists few directories. Raises SinkUnavailable, InvalidSettings."""
    store, below = _Store.of(path), f"{MANIFESTS}/{job}/{stage}"
    manifests: list[str] = []
    for directory in reversed(store.directories(below)):
        found = store.listed(directory)
        manifests += found
        # An empty directory was made by a run that was killed.
        if found and (first is None or int(directory.rpartition("/")[2]) * _SLICES_A_DIRECTORY <= first):
            break
    return sorted(manifests, key=lambda manifest: emission_of(manifest) or 0)


def read_manifest(path: str, place: str) -> Manifest:
    """Raises SinkUnavailable, ValueError where it is none."""
    return _Store.of(path).manifest(place)


def open_file(path: str, place: str) -> pa.NativeFile | None:
    """A file that a manifest names, opened; None where it isn't there. Raises SinkUnavailable."""
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
    """Where files lie. On a local disk a file is synced before it has its name."""

    filesystem: pafs.FileSystem
    root: str
    is_local: bool

    @staticmethod
    def of(path: str) -> _Store:
        try:
            filesystem, root = pafs.FileSystem.from_uri(path)
        except (pa.ArrowInvalid, ValueError, OSError) as error:
            raise InvalidSettings(
                f"{path} is no place for files: {error}; write an absolute directory or a URI"
            ) from error
        return _Store(filesystem, root.rstrip("/"), isinstance(filesystem, pafs.LocalFileSystem))

    def make(self, place: str) -> None:
        with _told(self.root):
            self.filesystem.create_dir(f"{self.root}/{place}", recursive=True)

    def write(self, place: str, content: pa.Buffer | bytes) -> None:
        """Write a Parquet file whose name says what is in it: one that is there stays, or is replaced by its like."""
        with _told(self.root):
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
            # On HDFS a file is there from its first byte on, and a manifest may name it: what is whole is never opened to write.
            if self.holds(place):
                return
            unnamed = f"{named.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp"
            with self.filesystem.open_output_stream(unnamed) as stream:
                stream.write(content)
            self.filesystem.move(unnamed, named)

    def create(self, place: str, content: bytes) -> bool:
        """Write a file unless one of this name is there; return whether it was written."""
        with _told(self.root):
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
            # No filesystem of Arrow can create exclusively. Two runs that both write a manifest of one slice write the same rows.
            named = f"{self.root}/{place}"
            if self.filesystem.get_file_info(named).type is not pafs.FileType.NotFound:
                return False
            # On HDFS a file is there from its first byte on: what a killed run had begun would be taken for the whole.
            begun = named if self.filesystem.type_name in _OBJECT_STORES else f"{named}.{uuid.uuid4().hex}.tmp"
            with self.filesystem.open_output_stream(begun) as stream:
                stream.write(content)
            if begun != named:
                self.filesystem.move(begun, named)
            return True

    def read(self, place: str) -> bytes:
        with _told(self.root), self.filesystem.open_input_stream(f"{self.root}/{place}") as stream:
            return bytes(stream.read())

    def manifest(self, place: str) -> Manifest:
        """Raises ValueError where it is none."""
        return msgspec.json.decode(self.read(place), type=Manifest)

    def open(self, place: str) -> pa.NativeFile:
        with _told(self.root):
            return self.filesystem.open_input_file(f"{self.root}/{place}")

    def holds(self, place: str) -> bool:
        """Whether there is such a file or directory."""
        with _told(self.root):
            return bool(self.filesystem.get_file_info(f"{self.root}/{place}").type is not pafs.FileType.NotFound)

    def listed(self, place: str) -> list[str]:
        """Return the manifests below this directory and its directories, in the order of stages and slices."""
        found = self._entries(place, pafs.FileType.File, is_recursive=True)
        return [name for name in found if name.endswith(".json")]

    def directories(self, place: str) -> list[str]:
        """Return the directories in this directory, by name."""
        return self._entries(place, pafs.FileType.Directory)

    def _entries(self, place: str, kind: pafs.FileType, *, is_recursive: bool = False) -> list[str]:
        with _told(self.root):
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
class _told:  # noqa: N801
    """Errors of the store as ours."""

    root: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileExistsError):
            raise SinkUnavailable(
                f"files below {self.root} could not be written or read: {error}; see to the place, its space and its rights"
            ) from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
