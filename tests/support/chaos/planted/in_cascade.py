"""Faults in what a right run made of null keys, of means and of results that fail between the windows; each planted alone."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from fractions import Fraction

from tests.support.chaos.checking.pace import LONG, PACES, SHORT
from tests.support.chaos.dump import Dump, Record, Row
from tests.support.chaos.planted.in_ledger import Chance


def stage_of(document: Row) -> str:
    return str(document["_source"]["strandline"]["stage"])


# --- Null keys


def without_a_key(dump: Dump, chance: Chance) -> Row:
    """A result of records without a client."""
    found = [one for one in dump.documents if stage_of(one) == SHORT and one["_source"]["client"] is None]
    return chance.choice(found)


def take_a_null_key_for_an_empty_text(dump: Dump, chance: Chance) -> None:
    without_a_key(dump, chance)["_source"]["client"] = ""


def take_a_null_key_for_the_word(dump: Dump, chance: Chance) -> None:
    without_a_key(dump, chance)["_source"]["client"] = "null"


def leave_a_null_key_out_of_the_document(dump: Dump, chance: Chance) -> None:
    del without_a_key(dump, chance)["_source"]["client"]


def leave_out_the_results_of_null_keys(dump: Dump, chance: Chance) -> None:
    dump.documents = [one for one in dump.documents if one["_source"].get("client", "") is not None]


def count_records_without_a_key_with_another(dump: Dump, chance: Chance) -> None:
    """Count a record under the key of an adjacent record instead of its own, which is null."""
    pairs = [(one, two) for one in dump.documents for two in dump.documents if _are_beside(one, two)]
    one, two = chance.choice(pairs)
    one["_source"]["n"] -= 1
    two["_source"]["n"] += 1


def _are_beside(one: Row, two: Row) -> bool:
    """Results of one window and site, the first of a null key."""
    if not stage_of(one) == stage_of(two) == SHORT or one["_source"]["client"] is not None or one is two:
        return False
    return all(one["_source"][name] == two["_source"][name] for name in ("site", "window"))


def split_a_null_key_by_partition(dump: Dump, chance: Chance) -> None:
    """Make two results from the null keys of two partitions, of which the second counts as a duplicate."""
    several = [one for one in dump.documents if stage_of(one) == SHORT and one["_source"]["client"] is None]
    source = chance.choice([one["_source"] for one in several if one["_source"]["n"] > 1])
    source["n"] //= 2


def leave_a_null_site_out_of_the_long_windows(dump: Dump, chance: Chance) -> None:
    long = [one for one in dump.documents if stage_of(one) == LONG and one["_source"]["site"] is None]
    dump.documents.remove(chance.choice(long))


# --- Means


def round_a_mean_one_step_up(dump: Dump, chance: Chance) -> None:
    source = chance.choice(dump.documents)["_source"]
    source["mean"] = round(source["mean"] + 0.01, 2)


def round_a_mean_one_step_down(dump: Dump, chance: Chance) -> None:
    source = chance.choice(dump.documents)["_source"]
    source["mean"] = round(source["mean"] - 0.01, 2)


def round_a_tie_down(dump: Dump, chance: Chance) -> None:
    """Round 0.125 half to even."""
    source = chance.choice([one["_source"] for one in dump.documents if _is_tie(one["_source"]["load"])])
    source["mean"] = math.floor(source["load"] * 100) / 100


def _is_tie(load: float) -> bool:
    return (Fraction(load) * 200) % 2 == 1


def leave_a_mean_unrounded(dump: Dump, chance: Chance) -> None:
    source = chance.choice([one["_source"] for one in dump.documents if round(one["_source"]["load"], 3) % 0.01])
    source["mean"] = source["load"]


def cut_a_mean_off(dump: Dump, chance: Chance) -> None:
    """In place of rounding it."""
    above = [one["_source"] for one in dump.documents if (one["_source"]["load"] * 100) % 1 > 0.6]
    source = chance.choice(above)
    source["mean"] = math.floor(source["load"] * 100) / 100


def change_a_means_last_bit(dump: Dump, chance: Chance) -> None:
    source = chance.choice([one["_source"] for one in dump.documents if one["_source"]["load"]])
    source["load"] = math.nextafter(source["load"], math.inf)


# --- Results that fail between the windows


def letters_of_results(dump: Dump) -> list[Record]:
    return [one for one in dump.dead_letters if "document" in one.headers]


def let_a_failed_result_go_on(dump: Dump, chance: Chance) -> None:
    """Use a failed result, which has its dead letter, in the later window anyway."""
    size_ms = PACES[dump.speed].long_ms
    long = {_place(one, size_ms): one["_source"] for one in dump.documents if stage_of(one) == LONG}
    failed = {letter.headers["document"] for letter in letters_of_results(dump)}
    pairs = [(long.get(_place(one, size_ms)), one["_source"]) for one in dump.documents if one["_id"] in failed]
    into, source = chance.choice([(into, source) for into, source in pairs if into is not None])
    into["n"] += source["n"]
    into["clients"] += 1
    into["total"] += source["total"]


def let_a_failed_result_raise_a_peak(dump: Dump, chance: Chance) -> None:
    """Raise the peak of a later window by a failed result; nothing else shows it."""
    source = chance.choice([one["_source"] for one in dump.documents if stage_of(one) == LONG])
    source["peak"] += 0.5


def _place(document: Row, size_ms: int) -> tuple[int, str | None]:
    """The later window of a result, by its end, and the site."""
    moment = document["_source"]["@timestamp"]
    whole_s = int(moment[14:16]) * 60 + int(moment[17:19])
    hour = int(moment[8:10]) * 24 + int(moment[11:13])
    end_ms = (hour * 3_600 + whole_s) * 1_000
    return -(-end_ms // size_ms) * size_ms, document["_source"]["site"]


def lose_the_letter_of_a_result(dump: Dump, chance: Chance) -> None:
    dump.dead_letters.remove(chance.choice(letters_of_results(dump)))


def lose_the_letters_of_all_results(dump: Dump, chance: Chance) -> None:
    dump.dead_letters = [one for one in dump.dead_letters if "document" not in one.headers]


def write_the_letter_of_a_result_twice(dump: Dump, chance: Chance) -> None:
    again = copy.deepcopy(chance.choice(letters_of_results(dump)))
    again.offset = dump.dead_letters[-1].offset + 2
    dump.dead_letters.append(again)


def blame_another_step(dump: Dump, chance: Chance) -> None:
    chance.choice(letters_of_results(dump)).headers["step"] = "steps[1].where"


def give_the_letter_of_a_result_another_reason(dump: Dump, chance: Chance) -> None:
    chance.choice(letters_of_results(dump)).headers["reason"] = "result"


def change_a_value_in_the_letter_of_a_result(dump: Dump, chance: Chance) -> None:
    letter = chance.choice(letters_of_results(dump))
    source = json.loads(letter.value)
    letter.value = json.dumps(source | {"n": source["n"] + 1}).encode()


def empty_the_letter_of_a_result(dump: Dump, chance: Chance) -> None:
    chance.choice(letters_of_results(dump)).value = b""


def write_a_letter_for_a_good_result(dump: Dump, chance: Chance) -> None:
    letter = copy.deepcopy(chance.choice(letters_of_results(dump)))
    document = chance.choice([one for one in dump.documents if stage_of(one) == LONG])
    letter.key = f"{document['_index']}/{document['_id']}".encode()
    letter.value = json.dumps(document["_source"]).encode()
    letter.headers |= {"index": document["_index"], "document": document["_id"]}
    dump.dead_letters.append(letter)


def leave_a_failed_result_out_of_the_index(dump: Dump, chance: Chance) -> None:
    """Leave a failed result out of the index, although it is a result."""
    identity = chance.choice(letters_of_results(dump)).headers["document"]
    dump.documents = [one for one in dump.documents if one["_id"] != identity]


PLANTED: dict[Callable[[Dump, Chance], None], set[str]] = {
    take_a_null_key_for_an_empty_text: {"wrong"},
    take_a_null_key_for_the_word: {"wrong"},
    leave_a_null_key_out_of_the_document: {"wrong"},
    leave_out_the_results_of_null_keys: {"lost"},
    count_records_without_a_key_with_another: {"wrong"},
    split_a_null_key_by_partition: {"wrong"},
    leave_a_null_site_out_of_the_long_windows: {"lost"},
    round_a_mean_one_step_up: {"wrong"},
    round_a_mean_one_step_down: {"wrong"},
    round_a_tie_down: {"wrong"},
    leave_a_mean_unrounded: {"wrong"},
    cut_a_mean_off: {"wrong"},
    change_a_means_last_bit: {"wrong"},
    let_a_failed_result_go_on: {"wrong"},
    let_a_failed_result_raise_a_peak: {"wrong"},
    lose_the_letter_of_a_result: {"lost"},
    lose_the_letters_of_all_results: {"lost"},
    write_the_letter_of_a_result_twice: {"repeated"},
    blame_another_step: {"wrong"},
    give_the_letter_of_a_result_another_reason: {"wrong"},
    change_a_value_in_the_letter_of_a_result: {"wrong"},
    empty_the_letter_of_a_result: {"wrong"},
    write_a_letter_for_a_good_result: {"foreign"},
    leave_a_failed_result_out_of_the_index: {"lost"},
}
"""Each fault, and the kind of violation that must be named."""
