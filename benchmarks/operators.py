"""What the window operators cost without Spark, Kafka or decoding: `python -m benchmarks.operators [--records N]`.

The windows of work W1 (10 s, then minutes over them) over made-up records, in slices of 250,000 records, four partitions and two
buckets. Prints CPU-seconds per million records for two things: cutting records into chunks for buckets, which happens where
records are decoded, and the operator's step, which happens where state is kept.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import numpy as np
import pyarrow as pa

from strandline.core.stream import StreamSpec
from strandline.processing.operators.cascade import Cascade, Chunk
from strandline.processing.operators.windows import Time
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model import PipelineSpec

SLICE_RECORDS = 250_000
PARTITIONS, CHUNKS_A_PARTITION, BUCKETS = 4, 2, 2
EVENT_STEP_MS = 5
DELAY_MS = 10_000


def pipeline() -> CheckedPipeline:
    stream = StreamSpec.from_document(
        {
            "stream": "devices",
            "partitions": PARTITIONS,
            "format": "json",
            "schema": {"device": "string", "ts": {"type": "timestamp", "unit": "ms"}, "temp": "double"},
            "key": "device",
            "retention": "7d",
        }
    )
    ten = {"name": "ten", "tumbling": "10s", "by": ["device"], "aggregate": {"n": "count(*)", "mean": "avg(temp)"}}
    minute = {"name": "minute", "tumbling": "1m", "by": ["device"], "aggregate": {"n": "sum(n)", "peak": "max(mean)"}}
    steps = [{"window": window, "emit": [{"elasticsearch": str(window["name"])}]} for window in (ten, minute)]
    document = {
        "pipeline": "w1",
        "input": {"stream": "devices"},
        "event_time": {"field": "ts", "delay": f"{DELAY_MS}ms"},
        "steps": steps,
    }
    return check(PipelineSpec.from_document(document), stream)


def measure(records: int, keys: int) -> tuple[float, float, int]:
    """CPU-seconds of cutting and of stepping, and the number of results."""
    cascade = Cascade(pipeline().stages, pipeline().stream.types, BUCKETS)
    random = np.random.default_rng(1)
    names = np.array([f"d{number}" for number in range(keys)])
    states: dict[int, bytes | None] = dict.fromkeys(range(BUCKETS))
    cut_s = step_s = 0.0
    results, before = 0, None
    rows = SLICE_RECORDS // (PARTITIONS * CHUNKS_A_PARTITION)
    for first in range(0, records, SLICE_RECORDS):
        chunks: dict[int, list[Chunk]] = defaultdict(list)
        for place in range(PARTITIONS * CHUNKS_A_PARTITION):
            partition, sequence = divmod(place, CHUNKS_A_PARTITION)
            event_us = (first + np.arange(rows) * PARTITIONS * CHUNKS_A_PARTITION + place) * EVENT_STEP_MS * 1000
            columns = {
                "device": pa.array(names[random.integers(0, keys, rows)].tolist()),
                "ts": pa.array(event_us).cast(pa.timestamp("us", tz="UTC")),
                "temp": pa.array(random.normal(20, 3, rows)),
            }
            began = time.process_time()
            stepped = cascade.record_steps.apply(columns, rows)
            for bucket, chunk in cascade.cut(partition, sequence, pa.array(event_us), stepped.columns):
                chunks[bucket].append(chunk)
            cut_s += time.process_time() - began
        watermark_ms = (first + SLICE_RECORDS) * EVENT_STEP_MS - DELAY_MS
        began = time.process_time()
        for bucket in range(BUCKETS):
            states[bucket], found = cascade.step(states[bucket], chunks[bucket], Time(before, watermark_ms))
            results += sum(one.rows.num_rows for one in found)
        step_s += time.process_time() - began
        before = watermark_ms
    return cut_s, step_s, results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators")
    parser.add_argument("--records", type=int, default=2_000_000)
    records = parser.parse_args().records
    print("keys        cut   step   CPU-seconds per million records; results")
    for keys in (1_000, 200_000):
        cut_s, step_s, results = measure(records, keys)
        print(f"{keys:>8,} {cut_s * 1e6 / records:6.2f} {step_s * 1e6 / records:6.2f}   {results:,}", flush=True)


if __name__ == "__main__":
    main()
