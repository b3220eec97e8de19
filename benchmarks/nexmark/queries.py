"""The queries of NEXMark in `examples/nexmark`, and their results at the desk."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.nexmark.generator import Nexmark
from strandline.frontends.joined_texts import JoinedTexts
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.records import RECORDS_AT_ONCE, DeskRecords
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline

EXAMPLES = Path(__file__).parents[2] / "examples" / "nexmark"
STREAM_FILE = EXAMPLES / "stream.yaml"
NAMES = sorted((path.stem for path in EXAMPLES.glob("q*.yaml")), key=lambda name: int(name[1:]))
"""Names of the queries: q0, q1, ..."""

OF_SHORT_AUCTIONS = ("q3", "q4", "q9", "q20")
"""Queries that join auctions and bids at most ten seconds apart. At 500 records per second, these are all matching ones."""

Rows = dict[str, Counter[str]]
"""Stage -> its results, each as JSON with its members in order, and their counts."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_OF_PLATFORM = ("@timestamp", "window", "strandline", "event_time")


def read_query(name: str, form: str = "yaml") -> CheckedPipeline:
    """Return the query's pipeline, from its file of YAML or SQL. Raises InvalidDocument."""
    texts = JoinedTexts()
    texts.add_file(STREAM_FILE)
    texts.add_file(EXAMPLES / f"{name}.yaml" if form == "yaml" else EXAMPLES / form / f"{name}.{form}")
    return read_pipeline(texts.text, name)


@dataclass(frozen=True)
class Log:
    """Records in the order of the log."""

    lines: Sequence[bytes]
    log_ms: Sequence[int]
    partitions: int = 1
    """Number of partitions. Records are assigned to them in turn."""

    @classmethod
    def of(cls, made: Nexmark, partitions: int = 1) -> Log:
        return cls(made.lines(), made.log_ms.tolist(), partitions)

    def first(self, records: int) -> Log:
        """Return the first records of the log."""
        return Log(self.lines[:records], self.log_ms[:records], self.partitions)

    def parts(self, *, with_log_times: bool) -> Iterator[DeskRecords]:
        """Yield the records in the form of the desk. Without log times, each record arrives at its event time."""
        for first in range(0, len(self.lines), RECORDS_AT_ONCE):
            here = range(first, min(first + RECORDS_AT_ONCE, len(self.lines)))
            place = slice(here.start, here.stop)
            log_ms = self.log_ms[place] if with_log_times else None
            yield DeskRecords(self.lines[place], [at % self.partitions for at in here], log_ms)


def run_at_desk(pipeline: CheckedPipeline, log: Log, slice_records: int | None = 10_000) -> Iterator[DeskResult]:
    """Yield all results, with every window closed at the end. Log times are passed only to pipelines that use them, because the
    desk then processes each record alone, which takes three times as long.

    Raises RuntimeError if a record or a result becomes a dead letter.
    """
    desk = Desk(pipeline, slice_records)
    parts = log.parts(with_log_times=pipeline.spec.event_time.field is None)
    for one in chain.from_iterable([*map(desk.feed, parts), desk.drain()]):
        if isinstance(one, LocalDeadLetter):
            raise RuntimeError(f"{pipeline.spec.pipeline}: a dead letter: {one}")
        yield one


def rows_of_results(results: Iterable[DeskResult]) -> Rows:
    """Return the fields of the results, with times in ms, and the times of their windows."""
    rows: Rows = defaultdict(Counter)
    for one in results:
        source = json.loads(one.document.source)
        fields = {name: value for name, value in source.items() if name not in _OF_PLATFORM}
        if "window" in source:
            fields |= {f"window_{side}": source["window"][side] for side in ("start", "end")}
        rows[one.stage][as_row({name: _in_ms(value) for name, value in fields.items()})] += 1
    return dict(rows)


def as_row(fields: dict[str, Any]) -> str:
    """Return a result in a form for comparisons, without its null values."""
    return json.dumps({name: value for name, value in fields.items() if value is not None}, sort_keys=True, default=str)


def _in_ms(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_ms(one) for one in value]
    if isinstance(value, dict):
        return {name: _in_ms(one) for name, one in value.items()}
    if isinstance(value, str) and _TIME.fullmatch(value):
        return round(datetime.fromisoformat(value).timestamp() * 1000)
    return value
