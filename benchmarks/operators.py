"""Cost of the window operators and of the documents of their results, without Spark, Kafka, or decoding:
`python -m benchmarks.operators [--records N] [--aggregates]`.

The windows of work W1 (10 s, then minutes over them) over made-up records, in slices of 250,000 records, with four partitions
and two buckets. Prints CPU-seconds per million records for two parts: cutting records into chunks for buckets, in the tasks
that decode records, and the operator's step, in the tasks that keep state. The next figures are per million documents with a
string as key, a long, and two doubles. They are the cost of creating them one by one, and of writing them up to the body of the
HTTP request, including reading the response.

With `--aggregates`, it instead prints the cost of a tumbling window of one minute with each aggregate alone, for 1,000 devices
and for one, and the size of its state.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import numpy as np
import pyarrow as pa

from strandline.core.streams.stream import StreamSpec
from strandline.processing.operators.cascade import Cascade, Chunk
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.operators.windows import Closing
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.results import elasticsearch_writer
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from strandline.results.writer import WINDOW_END, WINDOW_START

SLICE_RECORDS = 250_000
PARTITIONS, CHUNKS_A_PARTITION, BUCKETS = 4, 2, 2
EVENT_STEP_MS = 5
DOCUMENTS, WINDOW_MS = 200_000, 60_000
DELAY_MS = 10_000
PLACES = 5_000


AGGREGATES = (
    *("count(*)", "sum(temp)", "max(temp)", "var_pop(temp)", "variance(temp)", "first(temp)", "max_by(device, temp)"),
    *("count(*) filter (where temp > 20)", "count(distinct place)", "approx_count_distinct(place)", "median(temp)"),
    "approx_percentile(temp, 0.95)",
)


def pipeline(aggregate: str = "") -> CheckedPipeline:
    """Return W1, or one window with this aggregate."""
    stream = StreamSpec.from_document(
        {
            "stream": "devices",
            "partitions": PARTITIONS,
            "format": "json",
            "schema": {
                "device": "string",
                "ts": {"type": "timestamp", "unit": "ms"},
                "temp": "double",
                "place": "string?",
            },
            "key": "device",
            "retention": "7d",
        }
    )
    ten = {"name": "ten", "tumbling": "10s", "by": ["device"], "aggregate": {"n": "count(*)", "mean": "avg(temp)"}}
    minute = {"name": "minute", "tumbling": "1m", "by": ["device"], "aggregate": {"n": "sum(n)", "peak": "max(mean)"}}
    alone = {"name": "alone", "tumbling": "1m", "by": ["device"], "aggregate": {"value": aggregate}}
    windows = (alone,) if aggregate else (ten, minute)
    steps = [{"window": window, "emit": [{"elasticsearch": str(window["name"])}]} for window in windows]
    document = {
        "pipeline": "w1",
        "input": {"stream": "devices"},
        "event_time": {"field": "ts", "delay": f"{DELAY_MS}ms", "idle_timeout": None},
        "steps": steps,
    }
    return check(PipelineSpec.from_document(document), stream)


def measure(records: int, keys: int, aggregate: str = "") -> tuple[float, float, int, int]:
    """Return CPU-seconds of cutting and of stepping, the number of results, and the maximum bytes of the state."""
    checked = pipeline(aggregate)
    cascade = Cascade(checked.stages, BUCKETS)
    steps = RowSteps(checked.stages[0].inputs[0].first_steps, checked.inputs[0].stream.types)
    random = np.random.default_rng(1)
    names = np.array([f"d{number}" for number in range(keys)])
    states: dict[int, bytes | None] = dict.fromkeys(range(BUCKETS))
    cut_s = step_s = 0.0
    results, state_bytes, before = 0, 0, None
    places = np.array([f"place-{number:05}" for number in range(PLACES)])
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
            if aggregate:
                columns["place"] = pa.array(places[random.integers(0, PLACES, rows)].tolist())
            began = time.process_time()
            stepped = steps.apply(columns, rows)
            for bucket, chunk in cascade.cut(partition, sequence, pa.array(event_us), stepped.columns):
                chunks[bucket].append(chunk)
            cut_s += time.process_time() - began
        watermark_ms = (first + SLICE_RECORDS) * EVENT_STEP_MS - DELAY_MS
        began = time.process_time()
        for bucket in range(BUCKETS):
            stepped = cascade.step(states[bucket], chunks[bucket], Closing(before, watermark_ms))
            states[bucket], found = stepped.state, stepped.results
            results += sum(one.rows.num_rows for one in found)
        step_s += time.process_time() - began
        state_bytes = max(state_bytes, sum(len(state or b"") for state in states.values()))
        before = watermark_ms
    return cut_s, step_s, results, state_bytes


class AgreeingIndex:
    """Fake of the request to Elasticsearch, which responds that all documents were created. Its cost is subtracted."""

    def __init__(self) -> None:
        self.own_s = 0.0

    def __call__(self, *_: object, body: bytes, **__: object) -> bytes:
        began = time.process_time()
        actions = [line[:-2].replace(b'.write"', b'"', 1) + b',"status":201}}' for line in body.split(b"\n")[:-1:2]]
        answer = b'{"items":[' + b",".join(actions) + b"]}"
        self.own_s += time.process_time() - began
        return answer


def measure_documents(rows: int) -> tuple[float, float]:
    """Return CPU-seconds of creating all documents one by one, and of writing them in batches of `rows`."""
    aggregates = (("n", "long"), ("mean", "double"), ("peak", "double"))
    shape = DocumentShape("minute", "w1", "minute", 1, (("device", "string"),), aggregates)
    random = np.random.default_rng(1)
    batches = []
    for first in range(0, DOCUMENTS, rows):
        windows, keys = np.divmod(np.arange(first, first + rows), 1_000)
        columns = {
            WINDOW_START: pa.array(windows * WINDOW_MS),
            WINDOW_END: pa.array((windows + 1) * WINDOW_MS),
            "device": pa.array([f"device-{key:04}" for key in keys]),
            "n": pa.array(random.integers(1, 10_000, rows)),
            "mean": pa.array(random.normal(20, 3, rows)),
            "peak": pa.array(random.normal(30, 3, rows).round(2)),
        }
        batches.append(pa.record_batch(columns))
    began = time.process_time()
    for batch in batches:
        for _ in shape.documents(batch, 1, 1):
            pass
    made_s = time.process_time() - began
    elasticsearch_writer.request_bytes = index = AgreeingIndex()  # type: ignore[assignment]
    writer = ElasticsearchWriter("http://nowhere", shape)
    began = time.process_time()
    created = sum(writer.write_batches([batch], 1, 1).created for batch in batches)
    written_s = time.process_time() - began - index.own_s
    assert created == DOCUMENTS
    return made_s, written_s


def print_aggregates(records: int) -> None:
    print("aggregate                            keys    cut   step   CPU-seconds per million records; bytes of state")
    for aggregate in AGGREGATES:
        for keys in (1_000, 1):
            cut_s, step_s, _, state_bytes = measure(records, keys, aggregate)
            costs = f"{cut_s * 1e6 / records:6.2f} {step_s * 1e6 / records:6.2f}"
            print(f"{aggregate:<34} {keys:>6,} {costs}   {state_bytes:,}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--aggregates", action="store_true")
    arguments = parser.parse_args()
    records = arguments.records
    if arguments.aggregates:
        print_aggregates(records)
        return
    print("keys        cut   step   CPU-seconds per million records; results")
    for keys in (1_000, 200_000):
        cut_s, step_s, results, _ = measure(records, keys)
        print(f"{keys:>8,} {cut_s * 1e6 / records:6.2f} {step_s * 1e6 / records:6.2f}   {results:,}", flush=True)
    print("rows a batch  made  written   CPU-seconds per million documents")
    for rows in (100, 1_000, 10_000):
        made_s, written_s = measure_documents(rows)
        print(f"{rows:>12,} {made_s * 1e6 / DOCUMENTS:5.2f} {written_s * 1e6 / DOCUMENTS:8.2f}", flush=True)


if __name__ == "__main__":
    main()
