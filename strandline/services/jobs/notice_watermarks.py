"""Watermarks that don't advance, for the condition `watermark_stuck` of notices."""

from __future__ import annotations

from dataclasses import replace

from strandline.core.errors import StrandlineError
from strandline.ledger.roles import NoticeLedger
from strandline.log.kafka_status import KafkaStatus
from strandline.notices.view import StuckWatermark
from strandline.services.jobs.explanation import slowest_partition
from strandline.services.jobs.job_status import MISSING_PARTS, present_pipeline
from strandline.services.jobs.senders import newest_senders


def stuck_watermark(ledger: NoticeLedger, log: KafkaStatus, job: str, since_ms: int) -> StuckWatermark | None:
    """Return the watermark of a job if it hasn't advanced since a time, although records were read. None if it has.

    Raises LedgerUnavailable.
    """
    row = ledger.watermark_since(job)
    if row is None or row.since_ms > since_ms or not row.records:
        return None
    checkpoint, last = ledger.last_checkpoint(job), ledger.last_slice(job)
    if checkpoint is None or last is None or not checkpoint.reached:
        return None
    try:
        pipeline = present_pipeline(ledger, ledger.job(job))
    except MISSING_PARTS:
        return None
    if not pipeline.stages:
        return None
    stream, partition = slowest_partition(pipeline.event_time_rule, checkpoint.reached, last.silence_ms)
    reached_ms = checkpoint.reached[stream][partition]
    newest_ms = max(at_ms for partitions in checkpoint.reached.values() for at_ms in partitions.values())
    found = StuckWatermark(
        row.watermark_ms, row.since_ms, row.records, stream, partition, reached_ms=reached_ms, newest_ms=newest_ms
    )
    try:
        return _with_devices(found, ledger, log)
    except StrandlineError:  # the problem is reported also if Kafka doesn't respond
        return found


def _with_devices(found: StuckWatermark, ledger: NoticeLedger, log: KafkaStatus) -> StuckWatermark:
    """Add the senders of the newest records of the partition."""
    senders = newest_senders(ledger, log, found.stream, found.partition)
    return replace(found, log_ms=senders.log_ms, devices=senders.devices)
