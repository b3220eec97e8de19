"""A correct sink in memory. Its store is found by a name, as that of a server, so that writers pickle."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from strandline.core.errors import Divergence, SinkUnavailable
from strandline.results.document import DocumentShape
from strandline.results.sinks.typed_rows import ATTEMPT_COLUMNS, ID, typed_rows
from strandline.results.writer import WriteReport


@dataclass
class Store:
    """The content of a server."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_away: bool = False


STORES: dict[str, Store] = {}


def store_of(name: str) -> Store:
    """Return the store. Raises SinkUnavailable if it doesn't respond."""
    store = STORES.setdefault(name, Store())
    if store.is_away:
        raise SinkUnavailable(f"store {name} doesn't respond")
    return store


@dataclass(frozen=True)
class MemoryWriter:
    """A StoreWriter without mistakes. Each method is a place for one."""

    name: str
    shape: DocumentShape

    def prepare(self, next_end_ms: int | None) -> None:
        store_of(self.name)

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        report = WriteReport()
        for batch in batches:
            rows = typed_rows(self.shape, batch, epoch, emission, slice_digest)
            self.refuse(report, rows.refused)
            self.write(report, rows.table.to_pylist())
        return report

    def refuse(self, report: WriteReport, refused: list[Any]) -> None:
        report.refused += refused

    def write(self, report: WriteReport, rows: list[dict[str, Any]]) -> None:
        store = store_of(self.name)
        with store.lock:
            known = {row[ID]: row for row in store.rows}
            for row in rows:
                found = known.get(row[ID])
                if found is None:
                    known[row[ID]] = row
                    store.rows.append(self.stored(row))
                    report.created += 1
                elif self.is_equal(found, self.stored(row)):
                    report.already += 1
                else:
                    self.diverge(store, found, row)

    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        return row

    def is_equal(self, found: dict[str, Any], row: dict[str, Any]) -> bool:
        return self.compared(found) == self.compared(row)

    def compared(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in ATTEMPT_COLUMNS}

    def diverge(self, store: Store, found: dict[str, Any], row: dict[str, Any]) -> None:
        raise Divergence(f"{row[ID]} has another value; nothing was changed")


@dataclass
class MemorySink:
    """The sink, as the contract suite needs it."""

    name: str
    writer_class: type[MemoryWriter] = MemoryWriter

    @property
    def shape_changes(self) -> dict[str, object]:
        return {"emit_name": f"memory:{self.name}", "is_elsewhere": True}

    def writer(self, shape: DocumentShape) -> MemoryWriter:
        return self.writer_class(self.name, shape)

    def ids(self) -> list[str]:
        return [row[ID] for row in STORES.setdefault(self.name, Store()).rows]

    def values(self) -> dict[str, dict[str, object]]:
        return {row[ID]: row for row in STORES[self.name].rows}

    @contextmanager
    def outage(self) -> Iterator[None]:
        store = STORES[self.name]
        store.is_away = True
        try:
            yield
        finally:
            store.is_away = False


def once(shape: DocumentShape) -> DocumentShape:
    """Return the shape with ids that don't contain the epoch."""
    return replace(shape, is_once=True)
