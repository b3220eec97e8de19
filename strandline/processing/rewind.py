"""Rewind: from what the ledger holds to where a fresh query starts reading. A pure plan; there is no other way to start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from strandline.core.errors import LogTruncated
from strandline.ledger.states import CheckpointRow, SliceRow
from strandline.processing.watermark import EventTimeRule

Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class RewindPlan:
    """Where a run starts. Slices `slice_first` to `slice_committed` are replayed to rebuild window state, and nothing of
    them is emitted; then follow the slice that was planned but not committed, if any, and new ones."""

    slice_first: int
    slice_committed: int
    """0 before the first checkpoint."""
    emitted: dict[str, int] = field(default_factory=dict)
    """Per stage, the end of the last window emitted: results up to it are left out."""
    reaches_back_to_ms: int | None = None
    """T0, the earliest event time that a window not yet emitted can hold."""

    @property
    def slices_replayed(self) -> int:
        return self.slice_committed - self.slice_first + 1


def plan_rewind(
    rule: EventTimeRule,
    committed: SliceRow | None,
    checkpoint: CheckpointRow | None,
    first_slice_reaching: Callable[[int], int | None],
) -> RewindPlan:
    """Plan a run from the last committed slice and its checkpoint.

    1. Nothing committed: start at slice 1, with nothing to leave out.
    2. T0 is the start of the earliest window, over all stages, that ends after what was closed.
    3. The replay starts at the first slice whose running maximum of event time reaches T0: every record before it
       has an event time below T0, so no open window holds it.
    """
    if committed is None or checkpoint is None:
        return RewindPlan(slice_first=1, slice_committed=0)
    if committed.closes_ms is None:
        return RewindPlan(slice_first=1, slice_committed=committed.number, emitted=dict(checkpoint.emitted))
    back_to_ms = min(committed.closes_ms // size_ms * size_ms for size_ms in rule.window_sizes_ms)
    slice_first = first_slice_reaching(back_to_ms)
    return RewindPlan(
        slice_first=slice_first if slice_first is not None else committed.number + 1,
        slice_committed=committed.number,
        emitted=dict(checkpoint.emitted),
        reaches_back_to_ms=back_to_ms,
    )


def require_log_holds(job: str, needed: Offsets, log_starts: Offsets) -> None:
    """Raise LogTruncated if the log no longer holds an offset that the rewind needs. A job never starts with a hole."""
    for stream, partitions in needed.items():
        for partition, offset_first in partitions.items():
            log_start = log_starts.get(stream, {}).get(partition)
            if log_start is None:
                raise LogTruncated(
                    f"job {job} needs partition {partition} of stream {stream} from offset {offset_first}, but the topic has no "
                    "such partition; was it deleted and made again? Restore the topic, or submit the pipeline under another name."
                )
            if log_start > offset_first:
                raise LogTruncated(
                    f"job {job} needs stream {stream}, partition {partition} from offset {offset_first}, but the log starts at "
                    f"{log_start}: retention removed {log_start - offset_first} records that its open windows need. "
                    "Raise the stream's retention and submit the pipeline under another name to start from what the log holds."
                )
