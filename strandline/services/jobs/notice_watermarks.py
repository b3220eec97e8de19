"""Watermarks that don't advance, for the condition `watermark_stuck` of notices."""

from __future__ import annotations

from dataclasses import replace

from strandline.core.errors import NotFound, StrandlineError
from strandline.core.record_headers import HEADER_SOURCE, RECORD_KEY, unpack_header_values
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.roles import NoticeLedger
from strandline.log.kafka_status import KafkaStatus
from strandline.log.record_key import key_finder
from strandline.notices.view import StuckWatermark
from strandline.processing.slices.sender_faults import sender_of
from strandline.services.jobs.explanation import slowest_partition
from strandline.services.jobs.job_status import present_pipeline

_RECORDS = 50
"""Number of the newest records of a partition whose senders are named."""
_BYTES_MAX = 4 << 20
_DEVICES_MAX = 3


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
    except NotFound:
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
    key = StreamSpec.from_document(ledger.stream(found.stream).document).key
    find_key = None if key is None else key_finder(key)
    newest = log.newest_records(
        found.stream, _RECORDS, _BYTES_MAX, [HEADER_SOURCE], headers_beside=[RECORD_KEY], partitions=[found.partition]
    )
    devices: dict[str, None] = {}
    for value, packed in zip(reversed(newest.values), reversed(newest.header_values), strict=True):
        source, named = unpack_header_values(packed)
        own = None if find_key is None or value is None else find_key(value)
        if (sender := sender_of(own, named.get(RECORD_KEY), source)) is not None:
            devices.setdefault(sender)
    log_ms = newest.log_times_ms[-1] if newest.log_times_ms else None
    return replace(found, log_ms=log_ms, devices=tuple(devices)[:_DEVICES_MAX])
