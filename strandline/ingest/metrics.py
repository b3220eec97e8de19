"""What every gateway counts, under the same names: per protocol and stream.

At any quiet moment received = confirmed + refused + spooled + in flight.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from strandline.ingest.spool import Spool
from strandline.ingest.spooling_writer import Accepted

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class IngestMetrics:
    """The counters of one gateway process."""

    def __init__(self, protocol: str) -> None:
        self.registry = CollectorRegistry()
        self._protocol = protocol
        self._streams: dict[str, StreamMetrics] = {}
        labels = ["protocol", "stream"]
        self.received = self._counter("received", "Records that arrived", labels)
        self.confirmed = self._counter("confirmed", "Records that are in the log, confirmed and read back", labels)
        self.spooled = self._counter("spooled", "Records that the spool has taken while Kafka can't confirm", labels)
        self.refused = self._counter("refused", "Records that were not taken, or not confirmed", [*labels, "reason"])
        self.dropped = self._counter(
            "dropped", "Records that were lost before they were received, as far as that is known", [*labels, "reason"]
        )
        self.in_flight = Gauge(
            "strandline_ingest_in_flight", "Records that wait for confirmation", labels, registry=self.registry
        )
        self.ack_latency = Histogram(
            "strandline_ingest_ack_latency_seconds",
            "From a whole batch to the confirmation of all its records",
            labels,
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )

    def show_spool(self, spool: Spool) -> None:
        """Show how full the spool is."""
        for name, help_text, read in (
            ("records", "Records that wait on disk for Kafka", lambda: spool.records),
            ("bytes", "What they take of the spool", lambda: spool.bytes),
            ("bytes_max", "What the spool may hold", lambda: spool.bytes_max),
        ):
            gauge = Gauge(f"strandline_ingest_spool_{name}", help_text, ["protocol"], registry=self.registry)
            gauge.labels(self._protocol).set_function(read)

    def of(self, stream: str) -> StreamMetrics:
        """The counters of one stream."""
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = StreamMetrics(self, self._protocol, stream)
        return found

    def _counter(self, name: str, help_text: str, labels: list[str]) -> Counter:
        return Counter(f"strandline_ingest_{name}", help_text, labels, registry=self.registry)


class StreamMetrics:
    """The counters of one stream, their labels bound."""

    def __init__(self, metrics: IngestMetrics, protocol: str, stream: str) -> None:
        self._metrics = metrics
        self._labels = (protocol, stream)
        self.received = metrics.received.labels(*self._labels)
        self.confirmed = metrics.confirmed.labels(*self._labels)
        self.spooled = metrics.spooled.labels(*self._labels)
        self.in_flight = metrics.in_flight.labels(*self._labels)
        self.ack_latency = metrics.ack_latency.labels(*self._labels)

    def accept(self, accepted: Accepted, records: int) -> None:
        """Count records that were acknowledged, by where they are."""
        (self.confirmed if accepted is Accepted.LOG else self.spooled).inc(records)

    def refuse(self, reason: str, records: int) -> None:
        """Count records that were received and will not be confirmed."""
        self._metrics.refused.labels(*self._labels, reason).inc(records)

    def drop(self, reason: str, records: int) -> None:
        """Count records that were lost before they were received."""
        self._metrics.dropped.labels(*self._labels, reason).inc(records)
