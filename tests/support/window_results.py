"""The results of one stage of windows, as the audit and as the operators compute them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from strandline.processing.audit_queries.stage_query import query_of
from strandline.processing.audit_queries.table import Database, Table
from strandline.processing.operators.cascade import Cascade
from strandline.processing.operators.closing import Closing
from strandline.processing.pipelines.stages import LEFT, Stage
from strandline.results.names import WINDOW_NUMBER

Row = dict[str, Any]


def results_of_both(
    stage: Stage, types: Mapping[str, str], database: Database, directory: Path
) -> tuple[list[Row], list[Row]]:
    """Return the results of the audit and those of the operators, ordered by end and key, over 300 records of days in which
    clocks are set. The stage groups by `key`, a string."""
    random = Random(3)
    starts_ms = [int(datetime(2026, month, day, tzinfo=UTC).timestamp() * 1000) for month, day in ((3, 27), (10, 23))]
    times_us = pa.array([(random.choice(starts_ms) + random.randrange(5 * 144) * 600_000) * 1000 for _ in range(300)])
    columns = {"key": pa.array([random.choice("aab") for _ in range(300)])}
    places = [pa.array([0] * 300, pa.int32()), pa.array(range(300), pa.int64()), pa.nulls(300, pa.int32())]
    query = query_of(stage, LEFT, types)
    table = Table(directory / "rows", query.row_schema)
    table.create()
    with table.writer("some") as rows:
        rows.append(query.rows(times_us, columns, places))
    audited = [row for batch in query.results(database, table) for row in batch.to_pylist()]
    cascade = Cascade([stage], 1)
    chunks = [chunk for _, chunk in cascade.cut(0, 0, times_us, columns)]
    computed = cascade.step(None, chunks, Closing(None, 10**13)).results[0].rows.to_pylist()
    return sorted(audited, key=_order), sorted(computed, key=_order)


def _order(row: Row) -> tuple[Any, ...]:
    return row["@window_end_ms"], row["key"], row["@window_start_ms"], row.get(WINDOW_NUMBER, 0)
