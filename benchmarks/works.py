"""The works of all sides: input, computation, and expected results, which are computed without any of the tested code.

Both works read the same records: readings of 1,000 devices, or another number, with up to 3 s of disorder. Event time advances
5 ms per record. The log is filled in rounds of 1,000 records (5 s of event time), and each round is confirmed before the next.
So with any cuts of the log, no record is older than the delay of 10 s allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from confluent_kafka import KafkaError, Message, Producer
from numpy.typing import NDArray

from strandline.core.errors import LogUnavailable

STREAM = "readings"
PARTITIONS = 4
DEVICES = 1_000
START_MS = 1_700_000_000_000
STEP_MS = 5
DISORDER_MS = 3_000
DELAY_MS = 10_000
TEN_SECONDS_MS = 10_000
MINUTE_MS = 60_000
SLIDE_MS = 5_000
_ROUND_RECORDS = 1_000

STREAM_TEXT = f"""\
stream: {STREAM}
partitions: {PARTITIONS}
format: json
schema:
  device: string
  ts: {{type: timestamp, unit: ms}}
  temp: double
key: device
"""


@dataclass(frozen=True)
class Readings:
    """Records as columns, in the order of sending."""

    device: NDArray[np.int64]
    event_ms: NDArray[np.int64]
    centidegrees: NDArray[np.int64]
    devices: int = DEVICES
    bad: NDArray[np.bool_] | None = None
    """True for records that are cut off in the middle, so that they are no JSON. None: no such records."""

    @classmethod
    def generate(cls, records: int, devices: int = DEVICES, bad_percent: float = 0.0) -> Readings:
        """Return the same readings at each call."""
        chance = np.random.default_rng(seed=1)
        number = np.arange(records)
        return cls(
            device=number % devices,
            event_ms=START_MS + number * STEP_MS - chance.integers(0, DISORDER_MS, records),
            centidegrees=chance.integers(-2_000, 6_000, records),
            devices=devices,
            bad=np.random.default_rng(seed=2).random(records) < bad_percent / 100 if bad_percent else None,
        )

    @property
    def good(self) -> Readings:
        """Readings without the bad ones."""
        if self.bad is None:
            return self
        kept = ~self.bad
        return Readings(self.device[kept], self.event_ms[kept], self.centidegrees[kept], self.devices)

    @property
    def partition(self) -> NDArray[np.int64]:
        """Partition of each record. A device's records are all in one partition, and the partitions have equal sizes."""
        return self.device % PARTITIONS

    @property
    def latest_ms(self) -> int:
        """Latest event time. Minus the delay, it is plain Spark's last watermark."""
        return int(self.event_ms.max())

    @property
    def latest_everywhere_ms(self) -> int:
        """Latest event time that every partition has reached, for a side with one watermark per partition."""
        return min(int(self.event_ms[self.partition == one].max()) for one in range(PARTITIONS))

    def send(self, bootstrap: str) -> None:
        """Write the readings to the stream's topic, compressed like the gateways' records. Raises LogUnavailable."""
        failures: list[KafkaError] = []

        def confirmed(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)

        options = {"acks": "all", "linger.ms": 1, "compression.type": "lz4", "log_level": 3}
        producer = Producer({"bootstrap.servers": bootstrap, **options})
        bad = np.zeros(len(self.device), np.bool_) if self.bad is None else self.bad
        columns = (self.device, self.partition, self.event_ms, self.centidegrees / 100, bad)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for number, (device, partition, event_ms, temp, is_bad) in enumerate(rows, start=1):
            name = f"device-{device:04d}"
            value = f'{{"device":"{name}","ts":{event_ms},"temp":{temp}' + ("" if is_bad else "}")
            producer.produce(STREAM, value.encode(), name.encode(), partition, on_delivery=confirmed)
            if number % _ROUND_RECORDS == 0:
                producer.flush()
        if producer.flush(30) or failures:
            raise LogUnavailable(f"can't write the readings to {bootstrap}: {failures[:1] or 'no confirmation'}")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a side: the number of results of the last window, and sums over them as checksums."""

    results: int
    readings: int
    """Sum of `n`: the number of readings in the results."""
    windows: int
    """Sum of `n` times the number of the result's window, counted from 1970."""
    values: float
    """Sum of the averages or maxima."""

    def agrees(self, other: Outcome) -> bool:
        """Return True if counts are equal, and sums of doubles equal except for the order of addition."""
        whole = (self.results, self.readings, self.windows) == (other.results, other.readings, other.windows)
        return whole and bool(np.isclose(self.values, other.values, rtol=1e-9, atol=0))


