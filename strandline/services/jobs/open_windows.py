"""Open windows of a job by key, and the partition that holds them open.

A replay computes them (`Traces`), which costs as much as a rewind. So a response is kept for the pages after the first one, and
for other clients.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from strandline.core.described import Described
from strandline.core.errors import StrandlineError
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import WatermarkPolicy
from strandline.log.kafka_status import KafkaStatus
from strandline.processing.lineage.views import OpenWindow, OpenWindows
from strandline.services.jobs.explanation import awake_partitions, slowest_partition
from strandline.services.jobs.senders import newest_senders
from strandline.services.jobs.traces import Traces

KEPT_S = 10.0
"""Time in seconds for which windows of an older slice are returned again."""
_KEPT_MAX = 8


@dataclass(frozen=True)
class HoldingPartitionView(Described):
    """Partition that determines the watermark, and so the time at which windows close."""

    stream: str
    partition: int
    reached_ms: int
    """Event time that the partition has reached. The watermark is at least `delay_ms` earlier."""
    delay_ms: int
    silence_ms: int
    """Time without a new record, when the last slice was planned."""
    is_idle: bool
    """True if it is silent for longer than the idle timeout. So are all other partitions then."""
    log_ms: int | None
    """Log time of its newest record. Null if Kafka doesn't respond."""
    devices: list[str]
    """Senders of its newest records, at most three, the newest first."""


@dataclass(frozen=True)
class OpenWindowList(Described):
    """Page of the open windows of a job, those that end first."""

    job: str
    slice: int | None
    """Last committed slice that the windows contain. Null if no slice is committed."""
    version: int | None
    committed_ms: int | None
    """Time at which the slice was committed."""
    closed_ms: int | None
    """Watermark after the slice: windows that end at or before it are closed. Null if none is."""
    watermark: WatermarkPolicy | None
    """Source of the watermark. Null if no slice is committed."""
    held_by: HoldingPartitionView | None
    """Null if no partition has an accepted record, and for the watermark `emissions`."""
    stages: dict[str, int]
    """Stage -> number of its open windows."""
    matches: int
    """Number of open windows with the requested stage and key."""
    windows: list[OpenWindow]
    next: str | None
    """Path of the next page. Null if there is none: a list ends after 10,000 windows."""
    records_read: int
    """Number of records that the replay read."""


class OpenWindowPages:
    """Pages of open windows. Thread-safe."""

    def __init__(self, traces: Traces, clock: Callable[[], float] = time.monotonic) -> None:
        self._traces, self._clock = traces, clock
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, str | None, str], tuple[float, OpenWindows]] = OrderedDict()

    def windows(self, ledger: LedgerReader, job: str, stage: str | None, key: str) -> OpenWindows:
        """Return the open windows after the last committed slice, or after a slice of at most KEPT_S ago.

        Raises as `Traces.of_record`.
        """
        row = ledger.job(job)
        request, now_s = (job, stage, key), self._clock()
        last = ledger.last_checkpoint(job)
        with self._lock:
            kept_s, kept = self._kept.get(request, (0.0, None))
        if kept is not None and kept.slice is not None and last is not None:
            is_same_job = row.created_ms <= (kept.committed_ms or 0) and kept.slice <= last.slice
            if is_same_job and (kept.slice == last.slice or now_s - kept_s < KEPT_S):
                return kept
        found = self._traces.of_windows(ledger, job, stage, key)
        with self._lock:
            self._kept[request] = self._clock(), found
            self._kept.move_to_end(request)
            while len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        return found


def holding_partition(
    ledger: LedgerReader, log: KafkaStatus, job: str
) -> tuple[WatermarkPolicy | None, HoldingPartitionView | None]:
    """Return the source of the watermark, and the partition that determines it. None if there is none.

    Raises LedgerUnavailable.
    """
    checkpoint, last = ledger.last_checkpoint(job), ledger.last_slice(job)
    if checkpoint is None or last is None:
        return None, None
    rule = last.rule
    if rule.watermark == "emissions" or not any(checkpoint.reached.values()):
        return rule.watermark, None
    if rule.watermark == "newest":
        every = ((stream, one) for stream, partitions in checkpoint.reached.items() for one in partitions)
        stream, partition = max(every, key=lambda place: checkpoint.reached[place[0]][place[1]])
    else:
        stream, partition = slowest_partition(rule, checkpoint.reached, last.silence_ms)
    try:
        senders = newest_senders(ledger, log, stream, partition)
        log_ms, devices = senders.log_ms, list(senders.devices)
    except StrandlineError:  # the partition is shown also if Kafka doesn't respond
        log_ms, devices = None, []
    view = HoldingPartitionView(
        stream,
        partition,
        checkpoint.reached[stream][partition],
        rule.of(stream).delay_ms,
        last.silence_ms.get(stream, {}).get(partition, 0),
        (stream, partition) not in awake_partitions(rule, checkpoint.reached, last.silence_ms),
        log_ms,
        devices,
    )
    return rule.watermark, view
