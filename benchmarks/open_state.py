"""Measure the cost of a small slice while many windows are open, without Spark and Kafka:
`python -m benchmarks.open_state [--keys 1000 100000 1000000] [--slices N] [--records N]`.

The pipeline has one tumbling window of an hour, by device, with a count and a mean. First each device sends one record.
Then slices of 1,000 records of random devices are measured while no window closes. The output has a line for each number of
open keys: the mean CPU-milliseconds of a slice, the median, the slowest slice, and the size of the state.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from strandline.core.streams.stream import StreamSpec
from strandline.processing.emission.segment_files import SegmentFiles
from strandline.processing.operators.cascade import Cascade, Chunk
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec

FIRST_MS = 1_700_002_800_000  # the beginning of an hour
FILL_RECORDS = 100_000


def pipeline() -> CheckedPipeline:
    """One window of an hour by device."""
    schema = {"device": "string", "ts": {"type": "timestamp", "unit": "ms"}, "temp": "double"}
    stream = StreamSpec.from_document(
        {"stream": "devices", "partitions": 1, "format": "json", "schema": schema, "key": "device", "retention": "7d"}
    )
    aggregates = {"n": "count(*)", "mean": "avg(temp)"}
    window = {"name": "hour", "tumbling": "1h", "by": ["device"], "aggregate": aggregates}
    document = {
        "pipeline": "open",
        "input": {"stream": "devices"},
        "event_time": {"field": "ts", "delay": "10s", "idle_timeout": None},
        "steps": [{"window": window, "emit": [{"elasticsearch": "hour"}]}],
    }
    return check(PipelineSpec.from_document(document), stream)


class Slices:
    """The state of one bucket, and what the slices cost that it takes in."""

    def __init__(self, directory: Path) -> None:
        checked = pipeline()
        self._cascade = Cascade(checked.stages, 1)
        self._steps = RowSteps(checked.stages[0].inputs[0].first_steps, checked.inputs[0].stream.types)
        self._directory, self._number, self.state = directory, 0, b""

    def take(self, devices: np.ndarray) -> float:
        """CPU-seconds of one slice with a record of each of these devices."""
        rows = len(devices)
        event_us = pa.array(FIRST_MS * 1000 + np.arange(rows))
        columns = {
            "device": pa.array([f"device-{one:08}" for one in devices.tolist()]),
            "ts": event_us.cast(pa.timestamp("us", tz="UTC")),
            "temp": pa.array(np.linspace(0.0, 40.0, rows)),
        }
        stepped = self._steps.apply(columns, rows)
        chunks: list[Chunk] = [chunk for _, chunk in self._cascade.cut(0, self._number, event_us, stepped.columns)]
        closing = Closing(FIRST_MS - 1, FIRST_MS - 1)
        self._number += 1
        began = time.process_time()
        self.state = self._cascade.step(
            self.state or None, chunks, closing, lambda number: SegmentFiles.of(self._directory, 0, number)
        ).state
        return time.process_time() - began


def measure(keys: int, slices: int, records: int) -> str:
    """One line of the table."""
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as directory:
        open_state = Slices(Path(directory))
        for first in range(0, keys, FILL_RECORDS):
            open_state.take(np.arange(first, min(first + FILL_RECORDS, keys)))
        for _ in range(slices // 10):
            open_state.take(random.integers(0, keys, records))
        costs = [1000 * open_state.take(random.integers(0, keys, records)) for _ in range(slices)]
        files = [one.stat().st_size for one in Path(directory).rglob("*") if one.is_file()]
    return (
        f"{keys:>10,} open keys: {np.mean(costs):8.2f} CPU-ms a slice (median {np.median(costs):.2f}, slowest "
        f"{max(costs):.1f}); state {len(open_state.state) / 1e6:.2f} MB, and {len(files)} files with "
        f"{sum(files) / 1e6:.1f} MB"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--slices", type=int, default=400)
    parser.add_argument("--records", type=int, default=1_000)
    given = parser.parse_args()
    for keys in given.keys:
        print(measure(keys, given.slices, given.records), flush=True)


if __name__ == "__main__":
    main()
