"""The watermark of each slice and the windows that it closes, recomputed by docs/event-time.md from the used records
and the recorded silences.

Also checks the silences themselves, which the log's times limit. The silences are the only values of event time that
are read from the ledger: they can't be recomputed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from tests.support.chaos.checking.judging import ClassifiedRecord
from tests.support.chaos.checking.pace import IDLE_MS
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.dump import Dump, Row

UNSEEN_MS = 2_000
"""A run that looks at the log no more often than that doesn't see that the brokers were away in between."""
TOLERANCE_MS = 1_000
"""Between two clocks that go at the same rate: a record has its log time a moment before it can be seen."""


def check_watermarks(
    judged: list[ClassifiedRecord],
    slices: list[Row],
    checkpoints: dict[int, Row],
    stream: str,
    rule: Row,
    verdict: JobVerdict,
) -> dict[int, int | None]:
    """Compare the recorded rule, event times, watermarks, and closes with the expected ones.

    If every partition counts, a slice with the first used records of a partition doesn't raise the watermark: the
    progress of that partition isn't known yet. Returns slice -> end up to which it closes windows, also for an
    uncommitted slice.
    """
    say = verdict.watermark.append
    used: dict[int, dict[int, int]] = defaultdict(dict)
    accepted: dict[int, set[int]] = defaultdict(set)
    held: dict[int, set[int]] = defaultdict(set)
    for one in judged:
        held[one.slice].add(one.record.partition)
        if one.is_used and one.event_ms is not None:
            partition = one.record.partition
            moves_to_ms = min(one.event_ms, one.record.log_time_ms)
            used[one.slice][partition] = max(moves_to_ms, used[one.slice].get(partition, moves_to_ms))
            accepted[one.slice].add(partition)
    reached: dict[int, int] = {}
    closed_ms: int | None = None
    closes_ms: dict[int, int | None] = {}
    for row in slices:
        name, number = f"slice {row['number']}", row["number"]
        silence_ms = silences(row, stream)
        before_it = {one: ms for one, ms in silence_ms.items() if one not in held[number]}
        behind_it = {one: ms for one, ms in silence_ms.items() if one not in accepted[number]}
        if row["rule"] != rule:
            say(f"{name} has the rule {row['rule']}, the pipeline says {rule}")
        if row["reached"].get(stream, {}) != _by_text(reached):
            say(f"{name} says that event time had come to {row['reached']}, it was {reached}")
        is_held_back = rule["watermark"] == "partitions" and any(one not in reached for one in held[number])
        expected_ms = closed_ms if is_held_back else _latest(closed_ms, watermark_of(reached, before_it, rule))
        is_past_all = row["kind"] == "drain" and (row["watermark_ms"] or 0) >= (expected_ms or 0)
        if row["watermark_ms"] != expected_ms and not is_past_all:
            say(f"{name} has the watermark {row['watermark_ms']}, expected {expected_ms}")
        for partition, moves_to_ms in used[number].items():
            reached[partition] = max(moves_to_ms, reached.get(partition, moves_to_ms))
        closed_ms = closes_ms[number] = _latest(row["watermark_ms"], watermark_of(reached, behind_it, rule))
        done = checkpoints.get(number)
        if done is not None and done["closes_ms"] != closed_ms:
            say(f"{name} closes windows up to {done['closes_ms']}, expected {closed_ms}")
        if done is not None and done["reached"].get(stream, {}) != _by_text(reached):
            say(f"{name} says that event time has come to {done['reached']} after it, it is {reached}")
    return closes_ms


def silences(row: Row, stream: str) -> dict[int, int]:
    """Partition -> the silence that is recorded with the slice."""
    return {int(partition): ms for partition, ms in row["silence_ms"].get(stream, {}).items()}


