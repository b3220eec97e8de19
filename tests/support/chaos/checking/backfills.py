"""Results that backfills recomputed, and the generation of each window that the aliases show, by docs/backfill.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tests.support.chaos.checking.cascade import Closers, Key, Result
from tests.support.chaos.checking.documents import Expected
from tests.support.chaos.checking.pace import Windows
from tests.support.chaos.checking.results import check_documents
from tests.support.chaos.checking.verdict import JobVerdict
from tests.support.chaos.dump import Dump, Row

_GENERATION = re.compile(r"\.g([0-9]+)-[0-9]{4}\.[0-9]{2}$")
"""How the name of a generation's index ends."""


@dataclass(frozen=True)
class Backfill:
    """A backfill that is complete."""

    generation: int
    windows: dict[str, tuple[int, int]]
    """Stage -> its windows are those that end after the one, up to the other."""
    documents: dict[str, Expected]

    def holds(self, stage: str, end_ms: int) -> bool:
        after_ms, up_to_ms = self.windows[stage]
        return after_ms < end_ms <= up_to_ms


def expected_backfills(
    job: str,
    rows: list[Row],
    results: dict[int, dict[Key, Result]],
    closers: Closers,
    checkpoints: dict[int, Row],
    windows_of: dict[str, Windows],
    verdict: JobVerdict,
) -> list[Backfill]:
    """The complete ones, in order. Each has to be complete, with the windows that were asked for and were closed by then, and
    with as many results as its version has in them. `results`: of each version."""
    found = []
    for row in rows:
        name = f"backfill {row['generation']}"
        if row["generation"] != len(found) + 2 or row["state"] != "complete":
            verdict.ledger.append(f"{name} is {row['state']}, after {len(found)} complete ones: {row['message']}")
            continue
        windows = {stage: (after_ms, up_to_ms) for stage, (after_ms, up_to_ms) in row["windows"].items()}
        closed_ms = checkpoints[row["slice"]]["closes_ms"]
        asked = {
            stage: (shape.last_end(row["from_ms"]), shape.last_end(min(closed_ms, row["to_ms"] or closed_ms)))
            for stage, shape in windows_of.items()
        }
        if windows != (asked := {stage: one for stage, one in asked.items() if one[0] < one[1]}):
            verdict.ledger.append(f"{name} has the windows {windows}, expected {asked}")
        one = Backfill(row["generation"], asked, {})
        for (stage, end_ms, _), result in results[row["version"]].items():
            closer = closers.of(end_ms)
            if closer is not None and stage in asked and one.holds(stage, end_ms):
                of_row = {"version": row["version"], "generation": row["generation"], "emission_last": row["slice"]}
                size_ms, epochs = windows_of[stage].size_ms, (1, row["epoch"])
                expected = Expected(job, stage, size_ms, result, closer, epochs=epochs, **of_row)
                one.documents[expected.id] = expected
        counted = Counter(expected.stage for expected in one.documents.values())
        if {stage: count for stage, count in row["results"].items() if count} != counted or row["refused"]:
            verdict.accounts.append(f"{name} has results {row['results']}, {row['refused']} refused, counted {counted}")
        verdict.backfilled += len(one.documents)
        found.append(one)
    return found


def of_all(backfills: list[Backfill]) -> Iterator[Expected]:
    """Yield the expected documents in the indices of all backfills."""
    for one in backfills:
        yield from one.documents.values()


def check_backfilled(dump: Dump, backfills: list[Backfill], checkpoints: dict[int, Row], verdict: JobVerdict) -> None:
    """The documents of each backfill, in indices of its own."""
    documents: dict[int, list[Row]] = {one.generation: [] for one in backfills}
    for document in dump.backfilled:
        found = _GENERATION.search(document["_index"])
        generation = 0 if found is None else int(found[1])
        if generation in documents:
            documents[generation].append(document)
        else:
            verdict.foreign.append(f"document {document['_id']} of {document['_index']} is of no complete backfill")
    for one in backfills:
        check_documents(documents[one.generation], one.documents, checkpoints, verdict)


def check_shown(
    dump: Dump,
    documents: dict[str, Expected],
    backfills: list[Backfill],
    checkpoints: dict[int, Row],
    stages: Collection[str],
    verdict: JobVerdict,
) -> None:
    """Each result of a closed window is shown once: by the newest backfill that holds the window, where there is one. Nothing
    else is shown. `documents`: the job's own."""
    if dump.shown is None:
        return
    for stage in stages:
        held = Counter(dump.shown[stage])
        wanted = {}
        for one in (*documents.values(), *of_all(backfills)):
            if one.stage == stage and one.generation == _shown_generation(backfills, stage, one.result.end_ms):
                wanted[one.place] = one
        for place, times in held.items():
            if times > 1:
                verdict.repeated.append(f"the alias shows {place} {times} times")
            if place not in wanted:
                verdict.repeated.append(f"the alias shows {place}, which no generation has in force")
        for place, one in wanted.items():
            if place not in held and one.closer in checkpoints:
                verdict.lost.append(f"the alias does not show {place}, the {stage} up to {one.result.end_ms}")


def _shown_generation(backfills: list[Backfill], stage: str, end_ms: int) -> int:
    return max((one.generation for one in backfills if stage in one.windows and one.holds(stage, end_ms)), default=1)
