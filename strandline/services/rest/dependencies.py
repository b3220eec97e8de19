"""What the routes work with, put together once by `control` and handed to the app."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import LogFacts
from strandline.services.rest.apply_documents import Applier
from strandline.services.supervision.audit_jobs import Auditor
from strandline.services.supervision.backfill_jobs import Backfiller
from strandline.services.supervision.supervisor import Supervisor


@dataclass(frozen=True)
class Parts:
    """The parts of a control service."""

    ledger: Ledger
    log: LogFacts
    applier: Applier
    supervisor: Supervisor
    auditor: Auditor
    backfiller: Backfiller


def parts(request: Request) -> Parts:
    """The parts, as a dependency of a route."""
    found = request.app.state.parts
    assert isinstance(found, Parts)
    return found
