"""Work W1: readings of 1,000 devices, 10 s windows a device, then 1 min windows of those. What goes in, what is computed
and, reckoned without any of the code under test, what must come out.

Event time advances 5 ms a record, less a disorder of up to 3 s. The log is filled in rounds of 1,000 records (5 s of event
time), each confirmed before the next: so wherever a side cuts the log, no record is older than the delay of 10 s allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from confluent_kafka import KafkaError, Message, Producer
from numpy.typing import NDArray

from strandline.core.errors import LogUnavailable

STREAM = "w1"
DEVICES = 1_000
START_MS = 1_700_000_000_000
STEP_MS = 5
DISORDER_MS = 3_000
DELAY_MS = 10_000
FIRST_WINDOW_MS = 10_000
SECOND_WINDOW_MS = 60_000
_ROUND_RECORDS = 1_000

STREAM_TEXT = f"""\
stream: {STREAM}
partitions: 4
format: json
schema:
  device: string
  ts: {{type: timestamp, unit: ms}}
  temp: double
key: device
"""


def pipeline_text(job: str) -> str:
    """The work as a pipeline document."""
    return f"""\
pipeline: {job}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 10s}}
steps:
  - window: {{name: ten_seconds, tumbling: 10s, by: [device], aggregate: {{n: count(*), mean: avg(temp)}}}}
  - window: {{name: minute, tumbling: 1m, by: [device], aggregate: {{n: sum(n), peak: max(mean)}}}}
    emit: [{{elasticsearch: {job}}}]
"""


@dataclass(frozen=True)
class Readings:
    """The records, column by column, in the order in which they are sent."""

    device: NDArray[np.int64]
    event_ms: NDArray[np.int64]
    centidegrees: NDArray[np.int64]

    @classmethod
    def generate(cls, records: int) -> Readings:
        """The same readings at each call."""
        chance = np.random.default_rng(seed=1)
        number = np.arange(records)
        return cls(
            device=number % DEVICES,
            event_ms=START_MS + number * STEP_MS - chance.integers(0, DISORDER_MS, records),
            centidegrees=chance.integers(-2_000, 6_000, records),
        )

    def send(self, bootstrap: str) -> None:
        """Write them to the stream's topic, keyed by device. Raises LogUnavailable."""
        failures: list[KafkaError] = []

        def confirmed(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)

        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1, "log_level": 3})
        columns = (self.device.tolist(), self.event_ms.tolist(), (self.centidegrees / 100).tolist())
        for number, (device, event_ms, temp) in enumerate(zip(*columns, strict=True), start=1):
            name = f"device-{device:04d}"
            value = f'{{"device":"{name}","ts":{event_ms},"temp":{temp}}}'
            producer.produce(STREAM, value.encode(), key=name.encode(), on_delivery=confirmed)
            if number % _ROUND_RECORDS == 0:
                producer.flush()
        if producer.flush(30) or failures:
            raise LogUnavailable(f"work W1 could not be written to {bootstrap}: {failures[:1] or 'no confirmation'}")


@dataclass(frozen=True)
class Outcome:
    """What a pass gave out: how many results of the last window, and sums over them that only right ones have."""

    results: int
    readings: int
    """The sum of `n`: how many records the results account for."""
    peaks: float
    """The sum of `peak`."""

    def agrees(self, other: Outcome) -> bool:
        same_counts = (self.results, self.readings) == (other.results, other.readings)
        return same_counts and bool(np.isclose(self.peaks, other.peaks, rtol=1e-9, atol=0))


def expected_outcome(readings: Readings, up_to_ms: int | None = None) -> Outcome:
    """What must come out; with `up_to_ms`, of the windows that end at or before it."""
    # Windows of ten seconds and device as one number; both window sizes divide START_MS's day, so they begin at multiples.
    tens, which = np.unique(readings.event_ms // FIRST_WINDOW_MS * DEVICES + readings.device, return_inverse=True)
    counts = np.bincount(which)
    means = np.bincount(which, weights=readings.centidegrees / 100) / counts
    minute = tens // DEVICES * FIRST_WINDOW_MS // SECOND_WINDOW_MS
    minutes, which = np.unique(minute * DEVICES + tens % DEVICES, return_inverse=True)
    peaks = np.full(len(minutes), -np.inf)
    np.maximum.at(peaks, which, means)
    sums = np.bincount(which, weights=counts)
    ends_ms = (minutes // DEVICES + 1) * SECOND_WINDOW_MS
    kept = ends_ms <= up_to_ms if up_to_ms is not None else np.ones(len(minutes), np.bool_)
    return Outcome(int(kept.sum()), int(sums[kept].sum()), float(peaks[kept].sum()))
