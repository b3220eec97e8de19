"""Plans the next slices of one job or of many, with one look at the log and one transaction for all of them.

Each job has its own outcome. A job whose planning fails, by a deleted topic, a partition that can't be read or a defect, doesn't
affect the others. `SlicePlanner.next_slice` plans for a single job in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from strandline.core.errors import LedgerUnavailable, StrandlineError
from strandline.core.failpoints import failpoint
from strandline.ledger.states import SliceRow
from strandline.log.answers import Answers
from strandline.log.batch_checksums import LogPosition
from strandline.processing.slices.continuity import SealPositions
from strandline.processing.slices.look import Checksums, LogQuestions, Look, Wanted, take_look

if TYPE_CHECKING:  # this module travels to every Python worker, and the ledger's SQL takes half a second to import
    from strandline.ledger.progress import JobProgress
    from strandline.ledger.roles import PlannerLedger
    from strandline.ledger.states import CheckpointRow, LookupVersions, StreamVersions

Outcome = SliceRow | Exception | None
"""The planned slice of a job, why its planning failed, or None if there is nothing to do now."""


class Draft(NamedTuple):
    """A slice that is cut and not recorded yet."""

    row: SliceRow
    done: SliceRow | None
    """The slice before it."""
    is_draining: bool


class PlanningSteps(Protocol):
    """Steps of planning for one job, in order. See `SlicePlanner`. None as a result: nothing is planned now."""

    @property
    def job(self) -> str: ...
    @property
    def emitting_jobs(self) -> Collection[str]: ...
    def limit_rows(self, rows_max: int) -> None: ...
    def begin(self, progress: JobProgress | None, committed: int) -> tuple[JobProgress, Wanted] | SliceRow | None: ...
    def wanted(self, progress: JobProgress | None) -> Wanted: ...
    def cut(self, progress: JobProgress, others: Mapping[str, JobProgress], look: Look) -> Draft | None: ...
    def confirmed(self, draft: Draft, topic_ids: Answers[str]) -> Draft | None: ...
    def seal_positions(self, draft: Draft) -> SealPositions: ...
    def sealed(self, draft: Draft, new: Checksums, old: Checksums) -> Draft | None: ...
    @property
    def versioned_streams(self) -> Collection[str]: ...
    @property
    def used_lookups(self) -> Collection[str]: ...
    def by_versions(self, draft: Draft, streams: StreamVersions, lookups: LookupVersions) -> Draft | None: ...
    def note_silence(self, look: Look, checkpoint: CheckpointRow | None) -> None: ...


_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


def plan_next_slices(
    planners: Iterable[PlanningSteps],
    ledger: PlannerLedger,
    index: LogQuestions,
    monotonic_ms: Callable[[], int],
    committed: Mapping[str, int] | None = None,
) -> dict[str, Outcome]:
    """Plan, record and return the next slice of each of these jobs. `SlicePlanner.next_slice` describes the decisions.

    1. Read the progress of all jobs, and of the jobs that emit to their streams. An emission that is committed by then is within
       the ends that are read afterwards.
    2. Look at the log, once for all jobs that plan now.
    3. Cut: each job decides by the look and its progress. Only a job that is far behind asks more.
    4. Ask for the ids of the topics, after the ends. Then ask for the checksums of the last records, the new ones first.
    5. Read the current versions of streams and lookups, after the ends.
    6. Record all slices in one transaction.

    `committed`: number of the last slice of a job that its run knows to be committed. Raises LedgerUnavailable; the next call
    returns the slices that were recorded.
    """
    turn = _Turn(planners)
    progress = ledger.progress_of(turn.names)
    ready = turn.of_each(
        dict.fromkeys(turn.planners),
        lambda planner, _: planner.begin(progress.get(planner.job), (committed or {}).get(planner.job, 0)),
    )
    if not ready:
        return turn.outcomes
    look = take_look([wanted for _, wanted in ready.values()], index, monotonic_ms)
    drafts = turn.of_each(ready, lambda planner, given: planner.cut(given[0], progress, look))
    drafts = _sealed(turn, drafts, index)
    drafts = _by_versions(turn, drafts, ledger)
    _record(turn, drafts, ledger)
    return turn.outcomes


def count_silence(
    planners: Iterable[tuple[PlanningSteps, CheckpointRow | None]],
    index: LogQuestions,
    monotonic_ms: Callable[[], int],
) -> None:
    """Look at the log once, and count the silence of the jobs' partitions. No slice is planned.

    `planners`: each with the last checkpoint of its job. Call it regularly if no slice is due for a long time: at most
    `silence.GAP_MAX_MS` between two looks is counted.
    """
    jobs = list(planners)
    look = take_look([planner.wanted(None) for planner, _ in jobs], index, monotonic_ms)
    for planner, checkpoint in jobs:
        with suppress(StrandlineError):  # the next look for a slice reports it
            planner.note_silence(look, checkpoint)


class _Turn:
    """State of one call for several jobs: the jobs' planners, and the outcome of each job whose planning has ended."""

    def __init__(self, planners: Iterable[PlanningSteps]) -> None:
        self.planners = {planner.job: planner for planner in planners}
        self.outcomes: dict[str, Outcome] = {}

    @property
    def names(self) -> list[str]:
        """The jobs, and the jobs that emit to their streams."""
        return list(dict.fromkeys(name for one in self.planners.values() for name in (one.job, *one.emitting_jobs)))

    def of_each(
        self, given: Mapping[str, _Given], do: Callable[[PlanningSteps, _Given], _Result | SliceRow | None]
    ) -> dict[str, _Result]:
        """Call `do` for each job, and return the results of the jobs that continue. If `do` returns a slice or None, or raises an
        error, that is the outcome of the job."""
        found: dict[str, _Result] = {}
        for job, one in given.items():
            try:
                result = do(self.planners[job], one)
            except LedgerUnavailable:
                raise
            except Exception as error:  # noqa: BLE001  # a defect that one job meets must not stop the others
                self.outcomes[job] = error
                continue
            if result is None or isinstance(result, SliceRow):
                self.outcomes[job] = result
            else:
                found[job] = result
        return found


