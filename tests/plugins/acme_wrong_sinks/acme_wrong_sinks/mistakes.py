"""Writers with one mistake each."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa

from acme_wrong_sinks.memory import STORES, MemoryWriter, Store, once, store_of
from strandline.core.errors import Divergence, SinkUnavailable
from strandline.results.document import DocumentShape
from strandline.results.sinks.typed_rows import ID
from strandline.results.writer import WriteReport
from tests.support.waiting import stretched


@dataclass(frozen=True)
class KeepsAConnection(MemoryWriter):
    connection: Any = field(default_factory=threading.Lock)


class PreparesOnce(MemoryWriter):
    def prepare(self, next_end_ms: int | None) -> None:
        if self.name in STORES:
            raise FileExistsError(self.name)
        STORES[self.name] = Store()


class EmptiesOnPrepare(MemoryWriter):
    def prepare(self, next_end_ms: int | None) -> None:
        store_of(self.name).rows.clear()


class Appends(MemoryWriter):
    """A repeated write is a second row."""

    def write(self, report: WriteReport, rows: list[dict[str, Any]]) -> None:
        store_of(self.name).rows.extend(rows)
        report.created += len(rows)


class Overwrites(MemoryWriter):
    """A blind PUT: idempotent, and another value replaces the first one."""

    def diverge(self, store: Store, found: dict[str, Any], row: dict[str, Any]) -> None:
        found.update(row)


class KeepsTheFirst(MemoryWriter):
    """INSERT ... ON CONFLICT DO NOTHING, without a comparison."""

    def diverge(self, store: Store, found: dict[str, Any], row: dict[str, Any]) -> None: ...


class OverwritesAndDiverges(MemoryWriter):
    def diverge(self, store: Store, found: dict[str, Any], row: dict[str, Any]) -> None:
        found.update(row)
        super().diverge(store, found, row)


class ComparesTheFirstRow(MemoryWriter):
    """Compares only the first row of each batch."""

    def write(self, report: WriteReport, rows: list[dict[str, Any]]) -> None:
        known = {row[ID]: row for row in store_of(self.name).rows}
        super().write(report, [*rows[:1], *(known.get(row[ID], row) for row in rows[1:])])


class ComparesTheRun(MemoryWriter):
    """The version that wrote a row is a part of its value."""

    def compared(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


class CountsAllAsCreated(MemoryWriter):
    def write(self, report: WriteReport, rows: list[dict[str, Any]]) -> None:
        before = report.already
        super().write(report, rows)
        report.created, report.already = report.created + report.already - before, before


class CountsStoredTwice(MemoryWriter):
    def write(self, report: WriteReport, rows: list[dict[str, Any]]) -> None:
        super().write(report, rows)
        report.add_stored(f"sink memory:{self.name}", report.rows)


class CountsRefusedAsCreated(MemoryWriter):
    def refuse(self, report: WriteReport, refused: list[Any]) -> None:
        report.created += len(refused)


class DropsRefused(MemoryWriter):
    def refuse(self, report: WriteReport, refused: list[Any]) -> None: ...


class NamesNoSink(MemoryWriter):
    """A refused row without the name of the sink."""

    def refuse(self, report: WriteReport, refused: list[Any]) -> None:
        report.refused += [replace(one, index=None) for one in refused]


class WritesTheFirstBatch(MemoryWriter):
    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        return super().write_batches(islice(batches, 1), epoch, emission, slice_digest)


class StopsAtAnEmptyBatch(MemoryWriter):
    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        some: list[pa.RecordBatch] = []
        for batch in batches:
            if not batch.num_rows:
                break
            some.append(batch)
        return super().write_batches(some, epoch, emission, slice_digest)


class WritesOnePage(MemoryWriter):
    """Sends at most 1,000 rows of a batch, and reports all."""

    def write(self, report: WriteReport, rows: list[dict[str, Any]]) -> None:
        super().write(report, rows[:1000])
        report.created += len(rows[1000:])


class LosesNulls(MemoryWriter):
    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | {name: 0 for name in ("n",) if row[name] is None}


class LosesTexts(MemoryWriter):
    """An empty text is null, as in Oracle."""

    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"note": row["note"] or None}


class RoundsIntegers(MemoryWriter):
    """Integers as doubles, as in JavaScript."""

    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"n": None if row["n"] is None else int(float(row["n"]))}


class RoundsDecimals(MemoryWriter):
    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"total": None if row["total"] is None else Decimal(repr(float(row["total"])))}


class RoundsDoubles(MemoryWriter):
    """Doubles as text of 15 digits."""

    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"load": None if row["load"] is None else float(f"{row['load']:.15g}")}


class RoundsTimes(MemoryWriter):
    """Timestamps in milliseconds."""

    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        seen = row["seen"]
        return row | {"seen": None if seen is None else seen.replace(microsecond=seen.microsecond // 1000 * 1000)}


class IgnoresCase(MemoryWriter):
    """A collation that ignores the case and spaces at the end."""

    def compared(self, row: dict[str, Any]) -> dict[str, Any]:
        note = row["note"]
        return super().compared(row) | {"note": None if note is None else note.lower().rstrip()}


class StoresTextOnly(MemoryWriter):
    """Compares the right values, and shows its readers others."""

    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"is_on": str(row["is_on"])}

    def is_equal(self, found: dict[str, Any], row: dict[str, Any]) -> bool:
        return super().is_equal(found, row)


class RaisesItsOwnError(MemoryWriter):
    """An outage is an error of the library."""

    def write(self, report: WriteReport, rows: list[dict[str, Any]]) -> None:
        try:
            super().write(report, rows)
        except SinkUnavailable as error:
            raise ConnectionError(str(error)) from error


class SwallowsAnOutage(MemoryWriter):
    def write(self, report: WriteReport, rows: list[dict[str, Any]]) -> None:
        try:
            super().write(report, rows)
        except SinkUnavailable:
            report.created += len(rows)


class PreparesWithoutAServer(MemoryWriter):
    def prepare(self, next_end_ms: int | None) -> None: ...


class WritesOneIdForAllRuns(MemoryWriter):
    """Without `is_once`, it writes the ids of `exactly_once`."""

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        return MemoryWriter(self.name, once(self.shape)).write_batches(batches, epoch, emission, slice_digest)


class LosesParallelRows(MemoryWriter):
    """Reads all rows, adds its own, and writes all: tasks overwrite each other."""

    def write(self, report: WriteReport, rows: list[dict[str, Any]]) -> None:
        copy = Store(list(store_of(self.name).rows))
        STORES[f"{self.name} copy {threading.get_ident()}"] = copy
        MemoryWriter(f"{self.name} copy {threading.get_ident()}", self.shape).write(report, rows)
        if rows:
            _BARRIER.wait_for_others(rows)
        STORES[self.name].rows = copy.rows


_ALL_READ_S = 30
"""Maximum time for the four tasks to read. The test fails after it."""


class _Barrier:
    """Lets the tasks of the parallel check read before any of them writes."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(4)

    def wait_for_others(self, rows: list[dict[str, Any]]) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._barrier.wait(stretched(_ALL_READ_S))


