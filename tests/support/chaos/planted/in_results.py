"""Faults in the log, in the documents and in the dead letters of a right run, each planted alone."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable

from tests.support.chaos.checking.versions import Version
from tests.support.chaos.dump import Dump, Record

JOB, STREAM = "chaos", "chaos-readings"
Chance = random.Random


# --- The log


def used_records(dump: Dump) -> list[Record]:
    """The records that windows count, whichever version they are of."""
    below = min(Version(number).load_below for number in (1, 2))
    dead = {letter.key for letter in dump.dead_letters}
    used = [one for one in dump.records if f"{STREAM}/{one.partition}/{one.offset}".encode() not in dead]
    return [one for one in used if json.loads(one.value)["power"] / json.loads(one.value)["rated"] < below]


def drop_a_record(dump: Dump, chance: Chance) -> None:
    dump.records.remove(chance.choice(used_records(dump)))


def drop_a_record_that_is_filtered_out(dump: Dump, chance: Chance) -> None:
    members = [id(one) for one in used_records(dump)]
    dump.records.remove(chance.choice([one for one in dump.records if id(one) not in members]))


def swap_two_records(dump: Dump, chance: Chance) -> None:
    one = min(chance.sample(used_records(dump), 10), key=lambda one: json.loads(one.value)["ts"])
    latest_ms = json.loads(one.value)["ts"] + 120_000
    other = chance.choice([two for two in used_records(dump) if json.loads(two.value)["ts"] > latest_ms])
    one.value, other.value = other.value, one.value


def change_a_byte(dump: Dump, chance: Chance) -> None:
    one = chance.choice(used_records(dump))
    parsed = json.loads(one.value)
    old = b'"count":%d' % parsed["count"]
    assert old in one.value
    one.value = one.value.replace(old, b'"count":%d' % (parsed["count"] ^ 1))


def append_a_record_that_no_slice_holds(dump: Dump, chance: Chance) -> None:
    last = max((one for one in dump.records if one.partition == 0), key=lambda one: one.offset)
    dump.records.append(copy.deepcopy(last))
    dump.records[-1].offset += 1


def cut_the_log(dump: Dump, chance: Chance) -> None:
    """After a power cut the log ends before what was read of it."""
    partition = _a_partition(dump, chance)
    end = dump.log_ends[str(partition)] - 3
    dump.records = [one for one in dump.records if one.partition != partition or one.offset < end]
    dump.log_ends[str(partition)] = end


def cut_the_log_and_fill_it_again(dump: Dump, chance: Chance) -> None:
    """Other records have come to the offsets of those that were read."""
    partition = _a_partition(dump, chance)
    there = [one for one in used_records(dump) if one.partition == partition]
    for one in there[len(there) // 2 :][:10]:
        other = json.loads(one.value)
        one.value = json.dumps(other | {"id": f"{other['id']}-new", "count": other["count"] + 1}).encode()


def cut_off_the_tail_that_is_filtered_out(dump: Dump, chance: Chance) -> None:
    """No result and no count of one changes: only the log is shorter than the slices."""
    partition = _a_partition(dump, chance)
    dump.log_ends[str(partition)] -= 1


def lose_the_beginning_of_the_log(dump: Dump, chance: Chance) -> None:
    dump.log_starts[str(_a_partition(dump, chance))] = 5


def make_the_topic_anew(dump: Dump, chance: Chance) -> None:
    dump.records.clear()
    dump.log_ends = dict.fromkeys(dump.log_ends, 0)


def leave_a_partition_unread(dump: Dump, chance: Chance) -> None:
    dump.records.append(Record(9, 0, dump.records[-1].log_time_ms, b"x", b"{}", {}))


def _a_partition(dump: Dump, chance: Chance) -> int:
    return chance.choice(sorted({one.partition for one in used_records(dump)}))


# --- The documents


def remove_a_result(dump: Dump, chance: Chance) -> None:
    dump.documents.remove(chance.choice(dump.documents))


def remove_the_last_result(dump: Dump, chance: Chance) -> None:
    dump.documents.remove(max(dump.documents, key=lambda one: one["_source"]["@timestamp"]))


def add_a_result(dump: Dump, chance: Chance) -> None:
    dump.documents.append(copy.deepcopy(chance.choice(dump.documents)) | {"_id": "AAAAAAAAAAAAAAAAAAAAAA"})


def count_one_more(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["n"] += 1


def change_a_decimals_last_digit(dump: Dump, chance: Chance) -> None:
    source = chance.choice(dump.documents)["_source"]
    source["cost"] = source["cost"][:-1] + str((int(source["cost"][-1]) + 1) % 10)


def sum_a_decimal_as_a_float(dump: Dump, chance: Chance) -> None:
    source = chance.choice(dump.documents)["_source"]
    source["cost"] = float(source["cost"])


def change_a_floats_last_bit(dump: Dump, chance: Chance) -> None:
    """Change the last bit of a maximum: no order of additions explains it."""
    source = chance.choice(dump.documents)["_source"]
    source["peak"] *= 1 + 2**-52


def write_a_result_over(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_version"] = 2


def count_a_deleted_document(dump: Dump, chance: Chance) -> None:
    dump.documents_deleted = 1


def move_a_result_to_another_month(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_index"] = f"{JOB}-short-1999.01"


def have_a_result_in_two_indices(dump: Dump, chance: Chance) -> None:
    dump.documents.append(copy.deepcopy(chance.choice(dump.documents)) | {"_index": f"{JOB}-short-1999.01"})


def take_an_id_from_the_attempt(dump: Dump, chance: Chance) -> None:
    document = chance.choice(dump.documents)
    document["_id"] = document["_id"][::-1]


def emit_a_window_by_another_slice(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["strandline"]["emission"] += 1


def emit_a_window_by_an_old_run(dump: Dump, chance: Chance) -> None:
    last = max(one["_source"]["strandline"]["epoch"] for one in dump.documents)
    document = chance.choice([one for one in dump.documents if one["_source"]["strandline"]["epoch"] == last])
    document["_source"]["strandline"]["epoch"] = 1


def shift_a_window(dump: Dump, chance: Chance) -> None:
    document = chance.choice(dump.documents)
    document["_source"]["window"]["start"] = document["_source"]["window"]["end"]


def leave_out_a_field(dump: Dump, chance: Chance) -> None:
    del chance.choice(dump.documents)["_source"]["total"]


def write_a_result_of_another_job(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["strandline"]["job"] = "another"


def write_a_result_by_another_version(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["strandline"]["version"] += 1


def write_a_result_under_an_epoch_to_come(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["strandline"]["epoch"] = len(dump.tables["runs"]) + 1


def give_a_result_another_key(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["site"] = "site-9"


def round_a_mean(dump: Dump, chance: Chance) -> None:
    source = chance.choice(dump.documents)["_source"]
    source["load"] = round(source["load"], 3) + 0.001


def empty_a_value(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["cost"] = None


def lose_a_whole_stage_of_a_slice(dump: Dump, chance: Chance) -> None:
    number = chance.choice(dump.documents)["_source"]["strandline"]["emission"]
    dump.documents = [one for one in dump.documents if one["_source"]["strandline"]["emission"] != number]


# --- Dead letters


def letters_of_records(dump: Dump) -> list[Record]:
    return [letter for letter in dump.dead_letters if "offset" in letter.headers]


def of_a_large_record(dump: Dump, chance: Chance) -> Record:
    """The letter of one that is as large as can be."""
    size = max(len(letter.value) for letter in dump.dead_letters)
    return chance.choice([letter for letter in dump.dead_letters if len(letter.value) == size])


def lose_the_dead_letter_of_a_large_record(dump: Dump, chance: Chance) -> None:
    dump.dead_letters.remove(of_a_large_record(dump, chance))


def leave_out_the_bytes_of_a_large_record(dump: Dump, chance: Chance) -> None:
    """Clear the bytes, like a dead letter that can't contain them."""
    of_a_large_record(dump, chance).value = b""


