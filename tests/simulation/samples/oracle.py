"""Contents of the store at the end, by definition: plain loops over the log, by the recorded watermarks and ranges of slices.

Nothing here is shared with the engine."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from strandline.ledger.states import SliceRow
from tests.simulation.samples.history import HOUR_MS, MAX_AHEAD_MS, MINUTE_MS, STREAM, Log, Reading, Record
from tests.simulation.samples.pipelines import REVISED, Setup

Place = tuple[int, int]
"""Partition and offset."""
IN_TIME, REVISES = "in time", "revises"
ONE_STEP = {"quarters": 15 * MINUTE_MS, "rates": HOUR_MS, "hours": 15 * MINUTE_MS}
WITHIN_MS = {"quarters": HOUR_MS, "rates": 6 * HOUR_MS, "records": HOUR_MS, "hours": HOUR_MS}


class Taken(NamedTuple):
    """A record that was used."""

    record: Record
    slice: int
    is_late: bool

    @property
    def reading(self) -> Reading:
        return self.record.reading


@dataclass
class Decisions:
    """Outcome of each record."""

    of: dict[Place, str] = field(default_factory=dict)
    """`in time`, `revises`, or the reason of its dead letter."""
    taken: list[Taken] = field(default_factory=list)
    slices: dict[Place, int] = field(default_factory=dict)


def decide(log: Log, slices: Sequence[SliceRow], revise_ms: int) -> Decisions:
    """Classify each record by the watermark that is recorded with its slice."""
    found = Decisions()
    for row in slices:
        for partition, end in row.offsets[STREAM].items():
            for record in log.partitions_[partition][row.offsets_first[STREAM].get(partition, 0) : end]:
                place, one = (partition, record.offset), record.reading
                watermark_ms = row.watermark_ms
                found.slices[place] = row.number
                if not one.is_readable:
                    found.of[place] = "unreadable"
                elif one.event_ms > one.came_ms + MAX_AHEAD_MS:
                    found.of[place] = "future_event"
                elif watermark_ms is not None and one.event_ms < watermark_ms - revise_ms:
                    found.of[place] = "late"
                else:
                    is_late = watermark_ms is not None and one.event_ms < watermark_ms
                    found.of[place] = REVISES if is_late else IN_TIME
                    found.taken.append(Taken(record, row.number, is_late))
    return found


Row = dict[str, Any]
ResultKey = tuple[str, ...]


class Step(NamedTuple):
    """A record and the one of its meter before it."""

    row: Taken
    before: Taken | None
    used: float | None
    """Increase of the counter."""
    seconds: float | None


def steps_of(taken: Sequence[Taken], within_ms: int) -> Iterator[Step]:
    """Yield each record with the one before it in event time, if that is near enough."""
    meters: dict[str, list[Taken]] = defaultdict(list)
    for row in taken:
        meters[row.reading.meter].append(row)
    for rows in meters.values():
        rows.sort(key=lambda row: (row.reading.event_ms, row.record.partition, row.record.offset))
        before: Taken | None = None
        for row in rows:
            if before is not None and row.reading.event_ms - before.reading.event_ms > within_ms:
                before = None
            used = seconds = None
            if before is not None:
                seconds = (row.reading.event_ms - before.reading.event_ms) / 1000
                used = increase(before.reading.wh, row.reading.wh)
            yield Step(row, before, used, seconds)
            before = row


def increase(before: float | None, now: float | None) -> float | None:
    """Return what a counter has counted between two readings. If it is lower now, it was reset to 0 in between."""
    if before is None or now is None:
        return None
    return now if now < before else now - before


def expected(setup: Setup, taken: Sequence[Taken]) -> dict[ResultKey, Row]:
    """Return the results: index stem, end, by fields, number -> fields."""
    if setup.is_revised:
        return dict(_revised(setup, taken))
    steps = list(steps_of(taken, WITHIN_MS[setup.form]))
    if setup.form == "records":
        return dict(_of_records(steps))
    size_ms = ONE_STEP[setup.form]
    windows: dict[tuple[int, str], list[Step]] = defaultdict(list)
    for step in steps:
        event_ms = step.row.reading.event_ms
        windows[event_ms - event_ms % size_ms + size_ms, step.row.reading.meter].append(step)
    found: dict[ResultKey, Row] = {}
    hours: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for (end_ms, meter), inside in sorted(windows.items()):
        used = added(step.used for step in inside)
        one: Row = {"used": used}
        if setup.form == "rates":
            counted_s = added(step.seconds for step in inside if step.used is not None)
            one["rate"] = used / counted_s if used is not None and counted_s else None
            one["on_s"] = added(
                step.seconds * (step.before.reading.level > 1) if step.before and step.seconds is not None else None
                for step in inside
            )
        else:
            one["n"] = len(inside)
        found["used", str(end_ms), meter] = one
        hours[-(-end_ms // HOUR_MS) * HOUR_MS, meter].append(one)
    if setup.form == "hours":
        for (end_ms, meter), quarters in hours.items():
            found["hours", str(end_ms), meter] = {
                "n": sum(one["n"] for one in quarters),
                "used": added(one["used"] for one in quarters),
            }
    return found


def added(values: Iterator[float | None]) -> float | None:
    """Add from left to right. None if there is nothing to add."""
    total: float | None = None
    for value in values:
        if value is not None:
            total = value if total is None else total + value
    return total


def _of_records(steps: Sequence[Step]) -> Iterator[tuple[ResultKey, Row]]:
    found: dict[ResultKey, list[Row]] = defaultdict(list)
    for step in steps:
        one = step.row.reading
        was = None if step.before is None else step.before.reading.wh
        change = None if was is None or one.wh is None else one.wh - was
        fields = {"wh": one.wh, "was": was, "step": change, "used": step.used}
        found["used", str(one.event_ms + 1), one.meter].append(fields)
    return _numbered(found)


def _numbered(found: Mapping[ResultKey, list[Row]]) -> Iterator[tuple[ResultKey, Row]]:
    """Number the results of one key. Records of one meter and millisecond have equal windows, and no number in documents."""
    for key, rows in found.items():
        for number, row in enumerate(sorted(rows, key=str)):
            yield (*key, str(number)), row


def _revised(setup: Setup, taken: Sequence[Taken]) -> Iterator[tuple[ResultKey, Row]]:
    _, size_ms, every_ms = REVISED[setup.form]
    windows: dict[tuple[str, ...], dict[int, list[Taken]]] = defaultdict(lambda: defaultdict(list))
    for row in taken:
        by = tuple(getattr(row.reading, name) for name in setup.by)
        for end_ms in _ends_of(setup.form, row.reading.event_ms, size_ms, every_ms):
            windows[str(end_ms), *by][row.record.partition].append(row)
    for key, by_partition in windows.items():
        totals, rows = [], list[Taken]()
        for _, inside in sorted(by_partition.items()):
            inside.sort(key=lambda row: row.record.offset)
            totals.append(_total(setup, inside, every_ms))
            rows += inside
        known = [row.reading.wh for row in rows if row.reading.wh is not None]
        yield (
            ("used", *key),
            {
                "n": len(rows),
                "total": added(iter(totals)),
                "most": max(known, default=None),
                "revision": sum(row.is_late for row in rows),
            },
        )


def _ends_of(form: str, event_ms: int, size_ms: int, every_ms: int) -> range:
    """Return the ends of the windows with this event time."""
    first_ms = event_ms - event_ms % every_ms + every_ms
    if form == "cumulative":
        return range(first_ms, event_ms - event_ms % size_ms + size_ms + 1, every_ms)
    return range(first_ms, first_ms + size_ms, every_ms)


def _total(setup: Setup, rows: Sequence[Taken], every_ms: int) -> float | None:
    """Add the levels as the reference says: the records of one pane in the order of the log, then the panes in time order."""
    panes: dict[int, list[Taken]] = defaultdict(list)
    for row in rows:
        panes[row.reading.event_ms // every_ms].append(row)
    return added(added(row.reading.level for row in inside) for _, inside in sorted(panes.items()))


def found_in(setup: Setup, documents: Mapping[tuple[str, str], bytes]) -> dict[ResultKey, Row]:
    """Return the documents of a store in the form of `expected`. `documents`: (index, id) -> JSON."""
    found: dict[ResultKey, list[Row]] = defaultdict(list)
    for (index, _), source in documents.items():
        document = json.loads(source)
        end_ms = round(datetime.fromisoformat(document.pop("@timestamp")).timestamp() * 1000)
        key = (index.split("-")[0], str(end_ms), *(document.pop(name) for name in setup.by))
        del document["window"], document["strandline"]
        if setup.form == "records":
            document = {name: document[name] for name in ("wh", "was", "step", "used")}
        found[key].append(document)
    if setup.form == "records":
        return dict(_numbered(found))
    assert all(len(rows) == 1 for rows in found.values()), "a window has one document"
    return {key: rows[0] for key, rows in found.items()}
