"""Runs of a job that are no longer needed and may be removed from the ledger. Reads the ledger only."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from strandline.ledger.states import RunRow
from strandline.processing.slices.rewind import RUN_BEGINS

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader

RUNS_KEPT = 300
"""Number of the newest runs of a job that always stay. A count of failed runs in a row needs fewer."""


def runs_of_no_use(ledger: LedgerReader, job: str) -> list[int]:
    """Return the epochs of the runs of a job that are no longer needed, the oldest first. Some of them may have a slice or a
    checkpoint: the ledger keeps these runs.

    Four uses need runs:

    1. People read the newest runs, and the entries that record when the job was reset or deleted.
    2. The next run fences the late writes of all runs since the last commit.
    3. To compile the pipeline of a version, its newest run states the versions of its streams' documents.
    4. The repair of dead letters needs what each version has replayed, for each version of its streams' documents.
    """
    runs = ledger.runs(job)
    if len(runs) <= RUNS_KEPT:
        return []
    last = ledger.last_checkpoint(job)
    committed = last.epoch if last else 0
    needed = {run.epoch for run in runs[-RUNS_KEPT:]}
    needed.update(run.epoch for run in runs if run.pid == 0 or (run.epoch >= committed and run.slots))
    for of_use in (runs, [run for run in runs if run.stream_versions]):
        needed.update({run.version: run.epoch for run in of_use}.values())
    needed |= _furthest(ledger, job, {run.epoch: run for run in runs})
    return [run.epoch for run in runs if run.epoch not in needed]


def _furthest(ledger: LedgerReader, job: str, runs: dict[int, RunRow]) -> set[int]:
    """Return two runs for each version and its stream documents: the last run whose replay began furthest back, and the last
    whose replay went furthest. The events of these two cover what all such runs have read."""
    begun = defaultdict(list)
    for event in ledger.events_of_kind(job, RUN_BEGINS):
        run = runs.get(event.epoch or 0)
        if run is not None:
            span = int(event.facts["slice_first"]), int(event.facts["slice_committed"]), run.epoch
            begun[run.version, tuple(sorted(run.stream_versions.items()))].append(span)
    furthest_back = {min(spans, key=lambda span: (span[0], -span[2]))[2] for spans in begun.values()}
    return furthest_back | {max(spans, key=lambda span: span[1:])[2] for spans in begun.values()}
