"""The jobs' metrics for Prometheus. Each scrape reads them from the ledger, so a restart loses nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from strandline import __version__
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobState
from strandline.log.kafka_status import KafkaStatus, LogRange
from strandline.services.rest.job_status import job_view
from strandline.services.rest.views import JobView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(ledger: Ledger, log: KafkaStatus) -> bytes:
    """All metrics as text, without lag while Kafka does not answer."""
    ranges: dict[str, LogRange | None] = {}
    views = [job_view(ledger, log, job, ranges) for job in ledger.jobs()]
    registry = CollectorRegistry()
    registry.register(_Jobs(views, time.time()))
    return generate_latest(registry)


class _Jobs(Collector):
    """The metrics of all jobs at one moment."""

    def __init__(self, jobs: list[JobView], now_s: float) -> None:
        self._jobs = jobs
        self._now_s = now_s

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily("strandline_build", "The running release", {"version": __version__})
        state = GaugeMetricFamily("strandline_job_state", "1 for the state that the job is in", labels=["job", "state"])
        epoch = GaugeMetricFamily("strandline_job_epoch", "Runs of the job so far", labels=["job"])
        lag = GaugeMetricFamily("strandline_job_lag_records", "Records after the last committed slice", labels=["job"])
        behind = GaugeMetricFamily(
            "strandline_job_watermark_lag_seconds", "Wall clock minus the watermark in force", labels=["job"]
        )
        records = CounterMetricFamily("strandline_job_records", "Records of committed slices", labels=["job"])
        rejected = CounterMetricFamily("strandline_job_rejected_records", "Dead letters", labels=["job", "reason"])
        results = CounterMetricFamily("strandline_job_results", "Results of committed slices", labels=["job", "stage"])
        for job in self._jobs:
            for one in JobState:
                state.add_metric([job.name, one.value], 1 if job.state is one else 0)
            epoch.add_metric([job.name], job.epoch)
            if job.lag_records is not None:
                lag.add_metric([job.name], job.lag_records)
            if job.watermark_ms is not None:
                behind.add_metric([job.name], self._now_s - job.watermark_ms / 1_000)
            records.add_metric([job.name], job.counts.records)
            for reason, count in job.counts.rejected.items():
                rejected.add_metric([job.name, reason], count)
            for stage, count in job.counts.results.items():
                results.add_metric([job.name, stage], count)
        yield from (state, epoch, lag, behind, records, rejected, results)
