"""Metrics of jobs, lookups, and notices for Prometheus. Each scrape reads them from the ledger, so a restart loses nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from strandline import __version__
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import COMPLETED, JobState
from strandline.log.kafka_status import KafkaStatus
from strandline.services.jobs.job_status import JobStatus, StreamRanges, job_statuses
from strandline.services.jobs.lookups import LookupSummary, lookup_summaries
from strandline.services.jobs.notices import notice_summaries
from strandline.services.rest.notice_metrics import NoticeMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_KAFKA_WAIT_S = 2.0
"""Maximum time to wait for Kafka. A longer scrape can time out, and then the metrics without Kafka are lost, too."""


def render_metrics(ledger: LedgerReader, log: KafkaStatus) -> bytes:
    """Return all metrics as text, without lag while Kafka does not respond."""
    ranges = StreamRanges(log, _KAFKA_WAIT_S)
    views = job_statuses(ledger, ranges, ledger.jobs())
    latencies = {
        (job.name, stage): _latency_s(ledger, job.name, end_ms)
        for job in views
        for stage, end_ms in job.last_emission.items()
    }
    registry = CollectorRegistry()
    registry.register(_Jobs(views, latencies, time.time()))
    registry.register(_Lookups(lookup_summaries(ledger)))
    registry.register(NoticeMetrics(notice_summaries(ledger)))
    return generate_latest(registry)


@lru_cache(maxsize=4_096)
def _latency_s(ledger: LedgerReader, job: str, end_ms: int) -> float | None:
    """Return the seconds from the end of a window to its final results. None if the ledger no longer contains the slice.

    Cached, because scrapes are more frequent than results.
    """
    closed_at_ms = ledger.closed_at_ms(job, end_ms)
    return None if closed_at_ms is None else (closed_at_ms - end_ms) / 1_000


class _Jobs(Collector):
    """Metrics of all jobs at one moment."""

    def __init__(self, jobs: list[JobStatus], latencies: dict[tuple[str, str], float | None], now_s: float) -> None:
        """Args: latencies: (job, stage) -> seconds."""
        self._jobs = jobs
        self._latencies = latencies
        self._now_s = now_s

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily("strandline_build", "The running release", {"version": __version__})
        state = GaugeMetricFamily("strandline_job_state", "1 for the current state of the job", labels=["job", "state"])
        epoch = GaugeMetricFamily("strandline_job_epoch", "Runs of the job so far", labels=["job"])
        lag = GaugeMetricFamily("strandline_job_lag_records", "Records after the last committed slice", labels=["job"])
        behind = GaugeMetricFamily(
            "strandline_job_watermark_lag_seconds", "Wall clock minus the current watermark", labels=["job"]
        )
        latency = GaugeMetricFamily(
            "strandline_job_result_latency_seconds",
            "Commit of the newest results minus the end of their windows",
            labels=["job", "stage"],
        )
        records = CounterMetricFamily("strandline_job_records", "Records of committed slices", labels=["job"])
        rejected = CounterMetricFamily(
            "strandline_job_rejected_records",
            "Rejected records; all except duplicates and dropped late records are dead letters",
            labels=["job", "reason"],
        )
        ahead = GaugeMetricFamily(
            "strandline_job_key_ahead_seconds",
            "Event time minus log time of keys whose clocks are ahead, at most five keys of a job",
            labels=["job", "stream", "partition", "key"],
        )
        results = CounterMetricFamily("strandline_job_results", "Results of committed slices", labels=["job", "stage"])
        cpu = CounterMetricFamily(
            "strandline_job_cpu_seconds", "CPU time of the tasks of the job, rewinds included", labels=["job"]
        )
        read = CounterMetricFamily(
            "strandline_job_read_bytes", "Size of the records that were read, as stored in Kafka", labels=["job"]
        )
        size = GaugeMetricFamily("strandline_job_state_bytes", "Size of the state after the last slice", labels=["job"])
        for job in self._jobs:
            if job.cost is not None:
                cpu.add_metric([job.name], job.cost.cpu_s)
                read.add_metric([job.name], job.cost.bytes_read)
                size.add_metric([job.name], job.cost.state_bytes)
            for one in (*JobState, COMPLETED):
                state.add_metric([job.name, one], 1 if job.state == one else 0)
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
            for key in job.sender_faults.keys_ahead:
                ahead.add_metric([job.name, key.stream, str(key.partition), key.key], key.ahead_ms / 1_000)
        for (name, stage), seconds in self._latencies.items():
            if seconds is not None:
                latency.add_metric([name, stage], seconds)
        yield from (state, epoch, lag, behind, latency, records, rejected, results, ahead, cpu, read, size)


class _Lookups(Collector):
    """Metrics of all lookups at one moment."""

    def __init__(self, lookups: list[LookupSummary]) -> None:
        self._lookups = lookups

    def collect(self) -> Iterable[Metric]:
        version = GaugeMetricFamily("strandline_lookup_version", "Current version", labels=["lookup"])
        rows = GaugeMetricFamily("strandline_lookup_rows", "Rows of the current version", labels=["lookup"])
        age = GaugeMetricFamily(
            "strandline_lookup_age_seconds",
            "Age of the current version: seconds since its source had this content",
            labels=["lookup"],
        )
        is_old = GaugeMetricFamily("strandline_lookup_is_old", "1: older than its document allows", labels=["lookup"])
        failing = GaugeMetricFamily("strandline_lookup_is_failing", "1: its source can't be read", labels=["lookup"])
        skipped = GaugeMetricFamily(
            "strandline_lookup_skipped_records", "Records of its stream that can't be rows", labels=["lookup"]
        )
        for one in self._lookups:
            version.add_metric([one.name], one.version)
            rows.add_metric([one.name], one.rows)
            if (source := one.source) is not None:
                age.add_metric([one.name], source.age_ms / 1_000)
                is_old.add_metric([one.name], source.state == "old")
                failing.add_metric([one.name], source.failing_ms is not None)
                skipped.add_metric([one.name], source.skipped)
        yield from (version, rows, age, is_old, failing, skipped)
