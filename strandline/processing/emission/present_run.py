"""Whether a run is still its job's present one, as a task asks it in an executor's Python worker."""

from __future__ import annotations

from contextlib import closing

from strandline.core.errors import Fenced
from strandline.ledger.states import OPEN_BACKFILLS
from strandline.processing.source.data_source import open_ledger


def require_present(job: str, epoch: int) -> None:
    """Raises Fenced when a newer run of the job has begun."""
    with closing(open_ledger()) as ledger:
        present = ledger.job(job).epoch
    if present != epoch:
        raise Fenced(f"Run {epoch} of job {job} no longer owns it, run {present} does: stop this run now.")


def require_present_attempt(job: str, generation: int, epoch: int) -> None:
    """Raises Fenced when a newer attempt at the backfill has begun, or the backfill has ended."""
    with closing(open_ledger()) as ledger:
        present = ledger.backfill(job, generation)
    if present.epoch != epoch or present.state not in OPEN_BACKFILLS:
        raise Fenced(
            f"Attempt {epoch} at backfill {generation} of job {job} is over: it is {present.state.value}, and attempt "
            f"{present.epoch} was the last to begin."
        )
