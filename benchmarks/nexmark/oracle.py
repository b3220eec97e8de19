"""Expected results of each query of NEXMark, by DuckDB over the same records. The answers are in `oracle.sql`. They are based
on the descriptions of the queries, and share nothing with the pipelines.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from io import BytesIO
from pathlib import Path

import duckdb
import pyarrow as pa
from pyarrow import csv
from pyarrow import json as arrow_json

from benchmarks.nexmark.queries import EXAMPLES, Log, Rows, as_row

TYPES = {
    **dict.fromkeys(("kind", "name", "email", "credit_card", "city", "state", "item", "description"), pa.string()),
    **dict.fromkeys(("channel", "url", "extra"), pa.string()),
    **dict.fromkeys(("date_time", "id", "initial_bid", "reserve", "expires", "seller", "category"), pa.int64()),
    **dict.fromkeys(("auction", "bidder", "price"), pa.int64()),
}
"""Types of the fields of records."""


def parts_of(path: Path) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the statements of a file that create the views, and query -> stage -> its statement."""
    text = path.read_text(encoding="utf-8")
    views, queries = "", defaultdict[str, dict[str, str]](dict)
    for heading, part in re.findall(r"^-- (views|q\d+ \w+)\n(.*?)(?=^-- |\Z)", text, re.MULTILINE | re.DOTALL):
        query, _, stage = heading.partition(" ")
        if stage:
            queries[query][stage] = part
        else:
            views = part
    return views, dict(queries)


_VIEWS, QUERIES = parts_of(Path(__file__).with_name("oracle.sql"))
"""Query -> stage -> statement with its results."""


class Oracle:
    """Answers the queries over one log."""

    def __init__(self, log: Log) -> None:
        read = arrow_json.read_json(
            BytesIO(b"\n".join(log.lines)),
            parse_options=arrow_json.ParseOptions(explicit_schema=pa.schema(list(TYPES.items()))),
        )
        # Position of a record in the log: by partition, then by offset.
        place = [at % log.partitions * len(log.lines) + at // log.partitions for at in range(len(log.lines))]
        record = read.append_column("place", pa.array(place)).append_column("log_ms", pa.array(log.log_ms))
        self._database = duckdb.connect()
        self._database.register("record", record)
        self._database.register("side", csv.read_csv(EXAMPLES / "side_input.csv"))
        self._database.execute(_VIEWS)

    def rows(self, query: str) -> Rows:
        """Return the results of each stage of the query that has some."""
        found = {stage: self._results(text) for stage, text in QUERIES[query].items()}
        return {stage: rows for stage, rows in found.items() if rows}

    def _results(self, text: str) -> Counter[str]:
        found = self._database.execute(text)
        names = [column[0] for column in found.description or ()]
        return Counter(as_row(dict(zip(names, row, strict=True))) for row in found.fetchall())
