"""Whether every watermark is what the rule gives by the log alone, and every late record is late for a reason."""

from __future__ import annotations

from strandline.ledger.states import SliceKind, SliceRow
from strandline.processing.slices.watermark import greatest
from tests.simulation.log import Record
from tests.simulation.run import reason_against
from tests.simulation.versions import JOB, STREAM
from tests.simulation.world import World


def wrong_times(world: World, slices: list[SliceRow]) -> list[str]:
    """Return each recorded watermark and each close of a slice that differs from the rule of docs/event-time.md.

    The rule is computed from the log alone.
    """
    findings = []
    reached: dict[int, int] = {}
    closed_ms: int | None = None
    for one in slices:
        name, rule, silence_ms = f"slice {one.number}", one.rule, one.silence_ms.get(STREAM, {})
        firsts = one.offsets_first[STREAM]
        filled = {p for p, end in one.offsets[STREAM].items() if end > firsts.get(p, 0)}
        is_first = any(p not in reached for p in filled)
        before_it = {p: ms for p, ms in silence_ms.items() if p not in filled}
        expected = [greatest(closed_ms, watermark_of(one, reached, before_it, is_first=is_first))]
        if one.kind is SliceKind.DRAIN:
            expected = [one.watermark_ms] if (one.watermark_ms or 0) >= (expected[0] or 0) else expected
        if [one.watermark_ms] != expected:
            findings.append(f"watermark: {name} has the watermark {one.watermark_ms}, expected {expected[0]} by {rule}")
        if one.reached.get(STREAM, {}) != reached:
            findings.append(f"watermark: {name} says that event time has come to {one.reached}, and it was {reached}")
        behind_it = dict(silence_ms)
        for partition, end in one.offsets[STREAM].items():
            for record in world.log.records[partition][one.offsets_first[STREAM].get(partition, 0) : end]:
                if not reason_against(record, one):
                    reached[partition] = max(min(record.event_ms, record.log_ms), reached.get(partition, 0))
                    behind_it.pop(partition, None)
        closed_ms = greatest(one.watermark_ms, watermark_of(one, reached, behind_it))
        found_ms = world.ledger.checkpoint(JOB, one.number).closes_ms
        if found_ms != closed_ms:
            findings.append(f"watermark: {name} closes up to {found_ms}, expected {closed_ms} by {rule}")
    return findings


def watermark_of(
    one: SliceRow, reached: dict[int, int], silence_ms: dict[int, int], *, is_first: bool = False
) -> int | None:
    """`is_first`: the slice holds records of a partition that none was used of before."""
    rule = one.rule
    if not reached:
        return None
    limit_ms = 10**15 if rule.idle_timeout_ms is None else rule.idle_timeout_ms
    active = [partition for partition in reached if silence_ms.get(partition, 0) < limit_ms]
    if not active and not is_first:
        over_ms = min(silence_ms[partition] for partition in reached) - limit_ms
        ahead_ms, behind_ms = max(reached.values()), min(reached.values())
        run_on_ms = (ahead_ms if rule.watermark == "newest" else behind_ms) + over_ms
        if over_ms >= limit_ms:
            run_on_ms = max(run_on_ms, ahead_ms + over_ms - limit_ms)
        return run_on_ms - rule.delay_ms
    if rule.watermark == "newest":
        return max(reached.values()) - rule.delay_ms
    if is_first:
        return None
    return min(reached[partition] for partition in active) - rule.delay_ms


def late_without_cause(world: World, slices: list[SliceRow]) -> list[str]:
    """Return the records that are late although the load sent them in time, for any watermarks.

    The load knows how far behind event time it sent a record. A record that is behind by no more than every version's
    delay is in time. Such a record can still be late

    - if it was held up on its way and other records could not be held back for it. Its partition was empty when the
      watermark passed, or the rule follows the newest event.
    - if the brokers' clock jumped, and a cut at one log time let other partitions run ahead without being held back.
      This occurs if the rule follows the newest event, and in the slice with the job's first accepted records.
    - if a record from the future was accepted because of the jumped clock, and the watermark is based on it.
    - if all partitions were idle, and event time isn't the clock.

    A partition that was added to the running job is no cause, for any clocks.
    """
    delay_ms = min(version.delay_ms for version in world.versions)
    findings = []
    for at, one in enumerate(slices):
        for partition, end in one.offsets[STREAM].items():
            for record in world.log.records[partition][one.offsets_first[STREAM].get(partition, 0) : end]:
                if reason_against(record, one) != "late" or record.behind_ms > delay_ms:
                    continue
                if not _has_cause(world, record, partition, slices[: at + 1]):
                    findings.append(f"late without cause: {record} of partition {partition} in slice {one.number}")
    return findings


def _has_cause(world: World, record: Record, partition: int, slices: list[SliceRow]) -> bool:
    """`slices` up to that of the record."""
    passed = next(n for n, one in enumerate(slices) if (one.watermark_ms or 0) > record.event_ms)
    near = slices[max(0, passed - 1) : passed + 1]
    """The slice whose watermark passed the record, and the one before, whose close it may be."""
    follows_newest = any(one.rule.watermark == "newest" for one in near)
    known = slices[passed].reached.get(STREAM, {})
    if record.is_held_up and (follows_newest or partition not in known):
        return True
    if world.log.has_jumped:
        first = next(one.reached[STREAM] for one in slices if one.reached.get(STREAM))
        """How far event time came in the slice with the job's first accepted records."""
        is_behind_it = record.event_ms < max(first.values()) - min(one.rule.delay_ms for one in near)
        if (
            follows_newest
            or (is_behind_it and partition not in known)
            or _rests_on_the_future(world, record, slices[: passed + 1])
        ):
            return True
    return not world.load.is_real_time and any(map(_is_all_idle, near))


def _rests_on_the_future(world: World, record: Record, slices: list[SliceRow]) -> bool:
    """Return whether the watermark of the last slice passed the record only because of records from the future.

    Those were sent before it, and were ahead of event time. What the load calls event time never falls, so it shows
    which records they are.
    """
    sent_ms = record.event_ms + record.behind_ms
    *before, last = slices
    reached: dict[int, int] = {}
    for one in before:
        for partition, end in one.offsets[STREAM].items():
            for other in world.log.records[partition][one.offsets_first[STREAM].get(partition, 0) : end]:
                is_ahead = other.number < record.number and other.event_ms > sent_ms
                if not is_ahead and not reason_against(other, one):
                    reached[partition] = max(min(other.event_ms, other.log_ms), reached.get(partition, 0))
    watermarks_ms = [watermark_of(one, reached, one.silence_ms.get(STREAM, {})) for one in slices[-2:]]
    is_passed = any(ms is not None and ms > record.event_ms for ms in watermarks_ms)
    return reached != last.reached.get(STREAM, {}) and not is_passed


def _is_all_idle(one: SliceRow) -> bool:
    limit_ms, silence_ms = one.rule.idle_timeout_ms, one.silence_ms.get(STREAM, {})
    reached = one.reached.get(STREAM, {})
    return limit_ms is not None and all(silence_ms.get(partition, 0) >= limit_ms for partition in reached)