@dataclass(frozen=True)
class Work:
    """One work."""

    name: str
    summary: str
    """Description of the computation."""
    steps: str
    """Steps of the pipeline, with JOB as the name of the sink."""
    value: str
    """Field of the results in addition to `n`."""
    every_ms: int
    """Distance of the starts of the results' windows."""
    expected: Callable[[Readings, int | None], Outcome]
    """Function that returns the expected outcome. With a time in ms, only of the windows that end at or before it."""

    def pipeline_text(self, job: str) -> str:
        """Return the work as a pipeline document."""
        head = f"pipeline: {job}\ninput: {{stream: {STREAM}}}\nevent_time: {{field: ts, delay: 10s}}\n"
        return f"{head}steps:\n{self.steps.replace('JOB', job)}"


def _expected_w1(readings: Readings, up_to_ms: int | None = None) -> Outcome:
    # Windows of ten seconds and device as one number. Both window sizes divide START_MS's day, so they begin at multiples.
    devices = readings.devices
    tens, which = np.unique(readings.event_ms // TEN_SECONDS_MS * devices + readings.device, return_inverse=True)
    counts = np.bincount(which)
    means = np.bincount(which, weights=readings.centidegrees / 100) / counts
    minute = tens // devices * TEN_SECONDS_MS // MINUTE_MS
    minutes, which = np.unique(minute * devices + tens % devices, return_inverse=True)
    peaks = np.full(len(minutes), -np.inf)
    np.maximum.at(peaks, which, means)
    readings_each = np.bincount(which, weights=counts).astype(np.int64)
    return _outcome(minutes // devices, readings_each, peaks, MINUTE_MS, MINUTE_MS, up_to_ms)


def _expected_w2(readings: Readings, up_to_ms: int | None = None) -> Outcome:
    # A table of parts of 5 s and devices. A window is the sum of 12 parts, as the difference of two running sums of integers.
    over = MINUTE_MS // SLIDE_MS
    piece = readings.event_ms // SLIDE_MS
    first = int(piece.min()) - over  # the table begins with empty parts, so that each window begins in it
    pieces = int(piece.max()) - first + over
    place = (piece - first) * readings.devices + readings.device
    counts = np.zeros(pieces * readings.devices, np.int64)
    sums = np.zeros(pieces * readings.devices, np.int64)
    np.add.at(counts, place, 1)
    np.add.at(sums, place, readings.centidegrees)
    counts, sums = (table.reshape(pieces, readings.devices).cumsum(axis=0) for table in (counts, sums))
    counts, sums = (table[over:] - table[:-over] for table in (counts, sums))
    window, device = np.nonzero(counts)
    means = sums[window, device] / 100 / counts[window, device]
    return _outcome(window + first + 1, counts[window, device], means, SLIDE_MS, MINUTE_MS, up_to_ms)


def _outcome(
    window: NDArray[np.int64],
    readings: NDArray[np.int64],
    values: NDArray[np.float64],
    every_ms: int,
    size_ms: int,
    up_to_ms: int | None,
) -> Outcome:
    kept = window * every_ms + size_ms <= (np.iinfo(np.int64).max if up_to_ms is None else up_to_ms)
    window, readings, values = window[kept], readings[kept], values[kept]
    return Outcome(len(window), int(readings.sum()), int((window * readings).sum()), float(values.sum()))


W1 = Work(
    "W1",
    "10 s tumbling count and avg per device, then 1 min tumbling sum of the counts and max of the averages",
    """\
  - window: {name: ten_seconds, tumbling: 10s, by: [device], aggregate: {n: count(*), mean: avg(temp)}}
  - window: {name: minute, tumbling: 1m, by: [device], aggregate: {n: sum(n), peak: max(mean)}}
    emit: [{elasticsearch: JOB}]
""",
    "peak",
    MINUTE_MS,
    _expected_w1,
)
W2 = Work(
    "W2",
    "count and avg per device of windows of 60 s that begin every 5 s",
    """\
  - window: {name: minute, sliding: {size: 1m, every: 5s}, by: [device], aggregate: {n: count(*), mean: avg(temp)}}
    emit: [{elasticsearch: JOB}]
""",
    "mean",
    SLIDE_MS,
    _expected_w2,
)
WORKS = {work.name: work for work in (W1, W2)}
