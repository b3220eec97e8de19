"""Live jobs next to a job that is far behind: `python -m benchmarks.fairness --data-dir DIR --jobs 50 --records 3000000`, after
`strandline up --data-dir DIR --no-passwords --detach`. Use one pool: `STRANDLINE_JOBS_PER_POOL` must be above the number of jobs.

Writes records to a stream, directly to Kafka. A job reads all of them while it is alone in its pool. Then live jobs get 20
records per second each. A second job with the same steps reads the records again, in the same pool. Prints one JSON object: the
rates of both jobs, and the age of the results of the live jobs. The age counts from the end of a window and its delay to the
commit of its results in the ledger.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from benchmarks.jobs import DELAY_MS, WINDOW_MS, Bench

STREAM, PARTITIONS, DEVICES, RECORDS_PER_S = "behind", 2, 1_000, 1_000
LIMIT_S = 1_800.0
WARM_UP_S = 30.0
AGE_S_MAX, SHARE_MIN = 5.0, 0.5
"""Goals: the p99 of the age, and the rate of the job behind as a share of its rate when it is alone."""


def stream_document() -> str:
    """Return the document of the stream of the jobs behind."""
    return f"""
stream: {STREAM}
partitions: {PARTITIONS}
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
"""


def job_document(job: str) -> str:
    """Return the document of a job behind. It stays in its pool, however many cores it needs."""
    return f"""
pipeline: {job}
input: {{stream: {STREAM}, start: earliest}}
event_time: {{field: ts, delay: {DELAY_MS}ms}}
placement: pool
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*), mean: avg(temp)}}}}
    emit: [{{elasticsearch: {job}-tens}}]
"""


def write_records(bootstrap: str, count: int) -> float:
    """Write the records to the log, and return the time in seconds. Raises SystemExit if the log refuses one."""
    failures = list[KafkaError]()
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "compression.type": "lz4"})
    began_s, first_ms = time.monotonic(), (time.time_ns() // 1_000_000 - 1_000 * count // RECORDS_PER_S)

    def note(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for number in range(count):
        device, at_ms = number % DEVICES, first_ms + 1_000 * number // RECORDS_PER_S
        value = b'{"device":"d%d","ts":%d,"temp":%d}' % (device, at_ms, number % 50)
        while True:
            try:
                producer.produce(STREAM, value, b"d%d" % device, device % PARTITIONS, on_delivery=note)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120) or failures:
        raise SystemExit(f"the log doesn't take the records: {failures[:1] or 'no confirmation'}")
    return time.monotonic() - began_s


class Checkpoint(NamedTuple):
    """A committed slice."""

    committed_ms: int
    records: int
    emitted_ms: int | None
    """End of the last window that was emitted."""


class Slices:
    """Committed slices, read from the ledger of the stack."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "ledger.sqlite"

    def of(self, job: str) -> list[Checkpoint]:
        """Return the checkpoints of the job, the oldest first."""
        wanted = "SELECT committed_ms, records, json_extract(emitted, '$.tens') FROM checkpoints WHERE job = ? ORDER BY slice"
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=60)) as ledger:
            return [Checkpoint(*row) for row in ledger.execute(wanted, (job,))]

    def wait_for_records(self, job: str, count: int) -> None:
        """Wait until the job has processed this number of records."""
        began_s = time.monotonic()
        while (done := sum(one.records for one in self.of(job))) < count:
            if time.monotonic() - began_s > LIMIT_S:
                raise SystemExit(f"job {job} has processed {done} of {count} records after {LIMIT_S:g} s")
            time.sleep(1.0)


def rate_of(slices: Sequence[Checkpoint], count: int) -> tuple[float, int]:
    """Return records per second from the first slice to the one that reaches this number of records, and the number of these
    slices. The first slice isn't counted, because its begin isn't known. Raises StopIteration if there are fewer records."""
    sums = list(accumulate(one.records for one in slices))
    last = next(at for at, done in enumerate(sums) if done >= count)
    span_s = (slices[last].committed_ms - slices[0].committed_ms) / 1_000
    return (sums[last] - sums[0]) / span_s if span_s else float("nan"), last + 1


