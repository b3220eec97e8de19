"""Which runs of a job nobody will ask for again, so that they may go from the ledger. Reads the ledger only."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from strandline.ledger.states import RunRow
from strandline.processing.slices.rewind import RUN_BEGINS

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader

RUNS_KEPT = 300
"""So many of the newest runs of a job stay in any case. Whoever counts runs in vain counts fewer."""


def runs_of_no_use(ledger: LedgerReader, job: str) -> list[int]:
    """The epochs of those runs of a job that nothing needs any more, the oldest first. Some of them may have a slice or a
    checkpoint: the ledger keeps these.

    Runs are needed

    1. by people: the newest, and the entries that say when the job was reset or deleted;
    2. by the next run, which fences what a run since the last commit may still write;
    3. by who compiles a version's pipeline: its newest run says by which documents of its streams;
    4. by who repairs dead letters: what each version has read again, compiled by each version of its streams' documents.
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
    """Of those that read slices again in one version, compiled by the same documents: the last that began furthest back, and the
    last that went furthest. So the events about them say of all of them what they read."""
    begun = defaultdict(list)
    for event in ledger.events_of_kind(job, RUN_BEGINS):
        run = runs.get(event.epoch or 0)
        if run is not None:
            span = int(event.facts["slice_first"]), int(event.facts["slice_committed"]), run.epoch
            begun[run.version, tuple(sorted(run.stream_versions.items()))].append(span)
    furthest_back = {min(spans, key=lambda span: (span[0], -span[2]))[2] for spans in begun.values()}
    return furthest_back | {max(spans, key=lambda span: span[1:])[2] for spans in begun.values()}
