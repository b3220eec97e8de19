"""Size of a job's ledger after a year, with and without the removal of old slices, and the time to plan a rewind.

    python -m benchmarks.ledger [--days 365] [--every-s 60] [--retention-days 7] [--rewind 200000] [--keep-all]

The year is simulated: its slices are written in bulk, one day at a time. Each has four partitions and the size of a real slice.
After each day, the code of the control service removes old slices of a log that keeps the last `retention-days`. Slices are
alike, so a job with one slice per second needs 60 times the space of a job with one per minute.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog

from benchmarks.report import machine_text
from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.database import Database
from strandline.ledger.ledger import Ledger
from strandline.ledger.models import checkpoints, slices
from strandline.ledger.states import CheckpointRow, EventTimeRule, SliceKind, SliceRow, SliceStatus
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.slices.old_slices import SlicesKept
from strandline.processing.slices.rewind import plan_of_job, rewind_cost
from strandline.processing.source.recorded_slices import Replay
from strandline.services.supervision.old_slices import SliceCleanup

JOB, STREAM, PARTITIONS = "turbine-health", "turbines", 4
RECORDS = 250
"""Records of one slice in one partition."""
DAY_S = 86_400
BEGIN_MS = 1_700_000_000_000
REPLAY_ROWS_MAX = 2_000_000
DOCUMENTS = """\
stream: turbines
schema: {turbine: string, ts: timestamp, power: double}
---
pipeline: turbine-health
input: {stream: turbines}
event_time: {field: ts, delay: 10s, idle_timeout: 30s}
steps:
  - window: {name: per_minute, tumbling: 1m, by: [turbine], aggregate: {n: count(*)}}
    emit: [{elasticsearch: turbine-minute}]
  - window: {name: hourly, tumbling: 1h, by: [turbine], aggregate: {n: sum(n)}}
    emit: [{elasticsearch: turbine-hour}]