def ages_of(slices: Sequence[Checkpoint], from_ms: float, until_ms: float) -> list[float]:
    """Return the ages in seconds of the results of each window that ends between these times. Several windows that a slice closes
    together have different ages."""
    ages, before_ms = list[float](), None
    for one in slices:
        if one.emitted_ms is None:
            continue
        first_ms = one.emitted_ms if before_ms is None else before_ms + WINDOW_MS
        ages += [
            (one.committed_ms - end_ms - DELAY_MS) / 1_000
            for end_ms in range(first_ms, one.emitted_ms + 1, WINDOW_MS)
            if from_ms <= end_ms <= until_ms
        ]
        before_ms = one.emitted_ms
    return sorted(ages)


def summary(ages: Sequence[float]) -> dict[str, float]:
    """Return the percentiles of the ages."""
    found = quantiles(ages, n=100) if len(ages) > 1 else [float("nan")] * 99
    return {"results": len(ages), "age_p50_s": round(found[49], 2), "age_p99_s": round(found[98], 2)}


def run_alone(bench: Bench, slices: Slices, job: str, count: int) -> tuple[float, int]:
    """Let the job read all records, and return its rate and number of slices."""
    bench.apply_text(job_document(job))
    slices.wait_for_records(job, count)
    return rate_of(slices.of(job), count)


def while_sending(bench: Bench, work: Callable[[], None]) -> tuple[float, float]:
    """Do the work while all live jobs get records. Return the times in ms of its begin and its end."""
    with bench.sending():
        time.sleep(WARM_UP_S)  # until each job has learned when its records arrive
        began_ms = time.time() * 1_000
        work()
        ended_ms = time.time() * 1_000
        time.sleep(2 * WINDOW_MS / 1_000)  # the records that close the last window of this time
        return began_ms, ended_ms


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fairness", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="directory of the running stack")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="control service")
    parser.add_argument("--gateway", default="http://127.0.0.1:8081", help="HTTP gateway")
    parser.add_argument("--elasticsearch", default="http://127.0.0.1:9200", help="Elasticsearch")
    parser.add_argument("--kafka", default="127.0.0.1:9092", help="Kafka")
    parser.add_argument("--jobs", type=int, default=50, help="number of live jobs")
    parser.add_argument("--rate", type=int, default=20, help="records per second of each live job")
    parser.add_argument("--records", type=int, default=3_000_000, help="records of the job behind")
    parser.add_argument("--prefix", default="live-", help="beginning of the names of the live jobs")
    options = parser.parse_args()
    bench, slices, count = Bench(options), Slices(options.data_dir), options.records
    bench.apply_text(stream_document())
    print(f"{count} records written in {write_records(options.kafka, count):.0f} s", file=sys.stderr)
    alone, slices_alone = run_alone(bench, slices, "behind-alone", count)
    bench.control.post("/v1/jobs/behind-alone/stop").raise_for_status()
    print(f"alone: {alone:.0f} records/s", file=sys.stderr)
    for job in bench.jobs:
        bench.apply(job)
    bench.wait_for("running", bench.jobs)
    together = list[tuple[float, int]]()
    began_ms, ended_ms = while_sending(
        bench, lambda: together.append(run_alone(bench, slices, "behind-together", count))
    )
    quiet_ms = while_sending(bench, lambda: time.sleep(WARM_UP_S))
    of_jobs = {job: slices.of(job) for job in bench.jobs}
    ages = [age for found in of_jobs.values() for age in ages_of(found, began_ms, ended_ms)]
    without = [age for found in of_jobs.values() for age in ages_of(found, *quiet_ms)]
    rate, slice_count = together[0]
    figures = {
        "jobs": options.jobs,
        "records": count,
        "behind_alone": {"records_per_s": round(alone), "slices": slices_alone},
        "behind_together": {"records_per_s": round(rate), "slices": slice_count, "share": round(rate / alone, 2)},
        "live": summary(sorted(ages)),
        "live_without": summary(sorted(without)),
        "live_median_records_per_slice": median(one.records for found in of_jobs.values() for one in found),
        "goals": f"age_p99_s < {AGE_S_MAX:g}, share >= {SHARE_MIN:g}",
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
