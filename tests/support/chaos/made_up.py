"""Data that a job leaves if nothing goes wrong, generated without any server.

It is the platform in its simplest form: one slice after the other in one process, with runs that end anywhere. The
checker must find no violation in it.
"""

from __future__ import annotations

import functools
import json
import operator
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from strandline.ledger.states import EventTimeRule
from strandline.processing.slices.watermark import first_records, greatest, watermark_by
from strandline.results.document import document_id
from tests.support.chaos.checking.pace import PACES, Pace, Windows
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.dump import Dump, Record, Row
from tests.support.chaos.work import NULL_SHARE, draw_size, make_reading

CLIENTS = 5
PARTITIONS = 4
BEHIND_MS = {2: 20_000}
"""By how much the senders of a partition are behind the others: more than the delay."""
LARGE_BYTES, LARGE_SHARE = 5_000, 0.02
"""Large among these, so that many runs fit into memory."""
UPGRADED_AFTER = (25, 40)
"""Slices that a new version takes over."""
Window = tuple[int, str | None, str | None]
"""End and key of a window of the first stage."""
RULE = EventTimeRule(delay_ms=10_000, idle_timeout_ms=10_000, max_ahead_ms=300_000, watermark="partitions")


def partition_of(client: str) -> int:
    return int(client[-1]) % PARTITIONS


