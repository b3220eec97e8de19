"""Event time recomputed from the log, and compared with slices and checkpoints. Pure.

A watermark that is too high makes good records late. Then everything else agrees: their dead letters exist, and no window misses
them. So an audit computes the event time reached in each partition from the records. From these times, the recorded rule, and the
recorded silences, it computes every watermark, and the times up to which each slice closes windows. It shares no arithmetic with
the planner. It can't verify that a recorded silence was one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import reduce
from typing import NamedTuple

from strandline.ledger.states import CheckpointRow, EventTimeRule, Offsets, SliceKind, SliceRow
from strandline.results.document import format_timestamp

PartitionKey = tuple[str, int]
"""Stream and partition."""


class LatestTimes(NamedTuple):
    """Latest times, in ms, of some accepted records."""

    event_ms: int
    logged_ms: int
    """Latest time to which a record can advance event time: its event time, or its log time if that is earlier."""

    def with_others(self, other: LatestTimes) -> LatestTimes:
        return LatestTimes(max(self.event_ms, other.event_ms), max(self.logged_ms, other.logged_ms))


LatestEvents = dict[tuple[str, int, int], LatestTimes]
"""(stream, partition, offset) -> latest times of the accepted records from that offset to the next one in the mapping. No range
extends beyond its slice."""


def event_time_differences(
    done: Iterable[tuple[SliceRow, CheckpointRow]], before: CheckpointRow | None, latest: LatestEvents
) -> Iterator[str]:
    """Yield a sentence for each recorded value that differs from the log.

    `done`: slices in their order, all of whose records are in `latest`. `before`: the checkpoint before the first of them, from
    which the computation starts.
    """
    events = _by_partition(latest)
    reached = _by_partition_key(before.reached) if before is not None else {}
    closed_ms = before.closes_ms if before is not None else None
    for row, checkpoint in done:
        found = _latest_in(row, events)
        own = {partition_key: _moves_to(row, partition_key, times) for partition_key, times in found.items()}
        after = {
            partition_key: max(ms for ms in (reached.get(partition_key), own.get(partition_key)) if ms is not None)
            for partition_key in reached | own
        }
        silence_ms = _by_partition_key(row.silence_ms)
        filled = {
            partition_key
            for partition_key, end in _by_partition_key(row.offsets).items()
            if end > row.offsets_first.get(partition_key[0], {}).get(partition_key[1], 0)
        }
        # Records that can be accepted end a silence. When they are known, only those that are accepted and not too late end it.
        before_it = {partition_key: ms for partition_key, ms in silence_ms.items() if partition_key not in filled}
        accepted = {
            partition_key
            for partition_key, times in found.items()
            if row.watermark_ms is None or times.event_ms >= row.watermark_ms
        }
        behind_it = {partition_key: ms for partition_key, ms in silence_ms.items() if partition_key not in accepted}
        begin_anew = {partition_key[0] for partition_key in filled if partition_key not in reached}
        watermark_ms = _latest(closed_ms, _watermark(row.rule, reached, before_it, begin_anew))
        closes_ms = _latest(row.watermark_ms, _watermark(row.rule, after, behind_it))
        is_past_all = row.kind is SliceKind.DRAIN and (row.watermark_ms or 0) >= (watermark_ms or 0)
        if row.watermark_ms != watermark_ms and not is_past_all:
            yield f"slice {row.number}: watermark {_time(watermark_ms)} by the log, {_time(row.watermark_ms)} by the ledger"
        if checkpoint.closes_ms != closes_ms:
            yield (
                f"slice {row.number}: windows closed up to {_time(closes_ms)} by the log, but {_time(checkpoint.closes_ms)} "
                "by the ledger"
            )
        for what, ours, theirs in (("before", reached, row.reached), ("after", after, checkpoint.reached)):
            recorded = _by_partition_key(theirs)
            if ours != recorded:
                yield f"slice {row.number}: event time {what} it was {_times(ours)} by the log, {_times(recorded)} by the ledger"
        # Each slice is compared with the log, not with an error of the slice before it.
        reached, closed_ms = after, checkpoint.closes_ms


def _moves_to(row: SliceRow, partition_key: PartitionKey, times: LatestTimes) -> int:
    """Return the event time to which these records advance it, at most their log times. If producers set the log times, the
    limit is the time of the plan instead, because all records of the slice existed then."""
    if row.rule.of(partition_key[0]).bound == "planned":
        return min(times.event_ms, row.planned_ms)
    return times.logged_ms


def _watermark(
    rule: EventTimeRule,
    reached: Mapping[PartitionKey, int],
    silence_ms: Mapping[PartitionKey, int],
    begin_anew: Collection[str] = (),
) -> int | None:
    """Return the watermark by the rule. None if nothing can be known yet.

    - Each partition holds the watermark back at its event time minus the delay of its stream, unless it is idle.
    - For a stream with the rule `newest`, only its latest partition does, and all of them while one isn't idle.
    - For a stream with the rule `emissions`, this is the same, but the watermark is the time of its emitter if that is later.
      There is no watermark with other streams before that time is known.
    - If all partitions are idle, all hold it back. But the partition that lags furthest behind advances with the shortest time
      beyond a timeout. After one more timeout none holds it back, and the partition that is furthest ahead advances.

    `begin_anew`: streams with a partition that has its first records in the slice, and none accepted before. The event time
    reached there is unknown, so only the newest of the other partitions can determine the watermark, if the rule follows it.
    """
    less_delay = {partition_key: ms - rule.of(partition_key[0]).delay_ms for partition_key, ms in reached.items()}
    timeouts_ms = {
        partition_key: timeout_ms
        for partition_key in reached
        if (timeout_ms := rule.of(partition_key[0]).idle_timeout_ms) is not None
    }
    idle_ms = {
        partition_key: silence_ms.get(partition_key, 0) - timeout_ms
        for partition_key, timeout_ms in timeouts_ms.items()
    }
    emitted = {stream for stream, one in rule.by_stream if one.watermark == "emissions"}
    holding: list[int] = []
    idle_at: list[int] = []
    latest: list[int] = list(less_delay.values())
    for stream in {partition_key[0] for partition_key in reached} | set(begin_anew) | emitted:
        of_stream = rule.of(stream)
        own = {partition_key: ms for partition_key, ms in less_delay.items() if partition_key[0] == stream}
        awake = [ms for partition_key, ms in own.items() if idle_ms.get(partition_key, -1) < 0]
        known = list(own.values())
        if of_stream.watermark == "emissions" and of_stream.results_from_ms is not None:
            known.append(of_stream.results_from_ms - of_stream.delay_ms)
            latest.append(known[-1])
        follows_newest = of_stream.watermark != "partitions"
        if stream in (set(begin_anew) | emitted) and not (known and follows_newest):
            return None
        if awake or stream in begin_anew or (known and not own):
            holding += [max(known)] if follows_newest else awake
        elif own:
            idle_at.append(max(known) if follows_newest else min(known))
    if holding:
        return min(holding)
    if not latest:
        return None
    together_ms = min(idle_at) + min(idle_ms.values())
    let_go_ms = min(idle_ms[partition_key] - timeouts_ms[partition_key] for partition_key in idle_ms)
    return together_ms if let_go_ms < 0 else max(together_ms, max(latest) + let_go_ms)


def _by_partition(latest: LatestEvents) -> dict[PartitionKey, list[tuple[int, LatestTimes]]]:
    """Return partition -> (offset, latest times), by offset."""
    found: dict[PartitionKey, list[tuple[int, LatestTimes]]] = defaultdict(list)
    for (stream, partition, offset), times in sorted(latest.items()):
        found[stream, partition].append((offset, times))
    return found


def _latest_in(
    row: SliceRow, events: Mapping[PartitionKey, list[tuple[int, LatestTimes]]]
) -> dict[PartitionKey, LatestTimes]:
    found = {}
    for (stream, partition), end in _by_partition_key(row.offsets).items():
        known = events.get((stream, partition), [])
        first = bisect_left(known, (row.offsets_first.get(stream, {}).get(partition, 0),))
        inside = known[first : bisect_left(known, (end,))]
        if inside:
            found[stream, partition] = reduce(LatestTimes.with_others, (times for _, times in inside))
    return found


def _by_partition_key(by_stream: Offsets) -> dict[PartitionKey, int]:
    return {(stream, partition): ms for stream, partitions in by_stream.items() for partition, ms in partitions.items()}


def _latest(*moments_ms: int | None) -> int | None:
    return max((ms for ms in moments_ms if ms is not None), default=None)


def _time(moment_ms: int | None) -> str:
    return "none" if moment_ms is None else format_timestamp(moment_ms * 1000)


def _times(reached: Mapping[PartitionKey, int]) -> str:
    return (
        ", ".join(f"{stream}/{partition} {_time(ms)}" for (stream, partition), ms in sorted(reached.items())) or "none"
    )
