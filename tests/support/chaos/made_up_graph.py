"""Data that the graph job (`graph_job.py`) leaves if nothing goes wrong, generated like that of the first job.

Only records are kept between slices: the results of a slice are computed from the records that are close enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from strandline.results.document import document_id
from tests.support.chaos.checking.graph.lookups import LOOKUP, rows_of
from tests.support.chaos.checking.pace import PACES, Pace, Windows
from tests.support.chaos.dump import Dump, Record, Row
from tests.support.chaos.made_up import MadeUpJob, iso
from tests.support.chaos.made_up_more import folded

LOOKUP_SLICES = 9
"""Number of slices after which the next version of the lookup is applied."""
COUNT = 5
Emitted = tuple[str, int, int, Row, Row, tuple[str | int, ...]]
"""Stage, start, end, by fields, values, and what else is in the id."""


class MadeUpGraph(MadeUpJob):
    """Each record that is used is in `taken`, with its place in the log, its slice, and what the lookup says of it."""

    def __init__(self, seed: int, job: str, stream: str, pace: Pace = PACES[20]) -> None:
        self.lookup = 1
        super().__init__(seed, job, stream, pace)
        self.dump.lookups_applied = [(1, self.log_ms)]
        self.closed_ms = 0

    def windows_at(self, pace: Pace) -> dict[str, Windows]:
        anywhere = Windows(1, 1)
        short = Windows(pace.short_ms, pace.short_ms)
        return {"sessions": anywhere, "counted": anywhere, "pairs": anywhere, "plans": short}

    def lookup_versions(self) -> dict[str, int]:
        if len(self.dump.tables["slices"]) % LOOKUP_SLICES == LOOKUP_SLICES - 1:
            self.lookup += 1
            self.log_ms += 2
            self.dump.lookups_applied.append((self.lookup, self.log_ms))
        return {LOOKUP: self.lookup}

    def replay(self, closed_ms: int) -> None:
        """There is no state."""

    def count(self, window: Any, partition: int, reading: Row) -> None:
        """All is counted when it ends."""

    def read(self, record: Record) -> Row:
        return super().read(record) | {"partition": record.partition, "offset": record.offset, "record": record}

    def window_of(self, reading: Row) -> None:
        return None

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        before = len(self.taken)
        rejected = super().take(records, row)
        for _, _, reading in self.taken[before:]:
            reading |= {"slice": row["number"], "load": reading["power"] / reading["rated"]}
            self.enrich(reading, row["lookup_versions"][LOOKUP])
            if reading["plan"] is None:
                rejected["lookup"] += 1
                self.bury(reading["record"], "lookup")
                if taken_by := ",".join(self.taken_by(reading)):
                    self.dump.dead_letters[-1].headers["taken-by"] = taken_by
        return rejected

    def enrich(self, reading: Row, version: int) -> None:
        reading |= {"tariff": None, "plan": None} | rows_of(version).get(reading.get("site"), {})

    def taken_by(self, reading: Row) -> list[str]:
        if not self.is_chosen(reading):
            return []
        return ["sessions", "counted", *["pairs"] * (reading["busy"] > 1)]

    def open_ends_ms(self) -> list[int]:
        return [(self.latest_ms or 0) + self.pace.long_ms]

    def emit(self, row: Row, closes_ms: int, epoch: int) -> Counter[str]:
        results: Counter[str] = Counter()
        if closes_ms <= self.closed_ms:
            return results
        for stage, start_ms, end_ms, by, values, beside in self.results(closes_ms):
            document = self.document(stage, end_ms, by, values, row, epoch)
            document["_source"]["window"]["start"] = iso(start_ms)
            document["_id"] = document_id(self.job, stage, start_ms, end_ms, (*by.values(), *beside))
            self.dump.documents.append(document)
            results[stage] += 1
        self.closed_ms = closes_ms
        return results

    def results(self, closes_ms: int) -> Iterator[Emitted]:
        """Yield the results that end after the closed windows, up to `closes_ms`."""
        short_ms, long_ms, closed_ms = self.pace.short_ms, self.pace.long_ms, self.closed_ms
        far = self.used_since(closed_ms - 3 * long_ms)
        near = [one for one in far if one["ts"] >= closed_ms // long_ms * long_ms - long_ms]
        chosen = [one for one in near if self.is_chosen(one)]
        for site, rows in _split([one for one in far if self.is_chosen(one)], lambda one: one.get("site")):
            for start_ms, end_ms, inside in self.sessions(rows):
                if closed_ms < end_ms <= closes_ms:
                    yield "sessions", start_ms, end_ms, {"site": site}, self.of_window(inside), ()
        for client, rows in _split(chosen, lambda one: one.get("client")):
            for number, end_ms, inside in self.counted(rows):
                if closed_ms < end_ms <= closes_ms:
                    load = self.added(one["load"] for one in inside) / len(inside)
                    values = self.of_window(inside) | {"latest": inside[-1]["count"], "load": load}
                    yield "counted", inside[0]["ts"], end_ms, {"client": client}, values, (number,)
        for left, right, start_ms, end_ms in self.pairs(chosen):
            if closed_ms < end_ms <= closes_ms:
                client, places = left.get("client"), "|".join(self.place(one) for one in (left, right))
                yield "pairs", start_ms, end_ms, {"client": client}, self.of_pair(left, right), (places,)
        closing = [one for one in near if one["plan"] and closed_ms < self.short_end(one) <= closes_ms]
        for (site, plan, end_ms), rows in _split(closing, lambda one: (one["site"], one["plan"], self.short_end(one))):
            yield "plans", end_ms - short_ms, end_ms, {"site": site, "plan": plan}, self.of_window(rows), ()

    def used_since(self, from_ms: int) -> list[Row]:
        found = [reading for _, _, reading in self.taken if reading["ts"] >= from_ms]
        return sorted(found, key=lambda one: (one["ts"], one["partition"], one["offset"]))

    def is_chosen(self, one: Row) -> bool:
        return bool(one["load"] < self.version.load_below)

    def short_end(self, one: Row) -> int:
        return int(one["ts"] // self.pace.short_ms + 1) * self.pace.short_ms

    def sessions(self, rows: list[Row]) -> Iterator[tuple[int, int, list[Row]]]:
        """Yield the sessions of one key, from its records by time: chains first, and then their cuts."""
        chains: list[list[Row]] = []
        for one in rows:
            if self.begins_chain(chains[-1][-1] if chains else None, one):
                chains.append([])
            chains[-1].append(one)
        for chain in chains:
            cuts = self.cuts(chain[0]["ts"], chain[-1]["ts"])
            for _, inside in _split(chain, lambda one, cuts=cuts: sum(cut <= one["ts"] for cut in cuts)):
                ends = [cut for cut in cuts if cut > inside[-1]["ts"]]
                yield inside[0]["ts"], min([inside[-1]["ts"] + self.pace.short_ms, *ends]), inside

    def begins_chain(self, before: Row | None, one: Row) -> bool:
        return before is None or one["ts"] - before["ts"] >= self.pace.short_ms

    def cuts(self, first_ms: int, last_ms: int) -> list[int]:
        """Return the times at which a chain is cut, and the first one after it."""
        length_ms = self.pace.long_ms
        first_cut = first_ms - first_ms % self.pace.short_ms + length_ms
        next_ms = first_cut - first_cut % length_ms + length_ms
        return [first_cut, *range(next_ms, max(last_ms, next_ms) + length_ms + 1, length_ms)]

    def counted(self, rows: list[Row]) -> Iterator[tuple[int, int, list[Row]]]:
        """Yield the count windows of one key, from its records in the order in which they count."""
        for period, inside in _split(rows, lambda one: one["ts"] // self.pace.long_ms):
            for number in range(-(-len(inside) // COUNT)):
                window = inside[number * COUNT : (number + 1) * COUNT]
                end_ms = window[-1]["ts"] + 1 if len(window) == COUNT else (period + 1) * self.pace.long_ms
                yield number, end_ms, window

    def pairs(self, rows: list[Row]) -> Iterator[tuple[Row, Row | None, int, int]]:
        rights = [one for one in rows if one["busy"] == 2]
        for left in [one for one in rows if one["busy"] == 3]:
            partners = [one for one in rights if abs(one["ts"] - left["ts"]) <= self.pace.short_ms]
            partners = [one for one in partners if self.are_partners(left, one)]
            for right in partners:
                yield left, right, min(left["ts"], right["ts"]), max(left["ts"], right["ts"]) + 1
            if not partners:
                yield left, None, left["ts"], left["ts"] + self.pace.short_ms + 1

    def are_partners(self, left: Row, right: Row) -> bool:
        is_one_key = left.get("client") is not None and left["client"] == right.get("client")
        return is_one_key and -self.pace.short_ms // 5 <= right["ts"] - left["ts"] <= self.pace.short_ms

    def place(self, one: Row | None) -> str:
        return "-" if one is None else f"{self.stream}/{one['partition']}/{one['offset']}"

    def of_window(self, inside: list[Row]) -> Row:
        rows = sorted(inside, key=lambda one: (one["partition"], one["offset"]))
        loads = [(one["partition"], one["ts"] // self.pace.short_ms, one["load"]) for one in rows]
        bills = [one["busy"] * one["tariff"] for one in rows if one["tariff"] is not None]
        return {
            "n": len(rows),
            "load": folded(loads) / len(rows),
            "peak": float(max(one["power"] for one in rows)),
            "total": sum(one["count"] * self.version.times for one in rows),
            "cost": str(sum(Decimal(one["cost"]) for one in rows)),
            "bill": sum(bills) if bills else None,
        }

    def of_pair(self, left: Row, right: Row | None) -> Row:
        then = right or {"id": None, "tariff": None}
        return {
            "sent": left["id"],
            "began": iso(left["ts"]),
            "cost": left["cost"],
            "total": left["count"] * self.version.times,
            "tariff": left["tariff"],
            "answered": then["id"],
            "ended": None if right is None else iso(right["ts"]),
            "tariff_then": then["tariff"],
        }


def _split(rows: list[Row], key: Callable[..., Any]) -> list[tuple[Any, list[Row]]]:
    """Group by key, in the order of the rows."""
    found: dict[Any, list[Row]] = {}
    for one in rows:
        found.setdefault(key(one), []).append(one)
    return list(found.items())


def made_up_graph(
    seed: int, job: str, stream: str, pace: Pace = PACES[20], kind: type[MadeUpGraph] = MadeUpGraph
) -> Dump:
    """50 slices with some hundred records."""
    made_up = kind(seed, job, stream, pace)
    for _ in range(50):
        made_up.slice(made_up.chance.choice((0, 1, 10, 40)))
    made_up.drain()
    return made_up.finish()
