"""Event-time arithmetic: the effective watermark of a slice, and the windows that the slice closes. Pure.

* W(n), `SliceRow.watermark_ms`, is recorded before slice n is processed. A record of slice n with an earlier event time is late.
* C(n), `CheckpointRow.closes_ms`, follows from the records of slice n: windows that end at or before it become final in slice n.
  It is recorded when the slice is committed, so that a replay reads it.

W(n) <= C(n) <= W(n+1). No later slice can add to a window that slice n closed, because a record below C(n) is late there.
Both values follow from recorded facts, and no clock is read:

* the effective rule (`SliceRow.rule`);
* the event time reached in each partition (`reached`). A record advances it at most to its log time, so one clock that is ahead
  doesn't make the records of other senders late;
* the time that each partition has been without an accepted record (`silence_ms`). A partition is idle from `idle_timeout` on.
  A partition with new records isn't idle for W(n), because it isn't known yet whether they are accepted. For C(n) it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from strandline.ledger.states import CheckpointRow, EventTimeRule, Offsets, SliceRow
from strandline.processing.pipelines.event_time import WindowShape


def greatest(*values: int | None) -> int | None:
    """The greatest of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return max(known) if known else None


@dataclass(frozen=True)
class _StreamTime:
    """Event time reached in one stream, by the rule of the stream and less its delay."""

    awake_ms: int | None
    """Event time of the partitions that aren't idle. None if all are idle."""
    least_ms: int
    """Minimum over all partitions. With another policy than `partitions`, the maximum."""
    latest_ms: int
    """Maximum over all partitions."""
    idle_ms: int
    """Time since the whole stream became idle. 0 if a partition isn't idle."""
    released_ms: int
    """Time since the whole stream was without an accepted record for two timeouts. Negative before."""


def watermark_by(
    rule: EventTimeRule, reached: Offsets, silence_ms: Offsets, *, first_records: Collection[str] = ()
) -> int | None:
    """Return the watermark that follows from these facts alone, in event-time ms. None before the first accepted record.

    For one stream, it is the minimum event time reached over the partitions that aren't idle, less the delay. With the policy
    `newest`, it is the maximum over all partitions. A partition without any accepted record isn't in `reached` and doesn't count.
    `first_records` names the streams in which such a partition has new records. Its event time isn't known yet, so the watermark
    is None, except with `newest`.

    If all partitions are idle, time advances the minimum: the shortest silence beyond the timeout is added. By this, a partition
    that is far behind would hold the last windows of the others open. So a silence of two timeouts releases it: from then on, the
    maximum counts, to which the silence beyond two timeouts is added. No value of `reached` is ahead of the log time of its
    partition, so the maximum isn't ahead of the log either.

    With several streams, each has its own rule, timeout and delay, and the minimum counts. A stream that is idle as a whole holds
    no other stream back. If all streams are idle, silence advances their minimum, and two timeouts release it likewise.

    A stream of results (`emissions`) has come as far as its emitter states, or as far as its newest result if that is later. It
    holds other streams back from the beginning: its first result can arrive hours after their first records.
    """
    times: list[_StreamTime] = []
    waiting = {name for name, one in rule.by_stream if one.watermark == "emissions"}
    for stream in reached.keys() | set(first_records) | waiting:
        found = _stream_time(
            rule.of(stream), reached.get(stream, {}), silence_ms.get(stream, {}), stream in first_records
        )
        if found is None and (stream in first_records or stream in waiting):
            return None
        if found is not None:
            times.append(found)
    awake_ms = [one.awake_ms for one in times if one.awake_ms is not None]
    if awake_ms:
        return min(awake_ms)
    if not times:
        return None
    run_on_ms = min(one.least_ms for one in times) + min(one.idle_ms for one in times)
    released_ms = min(one.released_ms for one in times)
    if released_ms < 0:
        return run_on_ms
    return max(run_on_ms, max(one.latest_ms for one in times) + released_ms)


def _stream_time(
    rule: EventTimeRule, reached: Mapping[int, int], silence_ms: Mapping[int, int], brings_first_records: bool
) -> _StreamTime | None:
    """None if event time isn't known: the stream has no accepted record, or has first records."""
    if not reached and (rule.watermark != "emissions" or rule.results_from_ms is None):
        return None
    timeout_ms = rule.idle_timeout_ms
    silent_ms = {partition: silence_ms.get(partition, 0) for partition in reached}
    awake = [at_ms for at, at_ms in reached.items() if timeout_ms is None or silent_ms[at] < timeout_ms]
    latest_ms = max([*reached.values(), *_said(rule)]) - rule.delay_ms
    least_ms = min(reached.values()) - rule.delay_ms if rule.watermark == "partitions" else latest_ms
    if timeout_ms is not None and reached and not awake and not brings_first_records:
        shortest_ms = min(silent_ms.values())
        return _StreamTime(None, least_ms, latest_ms, shortest_ms - timeout_ms, shortest_ms - 2 * timeout_ms)
    if rule.watermark != "partitions":
        return _StreamTime(latest_ms, least_ms, latest_ms, 0, 0)
    return None if brings_first_records else _StreamTime(min(awake) - rule.delay_ms, least_ms, latest_ms, 0, 0)


def _said(rule: EventTimeRule) -> list[int]:
    """Return the lower bound for the event time of later results, if the rule has one."""
    return [] if rule.watermark != "emissions" or rule.results_from_ms is None else [rule.results_from_ms]


