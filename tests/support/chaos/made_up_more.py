"""Data that the additional jobs (`more_jobs.py`) leave if nothing goes wrong, generated like that of the first job."""

from __future__ import annotations

import functools
import json
import operator
from collections import Counter, defaultdict
from datetime import datetime
from decimal import Decimal
from typing import Any

from strandline.ledger.states import EventTimeRule
from tests.support.chaos.checking.pace import PACES, Pace, Windows
from tests.support.chaos.dump import Dump, Record, Row
from tests.support.chaos.made_up import MadeUpJob
from tests.support.chaos.made_up_backfills import made_up_run

Member = tuple[int, Row]
"""A record that counts, behind its partition."""


def in_stream(document: Row, partition: int = 0, offset: int = 0, log_ms: int = 0) -> Record:
    """Return a result as a record of the stream to which its stage emits."""
    window = document["_source"]["window"]
    source = {**document["_source"], "window_start": window["start"], "window_end": window["end"]}
    return Record(partition, offset, log_ms, None, json.dumps(source).encode(), {"strandline-id": document["_id"]})


class MadeUpSecond(MadeUpJob):
    """Reads what the short windows of a made-up first job gave, one emission or a few in a slice."""

    rule = EventTimeRule(delay_ms=0, idle_timeout_ms=None, max_ahead_ms=300_000, watermark="newest")

    def __init__(self, seed: int, job: str, stream: str, documents: list[Row], pace: Pace) -> None:
        super().__init__(seed, job, stream, pace)
        emissions: dict[int, list[Row]] = defaultdict(list)
        for one in documents:
            if one["_source"]["strandline"]["stage"] == "short":
                emissions[one["_source"]["strandline"]["emission"]].append(one)
        self.emissions = [emissions[number] for number in sorted(emissions)]
        """Emissions that are not read yet."""
        self.again: dict[tuple[int, str | None], list[Member]] = defaultdict(list)

    def windows_at(self, pace: Pace) -> dict[str, Windows]:
        return {"again": Windows(pace.long_ms, pace.long_ms)}

    def append(self, count: int) -> list[Record]:
        """Append this many emissions. After each, a partition contains the marker of a transaction."""
        records = []
        for emission in self.emissions[:count]:
            touched = set()
            for document in emission:
                site = document["_source"]["site"]
                partition = 1 if site is None else int(site[-1])
                records.append(in_stream(document, partition, self.offsets[partition], self.log_ms))
                self.offsets[partition] += 1
                touched.add(partition)
                fails = document["_source"]["busy"] == 0
                self.reasons[id(records[-1])] = "expression" if fails else None
            for partition in touched:
                self.offsets[partition] += 1
        del self.emissions[:count]
        self.dump.records += records
        return records

    def silences(self, fed: set[int]) -> dict[str, int]:
        return {}

    def read(self, record: Record) -> Row:
        reading: Row = json.loads(record.value)
        return reading | {"ts": int(datetime.fromisoformat(reading["window_start"]).timestamp() * 1000)}

    def window_of(self, reading: Row) -> Any:
        return reading["ts"] - reading["ts"] % self.pace.long_ms + self.pace.long_ms, reading["client"]

    def count(self, window: Any, partition: int, reading: Row) -> None:
        self.again[window].append((partition, reading))

    def replay(self, closed_ms: int) -> None:
        self.again.clear()
        for member in self.taken:
            self.count(*member)
        for key in [key for key in self.again if key[0] <= closed_ms]:
            del self.again[key]

    def open_ends_ms(self) -> list[int]:
        return [end_ms for end_ms, _ in self.again]

    def emit(self, row: Row, closes_ms: int, epoch: int) -> Counter[str]:
        closed = [key for key in self.again if key[0] <= closes_ms]
        for key in closed:
            members = sorted(self.again.pop(key), key=lambda member: member[0])
            rows = [reading for _, reading in members]
            values = {
                "n": sum(one["n"] for one in rows),
                "parts": len(rows),
                "load": folded([(partition, 0, one["load"]) for partition, one in members]) / len(rows),
                "peak": max(one["peak"] for one in rows),
                "crowd": max(one["n"] / one["busy"] for one in rows),
                "total": sum(one["total"] * self.version.times for one in rows),
                "cost": str(sum(Decimal(one["cost"]) for one in rows)),
            }
            self.write("again", key[0], {"client": key[1]}, values, row, epoch)
        return Counter({"again": len(closed)})


