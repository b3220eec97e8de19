"""Event time as the log has it, held against what slices and checkpoints record. Pure.

A watermark that is too high makes good records late, and then everything else agrees: their dead letters are there, and no window
misses them. So an audit works out from the records themselves how far event time came in each partition, and from that, the
recorded rule and the recorded silences, every watermark and how far each slice closes windows. It shares no arithmetic with the
planner. What it can't know is whether a recorded silence was one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import reduce
from typing import NamedTuple

from strandline.ledger.states import CheckpointRow, EventTimeRule, Offsets, SliceKind, SliceRow
from strandline.results.document import format_timestamp

Place = tuple[str, int]
"""Stream and partition."""


class LatestTimes(NamedTuple):
    """Latest times, in ms, of some accepted records."""

    event_ms: int
    logged_ms: int
    """The latest of the times to which each record can move event time: its event time, or its log time if that is earlier."""

    def with_others(self, other: LatestTimes) -> LatestTimes:
        return LatestTimes(max(self.event_ms, other.event_ms), max(self.logged_ms, other.logged_ms))


LatestEvents = dict[tuple[str, int, int], LatestTimes]
"""(stream, partition, offset) -> latest times of the accepted records that are read from that offset to the next one. No range
reaches beyond its slice."""


def event_time_differences(
    done: Iterable[tuple[SliceRow, CheckpointRow]], before: CheckpointRow | None, latest: LatestEvents
) -> Iterator[str]:
    """A sentence for each recorded value that is not what the log gives. `done`: slices in order, all of whose records are in
    `latest`; `before`: the checkpoint before the first of them, with which the computation begins."""
    events = _by_place(latest)
    reached = _places(before.reached) if before is not None else {}
    closed_ms = before.closes_ms if before is not None else None
    for row, checkpoint in done:
        found = _latest_in(row, events)
        own = {place: _moves_to(row, place, times) for place, times in found.items()}
        after = {
            place: max(ms for ms in (reached.get(place), own.get(place)) if ms is not None) for place in reached | own
        }
        silence_ms = _places(row.silence_ms)
        filled = {
            place
            for place, end in _places(row.offsets).items()
            if end > row.offsets_first.get(place[0], {}).get(place[1], 0)
        }
        # Records that may be accepted end a silence, and once they are known, those that are accepted and not too late.
        before_it = {place: ms for place, ms in silence_ms.items() if place not in filled}
        accepted = {
            place for place, times in found.items() if row.watermark_ms is None or times.event_ms >= row.watermark_ms
        }
        behind_it = {place: ms for place, ms in silence_ms.items() if place not in accepted}
        begin_anew = {place[0] for place in filled if place not in reached}
        watermark_ms = _latest(closed_ms, _watermark(row.rule, reached, before_it, begin_anew))
        closes_ms = _latest(row.watermark_ms, _watermark(row.rule, after, behind_it))
        is_past_all = row.kind is SliceKind.DRAIN and (row.watermark_ms or 0) >= (watermark_ms or 0)
        if row.watermark_ms != watermark_ms and not is_past_all:
            yield f"slice {row.number}: watermark {_time(watermark_ms)} by the log, {_time(row.watermark_ms)} by the ledger"
        if checkpoint.closes_ms != closes_ms:
            yield (
                f"slice {row.number}: windows closed up to {_time(closes_ms)} by the log, {_time(checkpoint.closes_ms)} by the "
                "ledger"
            )
        for what, ours, theirs in (("before", reached, row.reached), ("after", after, checkpoint.reached)):
            told = _places(theirs)
            if ours != told:
                yield f"slice {row.number}: event time {what} it was {_times(ours)} by the log, {_times(told)} by the ledger"
        # Each slice is held against the log, and not against the mistake of the one before it.
        reached, closed_ms = after, checkpoint.closes_ms


def _moves_to(row: SliceRow, place: Place, times: LatestTimes) -> int:
    """How far these records move event time: not beyond their log times. Log times of producers are no limit, but the time of the
    plan is: all records of the slice were there by then."""
    if row.rule.of(place[0]).bound == "planned":
        return min(times.event_ms, row.planned_ms)
    return times.logged_ms


def _watermark(
    rule: EventTimeRule,
    reached: Mapping[Place, int],
    silence_ms: Mapping[Place, int],
    begin_anew: Collection[str] = (),
) -> int | None:
    """`begin_anew`: streams with a partition that has records in the slice and had no accepted record before. Nobody knows how
    far event time has come there, so only the newest of the others can give a watermark, where the rule follows it.

    Each place holds the watermark back at its event time less its stream's delay, unless it is idle. Of a stream that goes by the
    newest, the latest place alone does; and all of them while one isn't idle. So it is of one that goes by emissions, which holds
    the watermark back at what its emitter says where that is later, and lets none be beside others before anything is known.
    When all are idle, all hold it back by that, but the place furthest behind moves on with the shortest time beyond a timeout;
    and after one more timeout none holds it back, and the furthest ahead moves on.
    """
    less_delay = {place: ms - rule.of(place[0]).delay_ms for place, ms in reached.items()}
    timeouts_ms = {
        place: timeout_ms for place in reached if (timeout_ms := rule.of(place[0]).idle_timeout_ms) is not None
    }
    idle_ms = {place: silence_ms.get(place, 0) - timeout_ms for place, timeout_ms in timeouts_ms.items()}
    emitted = {stream for stream, one in rule.by_stream if one.watermark == "emissions"}
    holding: list[int] = []
    idle_at: list[int] = []
    latest: list[int] = list(less_delay.values())
    for stream in {place[0] for place in reached} | set(begin_anew) | emitted:
        of_stream = rule.of(stream)
        own = {place: ms for place, ms in less_delay.items() if place[0] == stream}
        awake = [ms for place, ms in own.items() if idle_ms.get(place, -1) < 0]
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
    let_go_ms = min(idle_ms[place] - timeouts_ms[place] for place in idle_ms)
    return together_ms if let_go_ms < 0 else max(together_ms, max(latest) + let_go_ms)


def _by_place(latest: LatestEvents) -> dict[Place, list[tuple[int, LatestTimes]]]:
    """Place -> (offset, latest times), by offset."""
    found: dict[Place, list[tuple[int, LatestTimes]]] = defaultdict(list)
    for (stream, partition, offset), times in sorted(latest.items()):
        found[stream, partition].append((offset, times))
    return found


def _latest_in(row: SliceRow, events: Mapping[Place, list[tuple[int, LatestTimes]]]) -> dict[Place, LatestTimes]:
    found = {}
    for (stream, partition), end in _places(row.offsets).items():
        known = events.get((stream, partition), [])
        first = bisect_left(known, (row.offsets_first.get(stream, {}).get(partition, 0),))
        inside = known[first : bisect_left(known, (end,))]
        if inside:
            found[stream, partition] = reduce(LatestTimes.with_others, (times for _, times in inside))
    return found


def _places(by_stream: Offsets) -> dict[Place, int]:
    return {(stream, partition): ms for stream, partitions in by_stream.items() for partition, ms in partitions.items()}


def _latest(*moments_ms: int | None) -> int | None:
    return max((ms for ms in moments_ms if ms is not None), default=None)


def _time(moment_ms: int | None) -> str:
    return "none" if moment_ms is None else format_timestamp(moment_ms * 1000)


def _times(reached: Mapping[Place, int]) -> str:
    return (
        ", ".join(f"{stream}/{partition} {_time(ms)}" for (stream, partition), ms in sorted(reached.items())) or "none"
    )