def _sealed(turn: _Turn, drafts: Mapping[str, Draft], index: LogQuestions) -> dict[str, Draft]:
    """Return the drafts with checksums, without the jobs whose log doesn't continue their last slice."""
    streams = dict.fromkeys(stream for draft in drafts.values() for stream in draft.row.offsets)
    topic_ids = index.topic_ids(streams.keys()) if streams else {}
    drafts = turn.of_each(drafts, lambda planner, draft: planner.confirmed(draft, topic_ids))
    places = {job: turn.planners[job].seal_positions(draft) for job, draft in drafts.items()}
    new = _checksums(index, (at for one in places.values() for at in one.new))
    old = _checksums(index, (at for one in places.values() for at in one.old))
    return turn.of_each(drafts, lambda planner, draft: planner.sealed(draft, new, old))


def _checksums(index: LogQuestions, places: Iterable[LogPosition]) -> Checksums:
    wanted: Collection[LogPosition] = dict.fromkeys(places).keys()
    return index.checksums_at(wanted) if wanted else {}


def _by_versions(turn: _Turn, drafts: Mapping[str, Draft], ledger: PlannerLedger) -> dict[str, Draft]:
    """Return the drafts with the current versions of streams and lookups, without the jobs whose run can't use these."""
    streams = dict.fromkeys(name for job in drafts for name in turn.planners[job].versioned_streams)
    lookups = dict.fromkeys(name for job in drafts for name in turn.planners[job].used_lookups)
    of_streams = ledger.current_versions(streams.keys()) if streams else {}
    of_lookups = ledger.known_lookups(lookups.keys()) if lookups else {}
    return turn.of_each(drafts, lambda planner, draft: planner.by_versions(draft, of_streams, of_lookups))


def _record(turn: _Turn, drafts: Mapping[str, Draft], ledger: PlannerLedger) -> None:
    if not drafts:
        return
    failpoint("plan.before_record")
    refusals = ledger.plan_slices([draft.row for draft in drafts.values()])
    failpoint("plan.recorded")
    turn.outcomes |= {job: refusals.get(job, draft.row) for job, draft in drafts.items()}
