"""States that a campaign of the ladder must reach, found in the ledger afterwards or recorded by a fault.

A fault at a random instant may miss its target. So a campaign lists the states, and fails if it did not reach one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Tables = Mapping[str, list[Row]]
"""Table -> its rows, of one job, in order. See `dump.TABLES`."""


@dataclass(frozen=True)
class State:
    """A state, and how to recognize in a job's tables that the job was in it."""

    name: str
    meaning: str
    times: Callable[[Tables], int] = lambda _: 0
    """How often. A state without it is noted by a fault."""


def _takeovers_in_rewind(tables: Tables) -> int:
    """Runs that began to replay slices, committed nothing, and were followed by another run."""
    committed = {row["epoch"] for row in tables["checkpoints"]}
    newest = max((row["epoch"] for row in tables["runs"]), default=0)
    replayed = {
        row["epoch"]
        for row in _events(tables, "run_begins")
        if row["facts"]["slice_first"] <= row["facts"]["slice_committed"]
    }
    return sum(epoch not in committed and epoch < newest for epoch in replayed)


def _backfills_under_kill(tables: Tables) -> int:
    """Count backfills whose process crashed, and that were completed anyway."""
    complete = {row["generation"] for row in tables["backfills"] if row["state"] == "complete"}
    return len({row["facts"]["generation"] for row in _events(tables, "backfill_died")} & complete)


def _handed_over(tables: Tables) -> int:
    return len(_events(tables, "slice_handed_on"))


def _takeovers_of_versions(tables: Tables) -> int:
    """Changes of the version from one committed slice to the next."""
    versions = {row["epoch"]: row["version"] for row in tables["runs"]}
    found = [versions.get(row["epoch"]) for row in tables["checkpoints"]]
    return sum(before != after for before, after in itertools.pairwise(found))


def _finished_by_old_version(tables: Tables) -> int:
    """Slices that were planned by one run and committed by another one."""
    committed = {row["slice"]: row["epoch"] for row in tables["checkpoints"]}
    return sum(committed.get(row["number"], row["epoch"]) != row["epoch"] for row in tables["slices"])


def _leaders(tables: Tables) -> int:
    return len(_events(tables, "leader_changed"))


def _births_replayed(tables: Tables) -> int:
    """Rewinds whose first slice begins with births that records before it have declared."""
    declared = {
        row["number"] for row in tables["slices"] if any(any(one.values()) for one in row.get("sessions", {}).values())
    }
    return sum(
        row["facts"]["slice_first"] in declared and row["facts"]["slice_first"] <= row["facts"]["slice_committed"]
        for row in _events(tables, "run_begins")
    )


def _events(tables: Tables, kind: str) -> list[Row]:
    return [row for row in tables["events"] if row["kind"] == kind]


STATES = {
    state.name: state
    for state in (
        State(
            "takeover-in-rewind", "a run died while it replayed slices, and another one took over", _takeovers_in_rewind
        ),
        State("backfill-under-kill", "a backfill was completed after its process was killed", _backfills_under_kill),
        State("slice-handed-over", "a slice that a version could not finish was done by another version", _handed_over),
        State("version-takeover", "another version of the pipeline took over", _takeovers_of_versions),
        State(
            "slice-by-two-runs", "a slice was planned by one run and committed by another one", _finished_by_old_version
        ),
        State("leader-change", "another control service took the job over", _leaders),
        State("kafka-answers-empty", "a reader got a fetch response without the records that are there"),
        State("kafka-holes", "a reader got a batch after the offset that it needed"),
        State("kafka-unwritable", "Kafka could be read and refused all writes"),
        State("ledger-behind", "a job failed because its ledger had lost slices, and went on after the remedy"),
        State("index-behind", "a job failed because its index lacked results, and went on after the remedy"),
        State("birth-replayed", "a rewind began after the births of the records that it read", _births_replayed),
    )
}


def times_reached(tables: Iterable[Tables], noted: Mapping[str, int]) -> dict[str, int]:
    """Return how often each state was reached: by the tables of all jobs, or as recorded."""
    every = list(tables)
    return {name: noted.get(name, 0) + sum(state.times(one) for one in every) for name, state in STATES.items()}


def missed(wanted: Collection[str], reached: Mapping[str, int]) -> list[str]:
    """A sentence for each wanted state that was not reached."""
    return [
        f"the state {name} was not reached ({STATES[name].meaning}); run longer, or with another seed"
        for name in wanted
        if not reached.get(name)
    ]
