"""Reads files back for the audit: what manifests name, a bounded number of manifests a part and of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.processing.audit.parts import Account
from strandline.processing.audit.reconciliation import Row, Side
from strandline.processing.audit.sinks.places import Place
from strandline.processing.audit.sinks.rows import day_of, stored_row
from strandline.processing.audit.stores import ROWS_SCHEMA
from strandline.processing.audit_queries.table import Table, TableWriter
from strandline.processing.operators.blobs import batch_of
from strandline.processing.pipelines.calendars import DAY_MS
from strandline.results.sinks.files_writer import WrittenFile, emission_of, manifests_of, open_file, read_manifest

_MANIFESTS_A_PART = 200
_ROWS_A_MANIFEST = 1_000
"""To open a manifest and its files takes as long as to read so many rows."""
_ROWS_A_BATCH = 2_000


@dataclass(frozen=True)
class FilesPart:
    """The files of some manifests."""

    name: str
    place: Place
    manifests: tuple[str, ...]
    compared: Table

    @property
    def rows(self) -> int:
        return len(self.manifests) * _ROWS_A_MANIFEST

    def run(self) -> Account:
        account = Account()
        with self.compared.writer(self.name) as rows:
            for manifest in self.manifests:
                try:
                    files = read_manifest(self.place.name, manifest).files
                except ValueError as error:
                    rows.append(self._lost(manifest, None, f"is no manifest: {error}"))
                    continue
                for file in files:
                    if self._is_wanted(file):
                        self._read(file, manifest, account, rows)
        return account

    def _is_wanted(self, file: WrittenFile) -> bool:
        """Whether its day has rows to compare."""
        day, asked = day_of(file.path), self.place.asked
        if day is None:
            return True
        after_ms = max((known for known in (asked.after_ms, self.place.after_ms) if known is not None), default=None)
        is_late_enough = after_ms is None or (day + 1) * DAY_MS - 1 > after_ms
        return is_late_enough and (asked.up_to_ms is None or day * DAY_MS <= asked.up_to_ms)

    def _read(self, file: WrittenFile, manifest: str, account: Account, rows: TableWriter) -> None:
        day = day_of(file.path)
        opened = open_file(self.place.name, file.path)
        if day is not None:
            account.standing[self.place.store, day] += opened is not None
        if opened is None:
            rows.append(self._lost(file.path, day, f"is not there; {manifest} names it, with {file.rows} results"))
            return
        try:
            with opened:
                for found in self._rows_of(file, opened):
                    rows.append(batch_of(found, ROWS_SCHEMA))
        except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
            rows.append(self._lost(file.path, day, f"can't be read: {error}; {manifest} names it"))

    def _rows_of(self, file: WrittenFile, opened: pa.NativeFile) -> Iterator[list[Row]]:
        parquet = pq.ParquetFile(opened)
        columns = [name for name in parquet.schema_arrow.names if name in self.place.types]
        for batch in parquet.iter_batches(_ROWS_A_BATCH, columns=columns):
            found = (stored_row(self.place.store, file.path, row, self.place.fields) for row in batch.to_pylist())
            yield [row for row in found if self.place.asked.holds(row.end_ms)]

    def _lost(self, path: str, day: int | None, why: str) -> pa.RecordBatch:
        time_ms = None if day is None else day * DAY_MS
        row = Row(self.place.store, path, Side.LOST, path, time_ms, None, why.encode())
        return batch_of([row], ROWS_SCHEMA)


def files_parts(place: Place, compared: Table) -> list[FilesPart] | None:
    """The files of a place; None where it isn't there. Raises SinkUnavailable, InvalidSettings."""
    parts: list[FilesPart] = []
    is_there = False
    for stage in place.stages:
        manifests = manifests_of(place.name, place.job, stage)
        if manifests is None:
            continue
        is_there = True
        # One without a number was written by nobody that we know: its rows are read, and are extra.
        wanted = [one for one in manifests if (number := emission_of(one)) is None or number >= place.emission_first]
        for first in range(0, len(wanted), _MANIFESTS_A_PART):
            name = f"files-{place.name.replace('/', '_')}-{stage}-{first}"
            parts.append(FilesPart(name, place, tuple(wanted[first : first + _MANIFESTS_A_PART]), compared))
    return parts if is_there else None
