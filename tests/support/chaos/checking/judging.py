"""Outcome of each record of the log: by its slice, and by the checker's own decoding of the bytes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.support.chaos.checking.pace import MAX_AHEAD_MS
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.dump import Record, Row

NUMBERS = ("ts", "power", "rated", "count", "busy")
TEXTS = ("id", "cost")
OPTIONAL_TEXTS = ("client", "site", "note")
"""Null is as good as missing."""


@dataclass
class ClassifiedRecord:
    record: Record
    slice: int
    reason: str | None
    """Why it is a dead letter; None when it is used."""
    event_ms: int | None = None
    """Known where the record could be read."""
    member: Row | None = None
    """The record, with its load; None where no branch has it."""
    taken_by: str | None = None
    """The stages that have it, where it is refused by others."""
    element: int | None = None
    """Index of the row in its record. None if the record is the row, or is refused completely."""
    is_letter: Callable[[bytes], bool] | None = None
    """Returns True if these bytes can be its dead letter. None: those of the record."""
    noted: frozenset[str] = frozenset()
    """What is special in its record."""

    @property
    def is_used(self) -> bool:
        """True if its event time counts."""
        return self.event_ms is not None and self.reason in (None, "expression", "lookup")

    def identity(self, stream: str) -> str:
        """The key of its dead letter."""
        place = f"{stream}/{self.record.partition}/{self.record.offset}"
        return place if self.element is None else f"{place}/{self.element}"


Classifier = Callable[[Record, Row], ClassifiedRecord | list[ClassifiedRecord]]
"""Says what becomes of a record in a slice, or of each of its rows."""


def classify_all(
    records: list[Record], slices: list[Row], stream: str, judge: Classifier, verdict: JobVerdict
) -> Iterator[ClassifiedRecord]:
    by_partition: dict[int, list[tuple[int, Row]]] = defaultdict(list)
    for row in slices:
        for partition, end in row["offsets"][stream].items():
            by_partition[int(partition)].append((end, row))
    places = dict.fromkeys(by_partition, 0)
    for record in records:
        ends = by_partition[record.partition]
        at = places.get(record.partition, 0)
        while at < len(ends) and ends[at][0] <= record.offset:
            at += 1
        places[record.partition] = at
        if at == len(ends):
            verdict.lost.append(f"record {record.partition}/{record.offset} is in no slice")
            continue
        judged = judge(record, ends[at][1])
        for one in judged if isinstance(judged, list) else [judged]:
            if one.reason is None:
                verdict.accepted += 1
            elif one.reason == "late":
                verdict.late += 1
            else:
                verdict.refused += 1
            yield one


def classify_reading(record: Record, row: Row) -> ClassifiedRecord:
    """For a job that has the first steps of `work.py`."""
    number = row["number"]
    try:
        parsed = json.loads(record.value.decode("utf-8"), parse_constant=_refuse)
    except ValueError:
        return ClassifiedRecord(record, number, "decode")
    if not isinstance(parsed, dict) or not _fits(parsed):
        return ClassifiedRecord(record, number, "schema")
    event_ms = parsed["ts"]
    if event_ms - record.log_time_ms > MAX_AHEAD_MS:
        return ClassifiedRecord(record, number, "future_event", event_ms)
    if row["watermark_ms"] is not None and event_ms < row["watermark_ms"]:
        return ClassifiedRecord(record, number, "late", event_ms)
    if parsed["rated"] == 0:
        return ClassifiedRecord(record, number, "expression", event_ms)
    parsed["load"] = parsed["power"] / parsed["rated"]
    return ClassifiedRecord(record, number, None, event_ms, parsed)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _fits(parsed: Row) -> bool:
    """Return True if the record has every required field with the right type.

    A cost may be a string, so that no digit is lost.
    """
    numbers = [parsed.get(name) for name in NUMBERS]
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        return False
    if not all(isinstance(parsed.get(name), str) for name in TEXTS):
        return False
    if not all(isinstance(parsed.get(name), str | None) for name in OPTIONAL_TEXTS):
        return False
    return all(isinstance(parsed[name], int) for name in ("ts", "count", "busy")) and parsed["power"] >= 0
