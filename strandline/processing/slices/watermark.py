"""The arithmetic of event time: which watermark is in force for a slice, and which windows the slice closes. Pure.

* W(n), `SliceRow.watermark_ms`, is recorded before slice n is processed: a record of slice n is late when its event time is
  below it.
* C(n), `CheckpointRow.closes_ms`, follows from what slice n brought: windows that end at or before it become final in slice n. It
  is recorded when the slice is committed, so that a replay reads it.

One threshold after the other: W(n) <= C(n) <= W(n+1). What slice n closed, no later slice can add to, because a record below C(n)
is late there. Both follow from the rule in force (`SliceRow.rule`), from how far event time has come in each partition
(`reached`), and from how long each partition has been silent (`silence_ms`); all are recorded, and no clock is asked.
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
    """How far event time has come in one stream, by its own rule."""

    awake_ms: int | None
    """By its partitions that aren't idle; None: all are."""
    latest_ms: int
    """The greatest of all its partitions."""
    idle_ms: int
    """For how long the whole stream has been idle: what the shortest silence has beyond the timeout."""


def watermark_by(
    rule: EventTimeRule, reached: Offsets, silence_ms: Offsets, *, first_records: Collection[str] = ()
) -> int | None:
    """The watermark that these facts give by themselves; None before the first accepted record.

    Of one stream: the least event time reached, over the partitions that aren't idle (`newest`: the greatest of all); when all
    are idle the greatest, and what the shortest of their silences has beyond the timeout; less the delay. A partition that never
    held an accepted record is not in `reached`, and doesn't count. But `first_records` names the streams in which such a one has
    records now: it isn't idle, and nobody knows its event time yet, so it gives no watermark but by `newest`.

    Of several streams, each has a rule, timeout and delay of its own, and the least of them counts. A stream that is idle as a
    whole holds no other back. When all are, it is the greatest of them, and what the shortest of their silences has beyond.

    A stream of results (`emissions`) has come as far as its emitter says, or as its newest result where that is further. Beside
    others it holds them back from the beginning: its first result may come hours after the first records of the others.
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
    return max(one.latest_ms for one in times) + min(one.idle_ms for one in times) if times else None


def _stream_time(
    rule: EventTimeRule, reached: Mapping[int, int], silence_ms: Mapping[int, int], brings_first_records: bool
) -> _StreamTime | None:
    """None: nobody knows, because it has no accepted record, or because of first records."""
    if not reached and (rule.watermark != "emissions" or rule.results_from_ms is None):
        return None
    timeout_ms = rule.idle_timeout_ms
    silent_ms = {partition: silence_ms.get(partition, 0) for partition in reached}
    awake = [at_ms for at, at_ms in reached.items() if timeout_ms is None or silent_ms[at] < timeout_ms]
    latest_ms = max([*reached.values(), *_said(rule)]) - rule.delay_ms
    if timeout_ms is not None and reached and not awake and not brings_first_records:
        return _StreamTime(None, latest_ms, min(silent_ms.values()) - timeout_ms)
    if rule.watermark != "partitions":
        return _StreamTime(latest_ms, latest_ms, 0)
    return None if brings_first_records else _StreamTime(min(awake) - rule.delay_ms, latest_ms, 0)


def _said(rule: EventTimeRule) -> list[int]:
    """What is said of the results that are still to come, beside those that came."""
    return [] if rule.watermark != "emissions" or rule.results_from_ms is None else [rule.results_from_ms]


def watermark_after(
    rule: EventTimeRule, checkpoint: CheckpointRow | None, silence_ms: Offsets, *, first_records: Collection[str] = ()
) -> int | None:
    """W(n+1), after the last checkpoint, by the rule that is in force from now on and the silences of now. It never falls.

    `first_records`: the streams of which slice n+1 holds records of a partition that never had an accepted record.
    """
    if checkpoint is None:
        return None
    watermark_ms = watermark_by(rule, checkpoint.reached, silence_ms, first_records=first_records)
    return greatest(checkpoint.closes_ms, watermark_ms)


def rule_after(rule: EventTimeRule, done: SliceRow | None, checkpoint: CheckpointRow | None) -> EventTimeRule:
    """The rule for the slice after this one. Where results are revised, it leaves those alone that a pipeline which computes
    something else has emitted: who recomputes a window then knows by which pipeline."""
    if not rule.revise_ms:
        return rule
    if done is not None and done.rule.revises == rule.revises:
        return replace(rule, revises_after_ms=done.rule.revises_after_ms)
    return replace(rule, revises_after_ms=checkpoint.closes_ms if checkpoint is not None else None)


def first_records(reached: Offsets, firsts: Offsets, ends: Offsets) -> set[str]:
    """The streams of which a slice from `firsts` to `ends` holds records of a partition that never had an accepted record: it is
    not in `reached`."""
    return {
        stream
        for stream, partitions in ends.items()
        for partition, end in partitions.items()
        if end > firsts.get(stream, {}).get(partition, 0) and partition not in reached.get(stream, {})
    }


def reached_after(reached: Offsets, latest_event_ms: Mapping[str, Mapping[int, int]]) -> Offsets:
    """How far event time has come in each partition, after a slice that began at `reached` and whose latest *accepted* event in
    each partition is given. It never falls."""
    after = {stream: dict(partitions) for stream, partitions in reached.items()}
    for stream, partitions in latest_event_ms.items():
        for partition, event_ms in partitions.items():
            known = after.setdefault(stream, {})
            known[partition] = max(event_ms, known.get(partition, event_ms))
    return after


def closes_after(row: SliceRow, reached: Offsets) -> int | None:
    """C(n): windows that end at or before it become final in slice n. `reached`: `reached_after` the slice. None: none do.

    A drain's last slice has its watermark past every open window, so it closes them all.
    """
    return greatest(row.watermark_ms, watermark_by(row.rule, reached, row.silence_ms))


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
