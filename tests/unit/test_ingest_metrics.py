"""The counters of a gateway, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from strandline.ingest.gateway.metrics import IngestMetrics


def samples(metrics: IngestMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_counts_come_out_by_protocol_stream_and_reason():
    metrics = IngestMetrics("udp")
    counts = metrics.of("readings")
    assert metrics.of("readings") is counts
    counts.received.inc(10)
    counts.confirmed.inc(4)
    counts.spooled.inc()
    counts.in_flight.inc(5)
    counts.in_flight.dec(3)
    counts.refuse("too_large", 2)
    counts.refuse("too_large", 1)
    counts.drop("socket", 7)
    metrics.of("others").received.inc()
    found = samples(metrics)
    labels = {("protocol", "udp"), ("stream", "readings")}

    def value(name: str, *more: tuple[str, str]) -> float:
        return found["strandline_ingest_" + name, frozenset(labels | set(more))]

    assert value("received_total") == 10
    assert value("confirmed_total") == 4
    assert value("spooled_total") == 1
    assert value("in_flight") == 2
    assert value("refused_total", ("reason", "too_large")) == 3
    assert value("dropped_total", ("reason", "socket")) == 7
    assert found["strandline_ingest_received_total", frozenset({("protocol", "udp"), ("stream", "others")})] == 1


def test_a_latency_is_in_every_bucket_that_is_not_below_it():
    metrics = IngestMetrics("http")
    for seconds in (0.001, 0.0011, 0.2, 11.0):
        metrics.of("readings").ack_latency.observe(seconds)
    found = samples(metrics)
    labels = frozenset({("protocol", "http"), ("stream", "readings")})
    name = "strandline_ingest_ack_latency_seconds"
    below = {
        le: found[name + "_bucket", labels | {("le", le)}] for le in ("0.001", "0.0025", "0.1", "0.25", "10.0", "+Inf")
    }
    assert below == {"0.001": 1, "0.0025": 2, "0.1": 2, "0.25": 3, "10.0": 3, "+Inf": 4}
    assert found[name + "_count", labels] == 4
    assert abs(found[name + "_sum", labels] - 11.2021) < 1e-9