_BARRIER = _Barrier()


@dataclass(frozen=True)
class PartsWriter:
    """A CommittedWriter: parts count when `commit` is called with them."""

    name: str
    shape: DocumentShape

    @property
    def place(self) -> str:
        return self.name

    def prepare(self, next_end_ms: int | None) -> None:
        store_of(self.name)

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        part = f"{self.name}/{len(STORES)}/{threading.get_ident()}"
        report = MemoryWriter(part, self.shape).write_batches(batches, epoch, emission, slice_digest)
        report.created, report.already = report.created + report.already, 0
        report.parts = [part] if report.created else []
        return report

    def commit(self, emission: int, epoch: int, parts: Iterable[str], slice_digest: str = "") -> None:
        rows = {row[ID]: row for part in parts for row in STORES[part].rows}
        store = store_of(self.name)
        old = {row[ID]: row for row in store.rows}
        compared = MemoryWriter(self.name, self.shape).compared
        if any(one in old and compared(old[one]) != compared(row) for one, row in rows.items()):
            raise Divergence("another value; nothing was changed")
        self.add(store, [row for one, row in rows.items() if one not in old], rows)

    def add(self, store: Store, new: list[dict[str, Any]], rows: dict[str, dict[str, Any]]) -> None:
        store.rows += new


class CommitsTwice(PartsWriter):
    """A repeated commit adds the rows again."""

    def add(self, store: Store, new: list[dict[str, Any]], rows: dict[str, dict[str, Any]]) -> None:
        store.rows += rows.values()


class CommitsAsItWrites(PartsWriter):
    """Rows count before the commit, and again after it."""

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        report = super().write_batches(batches, epoch, emission, slice_digest)
        for part in report.parts:
            store_of(self.name).rows += STORES[part].rows
        return report
