"""Planned changes of documents, and their refusals. `apply` makes the changes, and a plan displays them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from strandline.core.described import Described
from strandline.core.errors import Conflict
from strandline.ledger.states import JobBase
from strandline.processing.pipelines.upgrade import Change, Effect
from strandline.services.jobs.applying.lookup_changes import LookupChange
from strandline.services.jobs.job_status import RewindView


@dataclass(frozen=True)
class JobPlan(Described):
    """Effect of applying a pipeline on its job."""

    job: str
    outcome: Literal["created", "changed", "unchanged"]
    version: int
    """Version that the job would have."""
    changes: list[Change]
    """Changes, the forbidden ones first."""
    rewind: RewindView | None
    """Rewind that the start of the new version would need; null if nothing must be rewound."""


@dataclass(frozen=True)
class DocumentPlan(Described):
    """Effect of applying a stream or a lookup."""

    kind: Literal["stream", "lookup"]
    name: str
    changes: list[Change]
    """Forbidden changes, for which applying is refused."""
    notes: list[str]
    """Notes that applying would return."""


@dataclass(frozen=True)
class PlanView(Described):
    """Effect of applying documents. Applying is refused if one change is forbidden."""

    documents: list[DocumentPlan]
    """Streams and lookups."""
    jobs: list[JobPlan]


Kind = Literal["stream", "lookup", "pipeline"]


@dataclass(frozen=True)
class Refusal:
    """Reason why a document is refused."""

    kind: Kind
    name: str
    error: Conflict
    is_planned: bool
    """True if the job's plan already contains the reason, as a forbidden change."""


@dataclass
class PlannedChanges:
    """Documents after the comparison with the current state."""

    streams: dict[str, list[str]] = field(default_factory=dict)
    """Stream -> effect of its change on each job that reads it."""
    lookups: dict[str, LookupChange] = field(default_factory=dict)
    jobs: dict[str, JobPlan] = field(default_factory=dict)
    bases: dict[str, JobBase] = field(default_factory=dict)
    """Job -> state with which it was compared."""
    refusals: list[Refusal] = field(default_factory=list)

    @contextmanager
    def refusing(self, kind: Kind, name: str, *, is_planned: bool = False) -> Iterator[None]:
        """Record a Conflict in the block as the refusal of this document."""
        try:
            yield
        except Conflict as error:
            self.refusals.append(Refusal(kind, name, error, is_planned))

    def require_accepted(self) -> None:
        """Raise Conflict with the first refusal, if there is one."""
        for refusal in self.refusals:
            raise refusal.error

    def plan(self) -> PlanView:
        """Return the changes and refusals for a request before applying."""
        streams = [
            DocumentPlan(kind="stream", name=name, changes=self._forbidden("stream", name), notes=notes)
            for name, notes in self.streams.items()
        ]
        lookups = [
            DocumentPlan(kind="lookup", name=name, changes=self._forbidden("lookup", name), notes=change.notes)
            for name, change in self.lookups.items()
        ]
        return PlanView(
            documents=streams + lookups,
            jobs=[
                replace(plan, changes=[*self._forbidden("pipeline", job), *plan.changes])
                for job, plan in self.jobs.items()
            ],
        )

    def _forbidden(self, kind: Kind, name: str) -> list[Change]:
        return [
            Change("this document", Effect.FORBIDDEN, str(one.error))
            for one in self.refusals
            if (one.kind, one.name) == (kind, name) and not one.is_planned
        ]