class MadeUpThird(MadeUpJob):
    """Reads what the first job reads."""

    def __init__(self, seed: int, job: str, stream: str, pace: Pace) -> None:
        super().__init__(seed, job, stream, pace)
        self.all: dict[int, list[Member]] = defaultdict(list)

    def windows_at(self, pace: Pace) -> dict[str, Windows]:
        return {"all": Windows(pace.long_ms, pace.short_ms)}

    def window_of(self, reading: Row) -> Any:
        """The end of the first window that holds it."""
        return reading["ts"] - reading["ts"] % self.pace.short_ms + self.pace.short_ms

    def count(self, window: Any, partition: int, reading: Row) -> None:
        if reading["power"] / reading["rated"] < self.version.load_below:
            for end_ms in range(window, window + self.pace.long_ms, self.pace.short_ms):
                self.all[end_ms].append((partition, reading))

    def replay(self, closed_ms: int) -> None:
        self.all.clear()
        for member in self.taken:
            self.count(*member)
        for end_ms in [end_ms for end_ms in self.all if end_ms <= closed_ms]:
            del self.all[end_ms]

    def open_ends_ms(self) -> list[int]:
        return list(self.all)

    def emit(self, row: Row, closes_ms: int, epoch: int) -> Counter[str]:
        closed = [end_ms for end_ms in self.all if end_ms <= closes_ms]
        for end_ms in closed:
            members = self.all.pop(end_ms)
            rows = [reading for _, reading in members]
            every_ms = self.pace.short_ms
            loads = [(partition, one["ts"] // every_ms, one["power"] / one["rated"]) for partition, one in members]
            load = folded(loads) / len(rows)
            values = {
                "n": len(rows),
                "load": load,
                "mean": self.rounded(load),
                "peak": float(max(one["power"] for one in rows)),
                "total": sum(one["count"] * self.version.times for one in rows),
                "cost": str(sum(Decimal(one["cost"]) for one in rows)),
            }
            self.write("all", end_ms, {}, values, row, epoch)
        return Counter({"all": len(closed)})


def folded(loads: list[tuple[int, int, float]]) -> float:
    """Loads, each behind its partition and pane, added as the platform does."""
    panes: dict[tuple[int, int], float] = defaultdict(float)
    for partition, pane, load in loads:
        panes[partition, pane] += load
    partitions: dict[int, float] = defaultdict(float)
    for (partition, _), load in sorted(panes.items()):
        partitions[partition] += load
    return functools.reduce(operator.add, [partitions[one] for one in sorted(partitions)], 0.0)


def made_up_second(seed: int, job: str, stream: str, pace: Pace = PACES[20]) -> Dump:
    """All results of a made-up first job, in some tens of slices."""
    made_up = MadeUpSecond(seed, job, stream, made_up_run(seed, "chaos", "chaos-readings", pace).documents, pace)
    while made_up.emissions:
        made_up.slice(made_up.chance.choice((0, 1, 1, 3)))
    made_up.drain()
    return made_up.finish()


def made_up_third(seed: int, job: str, stream: str, pace: Pace = PACES[20]) -> Dump:
    """60 slices with some thousand records."""
    made_up = MadeUpThird(seed, job, stream, pace)
    for _ in range(60):
        made_up.slice(made_up.chance.choice((0, 1, 10, 60)))
    made_up.drain()
    return made_up.finish()
