"""Faults in the watermarks, the silences and the rule that a right run recorded, and in what is late; each planted alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

from tests.support.chaos.dump import Dump, Row
from tests.support.chaos.planted.in_ledger import STREAM, Chance, some
from tests.support.chaos.planted.in_results import used_records

HOUR_MS = 3_600_000


# --- Watermarks and closes


def a_slice(dump: Dump, chance: Chance) -> Row:
    return dump.tables["slices"][some(dump.tables["slices"], chance)]


def a_checkpoint(dump: Dump, chance: Chance) -> Row:
    return dump.tables["checkpoints"][some(dump.tables["checkpoints"], chance)]


def raise_a_watermark_by_an_hour(dump: Dump, chance: Chance) -> None:
    a_slice(dump, chance)["watermark_ms"] += HOUR_MS


def raise_every_watermark_by_an_hour(dump: Dump, chance: Chance) -> None:
    """And every close with it, so that each follows from the one before."""
    slices = dump.tables["slices"]
    for row in slices[some(slices, chance) :]:
        row["watermark_ms"] += HOUR_MS
    for row in dump.tables["checkpoints"][some(slices, chance) :]:
        row["closes_ms"] += HOUR_MS


def raise_a_watermark_by_a_millisecond(dump: Dump, chance: Chance) -> None:
    a_slice(dump, chance)["watermark_ms"] += 1


def let_a_watermark_fall(dump: Dump, chance: Chance) -> None:
    a_slice(dump, chance)["watermark_ms"] -= 20_000


def take_the_newest_of_all_partitions(dump: Dump, chance: Chance) -> None:
    row = _where_partitions_differ(dump)
    row["watermark_ms"] = max(row["reached"][STREAM].values()) - row["rule"]["delay_ms"]


def leave_out_the_delay(dump: Dump, chance: Chance) -> None:
    a_slice(dump, chance)["watermark_ms"] += 10_000


def wait_for_a_partition_that_is_idle(dump: Dump, chance: Chance) -> None:
    """Lower the watermark of a slice that a silent partition no longer holds back."""
    idle = [row for row in dump.tables["slices"] if any(ms >= 10_000 for ms in row["silence_ms"][STREAM].values())]
    chance.choice(idle)["watermark_ms"] -= 1


def raise_a_close_by_an_hour(dump: Dump, chance: Chance) -> None:
    a_checkpoint(dump, chance)["closes_ms"] += HOUR_MS


def close_a_millisecond_too_far(dump: Dump, chance: Chance) -> None:
    a_checkpoint(dump, chance)["closes_ms"] += 1


def close_by_what_the_slice_before_brought(dump: Dump, chance: Chance) -> None:
    pairs = zip(dump.tables["slices"], dump.tables["checkpoints"], strict=True)
    row, done = next((row, done) for row, done in pairs if (row["watermark_ms"] or 0) < (done["closes_ms"] or 0))
    done["closes_ms"] = row["watermark_ms"]


def forget_what_was_closed(dump: Dump, chance: Chance) -> None:
    a_checkpoint(dump, chance)["closes_ms"] = None


# --- Event time reached


def forget_a_partition_that_was_reached(dump: Dump, chance: Chance) -> None:
    reached = a_slice(dump, chance)["reached"][STREAM]
    del reached[min(reached)]


def reach_too_far(dump: Dump, chance: Chance) -> None:
    reached = a_slice(dump, chance)["reached"][STREAM]
    reached[min(reached)] += HOUR_MS


def reach_by_a_record_that_is_too_far_ahead(dump: Dump, chance: Chance) -> None:
    """A record of the future must not move event time."""
    done = a_checkpoint(dump, chance)
    done["reached"][STREAM][min(done["reached"][STREAM])] += 86_400_000


def fall_back_behind_what_was_reached(dump: Dump, chance: Chance) -> None:
    done = a_checkpoint(dump, chance)
    done["reached"][STREAM][min(done["reached"][STREAM])] -= 1


def reach_nothing(dump: Dump, chance: Chance) -> None:
    a_checkpoint(dump, chance)["reached"] = {}


# --- Silences


def count_a_silence_of_an_hour(dump: Dump, chance: Chance) -> None:
    slices = dump.tables["slices"]
    row = _before_a_record(dump, slices[len(slices) // 4 :])
    row["silence_ms"][STREAM][_next_partition(dump, row)] = HOUR_MS


def count_a_silence_that_lets_event_time_run_on(dump: Dump, chance: Chance) -> None:
    """The watermark follows from it by the rule: the silence alone is wrong."""
    slices = dump.tables["slices"]
    row = _before_a_record(dump, slices[len(slices) // 4 :])
    row["silence_ms"][STREAM] = dict.fromkeys(row["reached"][STREAM], HOUR_MS)
    row["watermark_ms"] = max(row["reached"][STREAM].values()) + HOUR_MS - 20_000


def count_an_outage_of_kafka_as_silence(dump: Dump, chance: Chance) -> None:
    """Count silence that would be correct if the brokers had been available."""
    began_ms, ended_ms = dump.records[0].log_time_ms, max(one.log_time_ms for one in dump.records)
    dump.kafka_away = [(began_ms, ended_ms)]


def forget_a_silence(dump: Dump, chance: Chance) -> None:
    row = next(row for row in dump.tables["slices"] if _all_are_idle(row))
    row["silence_ms"][STREAM] = {}


def count_silence_of_no_partition(dump: Dump, chance: Chance) -> None:
    a_slice(dump, chance)["silence_ms"][STREAM]["99"] = 500


def count_less_than_no_silence(dump: Dump, chance: Chance) -> None:
    a_slice(dump, chance)["silence_ms"][STREAM]["0"] = -1


# --- The rule


def change_the_rule(**changes: object) -> Callable[[Dump, Chance], None]:
    def mutate(dump: Dump, chance: Chance) -> None:
        row = a_slice(dump, chance)
        row["rule"] = row["rule"] | changes

    mutate.__name__ = f"change_the_rule_of_{'_'.join(changes)}"
    return mutate


def forget_the_rule(dump: Dump, chance: Chance) -> None:
    a_slice(dump, chance)["rule"] = {}


# --- What is late


def call_a_record_late(dump: Dump, chance: Chance) -> None:
    """One that was sent in time: the slice has a watermark above it, and it has its dead letter."""
    record = chance.choice([one for one in used_records(dump) if one.offset > 3 and b"-late" not in one.value])
    row = _slice_of(dump, record.partition, record.offset)
    row["watermark_ms"] = json.loads(record.value)["ts"] + 1
    letter = copy.deepcopy(next(one for one in dump.dead_letters if one.headers["reason"] == "late"))
    coordinates = {"stream": STREAM, "partition": str(record.partition), "offset": str(record.offset)}
    letter.key, letter.value = "/".join(coordinates.values()).encode(), record.value
    letter.headers |= coordinates
    dump.dead_letters.append(letter)


def use_a_record_that_is_late(dump: Dump, chance: Chance) -> None:
    letter = chance.choice([one for one in dump.dead_letters if one.headers["reason"] == "late"])
    partition, offset = int(letter.headers["partition"]), int(letter.headers["offset"])
    _slice_of(dump, partition, offset)["watermark_ms"] = json.loads(letter.value)["ts"]
    dump.dead_letters.remove(letter)


def make_the_first_records_of_a_new_partition_late(dump: Dump, chance: Chance) -> None:
    """Make records late that were sent in time to a new partition, none of which can have been idle."""
    slices = dump.tables["slices"]
    first = next(one for one in used_records(dump) if one.partition == 3 and b"-late" not in one.value)
    row = _slice_of(dump, 3, first.offset)
    for later in slices[row["number"] - 1 :]:
        later["watermark_ms"] += 120_000


def judge_lateness_by_another_watermark(dump: Dump, chance: Chance) -> None:
    """Evaluate lateness by a watermark that a run computes itself: higher than the effective one."""
    letter = chance.choice([one for one in dump.dead_letters if one.headers["reason"] == "late"])
    row = _slice_of(dump, int(letter.headers["partition"]), int(letter.headers["offset"]))
    row["watermark_ms"] = json.loads(letter.value)["ts"]


def forget_the_watermark(dump: Dump, chance: Chance) -> None:
    a_slice(dump, chance)["watermark_ms"] = None


def reopen_a_window(dump: Dump, chance: Chance) -> None:
    a_checkpoint(dump, chance)["closes_ms"] -= 600_000


def _slice_of(dump: Dump, partition: int, offset: int) -> Row:
    return next(row for row in dump.tables["slices"] if row["offsets"][STREAM].get(str(partition), 0) > offset)


def _where_partitions_differ(dump: Dump) -> Row:
    return next(row for row in dump.tables["slices"] if len(set(row["reached"].get(STREAM, {}).values())) > 2)


def _all_are_idle(row: Row) -> bool:
    reached, silence_ms = row["reached"].get(STREAM, {}), row["silence_ms"][STREAM]
    return bool(reached) and all(silence_ms.get(partition, 0) > 10_000 for partition in reached)


def _before_a_record(dump: Dump, slices: list[Row]) -> Row:
    """A slice behind which the log goes on at once."""
    return next(row for row in slices[:-1] if _next_partition(dump, row))


def _next_partition(dump: Dump, row: Row) -> str:
    """Return the first partition with records in the slice after it, and with earlier records."""
    after = dump.tables["slices"][row["number"]]
    starts, ends = after["offsets_first"][STREAM], after["offsets"][STREAM]
    return next((one for one, start in starts.items() if 0 < start < ends[one] and one in row["offsets"][STREAM]), "")


PLANTED: dict[Callable[[Dump, Chance], None], set[str]] = {
    raise_a_watermark_by_an_hour: {"watermark"},
    raise_every_watermark_by_an_hour: {"watermark"},
    raise_a_watermark_by_a_millisecond: {"watermark"},
    let_a_watermark_fall: {"watermark"},
    take_the_newest_of_all_partitions: {"watermark"},
    leave_out_the_delay: {"watermark"},
    wait_for_a_partition_that_is_idle: {"watermark"},
    raise_a_close_by_an_hour: {"watermark"},
    close_a_millisecond_too_far: {"watermark"},
    close_by_what_the_slice_before_brought: {"watermark"},
    forget_what_was_closed: {"watermark"},
    reopen_a_window: {"watermark"},
    forget_the_watermark: {"watermark"},
    forget_a_partition_that_was_reached: {"watermark"},
    reach_too_far: {"watermark"},
    reach_by_a_record_that_is_too_far_ahead: {"watermark"},
    fall_back_behind_what_was_reached: {"watermark"},
    reach_nothing: {"watermark"},
    count_a_silence_of_an_hour: {"watermark"},
    count_a_silence_that_lets_event_time_run_on: {"watermark"},
    count_an_outage_of_kafka_as_silence: {"watermark"},
    forget_a_silence: {"watermark"},
    count_silence_of_no_partition: {"watermark"},
    count_less_than_no_silence: {"watermark"},
    change_the_rule(delay_ms=0): {"watermark"},
    change_the_rule(idle_timeout_ms=None): {"watermark"},
    change_the_rule(max_ahead_ms=86_400_000): {"watermark"},
    change_the_rule(watermark="newest"): {"watermark"},
    forget_the_rule: {"watermark"},
    call_a_record_late: {"late_without_cause"},
    make_the_first_records_of_a_new_partition_late: {"late_without_cause"},
    use_a_record_that_is_late: {"watermark"},
    judge_lateness_by_another_watermark: {"watermark"},
}
"""Each fault, and the kind of violation that must be named."""
