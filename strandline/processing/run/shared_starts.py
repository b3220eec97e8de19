"""Starts of runs that share their requests to the ledger. A pool starts many runs at once, for example after a kill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.core.errors import Fenced
from strandline.core.gathered import Gathered
from strandline.ledger.progress import RunRequest
from strandline.ledger.roles import RunLedger
from strandline.ledger.start_rows import StartLedger, start_ledgers
from strandline.ledger.states import RunRow
from strandline.processing.pipelines.stored import inputs_of_row


class SharedStarts:
    """Begins runs, and reads the rows that they need to start. Used by the threads of all runs of a process.

    The runs that begin at about the same time begin in one transaction, each under its own epoch and lease, and their rows are
    read together. A run that begins alone is a group of one.
    """

    def __init__(self, ledger: RunLedger) -> None:
        self._ledger = ledger
        self._runs: Gathered[RunRequest, RunRow] = Gathered(self._begin)
        self._ledgers: Gathered[str, StartLedger] = Gathered(lambda jobs: start_ledgers(ledger, jobs, inputs_of_row))

    def begin(self, request: RunRequest) -> RunRow:
        """Begin a run. See `Runs.begin_run`, also for the errors."""
        return self._runs.answer(request)

    def ledger_of(self, run: RunRow) -> StartLedger:
        """Return the ledger for the start of the run, with its rows. Raises Fenced if a newer run owns the job; NotFound,
        LedgerUnavailable."""
        found = self._ledgers.answer(run.job)
        present = found.job(run.job).epoch
        if present != run.epoch:
            raise Fenced(f"Run {run.epoch} of job {run.job} no longer owns it, run {present} does: stop this run now.")
        return found

    def _begin(self, requests: Sequence[RunRequest]) -> Mapping[RunRequest, RunRow | Exception]:
        found: dict[RunRequest, RunRow | Exception] = {}
        left = list(requests)
        while left:
            # If a job begins two runs, the second one begins after the first.
            now = list({one.job: one for one in reversed(left)}.values())
            begun, refusals = self._ledger.begin_runs(now)
            found |= {one: refusals.get(one.job) or begun[one.job] for one in now}
            left = [one for one in left if one not in now]
        return found
