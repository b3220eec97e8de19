"""The watermark of each slice and what the slice closes, worked out again: by the rule in docs/pipeline.md, from the records that
were used and the silences that are recorded. And the silences themselves, which the log's times bound.

Nothing that the ledger says of event time is taken for true, but silence: nobody else could count it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from tests.support.chaos.checking.judging import Judged
from tests.support.chaos.checking.pace import IDLE_MS
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.dump import Dump, Row

UNSEEN_MS = 2_000
"""A run that looks at the log no more often than that doesn't see that the brokers were away in between."""
TOLERANCE_MS = 1_000
"""Between two clocks that go at the same rate: a record has its log time a moment before it can be seen."""


def check_watermarks(
    judged: list[Judged], slices: list[Row], checkpoints: dict[int, Row], stream: str, rule: Row, verdict: JobVerdict
) -> dict[int, int | None]:
    """Hold the recorded rule, event times, watermarks and closes against what they have to be. Where every partition counts, a
    slice with the first used records of one doesn't raise the watermark: nobody knows yet how far that partition has come.
    Returns slice -> up to where it closes windows, also of a slice that is not committed."""
    say = verdict.watermark.append
    used: dict[int, dict[int, int]] = defaultdict(dict)
    held: dict[int, set[int]] = defaultdict(set)
    for one in judged:
        held[one.slice].add(one.record.partition)
        if one.is_used and one.event_ms is not None:
            partition = one.record.partition
            used[one.slice][partition] = max(one.event_ms, used[one.slice].get(partition, one.event_ms))
    reached: dict[int, int] = {}
    closed_ms: int | None = None
    closes_ms: dict[int, int | None] = {}
    for row in slices:
        name, number = f"slice {row['number']}", row["number"]
        silence_ms = silences(row, stream)
        if row["rule"] != rule:
            say(f"{name} has the rule {row['rule']}, the pipeline says {rule}")
        if row["reached"].get(stream, {}) != _by_text(reached):
            say(f"{name} says that event time had come to {row['reached']}, it was {reached}")
        is_held_back = rule["watermark"] == "partitions" and any(one not in reached for one in held[number])
        expected_ms = closed_ms if is_held_back else _latest(closed_ms, watermark_of(reached, silence_ms, rule))
        is_past_all = row["kind"] == "drain" and (row["watermark_ms"] or 0) >= (expected_ms or 0)
        if row["watermark_ms"] != expected_ms and not is_past_all:
            say(f"{name} has the watermark {row['watermark_ms']}, expected {expected_ms}")
        for partition, event_ms in used[number].items():
            reached[partition] = max(event_ms, reached.get(partition, event_ms))
        closed_ms = closes_ms[number] = _latest(row["watermark_ms"], watermark_of(reached, silence_ms, rule))
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
    """The least of the partitions that are not idle, or by the rule `newest` the greatest; when all are idle, the greatest,
    which runs on with their silence."""
    if not reached:
        return None
    delay_ms, idle_ms = rule["delay_ms"], rule["idle_timeout_ms"]
    awake = [at_ms for one, at_ms in reached.items() if idle_ms is None or silence_ms.get(one, 0) < idle_ms]
    if not awake:
        return int(max(reached.values()) + min(silence_ms[one] for one in reached) - idle_ms - delay_ms)
    return int((min(awake) if rule["watermark"] == "partitions" else max(reached.values())) - delay_ms)


def check_silences(dump: Dump, slices: list[Row], stream: str, verdict: JobVerdict) -> None:
    """No more may count as silence of a partition than the time between the records on both sides of the slice's end, less what
    Kafka was away meanwhile, and more where the clock that counts it ran fast."""
    logged: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for record in dump.records:
        offsets, times_ms = logged[record.partition]
        offsets.append(record.offset)
        times_ms.append(appended_ms(record.log_time_ms, dump.log_time_steps))
    for row in slices:
        verdict.idle += any(ms >= IDLE_MS for ms in silences(row, stream).values())
        for partition, ms in silences(row, stream).items():
            end = row["offsets"][stream].get(str(partition))
            if end is None or ms < 0:
                verdict.watermark.append(f"slice {row['number']} records {ms} ms of silence of partition {partition}")
                continue
            offsets, times_ms = logged[partition]
            at = bisect_left(offsets, end)
            if not 0 < at < len(offsets):
                continue  # nothing bounds it
            between = times_ms[at - 1], times_ms[at]
            longest_ms = _silence_between(dump.kafka_away, *between) + _gained_ms(dump.silence_drifts, *between)
            if ms > longest_ms + TOLERANCE_MS:
                verdict.watermark.append(
                    f"slice {row['number']} counts {ms} ms of silence of partition {partition}, there were {longest_ms}"
                )


def appended_ms(log_time_ms: int, steps: list[tuple[int, int, int, float]]) -> int:
    """When a record was appended: its log time by a clock that is right."""
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
