"""The arithmetic of event time: which watermark is in force for a slice, and which windows a slice closes. Pure.

Two thresholds go with each slice n, both in milliseconds of event time, both recorded before the slice is processed:

* `watermark_ms` W(n) decides lateness: a record of slice n is late when its event time is below it.
* `closes_ms` C(n) is Spark's own watermark while it processes slice n: windows that end at or before it become final in
  slice n. C(n) <= W(n), so Spark never drops a record that the lateness test accepted.

They differ when event time advances while the feed is silent: W(n+1) includes the silence at once; Spark learns of it
one slice later, from the tick row of an idle slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from strandline.ledger.states import CheckpointRow, SliceRow
from strandline.processing.pipelines.event_time import EventTimeRule


@dataclass(frozen=True)
class Thresholds:
    watermark_ms: int | None
    closes_ms: int | None


def greatest(*values: int | None) -> int | None:
    """The greatest of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return max(known) if known else None


def event_time_reached(rule: EventTimeRule, checkpoint: CheckpointRow | None, cut_time_ms: int) -> int | None:
    """The event time reached at `cut_time_ms` of log time: the latest event, plus the silence beyond the timeout."""
    if checkpoint is None or checkpoint.latest_event_ms is None:
        return None
    silence_ms = 0
    if rule.idle_timeout_ms is not None and checkpoint.latest_log_ms is not None:
        silence_ms = max(0, cut_time_ms - checkpoint.latest_log_ms - rule.idle_timeout_ms)
    return checkpoint.latest_event_ms + silence_ms


def thresholds_after(rule: EventTimeRule, done: SliceRow | None, checkpoint: CheckpointRow | None) -> Thresholds:
    """The thresholds of the slice that follows `done`, from what the slices up to `done` held.

    W(n+1) = max(W(n), latest event time + max(0, cut time - latest log time - idle timeout) - delay)
    C(n+1) = max(C(n), latest event time - delay, tick of n - delay)
    """
    if done is None or checkpoint is None:
        return Thresholds(None, None)
    reached_ms = event_time_reached(rule, checkpoint, done.cut_time_ms)
    seen_by_spark_ms = greatest(checkpoint.latest_event_ms, done.tick_ms)
    watermark_ms = greatest(done.watermark_ms, _minus(reached_ms, rule.delay_ms), _minus(done.tick_ms, rule.delay_ms))
    closes_ms = greatest(done.closes_ms, _minus(seen_by_spark_ms, rule.delay_ms))
    return Thresholds(watermark_ms, closes_ms)


def open_until(rule: EventTimeRule, checkpoint: CheckpointRow | None) -> int | None:
    """The end of the last window of all stages that can hold a record yet; None before the first accepted record."""
    if checkpoint is None or checkpoint.latest_event_ms is None:
        return None
    latest_ms = checkpoint.latest_event_ms
    return max(latest_ms // size_ms * size_ms + size_ms for size_ms in rule.window_sizes_ms)


def closes_a_window(rule: EventTimeRule, from_ms: int | None, to_ms: int | None, open_until_ms: int | None) -> bool:
    """Whether a window that can hold a record ends in (`from_ms`, `to_ms`]."""
    if to_ms is None or open_until_ms is None:
        return False
    to_ms = min(to_ms, open_until_ms)
    if from_ms is None:
        return True
    return any(to_ms // size_ms > from_ms // size_ms for size_ms in rule.window_sizes_ms)


def emitted_up_to(
    sizes_ms: Iterable[tuple[str, int]], closes_ms: int | None, before: Mapping[str, int] = MappingProxyType({})
) -> dict[str, int]:
    """Stage -> the end of the last window that is emitted after a slice that closes at `closes_ms`. It never falls below
    `before`, the value of the last checkpoint, whose version may have had shorter windows in a stage of the same name."""
    if closes_ms is None:
        return {}
    ends = {stage: closes_ms // size_ms * size_ms for stage, size_ms in sizes_ms}
    return {stage: max(end_ms, before.get(stage, end_ms)) for stage, end_ms in ends.items()}


def tick_of_batch(last: SliceRow, checkpoint: CheckpointRow | None) -> int | None:
    """The event time by which a batch that ends with slice `last` advances Spark's watermark. A replay knows the slice's
    checkpoint and includes its latest event: so the watermark after a merged batch equals that after the single slices."""
    return greatest(last.tick_ms, checkpoint.latest_event_ms if checkpoint else None)


def _minus(value: int | None, subtrahend: int) -> int | None:
    return None if value is None else value - subtrahend
