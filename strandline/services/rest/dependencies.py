"""Parts that the routes use. `control` creates them once and passes them to the app."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from strandline.access.rights import ANYONE, RequiredRight, may
from strandline.core.errors import NotFound
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import KafkaStatus
from strandline.notices.service import NoticeService
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.services.jobs.apply_documents import DocumentApplier
from strandline.services.jobs.checked_ahead import CheckedAhead
from strandline.services.jobs.dead_letters import DeadLetters
from strandline.services.jobs.devices import Devices
from strandline.services.jobs.examinations import Examinations
from strandline.services.jobs.histories import Histories
from strandline.services.jobs.job_lifecycle import JobLifecycle
from strandline.services.jobs.newest_results import NewestResults
from strandline.services.jobs.open_windows import OpenWindowPages
from strandline.services.jobs.record_relay import RecordRelay
from strandline.services.jobs.record_search import RecordSearch
from strandline.services.jobs.sending import KnownGateways
from strandline.services.jobs.shown_settings import SettingView
from strandline.services.jobs.traces import Traces
from strandline.services.processes.limited_work import RunLimited, run_here
from strandline.services.rest.event_watch import EventWatch
from strandline.services.rest.kept_answers import KeptAnswers
from strandline.services.supervision.audit_jobs import AuditJobs
from strandline.services.supervision.backfill_jobs import BackfillJobs
from strandline.services.supervision.dead_letter_copies import DeadLetterCopies
from strandline.services.supervision.lookups.follower import LookupFollower
from strandline.services.supervision.old_slices import SliceCleanup
from strandline.services.supervision.supervisor import Supervisor


@dataclass(frozen=True)
class Dependencies:
    """Parts of a control service."""

    ledger: Ledger
    log: KafkaStatus
    applier: DocumentApplier
    supervisor: Supervisor
    audits: AuditJobs
    backfills: BackfillJobs
    old_slices: SliceCleanup
    dead_letter_copies: DeadLetterCopies
    lifecycle: JobLifecycle
    dead_letters: DeadLetters
    lookups: LookupFollower
    notices: NoticeService
    elasticsearch_url: str
    """URL of the results store. Can contain a password."""
    data_dir: Path
    """Directory of the files of this control service."""
    unavailable_store: Callable[[CheckedPipeline], str | None]
    """Returns the name of the unavailable store of a pipeline's results. None if its stores respond."""
    requires_token: bool = False
    """True if requests are authenticated."""
    run_limited: RunLimited = run_here
    """Runs functions on input of a request, in a process with limits of memory and time."""
    close_limited: Callable[[], None] = lambda: None
    """Ends that process."""
    relay: RecordRelay = field(default_factory=lambda: RecordRelay(None))
    """Relays records of users to a gateway."""
    gateways: KnownGateways = KnownGateways({}, 0, can_relay=False)  # noqa: RUF009  # frozen, and never changed
    """Addresses of gateways for senders."""
    settings: Callable[[], Sequence[SettingView]] = tuple
    """Returns the settings of this control service, without secrets."""
    kibana_url: str | None = None
    """Address of Kibana for browsers. None if it is unknown."""

    @cached_property
    def traces(self) -> Traces:
        """Traces of records and results."""
        return Traces(self.data_dir)

    @cached_property
    def examinations(self) -> Examinations:
        """Examinations of the doctor."""
        return Examinations(self.data_dir)

    @cached_property
    def open_windows(self) -> OpenWindowPages:
        """Pages of open windows."""
        return OpenWindowPages(self.traces)

    @cached_property
    def devices(self) -> Devices:
        """Lists of devices."""
        return Devices(self.ledger, self.log, self.run_limited)

    @cached_property
    def checked_ahead(self) -> CheckedAhead:
        """Checks of all pipelines after the start."""
        return CheckedAhead(self.ledger)

    @cached_property
    def record_search(self) -> RecordSearch:
        """Search of records in a stream."""
        return RecordSearch(self.ledger, self.log, self.run_limited)

    @cached_property
    def kept_jobs(self) -> KeptAnswers:
        """Newest responses about several jobs."""
        return KeptAnswers()

    @cached_property
    def kept_explanations(self) -> KeptAnswers:
        """Newest responses with explanations of several jobs."""
        return KeptAnswers()

    @cached_property
    def kept_histories(self) -> KeptAnswers:
        """Newest responses with histories of several jobs."""
        return KeptAnswers()

    @cached_property
    def kept_arrivals(self) -> KeptAnswers:
        """Newest response about the arrival of records."""
        return KeptAnswers()

    @cached_property
    def newest_results(self) -> NewestResults:
        """Newest result of each job."""
        return NewestResults(self.ledger)

    @cached_property
    def event_watch(self) -> EventWatch:
        """Looks for new events, for all clients that follow them."""
        return EventWatch(self.ledger)

    @cached_property
    def histories(self) -> Histories:
        """Counts of the jobs over time."""
        return Histories(self.ledger)


def _dependencies(request: Request) -> Dependencies:
    found = request.app.state.dependencies
    assert isinstance(found, Dependencies)
    return found


async def require_possible_names(request: Request) -> None:
    """Raise NotFound for a name with a NUL character: no name contains one, and PostgreSQL can't be queried for it."""
    queried = (value for _, value in request.query_params.multi_items())
    for text in (*request.path_params.values(), *queried):
        if "\0" in text:
            raise NotFound(f"there is no object with the name {text!r}: names can't contain a NUL character")


def _caller(request: Request) -> str | None:
    principal = request.state.principal
    return None if principal is ANYONE else str(principal.name)


def _may_read(request: Request) -> bool:
    return may(request.state.principal, RequiredRight.VIEWER)


def _may_read_topics(request: Request) -> bool:
    return may(request.state.principal, RequiredRight.OPERATOR)


INTEGER_MAX = 2**53 - 1
"""Maximum integer of a request: no time, offset, or number of a slice is near it, and databases and JSON can store it."""
Control = Annotated[Dependencies, Depends(_dependencies)]
"""Type of the route argument with the parts."""
Caller = Annotated[str | None, Depends(_caller)]
"""Type of the route argument with the caller's name, for events. None if clients aren't authenticated."""
MayRead = Annotated[bool, Depends(_may_read)]
"""Type of an argument of open routes. True if the caller has a viewer's rights; also without authentication."""
MayReadTopics = Annotated[bool, Depends(_may_read_topics)]
"""Type of a route argument. True if the caller can read topics that aren't registered streams, because it can register them."""


def require_readable(control: Dependencies, topic: str, *, may_read_topics: bool) -> None:
    """Raise NotFound if the topic isn't a registered stream, and the caller can't read other topics."""
    if not may_read_topics:
        control.ledger.stream(topic)
