"""The outcome of the comparison: all counts, and the first differences."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

from strandline.processing.audit.reconciliation import (
    DIFFERENCES,
    SAMPLE_MAX,
    ComparisonResult,
    Finding,
    Reconciler,
    Row,
)
from strandline.processing.audit_queries.table import Database, Table


def find(database: Database, compared: Table, reconciler: Reconciler) -> ComparisonResult:
    """Compare all rows by store and id. Raises PermanentError if DuckDB can't sort them."""
    counts: Counter[tuple[str, str, str]] = Counter()

    def differences() -> Iterator[Finding]:
        for finding in reconciler.findings(_sorted_rows(database, compared)):
            counts[finding.store, finding.kind, finding.label] += finding.count
            if finding.kind in DIFFERENCES:
                yield finding

    sample = heapq.nsmallest(SAMPLE_MAX, differences(), key=_place)
    return ComparisonResult(counts, sample)


def _sorted_rows(database: Database, compared: Table) -> Iterator[Row]:
    for batch in database.query(f"SELECT * FROM {compared.sql} ORDER BY store, id, side, place"):
        yield from map(Row._make, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _place(finding: Finding) -> tuple[str, int, str]:
    return finding.store, -1 if finding.end_ms is None else finding.end_ms, finding.id or ""
