"""Cost of reading the log, with both readers: `python -m benchmarks.fetch`.

Each reader returns values, log times, and offsets as columns, from a Kafka that the run starts. CPU time is that of this
process alone, with all threads. The readers take turns, and each figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from confluent_kafka import Producer
from rich.console import Console

from benchmarks.report import show
from benchmarks.servers import new_stack
from strandline.log.admin import KafkaAdmin
from strandline.log.messages import LogReader, offset_of
from strandline.log.range_reader import RangeReader
from strandline.log.reader import OffsetRange

RECORD_BYTES = 100
SMALL_RANGE = 500
HEADERS = {
    "strandline-writer": b"5d3b0a52c1f94d1e",
    "strandline-epoch": b"17",
    "strandline-sequence": b"123456",
    "strandline-source": b"http:127.0.0.1",
}
CASES: Mapping[str, tuple[str, dict[str, bytes]]] = {
    "plain": ("none", {}),
    "lz4": ("lz4", {}),
    "lz4, headers of a gateway": ("lz4", HEADERS),
}
Read = Callable[[OffsetRange], int]


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    seconds: float


def record(number: int) -> bytes:
    """Return a record like those of work W1, of RECORD_BYTES bytes."""
    head = f'{{"device":"device-{number % 1000:04d}","ts":{1_700_000_000_000 + number * 5},"temp":{number % 8000 / 100}'
    return f'{head},"n":"{"x" * (RECORD_BYTES - len(head) - 8)}"}}'.encode()


def fill(bootstrap: str, topic: str, codec: str, headers: dict[str, bytes], records: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": codec,
            "log_level": 3,
        }
    )
    for number in range(records):
        key = f"device-{number % 1000:04d}"
        producer.produce(topic, record(number), key, 0, headers=dict(headers))
        if number % 10_000 == 0:
            producer.flush()
    producer.flush()


def by_messages(reader: LogReader) -> Read:
    def read(piece: OffsetRange) -> int:
        count = 0
        for messages in reader.read(piece):
            offsets = [offset_of(message) for message in messages]
            values = [message.value() for message in messages]
            times = [message.timestamp()[1] for message in messages]
            assert len(offsets) == len(values) == len(times)
            count += len(values)
        return count

    return read


def by_columns(reader: RangeReader) -> Read:
    return lambda piece: sum(len(records.values) for records in reader.read([piece]))


def measure(read: Read, piece: OffsetRange) -> Cost:
    cpu_s, began_s = time.process_time(), time.monotonic()
    count = read(piece)
    assert count == piece.offset_next - piece.offset_first, count
    return Cost(time.process_time() - cpu_s, time.monotonic() - began_s)


def medians(reads: Mapping[str, Read], piece: OffsetRange, rounds: int) -> dict[str, Cost]:
    costs: dict[str, list[Cost]] = {name: [] for name in reads}
    for _ in range(rounds):
        for name, read in reads.items():
            costs[name].append(measure(read, piece))
    return {
        name: Cost(median(cost.cpu_s for cost in found), median(cost.seconds for cost in found))
        for name, found in costs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fetch", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as directory:
        stack = new_stack(Path(directory) / "fetch", console)
        try:
            bootstrap = stack.start_kafka()
            admin = KafkaAdmin(bootstrap, timeout_s=30.0, changes_topics=True)
            messages, columns = LogReader(bootstrap), RangeReader(bootstrap)
            reads = {"messages": by_messages(messages), "columns": by_columns(columns)}
            figures = "CPU-s per million", "records/s", f"{SMALL_RANGE} records: CPU ms", "ms"
            rows: list[tuple[str, ...]] = [("records", "reader", *figures)]
            for number, (case, (codec, headers)) in enumerate(CASES.items()):
                topic = f"fetch-{number}"
                admin.create(topic, 1, 1, {"message.timestamp.type": "LogAppendTime"})
                fill(bootstrap, topic, codec, headers, options.records)
                whole = OffsetRange(topic, 0, 0, options.records)
                small = OffsetRange(topic, 0, options.records - SMALL_RANGE, options.records)
                large_cost = medians(reads, whole, options.rounds)
                small_cost = medians(reads, small, 10 * options.rounds)
                for name in reads:
                    large, little = large_cost[name], small_cost[name]
                    of_large = f"{large.cpu_s / options.records * 1e6:.2f}", f"{options.records / large.seconds:,.0f}"
                    of_small = f"{little.cpu_s * 1e3:.1f}", f"{little.seconds * 1e3:.1f}"
                    rows.append((case, name, *of_large, *of_small))
            messages.close()
            columns.close()
            show(rows, f"{options.records:,} records of {RECORD_BYTES} bytes", console)
        finally:
            stack.stop()


if __name__ == "__main__":
    sys.exit(main())
