"""Cost of `enrich` in a source task, from bytes to chunks for buckets: `python -m benchmarks.lookups`.

Records of W1's size in chunks of 25,000, of 1,000 devices. The window's aggregate is the same with and without the step. The
lookups have one row per device, and 50,000 rows. Prints CPU-seconds per million records: the minimum of some repetitions, which
take turns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from strandline.core.streams.stream import StreamSpec
from strandline.processing.operators.lookups.lookup_table import LookupTable
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.lookups.lookup_shapes import LookupShape
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source.decoding import DecodedChunk, decoder_of, task_config
from strandline.processing.source.source_task import SourceTask

CHUNK_RECORDS, CHUNKS, DEVICES = 25_000, 8, 1_000
REPETITIONS = 7
BEGIN_MS = 1_700_000_000_000
STREAM = StreamSpec.from_document(
    {"stream": "devices", "schema": {"device": "string", "ts": {"type": "timestamp", "unit": "ms"}, "temp": "double"}}
)
ENRICH = {"enrich": {"lookup": "known", "key": "device", "add": ["rated"]}}


def table(rows: int) -> LookupTable:
    """Return a lookup with the devices first, then some that send nothing."""
    names = pa.array([f"device-{number:05}" for number in range(rows)])
    rated = pa.array(np.random.default_rng(2).random(rows))
    return LookupTable("known", 1, pa.RecordBatch.from_arrays([names, rated], ["device", "rated"]), ["device"])


class Measured:
    """A pipeline with or without the step."""

    def __init__(self, tables: Mapping[str, LookupTable]) -> None:
        window = {
            "name": "ten",
            "tumbling": "10s",
            "by": ["device"],
            "aggregate": {"n": "count(*)", "mean": "avg(temp)"},
        }
        document = {
            "pipeline": "w1",
            "input": {"stream": "devices"},
            "event_time": {"field": "ts", "delay": "10s", "max_ahead": None, "idle_timeout": None},
            "steps": [*([ENRICH] if tables else []), {"window": window, "emit": [{"elasticsearch": "ten"}]}],
        }
        shapes = {"known": LookupShape("known", ("device",), {"device": "string", "rated": "double"})}
        self.config = task_config(check(PipelineSpec.from_document(document), STREAM, lookups=shapes), "", (0, 1))
        self.tables = tables
        self.least_s = float("inf")

    def run(self, chunks: list[list[bytes]]) -> None:
        task, decoder = SourceTask(self.config), decoder_of(self.config.decoding.inputs[0])
        began = time.process_time()
        for number, values in enumerate(chunks):
            log_ms = [BEGIN_MS] * len(values)
            decoded = decoder.decode(values, log_ms, None)
            assert not decoded.rejects, decoded.rejects[0]
            offsets = range(number * len(values), (number + 1) * len(values))
            chunk = DecodedChunk("devices", 0, offsets, log_ms, decoded, lambda _: None, tables=self.tables)
            for _ in task.rows([chunk], is_new=True, work=None):
                pass
        self.least_s = min(self.least_s, time.process_time() - began)


def main() -> None:
    dice = np.random.default_rng(1)
    chunks = [
        [
            json.dumps({"device": f"device-{device:05}", "ts": BEGIN_MS + at, "temp": float(temp)}).encode()
            for at, (device, temp) in enumerate(
                zip(dice.integers(0, DEVICES, CHUNK_RECORDS), dice.normal(20, 3, CHUNK_RECORDS), strict=True)
            )
        ]
        for _ in range(CHUNKS)
    ]
    measured = {
        "without a lookup": Measured({}),
        f"with a lookup of {DEVICES:,} rows": Measured({"known": table(DEVICES)}),
        "with a lookup of 50,000 rows": Measured({"known": table(50_000)}),
    }
    for _ in range(REPETITIONS):
        for one in measured.values():
            one.run(chunks)
    for name, one in measured.items():
        print(f"{name}: {one.least_s / (CHUNK_RECORDS * CHUNKS) * 1e6:.3f} CPU-seconds per million records")


if __name__ == "__main__":
    main()
