"""Files of results: large slices, and stores that are no local disk; the contract is in the contract tests."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from strandline.results import document
from strandline.results.document import DocumentShape
from strandline.results.sinks import contract, typed_rows
from strandline.results.sinks.files import writer as files_writer
from strandline.results.sinks.files.writer import (
    FilesWriter,
    WrittenFile,
    _Store,
    committed_files,
    emission_of,
    newest_manifests,
)
from strandline.results.text_columns import join_texts

MANIFEST = "_manifests/job/windows/000000000001.json"


class Killed(Exception):
    """The process ends here."""


class Broken:
    """A file system on which a process is killed after it has opened a file: the file stays, and is empty."""

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)

    def open_output_stream(self, path: str) -> Any:
        self._filesystem.open_output_stream(path).close()
        raise Killed


def test_a_manifest_that_a_killed_run_had_begun_is_written_by_the_next_one() -> None:
    filesystem = pafs._MockFileSystem()
    store = _Store(filesystem, "results", is_local=False)
    store.make("_manifests/job/windows")
    broken: Any = Broken(filesystem)
    with pytest.raises(Killed):
        _Store(broken, "results", is_local=False).create(MANIFEST, b"whole")
    assert store.listed("_manifests") == []
    assert store.create(MANIFEST, b"whole")
    assert (store.listed("_manifests"), store.read(MANIFEST)) == ([MANIFEST], b"whole")
    assert not store.create(MANIFEST, b"other"), "it is there"
    assert store.read(MANIFEST) == b"whole"


FILE = "day=2026-11-01/rows.parquet"
WHOLE = b"PAR1 rows PAR1"


@pytest.fixture
def filesystem() -> pafs.FileSystem:
    """With the day's directory, which HDFS would make with the file."""
    made = pafs._MockFileSystem()
    made.create_dir("results/day=2026-11-01")
    return made


def test_a_file_that_is_written_again_stays_as_it_is(filesystem: pafs.FileSystem) -> None:
    """A manifest may name it already: its readers find it whole whenever the second run dies."""
    _Store(filesystem, "results", is_local=False).write(FILE, WHOLE)
    broken: Any = Broken(filesystem)
    store = _Store(broken, "results", is_local=False)
    with contextlib.suppress(Killed):
        store.write(FILE, WHOLE)
    assert store.read(FILE) == WHOLE


def test_a_file_that_a_killed_run_had_begun_is_written_by_the_next_one(filesystem: pafs.FileSystem) -> None:
    broken: Any = Broken(filesystem)
    with pytest.raises(Killed):
        _Store(broken, "results", is_local=False).write(FILE, WHOLE)
    store = _Store(filesystem, "results", is_local=False)
    assert not store.holds(FILE), "a reader of the directory would take it for a file of rows"
    store.write(FILE, WHOLE)
    assert store.read(FILE) == WHOLE


SHAPE = DocumentShape("", "job", "windows", 1, contract._FIELDS[:1], contract._FIELDS[1:], is_elsewhere=True)


def written(directory: Path, batch: pa.RecordBatch) -> tuple[list[str], list[pa.Table]]:
    """Return what a commit must know about the files, and their contents."""
    writer = FilesWriter(str(directory), SHAPE)
    writer.prepare(None)
    report = writer.write_batches([batch], 1, 1)
    assert (report.created, len(report.refused)) == (6, 1)
    writer.commit(1, 1, report.parts)
    return report.parts, [pq.ParquetFile(file).read() for file in committed_files(str(directory))]


def test_a_large_batch_is_made_into_rows_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow holds at most 2 GiB of text in one array. The files are the same, whatever the size of a piece."""
    good, bad = contract.batch_of(SHAPE, [1, 2, 3, 4, 5, 6]), contract.batch_of(SHAPE, [7], load=float("nan"))
    batch = pa.concat_batches([good.slice(0, 3), bad, good.slice(3)])
    whole = written(tmp_path / "whole", batch)
    joined: list[int] = []

    def counting(parts: Any) -> pa.BinaryArray:
        texts = join_texts(parts)
        joined.append(len(texts))
        return texts

    monkeypatch.setattr(document, "join_texts", counting)
    monkeypatch.setattr(typed_rows, "join_texts", counting)
    monkeypatch.setattr(files_writer, "_ROWS_AT_ONCE", 2, raising=False)
    assert written(tmp_path / "pieces", batch) == whole
    assert max(joined) == 2


class Counted:
    """A local disk that counts the names that it has listed."""

    def __init__(self) -> None:
        self._filesystem = pafs.LocalFileSystem()
        self.listed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)

    def get_file_info(self, asked: Any) -> Any:
        found = self._filesystem.get_file_info(asked)
        self.listed += len(found) if isinstance(asked, pafs.FileSelector) else 1
        return found


COUNTS = DocumentShape("results", "job", "windows", 1, (), (("n", "long"),), is_elsewhere=True)


def part(name: str, rows: int = 1) -> str:
    return msgspec.json.encode(WrittenFile(f"day=2026-11-01/{name}", rows, "0f")).decode()


def newest_emission(path: str, job: str, stage: str) -> int:
    return max((emission_of(manifest) or 0 for manifest in newest_manifests(path, job, stage)), default=0)


def test_a_run_that_begins_lists_only_the_newest_of_many_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = FilesWriter(str(tmp_path), COUNTS)
    writer.prepare(None)
    assert newest_emission(str(tmp_path), "job", "windows") == 0
    monkeypatch.setattr("os.fsync", lambda _: None)
    for emission in range(1, 5500):
        writer.commit(emission, 1, [])
    counted: Any = Counted()
    monkeypatch.setattr(_Store, "of", lambda path: _Store(counted, path, is_local=True))
    assert newest_emission(str(tmp_path), "job", "windows") == 5499
    assert counted.listed <= 510, "500 manifests, and 6 directories"
    (tmp_path / "_manifests/job/windows/000000006").mkdir()  # by a run that was killed
    assert newest_emission(str(tmp_path), "job", "windows") == 5499
