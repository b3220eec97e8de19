"""Reads files for an audit: the files in manifests, in parts with a bounded number of manifests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.results.sinks.files.writer import (
    DAY_MS,
    ORIGIN_DAY,
    WrittenFile,
    emission_of,
    manifests_of,
    open_file,
    read_manifest,
)
from strandline.results.sinks.sink import ResultsRequest, StoredFile, StoredRows

_MANIFESTS_A_PART = 200
_ROWS_A_MANIFEST = 1_000
"""Opening a manifest and its files takes as long as reading this number of rows."""
_ROWS_A_BATCH = 2_000


@dataclass(frozen=True)
class FilesPart:
    """The files of some manifests."""

    request: ResultsRequest
    manifests: tuple[str, ...]

    @property
    def rows(self) -> int:
        return len(self.manifests) * _ROWS_A_MANIFEST

    def read(self) -> Iterator[StoredRows | StoredFile]:
        for manifest in self.manifests:
            try:
                files = read_manifest(self.request.name, manifest).files
            except ValueError as error:
                yield StoredFile(manifest, None, is_there=True, problem=f"is not a manifest: {error}")
                continue
            for file in files:
                if self._is_wanted(file):
                    yield from self._read(file, manifest)

    def _is_wanted(self, file: WrittenFile) -> bool:
        """Return True if its day can have requested rows."""
        day, after_ms, up_to_ms = _day_of(file.path), self.request.after_ms, self.request.up_to_ms
        if day is None:
            return True
        is_late_enough = after_ms is None or (day + 1) * DAY_MS - 1 > after_ms
        return is_late_enough and (up_to_ms is None or day * DAY_MS <= up_to_ms)

    def _read(self, file: WrittenFile, manifest: str) -> Iterator[StoredRows | StoredFile]:
        day = _day_of(file.path)
        opened = open_file(self.request.name, file.path)
        problem = ""
        if opened is None:
            problem = f"doesn't exist, but {manifest} lists it with {file.rows} results"
        else:
            try:
                with opened:
                    parquet = pq.ParquetFile(opened)
                    columns = [name for name in parquet.schema_arrow.names if name in self.request.types]
                    for batch in parquet.iter_batches(_ROWS_A_BATCH, columns=columns):
                        yield StoredRows(file.path, batch.to_pylist())
            except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
                problem = f"can't be read: {error}; {manifest} lists it"
        yield StoredFile(file.path, day, is_there=opened is not None, problem=problem)


def files_parts(request: ResultsRequest) -> list[FilesPart] | None:
    """Return the parts of the files. None if their directory doesn't exist. Raises SinkUnavailable, InvalidSettings."""
    parts: list[FilesPart] = []
    is_there = False
    for stage in request.stages:
        manifests = manifests_of(request.name, request.job, stage)
        if manifests is None:
            continue
        is_there = True
        # Strandline wrote no manifest without a number. Its rows are read, and are extra.
        wanted = [one for one in manifests if (number := emission_of(one)) is None or number >= request.emission_first]
        parts += [
            FilesPart(request, tuple(wanted[first : first + _MANIFESTS_A_PART]))
            for first in range(0, len(wanted), _MANIFESTS_A_PART)
        ]
    return parts if is_there else None


def _day_of(file: str) -> int | None:
    """Return the day, since 1970, of the directory of a file. None if it isn't a directory of a day."""
    try:
        return (date.fromisoformat(file.partition("/")[0].removeprefix("day=")) - ORIGIN_DAY).days
    except ValueError:
        return None
