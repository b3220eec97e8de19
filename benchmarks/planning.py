"""Cost of planning the next slices of many small jobs: `python -m benchmarks.planning`.

Each job reads a topic of its own with two partitions, which get 20 records in each round. A round is one look at the log, the
cut of each job's slice, and the record of it in a ledger in a file. The jobs are planned each alone, as in runners of their own,
and all together, as in one process for all; the two take turns. CPU time is that of this process, all threads, and that of the
broker.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from benchmarks.report import show
from benchmarks.servers import new_stack
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, EventTimeRule, SliceRow
from strandline.log.index import LogIndex
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.slices.joint_planning import plan_next_slices
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner

PARTITIONS = 2
RECORDS = 20
"""Number of records that a job gets in a round."""
RULE = EventTimeRule(delay_ms=1_000, idle_timeout_ms=30_000)
WINDOWS = (WindowShape(10_000, 10_000),)
ALONE, TOGETHER = "each alone", "together"


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    broker_cpu_s: float
    seconds: float


class Jobs:
    """Jobs without Spark: their slices are planned, and committed without a result."""

    def __init__(self, name: str, count: int, bootstrap: str, directory: Path) -> None:
        self.ledger = Ledger.open(f"sqlite:///{directory}/{name}.sqlite")
        self.index = LogIndex(bootstrap)
        self.streams = {f"{name}-{number:03}": f"{name}-s{number:03}" for number in range(count)}
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in self.streams.values()]).values():
            made.result()
        self.planners = [self._planner(job, stream) for job, stream in self.streams.items()]
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 3})

    def _planner(self, job: str, stream: str) -> SlicePlanner:
        self.ledger.put_stream(stream, {"stream": stream})
        self.ledger.submit_job(job, "", {"pipeline": job})
        epoch = self.ledger.begin_run(job, 1).epoch
        inputs = (InputStream(stream, topic_id=self.index.topic_id(stream), stream_version=1),)
        settings = PlannerSettings(job, 1, epoch, inputs, 1_000_000, RULE, WINDOWS)
        return SlicePlanner(settings, self.ledger, self.index, filling_ms=0)

    def send(self) -> None:
        for stream in self.streams.values():
            for number in range(RECORDS):
                self._producer.produce(stream, b"x" * 100, partition=number % PARTITIONS)
        assert self._producer.flush(60) == 0

    def commit(self, rows: Sequence[SliceRow]) -> None:
        now_ms = time.time_ns() // 1_000_000
        checkpoints = [
            CheckpointRow(
                job=row.job,
                slice=row.number,
                epoch=row.epoch,
                version=row.version,
                emitted={},
                latest_event_ms=now_ms,
                latest_log_ms=now_ms,
                records=RECORDS,
                accepted=RECORDS,
                rejected={},
                results={},
                dead_letter_offsets={},
                committed_ms=now_ms,
                closes_ms=row.watermark_ms,
                reached={stream: dict.fromkeys(ends, now_ms) for stream, ends in row.offsets.items()},
            )
            for row in rows
        ]
        assert self.ledger.commit_checkpoints(checkpoints) == {}

    def alone(self) -> list[object]:
        return [planner.next_slice() for planner in self.planners]

    def together(self) -> list[object]:
        clock: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000  # noqa: E731
        return list(plan_next_slices(self.planners, self.ledger, self.index, clock).values())

    def close(self) -> None:
        self.index.close()
        self.ledger.close()


def measure(plan: Callable[[], list[object]], jobs: Jobs, broker: psutil.Process | None) -> Cost:
    """Measure one round, in which each job gets a slice."""
    jobs.send()
    before = _cpu_s(broker)
    cpu_s, began_s = time.process_time(), time.monotonic()
    found = plan()
    cost = Cost(time.process_time() - cpu_s, _cpu_s(broker) - before, time.monotonic() - began_s)
    rows = [row for row in found if isinstance(row, SliceRow)]
    assert len(rows) == len(jobs.planners), [one for one in found if not isinstance(one, SliceRow)][:3]
    jobs.commit(rows)
    return cost


def _cpu_s(process: psutil.Process | None) -> float:
    return sum(process.cpu_times()[:2]) if process is not None else 0.0


def compare(count: int, rounds: int, bootstrap: str, directory: Path, broker: psutil.Process | None) -> list[list[str]]:
    jobs = Jobs(f"jobs-{count}-{time.time_ns()}", count, bootstrap, directory)
    ways = {ALONE: jobs.alone, TOGETHER: jobs.together}
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    try:
        time.sleep(1 + count / 20)  # Kafka gives new topics their leaders one after the other
        for number in range(rounds + 1):
            for name, plan in ways.items():
                cost = measure(plan, jobs, broker)
                if number:
                    costs[name].append(cost)
    finally:
        jobs.close()
    return [
        [
            str(count),
            name,
            f"{median(one.cpu_s for one in found) / count * 1e3:.2f}",
            f"{sum(one.broker_cpu_s for one in found) / rounds / count * 1e3:.2f}" if broker else "",
            f"{median(one.seconds for one in found) * 1e3:.0f}",
        ]
        for name, found in costs.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("--jobs", default="1,20,100", help="numbers of jobs")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kafka", help="address of a Kafka that runs; without it, one is started")
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    rows: list[Sequence[str]] = [("jobs", "planned", "CPU-ms per slice", "broker CPU-ms per slice", "ms for all")]
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as directory:
        stack = None if options.kafka else new_stack(Path(directory) / "planning", console)
        try:
            bootstrap = options.kafka or (stack.start_kafka() if stack else "")
            broker = psutil.Process(stack.running["kafka"]) if stack else None
            for count in map(int, options.jobs.split(",")):
                rows += compare(count, options.rounds, bootstrap, Path(directory), broker)
            show(rows, f"{RECORDS} records of a job in each round", console)
        finally:
            if stack is not None:
                stack.stop()


if __name__ == "__main__":
    sys.exit(main())
