"""What documents would change, and why they are refused: `apply` goes by it, and a plan tells it."""

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
    """What applying a pipeline would mean for its job."""

    job: str
    outcome: Literal["created", "changed", "unchanged"]
    version: int
    """The version that the job would have."""
    changes: list[Change]
    """The forbidden ones first."""
    rewind: RewindView | None
    """The rewind that the start of the new version would need; null where there is nothing to rewind."""


@dataclass(frozen=True)
class DocumentPlan(Described):
    """What applying a stream or a lookup would mean."""

    kind: Literal["stream", "lookup"]
    name: str
    changes: list[Change]
    """The forbidden ones: why applying is refused."""
    notes: list[str]
    """As applying would answer with."""


@dataclass(frozen=True)
class PlanView(Described):
    """What applying would mean. It is refused where one change is forbidden."""

    documents: list[DocumentPlan]
    """The streams and lookups."""
    jobs: list[JobPlan]


Kind = Literal["stream", "lookup", "pipeline"]


@dataclass(frozen=True)
class Refusal:
    """Why a document is refused."""

    kind: Kind
    name: str
    error: Conflict
    is_planned: bool
    """Whether the job's plan says it already, by the changes that it forbids."""


@dataclass
class Judged:
    """Documents that were compared with what is there."""

    streams: dict[str, list[str]] = field(default_factory=dict)
    """Stream -> what its change means for each job that reads it."""
    lookups: dict[str, LookupChange] = field(default_factory=dict)
    jobs: dict[str, JobPlan] = field(default_factory=dict)
    bases: dict[str, JobBase] = field(default_factory=dict)
    """Job -> what it was compared with."""
    refusals: list[Refusal] = field(default_factory=list)

    @contextmanager
    def refusing(self, kind: Kind, name: str, *, is_planned: bool = False) -> Iterator[None]:
        """Take down a Conflict as the refusal of this document."""
        try:
            yield
        except Conflict as error:
            self.refusals.append(Refusal(kind, name, error, is_planned))

    def require_accepted(self) -> None:
        """Raise Conflict with the first refusal, if there is one."""
        for refusal in self.refusals:
            raise refusal.error

    def plan(self) -> PlanView:
        """The same for those who ask before they apply."""
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
