"""Faults in the slices, the checkpoints and the runs of a right run, each planted alone."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

from tests.support.chaos.dump import Dump, Row

JOB, STREAM = "chaos", "chaos-readings"
Chance = random.Random


# --- The ledger


def some(rows: list[Row], chance: Chance) -> int:
    """The place of a row in the middle."""
    return chance.randrange(len(rows) // 4, len(rows) * 3 // 4)


def cut_a_slice_twice(dump: Dump, chance: Chance) -> None:
    slices = dump.tables["slices"]
    row = slices[some(slices, chance)]
    partition = chance.choice(list(row["offsets"][STREAM]))
    row["offsets"][STREAM][partition] += 1


def cut_a_slice_elsewhere(dump: Dump, chance: Chance) -> None:
    """A cut that is whole in itself: only that it isn't the one that was processed."""
    slices = dump.tables["slices"]
    at = next(n for n in range(len(slices) // 2, len(slices)) if slices[n]["offsets"] != slices[n]["offsets_first"])
    row, then = slices[at], slices[at + 1]
    partition = next(p for p, end in row["offsets"][STREAM].items() if end > row["offsets_first"][STREAM][p])
    row["offsets"][STREAM][partition] -= 1
    then["offsets_first"][STREAM][partition] -= 1


def commit_a_slice_twice(dump: Dump, chance: Chance) -> None:
    dump.tables["checkpoints"].append(dump.tables["checkpoints"][-1])


def leave_a_slice_uncommitted(dump: Dump, chance: Chance) -> None:
    slices = dump.tables["slices"]
    at = some(slices, chance)
    slices[at]["status"] = "planned"
    dump.tables["checkpoints"] = [row for row in dump.tables["checkpoints"] if row["slice"] != slices[at]["number"]]


def lose_a_slice(dump: Dump, chance: Chance) -> None:
    del dump.tables["slices"][some(dump.tables["slices"], chance)]


def commit_under_an_old_epoch(dump: Dump, chance: Chance) -> None:
    dump.tables["checkpoints"][-1]["epoch"] = 1


def plan_under_an_old_epoch(dump: Dump, chance: Chance) -> None:
    dump.tables["slices"][-1]["epoch"] = 1


def lose_count(name: str) -> Callable[[Dump, Chance], None]:
    def mutate(dump: Dump, chance: Chance) -> None:
        rows = dump.tables["checkpoints"]
        rows[some(rows, chance)][name] += 1

    mutate.__name__ = f"lose_count_of_{name}"
    return mutate


def count_a_refusal_too_many(dump: Dump, chance: Chance) -> None:
    row = chance.choice([row for row in dump.tables["checkpoints"] if row["rejected"].get("late")])
    row["rejected"]["late"] += 1


def count_a_result_too_few(dump: Dump, chance: Chance) -> None:
    row = chance.choice([row for row in dump.tables["checkpoints"] if row["results"]["short"]])
    row["results"]["short"] -= 1


def claim_an_emission(dump: Dump, chance: Chance) -> None:
    rows = dump.tables["checkpoints"]
    rows[some(rows, chance)]["emitted"]["long"] += 60_000


def have_two_runs_of_one_epoch(dump: Dump, chance: Chance) -> None:
    dump.tables["runs"][-1]["epoch"] -= 1


def find_a_divergence(dump: Dump, chance: Chance) -> None:
    dump.tables["events"].append({"kind": "run_failed", "message": "results differ", "facts": {"code": "divergence"}})


def read_a_new_partition_from_its_middle(dump: Dump, chance: Chance) -> None:
    slices = dump.tables["slices"]
    at = next(
        n for n in range(1, len(slices)) if len(slices[n]["offsets"][STREAM]) > len(slices[n - 1]["offsets"][STREAM])
    )
    slices[at]["offsets_first"][STREAM]["3"] = slices[at]["offsets"][STREAM]["3"] = 2


def lose_a_partition(dump: Dump, chance: Chance) -> None:
    row = dump.tables["slices"][some(dump.tables["slices"], chance)]
    del row["offsets"][STREAM]["0"]


def end_a_slice_before_it_begins(dump: Dump, chance: Chance) -> None:
    slices = dump.tables["slices"]
    row = slices[some(slices, chance)]
    row["offsets"][STREAM]["0"] = row["offsets_first"][STREAM]["0"] - 1


def plan_under_an_epoch_to_come(dump: Dump, chance: Chance) -> None:
    for table in ("slices", "checkpoints"):
        dump.tables[table][-1]["epoch"] = len(dump.tables["runs"]) + 1


def commit_under_an_epoch_that_no_run_has(dump: Dump, chance: Chance) -> None:
    dump.tables["checkpoints"][-1]["epoch"] = len(dump.tables["runs"]) + 7


def forget_a_run(dump: Dump, chance: Chance) -> None:
    del dump.tables["runs"][len(dump.tables["runs"]) // 2]


def commit_what_was_never_planned(dump: Dump, chance: Chance) -> None:
    dump.tables["checkpoints"].append(copy.deepcopy(dump.tables["checkpoints"][-1]) | {"slice": 9_999})


def commit_when_a_newer_run_had_started(dump: Dump, chance: Chance) -> None:
    first = dump.tables["checkpoints"][0]
    later = next(run for run in dump.tables["runs"] if run["epoch"] == first["epoch"] + 1)
    first["committed_ms"] = later["started_ms"] + 1


def number_two_slices_alike(dump: Dump, chance: Chance) -> None:
    slices = dump.tables["slices"]
    slices[some(slices, chance)]["number"] -= 1


def lose_a_checkpoint(dump: Dump, chance: Chance) -> None:
    rows = dump.tables["checkpoints"]
    del rows[some(rows, chance)]


PLANTED: dict[Callable[[Dump, Chance], None], set[str]] = {
    cut_a_slice_twice: {"ledger"},
    cut_a_slice_elsewhere: {"accounts"},
    commit_a_slice_twice: {"ledger"},
    leave_a_slice_uncommitted: {"ledger"},
    lose_a_slice: {"ledger"},
    commit_under_an_old_epoch: {"ledger"},
    plan_under_an_old_epoch: {"ledger"},
    read_a_new_partition_from_its_middle: {"ledger"},
    lose_a_partition: {"ledger"},
    end_a_slice_before_it_begins: {"ledger"},
    plan_under_an_epoch_to_come: {"ledger"},
    commit_under_an_epoch_that_no_run_has: {"ledger"},
    forget_a_run: {"ledger"},
    commit_what_was_never_planned: {"ledger"},
    commit_when_a_newer_run_had_started: {"ledger"},
    number_two_slices_alike: {"ledger"},
    lose_a_checkpoint: {"ledger"},
    lose_count("records"): {"accounts"},
    lose_count("accepted"): {"accounts"},
    lose_count("latest_event_ms"): {"accounts"},
    lose_count("latest_log_ms"): {"accounts"},
    lose_count("accepted_total"): {"accounts"},
    lose_count("records_total"): {"accounts"},
    count_a_refusal_too_many: {"accounts"},
    count_a_result_too_few: {"accounts"},
    claim_an_emission: {"ledger"},
    have_two_runs_of_one_epoch: {"ledger"},
    find_a_divergence: {"divergence"},
}
"""Each fault, and kinds of violation: at least one of them must be named."""