def watermark_after(
    rule: EventTimeRule, checkpoint: CheckpointRow | None, silence_ms: Offsets, *, first_records: Collection[str] = ()
) -> int | None:
    """Return W(n+1): the watermark of the slice after the last checkpoint, in event-time ms. It never falls.

    `rule` and `silence_ms` are recorded with that slice. `first_records`: streams in which the slice has records of a partition
    that never had an accepted record. None before the first accepted record.
    """
    if checkpoint is None:
        return None
    watermark_ms = watermark_by(rule, checkpoint.reached, silence_ms, first_records=first_records)
    return greatest(checkpoint.closes_ms, watermark_ms)


def rule_after(rule: EventTimeRule, done: SliceRow | None, checkpoint: CheckpointRow | None) -> EventTimeRule:
    """Return the rule for the slice after this one. If results are revised, it excludes results that another pipeline digest
    has emitted. So the pipeline that computed a window is always known."""
    if not rule.revise_ms:
        return rule
    if done is not None and done.rule.revises == rule.revises:
        return replace(rule, revises_after_ms=done.rule.revises_after_ms)
    return replace(rule, revises_after_ms=checkpoint.closes_ms if checkpoint is not None else None)


def first_records(reached: Offsets, firsts: Offsets, ends: Offsets) -> set[str]:
    """The streams in which a slice from `firsts` to `ends` has records of a partition without any accepted record: the partition
    isn't in `reached`."""
    return {
        stream
        for stream, partitions in new_records(firsts, ends).items()
        if any(one not in reached.get(stream, {}) for one in partitions)
    }


def new_records(firsts: Offsets, ends: Offsets) -> dict[str, set[int]]:
    """Stream -> the partitions that have records in a slice from `firsts` to `ends`."""
    return {
        stream: {partition for partition, end in partitions.items() if end > firsts.get(stream, {}).get(partition, 0)}
        for stream, partitions in ends.items()
    }


def silence_without(silence_ms: Offsets, partitions: Mapping[str, Collection[int]]) -> dict[str, dict[int, int]]:
    """Return the silences without these partitions, which aren't idle."""
    return {
        stream: {one: ms for one, ms in silent.items() if one not in partitions.get(stream, ())}
        for stream, silent in silence_ms.items()
    }


def reached_after(reached: Offsets, reached_in_slice: Mapping[str, Mapping[int, int]]) -> Offsets:
    """Return the event time reached in each partition after a slice. It never falls.

    `reached`: event time reached before the slice. `reached_in_slice`: by the accepted records of the slice; see `bounded_ms`.
    """
    after = {stream: dict(partitions) for stream, partitions in reached.items()}
    for stream, partitions in reached_in_slice.items():
        for partition, event_ms in partitions.items():
            known = after.setdefault(stream, {})
            known[partition] = max(event_ms, known.get(partition, event_ms))
    return after


def bounded_ms(rule: EventTimeRule, row: SliceRow, latest_event_ms: int, logged_ms: int) -> int:
    """Return the event time to which the accepted records of a slice advance one partition, by the rule of its stream.

    `latest_event_ms` is their latest event time, `logged_ms` the maximum of min(event time, log time) over the records. If
    producers write the log times, these can be as wrong as event times. Then the time of the plan is the bound: every record of
    the slice was in the log by then.
    """
    return logged_ms if rule.bound == "log_time" else min(latest_event_ms, row.planned_ms)


def accepted_partitions(row: SliceRow, latest_event_ms: Mapping[str, Mapping[int, int]]) -> dict[str, set[int]]:
    """Stream -> the partitions in which the slice has an accepted record that isn't below its watermark.

    A record below the watermark that only revises results doesn't count: its partition would hold windows open again.
    """
    watermark_ms = row.watermark_ms
    return {
        stream: {one for one, ms in partitions.items() if watermark_ms is None or ms >= watermark_ms}
        for stream, partitions in latest_event_ms.items()
    }


def accepted_in_after(
    before: CheckpointRow | None, accepted: Mapping[str, Collection[int]], number: int
) -> dict[str, dict[int, int]]:
    """Stream -> partition -> the last slice with an accepted record, after slice `number`. `accepted`: its
    `accepted_partitions`."""
    found = {stream: dict(known) for stream, known in (before.accepted_in if before is not None else {}).items()}
    for stream, partitions in accepted.items():
        found.setdefault(stream, {}).update(dict.fromkeys(partitions, number))
    return found


def closes_after(row: SliceRow, reached: Offsets, accepted: Mapping[str, Collection[int]]) -> int | None:
    """Return C(n): windows that end at or before it become final in slice n. None if no window does.

    `reached`: event time reached after the slice. `accepted`: the slice's `accepted_partitions`, which aren't idle.
    The last slice of a drain has its watermark past every open window, so it closes all windows.
    """
    return greatest(row.watermark_ms, watermark_by(row.rule, reached, silence_without(row.silence_ms, accepted)))


def emitted_up_to(
    stages: Iterable[tuple[str, WindowShape]],
    closes_ms: int | None,
    before: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int]:
    """Stage -> the end of the last window that is emitted after a slice that closes at `closes_ms`. It never falls below
    `before`, the value of the last checkpoint, whose version may have had shorter windows in a stage of the same name."""
    if closes_ms is None:
        return {}
    ends = {stage: shape.last_end(closes_ms) for stage, shape in stages}
    return {stage: max(end_ms, before.get(stage, end_ms)) for stage, end_ms in ends.items()}