def watermark_of(reached: dict[int, int], silence_ms: dict[int, int], rule: Row) -> int | None:
    """The minimum of the partitions that aren't idle, or by the rule `newest` the maximum of all.

    If all are idle, the minimum runs on with the shortest silence beyond the timeout; from two timeouts on, the maximum runs on
    with the time beyond these.
    """
    if not reached:
        return None
    delay_ms, idle_ms, is_newest = rule["delay_ms"], rule["idle_timeout_ms"], rule["watermark"] != "partitions"
    awake = [at_ms for one, at_ms in reached.items() if idle_ms is None or silence_ms.get(one, 0) < idle_ms]
    least_ms, most_ms = min(reached.values()), max(reached.values())
    if awake:
        return int((most_ms if is_newest else min(awake)) - delay_ms)
    over_ms = min(silence_ms[one] for one in reached) - idle_ms
    run_on_ms = (most_ms if is_newest else least_ms) + over_ms
    if over_ms >= idle_ms:
        run_on_ms = max(run_on_ms, most_ms + over_ms - idle_ms)
    return int(run_on_ms - delay_ms)


def check_silences(
    dump: Dump, judged: list[ClassifiedRecord], slices: list[Row], stream: str, verdict: JobVerdict
) -> None:
    """Check that the silence of a partition isn't longer than the log's times allow.

    The bound is the time between the last accepted record before the slice and the record after its end. The time when
    Kafka was away is subtracted, and the bound is higher if the clock that counts it ran fast. `judged` contains the
    accepted records.
    """
    logged: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for record in dump.records:
        offsets, times_ms = logged[record.partition]
        offsets.append(record.offset)
        times_ms.append(appended_ms(record.log_time_ms, dump.log_time_steps))
    used: dict[int, list[int]] = defaultdict(list)
    for one in judged:
        if one.is_used:
            used[one.record.partition].append(one.record.offset)
    for row in slices:
        verdict.idle += any(ms >= IDLE_MS for ms in silences(row, stream).values())
        for partition, ms in silences(row, stream).items():
            end = row["offsets"][stream].get(str(partition))
            if end is None or ms < 0:
                verdict.watermark.append(f"slice {row['number']} records {ms} ms of silence of partition {partition}")
                continue
            offsets, times_ms = logged[partition]
            after = bisect_left(offsets, end)
            last = bisect_left(used[partition], row["offsets_first"][stream].get(str(partition), 0))
            if not last or after == len(offsets):
                continue  # nothing bounds it
            between = times_ms[bisect_left(offsets, used[partition][last - 1])], times_ms[after]
            longest_ms = _silence_between(dump.kafka_away, *between) + _gained_ms(dump.silence_drifts, *between)
            if ms > longest_ms + TOLERANCE_MS:
                verdict.watermark.append(
                    f"slice {row['number']} counts {ms} ms of silence of partition {partition}, there were {longest_ms}"
                )


def appended_ms(log_time_ms: int, steps: list[tuple[int, int, int, float]]) -> int:
    """Return the time at which a record was appended: its log time by a correct clock."""
    for from_ms, to_ms, ahead_ms, rate in steps:
        appended_ms = from_ms + int((log_time_ms - ahead_ms - from_ms) / rate)
        if from_ms - TOLERANCE_MS <= appended_ms <= to_ms + TOLERANCE_MS:
            return appended_ms
    return log_time_ms


def _silence_between(away: list[tuple[int, int]], from_ms: int, to_ms: int) -> int:
    meanwhile = [min(to_ms, end_ms) - max(from_ms, start_ms) for start_ms, end_ms in away]
    return to_ms - from_ms - sum(max(0, lost_ms - UNSEEN_MS) for lost_ms in meanwhile)


def _gained_ms(drifts: list[tuple[int, int, float]], from_ms: int, to_ms: int) -> int:
    """By how much a clock that ran fast has shown more than there was."""
    return sum(
        int(max(0, min(to_ms, end_ms) - max(from_ms, start_ms)) * (rate - 1)) for start_ms, end_ms, rate in drifts
    )


def _by_text(reached: dict[int, int]) -> dict[str, int]:
    return {str(partition): ms for partition, ms in reached.items()}


def _latest(*moments_ms: int | None) -> int | None:
    return max((moment_ms for moment_ms in moments_ms if moment_ms is not None), default=None)