def cut_off_the_bytes_of_a_large_record(dump: Dump, chance: Chance) -> None:
    letter = of_a_large_record(dump, chance)
    letter.value = letter.value[:-1]


def lose_a_dead_letter(dump: Dump, chance: Chance) -> None:
    dump.dead_letters.remove(chance.choice(dump.dead_letters))


def write_a_dead_letter_twice(dump: Dump, chance: Chance) -> None:
    again = copy.deepcopy(chance.choice(dump.dead_letters))
    again.offset = dump.dead_letters[-1].offset + 2
    dump.dead_letters.append(again)


def write_a_dead_letter_for_a_good_record(dump: Dump, chance: Chance) -> None:
    letter, record = copy.deepcopy(letters_of_records(dump)[-1]), chance.choice(used_records(dump))
    letter.key, letter.value = f"{STREAM}/{record.partition}/{record.offset}".encode(), record.value
    letter.headers |= {"partition": str(record.partition), "offset": str(record.offset)}
    dump.dead_letters.append(letter)


def write_a_dead_letter_without_its_key(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.dead_letters).key = None


def change_a_byte_of_a_dead_letter(dump: Dump, chance: Chance) -> None:
    letter = chance.choice(dump.dead_letters)
    letter.value = letter.value[:-1] + b" "


