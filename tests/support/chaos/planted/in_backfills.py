"""Faults in what backfills made and in what the aliases show, each planted alone in a right run with two backfills."""

from __future__ import annotations

import copy
from collections.abc import Callable

from tests.support.chaos.checking.pace import SHORT
from tests.support.chaos.dump import Dump, Row
from tests.support.chaos.planted.in_ledger import Chance


def place_of(document: Row) -> str:
    return f"{document['_index']}/{document['_id']}"


def replaced(dump: Dump, chance: Chance) -> tuple[Row, Row]:
    """A result of the job itself, and the one of a backfill that is shown in its place."""
    shown = {one["_id"]: one for one in dump.backfilled if place_of(one) in of_all_stages(dump)}
    own = chance.choice([one for one in dump.documents if one["_id"] in shown])
    return own, shown[own["_id"]]


def of_all_stages(dump: Dump) -> set[str]:
    assert dump.shown is not None
    return {place for places in dump.shown.values() for place in places}


def shown(dump: Dump, document: Row) -> list[str]:
    """Return the indices that are shown for its stage."""
    assert dump.shown is not None
    return dump.shown[document["_source"]["strandline"]["stage"]]


# --- What is shown


def show_what_was_replaced_too(dump: Dump, chance: Chance) -> None:
    own, _ = replaced(dump, chance)
    shown(dump, own).append(place_of(own))


def show_what_was_replaced_instead(dump: Dump, chance: Chance) -> None:
    own, again = replaced(dump, chance)
    shown(dump, own).remove(place_of(again))
    shown(dump, own).append(place_of(own))


def undo_a_swap(dump: Dump, chance: Chance) -> None:
    """A request that was held up shows the older backfill again."""
    older = {one["_id"]: one for one in dump.backfilled if ".g2-" in one["_index"]}
    for one in dump.backfilled:
        if ".g3-" in one["_index"] and one["_id"] in older:
            shown(dump, one).remove(place_of(one))
            shown(dump, one).append(place_of(older[one["_id"]]))


def hide_a_result(dump: Dump, chance: Chance) -> None:
    assert dump.shown is not None
    dump.shown[SHORT].remove(chance.choice(dump.shown[SHORT]))


def hide_what_came_after_the_swap(dump: Dump, chance: Chance) -> None:
    """An index that was made later, and no alias has."""
    last = max(dump.documents, key=lambda one: one["_source"]["@timestamp"])
    shown(dump, last).remove(place_of(last))


def never_show_a_backfill(dump: Dump, chance: Chance) -> None:
    assert dump.shown is not None
    dump.shown = {stage: [one for one in places if ".g3-" not in one] for stage, places in dump.shown.items()}


# --- What a backfill made


def lose_a_result_of_a_backfill(dump: Dump, chance: Chance) -> None:
    """Remove a result, so that the alias can't show it."""
    lost = dump.backfilled.pop(chance.randrange(len(dump.backfilled)))
    if place_of(lost) in shown(dump, lost):
        shown(dump, lost).remove(place_of(lost))


def count_one_more_in_a_backfill(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.backfilled)["_source"]["n"] += 1


def write_a_result_of_a_backfill_over(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.backfilled)["_version"] = 2


def compute_a_backfill_as_the_version_before(dump: Dump, chance: Chance) -> None:
    source = chance.choice([one for one in dump.backfilled if one["_source"]["total"]])["_source"]
    source["total"] = source["total"] // source["strandline"]["version"] * (source["strandline"]["version"] - 1)


def write_a_window_beside_the_range(dump: Dump, chance: Chance) -> None:
    """Whole and right, as a window of the job's own may be."""
    beside = copy.deepcopy(max(dump.documents, key=lambda one: one["_source"]["@timestamp"]))
    beside["_index"] = beside["_index"].replace("-20", ".g3-20")
    dump.backfilled.append(beside)


def leave_what_a_failed_backfill_wrote(dump: Dump, chance: Chance) -> None:
    left = copy.deepcopy(chance.choice(dump.backfilled))
    left["_index"] = left["_index"].replace(".g2-", ".g4-").replace(".g3-", ".g4-")
    dump.backfilled.append(left)


def write_a_result_by_an_attempt_to_come(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.backfilled)["_source"]["strandline"]["epoch"] = 3


def lose_a_dead_letter_of_a_backfill(dump: Dump, chance: Chance) -> None:
    letters = [one for one in dump.dead_letters if ".g" in one.headers.get("index", "")]
    dump.dead_letters.remove(chance.choice(letters))


# --- What the ledger says of it


def fail_a_backfill(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.tables["backfills"])["state"] = "failed"


def leave_a_backfill_unfinished(dump: Dump, chance: Chance) -> None:
    dump.tables["backfills"][-1]["state"] = "running"


def backfill_one_window_less(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.tables["backfills"])["windows"][SHORT][0] += 10_000


def count_one_result_of_a_backfill_less(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.tables["backfills"])["results"][SHORT] -= 1


PLANTED: dict[Callable[[Dump, Chance], None], set[str]] = {
    show_what_was_replaced_too: {"repeated"},
    show_what_was_replaced_instead: {"lost"},
    undo_a_swap: {"lost"},
    hide_a_result: {"lost"},
    hide_what_came_after_the_swap: {"lost"},
    never_show_a_backfill: {"lost"},
    lose_a_result_of_a_backfill: {"lost"},
    count_one_more_in_a_backfill: {"wrong"},
    write_a_result_of_a_backfill_over: {"repeated"},
    compute_a_backfill_as_the_version_before: {"wrong"},
    write_a_window_beside_the_range: {"foreign"},
    leave_what_a_failed_backfill_wrote: {"foreign"},
    write_a_result_by_an_attempt_to_come: {"wrong"},
    lose_a_dead_letter_of_a_backfill: {"lost"},
    fail_a_backfill: {"ledger"},
    leave_a_backfill_unfinished: {"ledger"},
    backfill_one_window_less: {"ledger"},
    count_one_result_of_a_backfill_less: {"accounts"},
}
"""Each fault, and kinds of violation: at least one of them must be named."""
