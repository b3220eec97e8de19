"""Faults in which version of the job did what, each planted alone in a right run of several versions."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.chaos.dump import Dump, Row
from tests.support.chaos.planted.in_ledger import Chance, some


def first_of_a_version(dump: Dump) -> int:
    """The place of the first slice of the second version."""
    return next(at for at, row in enumerate(dump.tables["slices"]) if row["version"] == 2)


def plan_by_the_version_before(dump: Dump, chance: Chance) -> None:
    """Change the version of the first slice of a new version: only its row shows this."""
    dump.tables["slices"][first_of_a_version(dump)]["version"] = 1


def commit_by_the_version_before(dump: Dump, chance: Chance) -> None:
    dump.tables["checkpoints"][first_of_a_version(dump)]["version"] = 1


def plan_by_another_version(dump: Dump, chance: Chance) -> None:
    slices = dump.tables["slices"]
    slices[some(slices, chance)]["version"] += 1


def run_another_version(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.tables["runs"])["version"] += 1


def keep_the_newest_version_from_taking_over(dump: Dump, chance: Chance) -> None:
    dump.tables["job_versions"].append({"version": len(dump.tables["job_versions"]) + 1})


def lose_a_version(dump: Dump, chance: Chance) -> None:
    del dump.tables["job_versions"][1]


def emit_a_window_as_the_version_before(dump: Dump, chance: Chance) -> None:
    """All of its results, each whole: only that the version had been replaced."""
    source = chance.choice(later(dump))["_source"]
    for one in later(dump):
        if one["_source"]["window"] == source["window"]:
            origin = one["_source"]["strandline"]
            one["_source"]["total"] = one["_source"]["total"] // origin["version"] * (origin["version"] - 1)
            origin["version"] -= 1


def compute_as_the_version_before(dump: Dump, chance: Chance) -> None:
    """And say that the new version did."""
    source = chance.choice([one for one in later(dump) if one["_source"]["total"]])["_source"]
    source["total"] = source["total"] // source["strandline"]["version"] * (source["strandline"]["version"] - 1)


def later(dump: Dump) -> list[Row]:
    """The documents of all versions but the first."""
    return [one for one in dump.documents if one["_source"]["strandline"]["version"] > 1]


PLANTED: dict[Callable[[Dump, Chance], None], set[str]] = {
    plan_by_the_version_before: {"ledger"},
    commit_by_the_version_before: {"ledger"},
    plan_by_another_version: {"ledger"},
    run_another_version: {"ledger"},
    keep_the_newest_version_from_taking_over: {"ledger"},
    lose_a_version: {"ledger"},
    emit_a_window_as_the_version_before: {"wrong"},
    compute_as_the_version_before: {"wrong"},
}
"""Each fault, and kinds of violation: at least one of them must be named."""