def give_a_dead_letter_another_reason(dump: Dump, chance: Chance) -> None:
    letter = chance.choice([one for one in dump.dead_letters if one.headers["reason"] == "late"])
    letter.headers["reason"] = "schema"


def give_a_dead_letter_other_coordinates(dump: Dump, chance: Chance) -> None:
    letter = chance.choice(letters_of_records(dump))
    letter.headers["offset"] = str(int(letter.headers["offset"]) + 1)


def swap_two_dead_letters(dump: Dump, chance: Chance) -> None:
    one, other = chance.sample(dump.dead_letters, 2)
    one.value, other.value = other.value, one.value


def lose_the_dead_letters_of_a_slice(dump: Dump, chance: Chance) -> None:
    first = chance.randrange(len(dump.dead_letters) - 3)
    del dump.dead_letters[first : first + 3]


PLANTED: dict[Callable[[Dump, Chance], None], set[str]] = {
    drop_a_record: {"wrong", "foreign", "accounts"},
    drop_a_record_that_is_filtered_out: {"accounts"},
    swap_two_records: {"wrong", "foreign"},
    change_a_byte: {"wrong"},
    append_a_record_that_no_slice_holds: {"lost"},
    cut_the_log: {"lost"},
    cut_the_log_and_fill_it_again: {"wrong"},
    cut_off_the_tail_that_is_filtered_out: {"lost"},
    lose_the_beginning_of_the_log: {"lost"},
    make_the_topic_anew: {"lost"},
    leave_a_partition_unread: {"lost"},
    write_a_result_of_another_job: {"wrong"},
    write_a_result_by_another_version: {"wrong"},
    write_a_result_under_an_epoch_to_come: {"wrong"},
    give_a_result_another_key: {"wrong"},
    round_a_mean: {"wrong"},
    empty_a_value: {"wrong"},
    lose_a_whole_stage_of_a_slice: {"lost"},
    give_a_dead_letter_other_coordinates: {"wrong"},
    swap_two_dead_letters: {"wrong"},
    lose_the_dead_letters_of_a_slice: {"lost"},
    remove_a_result: {"lost"},
    remove_the_last_result: {"lost"},
    add_a_result: {"foreign"},
    count_one_more: {"wrong"},
    change_a_decimals_last_digit: {"wrong"},
    sum_a_decimal_as_a_float: {"wrong"},
    change_a_floats_last_bit: {"wrong"},
    write_a_result_over: {"repeated"},
    count_a_deleted_document: {"repeated"},
    move_a_result_to_another_month: {"wrong"},
    have_a_result_in_two_indices: {"repeated"},
    take_an_id_from_the_attempt: {"foreign", "lost"},
    emit_a_window_by_another_slice: {"wrong"},
    emit_a_window_by_an_old_run: {"wrong"},
    shift_a_window: {"wrong"},
    leave_out_a_field: {"wrong"},
    lose_the_dead_letter_of_a_large_record: {"lost"},
    leave_out_the_bytes_of_a_large_record: {"wrong"},
    cut_off_the_bytes_of_a_large_record: {"wrong"},
    lose_a_dead_letter: {"lost"},
    write_a_dead_letter_twice: {"repeated"},
    write_a_dead_letter_for_a_good_record: {"foreign"},
    write_a_dead_letter_without_its_key: {"foreign", "lost"},
    change_a_byte_of_a_dead_letter: {"wrong"},
    give_a_dead_letter_another_reason: {"wrong"},
}
"""Each fault, and kinds of violation: at least one of them must be named."""
