"""A generated job (made_up.py) whose past is recomputed by backfills, and the content of its aliases then."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from tests.support.chaos.checking.pace import PACES, Pace
from tests.support.chaos.dump import Dump, Row
from tests.support.chaos.made_up import MadeUpJob


class BackfilledJob(MadeUpJob):
    backfilling: Row | None = None
    """The row of the backfill that is computed now."""

    def backfill(self, from_ms: int, to_ms: int | None) -> None:
        """Compute the windows that end after `from_ms`, up to `to_ms` or up to the closed ones, with the current
        version."""
        last = self.dump.tables["checkpoints"][-1]
        closed_ms = last["closes_ms"]
        up_to_ms = min(closed_ms, to_ms or closed_ms)
        rows = self.dump.tables["backfills"]
        self.backfilling = {
            "generation": len(rows) + 2,
            "version": self.version.number,
            "from_ms": from_ms,
            "to_ms": to_ms,
            "windows": {
                stage: [from_ms // size_ms * size_ms, up_to_ms // size_ms * size_ms]
                for stage, size_ms in self.pace.sizes_ms.items()
            },
            "slice": last["slice"],
            "state": "complete",
            "epoch": 2,
            "refused": {},
            "message": "",
        }
        rows.append(self.backfilling)
        self.suffix = f".g{self.backfilling['generation']}"
        self.replay(0)
        before = len(self.dump.backfilled)
        self.emit(self.dump.tables["slices"][-1], up_to_ms, self.chance.choice((1, 2)))
        written = self.dump.backfilled[before:]
        self.backfilling["results"] = dict(Counter(one["_source"]["strandline"]["stage"] for one in written))
        self.backfilling, self.suffix = None, ""
        self.replay(closed_ms)

    def is_emitted(self, stage: str, end_ms: int) -> bool:
        return self.backfilling is None or in_range(self.backfilling, stage, end_ms)

    def write(self, stage: str, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> None:
        if self.backfilling is None:
            super().write(stage, end_ms, by, values, row, epoch)
        elif self.is_emitted(stage, end_ms):
            self.dump.backfilled.append(self.document(stage, end_ms, by, values, row, epoch))

    def finish(self) -> Dump:
        dump = super().finish()
        dump.shown = {stage: [] for stage in self.pace.sizes_ms}
        for one in (*dump.documents, *dump.backfilled):
            stage, end_ms = one["_source"]["strandline"]["stage"], end_of(one)
            holding = [row for row in dump.tables["backfills"] if in_range(row, stage, end_ms)]
            newest = f".g{holding[-1]['generation']}" if holding else ""
            if one["_index"].startswith(f"{self.job}-{stage}{newest}-"):
                dump.shown[stage].append(f"{one['_index']}/{one['_id']}")
        return dump


def end_of(document: Row) -> int:
    return int(datetime.fromisoformat(document["_source"]["@timestamp"]).timestamp() * 1000)


def in_range(backfill: Row, stage: str, end_ms: int) -> bool:
    after_ms, up_to_ms = backfill["windows"][stage]
    return bool(after_ms < end_ms <= up_to_ms)


def made_up_run(seed: int, job: str, stream: str, pace: Pace = PACES[20]) -> Dump:
    """60 slices with some thousand records, by three versions; two backfills, the second over a part of the first."""
    made_up = BackfilledJob(seed, job, stream, pace)
    began_ms = made_up.event_ms
    for number in range(1, 61):
        made_up.slice(made_up.chance.choice((0, 1, 10, 60)))
        if number == 35:
            made_up.backfill(began_ms + 45_000, None)
        if number == 55:
            made_up.backfill(began_ms + 100_000, made_up.dump.tables["checkpoints"][-1]["closes_ms"] - 15_000)
    made_up.drain()
    return made_up.finish()
