"""What the routes work with. `control` makes it once and hands it to the app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from strandline.access.rights import ANYONE, Need, may
from strandline.core.errors import NotFound
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import KafkaStatus
from strandline.notices.service import NoticeService
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.services.jobs.apply_documents import Applier
from strandline.services.jobs.dead_letters import DeadLetters
from strandline.services.jobs.histories import Histories
from strandline.services.jobs.job_lives import JobLives
from strandline.services.processes.limited_work import RunLimited, run_here
from strandline.services.supervision.audit_jobs import AuditJobs
from strandline.services.supervision.backfill_jobs import BackfillJobs
from strandline.services.supervision.dead_letter_copies import DeadLetterCopies
from strandline.services.supervision.lookups.follower import LookupFollower
from strandline.services.supervision.old_slices import OldSlices
from strandline.services.supervision.supervisor import Supervisor


@dataclass(frozen=True)
class Dependencies:
    """The parts of a control service."""

    ledger: Ledger
    log: KafkaStatus
    applier: Applier
    supervisor: Supervisor
    audits: AuditJobs
    backfills: BackfillJobs
    old_slices: OldSlices
    dead_letter_copies: DeadLetterCopies
    lives: JobLives
    dead_letters: DeadLetters
    lookups: LookupFollower
    notices: NoticeService
    elasticsearch_url: str
    """Of the results store; may hold a password."""
    data_dir: Path
    """Where this control service keeps its files."""
    store_away: Callable[[CheckedPipeline], str | None]
    """Tells the store of a pipeline's results that does not answer, in words."""
    asks_for_tokens: bool = False
    """Whether requests prove who sends them."""
    run_limited: RunLimited = run_here
    """Runs functions on input of a request, in a process with a limit of memory and time."""
    close_limited: Callable[[], None] = lambda: None
    """Ends that process."""

    @cached_property
    def histories(self) -> Histories:
        """Counts of the jobs over time."""
        return Histories(self.ledger)


def _dependencies(request: Request) -> Dependencies:
    found = request.app.state.dependencies
    assert isinstance(found, Dependencies)
    return found


async def require_possible_names(request: Request) -> None:
    """Raises NotFound for a name with a NUL character: nothing has one, and PostgreSQL can't be asked for it."""
    for text in (*request.path_params.values(), *request.query_params.values()):
        if "\0" in text:
            raise NotFound(f"nothing is called {text!r}: no name holds a NUL character")


def _caller(request: Request) -> str | None:
    principal = request.state.principal
    return None if principal is ANYONE else str(principal.name)


def _may_read(request: Request) -> bool:
    return may(request.state.principal, Need.VIEWER)


def _may_read_topics(request: Request) -> bool:
    return may(request.state.principal, Need.OPERATOR)


INTEGER_MAX = 2**53 - 1
"""The largest number that a request may hold: no time, offset or number of a slice comes near, databases and JSON can hold it."""
Control = Annotated[Dependencies, Depends(_dependencies)]
"""The type of a route's argument through which it gets them."""
Caller = Annotated[str | None, Depends(_caller)]
"""The type of a route's argument that is told who asks, for events; None while nobody has to say so."""
MayRead = Annotated[bool, Depends(_may_read)]
"""The type of an open route's argument that is told whether who asks has a viewer's rights; so has everybody without logins."""
MayReadTopics = Annotated[bool, Depends(_may_read_topics)]
"""Type of a route argument. True if the caller can read topics that are no registered streams, because it can register them."""


def require_readable(control: Dependencies, topic: str, *, may_read_topics: bool) -> None:
    """Raise NotFound if the topic is no registered stream, and the caller may not read other topics."""
    if not may_read_topics:
        control.ledger.stream(topic)