class MadeUpJob:
    rule = RULE
    upgraded_after: tuple[int, ...] = UPGRADED_AFTER

    def __init__(self, seed: int, job: str, stream: str, pace: Pace = PACES[20]) -> None:
        self.job, self.stream, self.pace = job, stream, pace
        self.windows = self.windows_at(pace)
        self.chance = random.Random(seed)
        self.version = Version(1)
        tables: dict[str, list[Row]] = {"slices": [], "checkpoints": [], "runs": [], "events": []}
        tables |= {"job_versions": [{"version": 1}], "backfills": []}
        self.dump = Dump([], [], tables, [], 0, speed=pace.speed)
        # Event time begins a minute and a half before the end of a month, two days before log time.
        self.event_ms = int(datetime(2026, 10, 31, 23, 58, 30, tzinfo=UTC).timestamp() * 1000)
        self.log_ms = self.event_ms + 2 * 86_400_000
        self.broker_ahead_ms = 0
        """How far the clock of the log is ahead of the job's."""
        self.offsets = dict.fromkeys(range(PARTITIONS - 1), 0)
        """The last partition is added later."""
        self.logged_ms: dict[int, int] = {}
        """Partition -> when its last record came."""
        self.resting: int | None = None
        """The partition to which nothing comes now."""
        self.reasons: dict[int, str | None] = {}
        self.epoch = 0
        self.suffix = ""
        """Suffix of the names of the indices that are written now."""
        self.taken: list[tuple[Window, int, Row]] = []
        """Every record that was used, with its window and its partition."""
        self.short: dict[Window, list[tuple[int, Row]]] = defaultdict(list)
        """The open windows of the first stage, by end and key: their records, each with its partition."""
        self.long: dict[tuple[int, str | None], list[Row]] = defaultdict(list)
        self.latest_ms: int | None = None
        self.latest_log_ms: int | None = None
        self.reached: dict[str, int] = {}
        """Partition -> its latest event that was used."""
        self.totals: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
        self.begin_run()

    def windows_at(self, pace: Pace) -> dict[str, Windows]:
        """Stage -> its windows."""
        return {"short": Windows(pace.short_ms, pace.short_ms), "long": Windows(pace.long_ms, pace.long_ms)}

    def begin_run(self) -> None:
        self.epoch += 1
        run = {"epoch": self.epoch, "version": self.version.number, "started_ms": self.log_ms}
        self.dump.tables["runs"].append(run)

    def upgrade(self) -> None:
        """Take over with a new version between two slices: it recomputes every window that isn't closed yet."""
        self.version = Version(self.version.number + 1)
        self.dump.tables["job_versions"].append({"version": self.version.number})
        self.begin_run()
        self.replay(self.dump.tables["checkpoints"][-1]["closes_ms"] or 0)

    def replay(self, closed_ms: int) -> None:
        """Replay from the beginning of the log with the current version; closed windows are not emitted again."""
        self.short.clear()
        self.long.clear()
        for member in self.taken:
            self.count(*member)
        for key in self.closed_short(closed_ms):
            values = self.values_of(self.short.pop(key))
            if self.goes_on(values):
                self.long[self.later(key[0]), key[1]].append(values)
        for end_ms, site in [key for key in self.long if key[0] <= closed_ms]:
            del self.long[end_ms, site]

    def append(self, count: int) -> list[Record]:
        records = []
        for number in range(count):
            sender = self.chance.choice(self.senders())
            partition = partition_of(sender)
            key = None if self.chance.random() < NULL_SHARE else sender  # one without a key may come to any partition
            event_ms = self.event_ms - BEHIND_MS.get(partition, 0)
            name, size = f"{sender}-{self.log_ms}-{number}", draw_size(self.chance, LARGE_BYTES, LARGE_SHARE)
            log_time_ms = self.log_ms + self.broker_ahead_ms
            _, value, reason = make_reading(self.chance, name, key, event_ms, log_time_ms, size)
            record = Record(partition, self.offsets[partition], log_time_ms, key and key.encode(), value, {})
            self.offsets[partition] += 1
            self.logged_ms[partition] = self.log_ms
            self.reasons[id(record)] = reason
            records.append(record)
        self.dump.records += records
        return records

    def senders(self) -> list[str]:
        clients = [f"made-{number}" for number in range(CLIENTS)]
        return [one for one in clients if partition_of(one) in self.offsets and partition_of(one) != self.resting]

    def drain(self) -> None:
        """The last slice: it closes every window that is open."""
        self.slice(0, "drain")

    def slice(self, count: int, kind: str = "live") -> None:
        """Append some records, cut a slice behind them, process and commit it; between any two steps a run may end."""
        slices, checkpoints = self.dump.tables["slices"], self.dump.tables["checkpoints"]
        if len(slices) in self.upgraded_after:
            self.upgrade()
        if len(slices) == 20:
            self.offsets[PARTITIONS - 1] = 0
        if self.chance.random() < 0.1:
            self.resting = self.chance.choice([None, *self.offsets])
        first = {str(partition): offset for partition, offset in self.offsets.items()}
        before = checkpoints[-1] if checkpoints else None
        records = self.append(count)
        self.log_ms += self.chance.randint(200, 900) if count else self.chance.choice((500, 12_000))
        row = {
            "number": len(slices) + 1,
            "epoch": self.epoch,
            "version": self.version.number,
            "offsets_first": {self.stream: first},
            "offsets": {self.stream: {str(partition): offset for partition, offset in self.offsets.items()}},
            "rule": self.rule.written,
            "reached": self.now_reached(),
            "silence_ms": {self.stream: self.silences({record.partition for record in records})},
            "kind": kind,
            "status": "committed",
            "lookup_versions": self.lookup_versions(),
        }
        row["watermark_ms"] = self.watermark(row, before)
        slices.append(row)
        self.maybe_die()
        rejected = self.take(records, row)
        closes_ms = self.closes(row)
        written_by = self.chance.randint(row["epoch"], self.epoch)
        results = self.emit(row, closes_ms or 0, written_by)
        self.maybe_die()
        counts: dict[str, Any] = {"records": len(records), "accepted": len(records) - rejected.total()}
        self.totals[0].update(counts)
        self.totals[1].update(rejected)
        self.totals[2].update(results)
        self.log_ms += 1
        checkpoints.append(
            {
                "slice": row["number"],
                "epoch": self.epoch,
                "version": self.version.number,
                **counts,
                "rejected": dict(rejected),
                "results": {stage: results[stage] for stage in self.windows},
                "records_total": self.totals[0]["records"],
                "accepted_total": self.totals[0]["accepted"],
                "rejected_total": dict(self.totals[1]),
                "results_total": {stage: self.totals[2][stage] for stage in self.windows},
                "emitted": {}
                if closes_ms is None
                else {stage: shape.last_end(closes_ms) for stage, shape in self.windows.items()},
                "closes_ms": closes_ms,
                "reached": self.now_reached(),
                "latest_event_ms": self.latest_ms,
                "latest_log_ms": self.latest_log_ms,
                "committed_ms": self.log_ms,
            }
        )
        self.event_ms += self.chance.randint(0, 12_000)

    def lookup_versions(self) -> dict[str, int]:
        """Versions of the lookups for the slice that is being planned."""
        return {}

    def now_reached(self) -> Row:
        return {self.stream: dict(self.reached)} if self.reached else {}

    def silences(self, fed: set[int]) -> dict[str, int]:
        """Partition -> for how long nothing has come there."""
        return {str(one): self.log_ms - since_ms for one, since_ms in self.logged_ms.items() if one not in fed}

    def watermark(self, row: Row, before: Row | None) -> int | None:
        closed_ms = None if before is None else before["closes_ms"]
        is_first = first_records(row["reached"], row["offsets_first"], row["offsets"])
        by_rule = watermark_by(self.rule, row["reached"], row["silence_ms"], first_records=is_first)
        if row["kind"] == "drain":
            return greatest(closed_ms, by_rule, max(self.open_ends_ms(), default=0) + self.pace.long_ms)
        return greatest(closed_ms, by_rule)

    def open_ends_ms(self) -> list[int]:
        return [end_ms for end_ms, *_ in (*self.long, *self.short)]

    def closes(self, row: Row) -> int | None:
        """After the slice's records."""
        return greatest(row["watermark_ms"], watermark_by(self.rule, self.now_reached(), row["silence_ms"]))

    def maybe_die(self) -> None:
        if self.chance.random() < 0.05:
            self.begin_run()

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        rejected: Counter[str] = Counter()
        for record in records:
            self.latest_log_ms = greatest(self.latest_log_ms, record.log_time_ms)
            reason = self.reasons[id(record)]
            reading: Row = {}
            if reason in (None, "expression"):
                reading = self.read(record)
                if row["watermark_ms"] is not None and reading["ts"] < row["watermark_ms"]:
                    reason = "late"
                else:
                    self.latest_ms = max(self.latest_ms or 0, reading["ts"])
                    partition = str(record.partition)
                    reached_ms = min(reading["ts"], record.log_time_ms)
                    self.reached[partition] = max(reached_ms, self.reached.get(partition, 0))
            if reason is not None:
                rejected[reason] += 1
                self.bury(record, reason)
            else:
                self.taken.append((self.window_of(reading), record.partition, reading))
                self.count(*self.taken[-1])
        return rejected

    def read(self, record: Record) -> Row:
        reading: Row = json.loads(record.value)
        return reading

    def window_of(self, reading: Row) -> Any:
        end_ms = reading["ts"] - reading["ts"] % self.pace.short_ms + self.pace.short_ms
        return (end_ms, *self.key_of(reading))

    def count(self, window: Any, partition: int, reading: Row) -> None:
        if reading["power"] / reading["rated"] < self.version.load_below:
            self.short[window].append((partition, reading))

    def bury(self, record: Record, reason: str) -> None:
        coordinates = {"stream": self.stream, "partition": str(record.partition), "offset": str(record.offset)}
        self.bury_bytes("/".join(coordinates.values()), record.value, {"reason": reason, **coordinates})

    def bury_bytes(self, key: str, value: bytes, headers: dict[str, str]) -> None:
        letters = self.dump.dead_letters
        letters.append(Record(0, 2 * len(letters), self.log_ms, key.encode(), value, headers))

    def key_of(self, reading: Row) -> tuple[str | None, str | None]:
        return reading.get("site"), reading.get("client")

    def emit(self, row: Row, closes_ms: int, epoch: int) -> Counter[str]:
        results: Counter[str] = Counter()
        for key in self.closed_short(closes_ms):
            end_ms, site, client = key
            values = self.values_of(self.short.pop(key))
            by = {"site": site, "client": client}
            self.write("short", end_ms, by, values, row, epoch)
            results["short"] += 1
            if self.may_go_on(end_ms, by, values, row, epoch):
                self.long[self.later(end_ms), site].append(values)
        for end_ms, site in [key for key in self.long if key[0] <= closes_ms]:
            parts = self.long.pop((end_ms, site))
            load = self.added(one["load"] for one in parts) / len(parts)
            values = {
                "n": sum(one["n"] for one in parts),
                "clients": len(parts),
                "load": load,
                "mean": self.rounded(load),
                "peak": max(one["peak"] for one in parts),
                "crowd": max((one["n"] / one["busy"] for one in parts if one["busy"]), default=0.0),
                "total": sum(one["total"] for one in parts),
                "cost": str(sum(Decimal(one["cost"]) for one in parts)),
            }
            self.write("long", end_ms, {"site": site}, values, row, epoch)
            results["long"] += 1
        return results

    def closed_short(self, closes_ms: int) -> list[Window]:
        """In the order in which they go on."""
        closed = [key for key in self.short if key[0] <= closes_ms]
        return sorted(closed, key=lambda key: (key[0], *[(one is None, one or "") for one in key[1:]]))

    def later(self, end_ms: int) -> int:
        """The end of the window of the second stage."""
        return -(-end_ms // self.pace.long_ms) * self.pace.long_ms

    def values_of(self, members: list[tuple[int, Row]]) -> Row:
        """The aggregates of a window of the first stage."""
        rows = [row for _, row in members]
        partitions = sorted({partition for partition, _ in members})
        loads = [self.added(row["power"] / row["rated"] for at, row in members if at == one) for one in partitions]
        load = self.added(loads) / len(rows)
        return {
            "n": len(rows),
            "load": load,
            "mean": self.rounded(load),
            "peak": max(row["power"] for row in rows),
            "low": min(row["power"] for row in rows),
            "total": sum(row["count"] * self.version.times for row in rows),
            "busy": sum(row["busy"] for row in rows),
            "cost": str(sum(Decimal(row["cost"]) for row in rows)),
        }

    def added(self, values: Iterable[float]) -> float:
        """One after the other, as the platform adds doubles."""
        return functools.reduce(operator.add, values, 0.0)

    def rounded(self, mean: float) -> float:
        return float(Decimal(repr(mean)).quantize(Decimal("0.01"), ROUND_HALF_UP))

    def may_go_on(self, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> bool:
        """Whether the result counts in a later window. One for which a step has no value has a dead letter."""
        if (step := self.failing_step(values)) is not None and self.is_emitted("short", end_ms):
            self.bury_result(self.document("short", end_ms, by, values, row, epoch), step)
        return self.goes_on(values)

    def is_emitted(self, stage: str, end_ms: int) -> bool:
        """Whether results of this window are written now."""
        return True

    def failing_step(self, values: Row) -> str | None:
        return "steps[3].derive.crowd" if values["busy"] == 0 else "steps[4].where" if values["low"] == 0 else None

    def goes_on(self, values: Row) -> bool:
        return self.failing_step(values) is None and values["peak"] / values["low"] < 40

    def bury_result(self, document: Row, step: str) -> None:
        headers = {"reason": "expression", "step": step, "index": document["_index"], "document": document["_id"]}
        key, value = f"{document['_index']}/{document['_id']}", json.dumps(document["_source"])
        self.bury_bytes(key, value.encode(), headers)

    def finish(self) -> Dump:
        self.dump.records.sort(key=lambda record: (record.partition, record.offset))
        self.dump.log_starts = {str(partition): 0 for partition in self.offsets}
        self.dump.log_ends = {str(partition): end for partition, end in self.offsets.items()}
        return self.dump

    def write(self, stage: str, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> None:
        self.dump.documents.append(self.document(stage, end_ms, by, values, row, epoch))

    def document(self, stage: str, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> Row:
        start_ms = end_ms - self.windows[stage].size_ms
        start, end = iso(start_ms), iso(end_ms)
        origin = {"job": self.job, "stage": stage, "epoch": epoch, "emission": row["number"]}
        origin["version"] = self.version.number
        source = {"@timestamp": end, "window": {"start": start, "end": end}, **by, **values, "strandline": origin}
        return {
            "_index": f"{self.job}-{stage}{self.suffix}-{end[:4]}.{end[5:7]}",
            "_id": document_id(self.job, stage, start_ms, end_ms, tuple(by.values())),
            "_version": 1,
            "_source": source,
        }


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