"""


class Year:
    """Ledger of a job, to which slices are added in bulk."""

    def __init__(self, directory: Path, every_s: int) -> None:
        self.path = directory / "ledger.sqlite"
        url = f"sqlite:///{self.path}"
        self.ledger, self.database, self.every_ms = Ledger.open(url), Database(url), every_s * 1_000
        stream, pipeline = read_documents(DOCUMENTS, "benchmark")
        self.ledger.put_stream(STREAM, StreamSpec.parse(stream).as_document())
        self.ledger.submit_job(JOB, "", PipelineSpec.parse(pipeline).as_document())
        self.ledger.begin_run(JOB, 1)
        self.last = 0

    @property
    def now_ms(self) -> int:
        return BEGIN_MS + self.last * self.every_ms

    @property
    def megabytes(self) -> float:
        return self.path.stat().st_size / 1e6

    def add(self, count: int) -> None:
        """Write `count` more committed slices."""
        numbers = range(self.last + 1, self.last + count + 1)
        with self.database.writing("add slices") as connection:
            connection.execute(sa.insert(slices), [vars(self._slice(number)) for number in numbers])
            connection.execute(sa.insert(checkpoints), [self._checkpoint(number) for number in numbers])
        self.last += count

    def _slice(self, number: int) -> SliceRow:
        time_ms = BEGIN_MS + number * self.every_ms
        return SliceRow(
            JOB,
            number,
            epoch=1,
            version=1,
            offsets_first=_map(RECORDS * (number - 1)),
            offsets=_map(RECORDS * number),
            cut_time_ms=time_ms,
            watermark_ms=time_ms - 10_000,
            rule=EventTimeRule(10_000, 30_000, 300_000),
            reached=_map(time_ms - self.every_ms),
            silence_ms=_map(137),
            kind=SliceKind.LIVE,
            status=SliceStatus.COMMITTED,
            planned_ms=time_ms,
            checksums=_map(2_654_435_761 * number % 2**32),
            stream_versions={STREAM: 1},
        )

    def _checkpoint(self, number: int) -> dict[str, Any]:
        """Return the columns of a checkpoint with its totals."""
        time_ms = BEGIN_MS + number * self.every_ms
        records = RECORDS * PARTITIONS
        row = CheckpointRow(
            JOB,
            number,
            epoch=1,
            version=1,
            emitted={"per_minute": time_ms // 60_000 * 60_000, "hourly": time_ms // 3_600_000 * 3_600_000},
            latest_event_ms=time_ms,
            latest_log_ms=time_ms,
            records=records,
            accepted=records - 2,
            rejected={"late": 2},
            results={"per_minute": 100, "hourly": 0},
            dead_letter_offsets=dict.fromkeys(range(PARTITIONS), number),
            committed_ms=time_ms,
            closes_ms=time_ms - 10_000,
            reached=_map(time_ms),
            accepted_in={STREAM: dict.fromkeys(range(PARTITIONS), number)},
            stored={"index turbine-minute": 100},
        )
        totals = {
            "records_total": records * number,
            "accepted_total": (records - 2) * number,
            "rejected_total": {"late": 2 * number},
            "results_total": {"per_minute": 100 * number, "hourly": number},
            "refused_total": {},
        }
        return vars(row) | totals

    def clear(self, retention_days: int) -> int:
        """Remove old slices as the control service does. The log contains only the records of the last days."""
        gone = max(0, self.last - retention_days * DAY_S * 1_000 // self.every_ms)
        kept = SlicesKept(1, max(31, retention_days))
        starts = dict.fromkeys(range(PARTITIONS), RECORDS * gone)
        return SliceCleanup(
            self.ledger, lambda job: True, lambda topic: starts, kept, lambda: self.now_ms, pause_s=0
        ).clear()

    def plan_seconds(self, rewind: int) -> tuple[float, float]:
        """Return the seconds to plan a start, and to read the batches of a rewind over the last `rewind` slices."""
        began = time.monotonic()
        pipeline = load_pipeline(self.ledger, JOB, 1)
        rewind_cost(self.ledger, plan_of_job(self.ledger, pipeline), JOB)
        planned = time.monotonic()
        number = max(self.ledger.floor(JOB), self.last - rewind) + 1
        replay = Replay(self.ledger, JOB, self.last, REPLAY_ROWS_MAX)
        while number <= self.last:
            number = replay.batch_from(number)[-1].number + 1
        return planned - began, time.monotonic() - planned


def _map(number: int) -> dict[str, dict[int, int]]:
    return {STREAM: {partition: number + partition for partition in range(PARTITIONS)}}


def main() -> None:
    """Simulate, and print the sizes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--every-s", type=int, default=60, help="seconds between two slices")
    parser.add_argument("--retention-days", type=int, default=7)
    parser.add_argument("--rewind", type=int, default=200_000, help="number of slices that a rewind reads")
    parser.add_argument("--keep-all", action="store_true", help="remove nothing, like earlier releases")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print(machine_text())
    with tempfile.TemporaryDirectory(prefix="strandline-ledger-") as directory:
        year = Year(Path(directory), asked.every_s)
        cleared_s = removed = 0.0
        shown = {1, 7, 14, 30, 90, 180, 270, asked.days}
        for day in range(1, asked.days + 1):
            year.add(DAY_S // asked.every_s)
            if not asked.keep_all:
                began = time.monotonic()
                removed += year.clear(asked.retention_days)
                cleared_s += time.monotonic() - began
            if day in shown:
                print(f"day {day}: {year.last} slices, the ledger has {year.megabytes:.1f} MB", flush=True)
        print(f"removed {removed:.0f} slices in {cleared_s:.1f} s")
        planned_s, read_s = year.plan_seconds(asked.rewind)
        print(
            f"a start is planned in {planned_s:.3f} s; a rewind over {asked.rewind} slices reads them in {read_s:.1f} s"
        )
        year.ledger.close()
        year.database.close()


if __name__ == "__main__":
    main()
