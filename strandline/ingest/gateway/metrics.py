"""The counters of a gateway, per protocol and stream. Every gateway has them under the same names.

While no record arrives: received = confirmed + refused + spooled + in flight.

Counters are plain numbers, and are converted to samples of prometheus_client when the metrics are requested. Each
record is counted several times, and the counters of prometheus_client, which take a lock each time, would be a tenth of
a record's cost. One thread counts and collects.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from strandline.ingest.append.outcome import Accepted
from strandline.ingest.append.spool import Spool

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LABELS = ["protocol", "stream"]


class Count:
    """A number that is counted up, or up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        self.value += amount

    def dec(self, amount: int = 1) -> None:
        self.value -= amount


class Flag:
    """1 or 0; not shown until it is set."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | None = None

    def set(self, value: int) -> None:
        self.value = value


class Latencies:
    """A histogram of durations."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
        """Number of durations in each bucket that are in no smaller one. The last count is for longer durations."""
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class StreamMetrics:
    """The counts of one stream."""

    def __init__(self) -> None:
        self.received = Count()
        self.confirmed = Count()
        self.spooled = Count()
        self.in_flight = Count()
        self.is_open = Flag()
        self.ack_latency = Latencies()
        self.refused: dict[str, Count] = {}
        """By reason."""
        self.dropped: dict[str, Count] = {}

    def accept(self, accepted: Accepted, records: int) -> None:
        """Count acknowledged records by their storage: log or spool."""
        (self.confirmed if accepted is Accepted.LOG else self.spooled).inc(records)

    def refuse(self, reason: str, records: int) -> None:
        """Count records that were received and won't be confirmed."""
        self.refused.setdefault(reason, Count()).inc(records)

    def drop(self, reason: str, records: int) -> None:
        """Count records that were lost before they were received."""
        self.dropped.setdefault(reason, Count()).inc(records)


class IngestMetrics(Collector):
    """The counts of one gateway process, and the registry that shows them."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._streams: dict[str, StreamMetrics] = {}
        self._refresh: Callable[[], None] = lambda: None
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def show_spools(self, spools: Sequence[Spool]) -> None:
        """Export the size of the gateway's spool, and the number of records in it and in the spools that it drains."""
        own = spools[0]
        for name, help_text, read in (
            ("records", "Records that wait on disk for Kafka", lambda: sum(spool.records for spool in spools)),
            (
                "in_doubt_records",
                "Records on disk that an operator must resend or drop: the log no longer shows whether they have arrived",
                lambda: sum(spool.records_in_doubt for spool in spools),
            ),
            ("bytes", "Size in bytes of the records in the spool", lambda: own.bytes),
            ("bytes_max", "Maximum size in bytes of the records in the spool", lambda: own.bytes_max),
        ):
            gauge = Gauge(f"strandline_ingest_spool_{name}", help_text, ["protocol"], registry=self.registry)
            gauge.labels(self._protocol).set_function(read)

    def refresh_by(self, refresh: Callable[[], None]) -> None:
        """Call `refresh` before the counters are shown, to update values that are counted elsewhere."""
        self._refresh = refresh

    def of(self, stream: str) -> StreamMetrics:
        """Return the counters of one stream."""
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = StreamMetrics()
        return found

    def collect(self) -> Iterator[Metric]:
        """Return the samples. Called by prometheus_client when the metrics are requested."""
        self._refresh()
        received = _counter("received", "Records that arrived", _LABELS)
        confirmed = _counter("confirmed", "Records that are in the log, confirmed and read back", _LABELS)
        spooled = _counter("spooled", "Records that went to the spool because Kafka could not confirm", _LABELS)
        refused = _counter("refused", "Records that were not accepted, or not confirmed", [*_LABELS, "reason"])
        dropped_text = "Records that were lost before they were received, as far as the gateway knows"
        dropped = _counter("dropped", dropped_text, [*_LABELS, "reason"])
        in_flight = GaugeMetricFamily(
            "strandline_ingest_in_flight", "Records that wait for confirmation", labels=_LABELS
        )
        is_open = GaugeMetricFamily(
            "strandline_ingest_open",
            "1 while records of the stream can come in by this protocol: its port is open, its topics are subscribed",
            labels=_LABELS,
        )
        latency = HistogramMetricFamily(
            "strandline_ingest_ack_latency_seconds",
            "From a whole batch to the confirmation of all its records",
            labels=_LABELS,
        )
        for stream, counts in self._streams.items():
            labels = [self._protocol, stream]
            received.add_metric(labels, counts.received.value)
            confirmed.add_metric(labels, counts.confirmed.value)
            spooled.add_metric(labels, counts.spooled.value)
            in_flight.add_metric(labels, counts.in_flight.value)
            if counts.is_open.value is not None:
                is_open.add_metric(labels, counts.is_open.value)
            for reason, count in counts.refused.items():
                refused.add_metric([*labels, reason], count.value)
            for reason, count in counts.dropped.items():
                dropped.add_metric([*labels, reason], count.value)
            latency.add_metric(labels, _cumulated(counts.ack_latency), counts.ack_latency.sum_s)
        return iter((received, confirmed, spooled, refused, dropped, in_flight, is_open, latency))


def _counter(name: str, text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(f"strandline_ingest_{name}", text, labels=labels)


def _cumulated(latencies: Latencies) -> list[tuple[str, float]]:
    """Return cumulative buckets for Prometheus: each bucket counts all durations up to its limit."""
    buckets: list[tuple[str, float]] = []
    total = 0
    for limit, count in zip([*map(str, map(float, LATENCY_BUCKETS_S)), "+Inf"], latencies.counts, strict=True):
        total += count
        buckets.append((limit, total))
    return buckets
