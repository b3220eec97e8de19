"""What a job leaves behind when nothing goes wrong, made up without any server: the platform in its simplest form, one slice
after the other in one process, with runs that end anywhere. The checker must find nothing in it."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from strandline.results.document import document_id
from tests.support.chaos.dump import Dump, Record, Row
from tests.support.chaos.work import make_reading

CLIENTS = 5
DELAY_MS, TEN_MS, MINUTE_MS = 10_000, 10_000, 60_000


class MadeUpJob:
    def __init__(self, seed: int, job: str, stream: str) -> None:
        self.job, self.stream = job, stream
        self.chance = random.Random(seed)
        self.dump = Dump([], [], {"slices": [], "checkpoints": [], "runs": [], "events": []}, [], 0)
        # Event time begins a minute and a half before the end of a month, two days before log time.
        self.event_ms = int(datetime(2026, 10, 31, 23, 58, 30, tzinfo=UTC).timestamp() * 1000)
        self.log_ms = self.event_ms + 2 * 86_400_000
        self.offsets = dict.fromkeys(range(4), 0)
        self.reasons: dict[int, str | None] = {}
        self.epoch = 0
        self.tens: dict[tuple[int, str, str], list[Row]] = defaultdict(list)
        self.minutes: dict[tuple[int, str], list[Row]] = defaultdict(list)
        self.latest_ms: int | None = None
        self.latest_log_ms: int | None = None
        self.reached: dict[str, int] = {}
        """Partition -> its latest event that was used."""
        self.totals: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
        self.begin_run()

    def begin_run(self) -> None:
        self.epoch += 1
        self.dump.tables["runs"].append({"epoch": self.epoch, "started_ms": self.log_ms})

    def append(self, count: int) -> list[Record]:
        records = []
        for number in range(count):
            client = f"made-{self.chance.randrange(CLIENTS)}"
            name = f"{client}-{self.log_ms}-{number}"
            _, value, reason = make_reading(self.chance, name, client, self.event_ms, self.log_ms)
            partition = int(client[-1]) % 4
            record = Record(partition, self.offsets[partition], self.log_ms, client.encode(), value, {})
            self.offsets[partition] += 1
            self.reasons[id(record)] = reason
            records.append(record)
        self.dump.records += records
        return records

    def slice(self, count: int) -> None:
        """Append some records, cut a slice behind them, process and commit it; between any two steps a run may end."""
        slices, checkpoints = self.dump.tables["slices"], self.dump.tables["checkpoints"]
        first = {str(partition): offset for partition, offset in self.offsets.items()}
        before = checkpoints[-1] if checkpoints else None
        records = self.append(count)
        self.log_ms += self.chance.randint(200, 900)
        watermark_ms = None if before is None else before["closes_ms"]
        silence_ms: dict[str, int] = {}
        if not count and self.reached and len(slices) % 2:  # for so long that it lets event time run on
            silence_ms = {partition: 12_000 + int(partition) for partition in self.reached}
            watermark_ms = max(watermark_ms, max(self.reached.values()) + min(silence_ms.values()) - 2 * DELAY_MS)
        row = {
            "number": len(slices) + 1,
            "epoch": self.epoch,
            "offsets_first": {self.stream: first},
            "offsets": {self.stream: {str(partition): offset for partition, offset in self.offsets.items()}},
            "watermark_ms": watermark_ms,
            "rule": {
                "delay_ms": DELAY_MS,
                "idle_timeout_ms": 10_000,
                "max_ahead_ms": 300_000,
                "watermark": "partitions",
            },
            "reached": {self.stream: dict(self.reached)} if self.reached else {},
            "silence_ms": {self.stream: silence_ms},
            "kind": "live",
            "status": "committed",
        }
        slices.append(row)
        self.maybe_die()
        rejected = self.take(records, row)
        passed_ms = min(self.reached.values()) - DELAY_MS if self.reached and not silence_ms else None
        closes_ms = max((known for known in (watermark_ms, passed_ms) if known is not None), default=None)
        written_by = self.chance.randint(row["epoch"], self.epoch)
        results = self.emit(row, closes_ms or 0, written_by)
        self.maybe_die()
        counts: dict[str, Any] = {"records": count, "accepted": count - rejected.total()}
        self.totals[0].update(counts)
        self.totals[1].update(rejected)
        self.totals[2].update(results)
        self.log_ms += 1
        checkpoints.append(
            {
                "slice": row["number"],
                "epoch": self.epoch,
                **counts,
                "rejected": dict(rejected),
                "results": {"ten_seconds": results["ten_seconds"], "per_minute": results["per_minute"]},
                "records_total": self.totals[0]["records"],
                "accepted_total": self.totals[0]["accepted"],
                "rejected_total": dict(self.totals[1]),
                "results_total": {stage: self.totals[2][stage] for stage in ("ten_seconds", "per_minute")},
                "emitted": {}
                if closes_ms is None
                else {"ten_seconds": closes_ms - closes_ms % TEN_MS, "per_minute": closes_ms - closes_ms % MINUTE_MS},
                "closes_ms": closes_ms,
                "reached": {self.stream: dict(self.reached)} if self.reached else {},
                "latest_event_ms": self.latest_ms,
                "latest_log_ms": self.latest_log_ms,
                "committed_ms": self.log_ms,
            }
        )
        self.event_ms += self.chance.randint(0, 12_000)

    def maybe_die(self) -> None:
        if self.chance.random() < 0.05:
            self.begin_run()

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        rejected: Counter[str] = Counter()
        for record in records:
            self.latest_log_ms = record.log_time_ms
            reason = self.reasons[id(record)]
            reading: Row = {}
            if reason in (None, "expression"):
                reading = json.loads(record.value)
                if row["watermark_ms"] is not None and reading["ts"] < row["watermark_ms"]:
                    reason = "late"
                else:
                    self.latest_ms = max(self.latest_ms or 0, reading["ts"])
                    partition = str(record.partition)
                    self.reached[partition] = max(reading["ts"], self.reached.get(partition, 0))
            if reason is not None:
                rejected[reason] += 1
                self.bury(record, reason)
            elif reading["power"] / reading["rated"] < 10:
                end_ms = reading["ts"] - reading["ts"] % TEN_MS + TEN_MS
                self.tens[end_ms, reading["site"], reading["client"]].append(reading)
        return rejected

    def bury(self, record: Record, reason: str) -> None:
        coordinates = {"stream": self.stream, "partition": str(record.partition), "offset": str(record.offset)}
        key = "/".join(coordinates.values()).encode()
        headers = {"reason": reason, **coordinates}
        self.dump.dead_letters.append(
            Record(0, 2 * len(self.dump.dead_letters), self.log_ms, key, record.value, headers)
        )

    def emit(self, row: Row, closes_ms: int, epoch: int) -> Counter[str]:
        results: Counter[str] = Counter()
        for end_ms, site, client in [key for key in self.tens if key[0] <= closes_ms]:
            members = self.tens.pop((end_ms, site, client))
            loads = [one["power"] / one["rated"] for one in members]
            values: Row = {
                "n": len(members),
                "load": sum(loads) / len(loads),
                "peak": max(one["power"] for one in members),
                "low": min(one["power"] for one in members),
                "total": sum(one["count"] for one in members),
                "cost": str(sum(Decimal(one["cost"]) for one in members)),
            }
            self.write("ten_seconds", "ten", end_ms, TEN_MS, {"site": site, "client": client}, values, row, epoch)
            results["ten_seconds"] += 1
            self.minutes[-(-end_ms // MINUTE_MS) * MINUTE_MS, site].append(values)
        for end_ms, site in [key for key in self.minutes if key[0] <= closes_ms]:
            parts = self.minutes.pop((end_ms, site))
            values = {
                "n": sum(one["n"] for one in parts),
                "clients": len(parts),
                "load": sum(one["load"] for one in parts) / len(parts),
                "peak": max(one["peak"] for one in parts),
                "total": sum(one["total"] for one in parts),
                "cost": str(sum(Decimal(one["cost"]) for one in parts)),
            }
            self.write("per_minute", "minute", end_ms, MINUTE_MS, {"site": site}, values, row, epoch)
            results["per_minute"] += 1
        return results

    def write(
        self, stage: str, name: str, end_ms: int, size_ms: int, by: Row, values: Row, row: Row, epoch: int
    ) -> None:
        start, end = (
            datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            for at_ms in (end_ms - size_ms, end_ms)
        )
        origin = {"job": self.job, "stage": stage, "version": 1, "epoch": epoch, "emission": row["number"]}
        source = {"@timestamp": end, "window": {"start": start, "end": end}, **by, **values, "strandline": origin}
        self.dump.documents.append(
            {
                "_index": f"{self.job}-{name}-{end[:4]}.{end[5:7]}",
                "_id": document_id(self.job, stage, end_ms - size_ms, end_ms, tuple(by.values())),
                "_version": 1,
                "_source": source,
            }
        )


def made_up_run(seed: int, job: str, stream: str) -> Dump:
    """60 slices with some thousand records."""
    made_up = MadeUpJob(seed, job, stream)
    for _ in range(60):
        made_up.slice(made_up.chance.choice((0, 1, 10, 60)))
    made_up.dump.records.sort(key=lambda record: (record.partition, record.offset))
    return made_up.dump
