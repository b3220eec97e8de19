"""The one place that answers "may this principal do this to that". Pure: no door, no ledger, no clock.

Four roles. Each includes the rights of the one before it:

    metrics    reads metrics
    viewer     reads everything: jobs, streams, results, dead letters with their bytes, events, metrics; checks documents
    operator   applies documents, starts, stops, resets and deletes jobs, deletes streams and lookups, audits, backfills, replays
               dead letters
    admin      makes and revokes tokens, and writes to every stream

Writing to a stream is a right of its own, given stream by stream: a sensor's token has that one and no role, so that it reads
nothing when it is stolen. What each operation needs stands in the tables below, as data: a test holds them against the API's
description and the gateways' routes, and what stands in no table is refused to everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strandline.core.errors import Forbidden
from strandline.ledger.states import Role

ALL_STREAMS = "*"
"""Among the streams that a principal may write to: it may write to any."""


class Need(StrEnum):
    """What an operation needs of who asks for it."""

    OPEN = "open"
    """Nothing: it tells nothing worth stealing."""
    METRICS = "metrics"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WRITE = "write"
    """The right to write to the stream that it names."""


@dataclass(frozen=True)
class Principal:
    """Somebody whose name was proven."""

    name: str
    role: Role | None = None
    """None: reads and orders nothing."""
    writes: frozenset[str] = frozenset()
    """The streams that it may write to, beside those that its role gives."""

    def may_write(self, stream: str) -> bool:
        """Whether its records may go to the stream. Asked for each request to a gateway."""
        return stream in self.writes or self.role is Role.ADMIN or ALL_STREAMS in self.writes


ANYONE = Principal("anyone", Role.ADMIN)
"""Who asks while `STRANDLINE_AUTH` is `none`: who reaches the service may do everything."""
STRANGER = Principal("stranger")
"""Who shows no valid token, where none is needed."""

REST_OPERATIONS: dict[str, Need] = {
    "GET /healthz": Need.OPEN,
    "GET /readyz": Need.OPEN,
    "GET /metrics": Need.METRICS,
    "GET /openapi.json": Need.VIEWER,
    "GET /v1/session": Need.OPEN,
    "POST /v1/session": Need.OPEN,
    "DELETE /v1/session": Need.OPEN,
    "GET /v1/arrivals": Need.VIEWER,
    "GET /v1/explanations": Need.VIEWER,
    "GET /v1/streams": Need.VIEWER,
    "GET /v1/streams/{name}": Need.VIEWER,
    "GET /v1/streams/{name}/undeclared": Need.VIEWER,
    "GET /v1/topics/{name}/proposal": Need.VIEWER,
    "GET /v1/lookups": Need.VIEWER,
    "GET /v1/lookups/{name}": Need.VIEWER,
    "GET /v1/jobs": Need.VIEWER,
    "GET /v1/jobs/{name}": Need.VIEWER,
    "GET /v1/jobs/{name}/explanation": Need.VIEWER,
    "GET /v1/jobs/{name}/kibana": Need.VIEWER,
    "GET /v1/jobs/{name}/graph": Need.VIEWER,
    "GET /v1/jobs/{name}/preview": Need.VIEWER,
    "GET /v1/jobs/{name}/log": Need.VIEWER,
    "GET /v1/jobs/{name}/slices": Need.VIEWER,
    "GET /v1/jobs/{name}/checkpoints": Need.VIEWER,
    "GET /v1/jobs/{name}/runs": Need.VIEWER,
    "GET /v1/jobs/{name}/history": Need.VIEWER,
    "GET /v1/jobs/{name}/dead-letters": Need.VIEWER,
    "GET /v1/jobs/{name}/dead-letters/counts": Need.VIEWER,
    "GET /v1/jobs/{name}/dead-letters/{number}": Need.VIEWER,
    "GET /v1/jobs/{name}/audit": Need.VIEWER,
    "GET /v1/jobs/{name}/backfills": Need.VIEWER,
    "GET /v1/jobs/{name}/backfills/{generation}": Need.VIEWER,
    "GET /v1/results": Need.VIEWER,
    "GET /v1/results/{alias}": Need.VIEWER,
    "GET /v1/results/{alias}/{document}/records": Need.VIEWER,
    "GET /v1/events": Need.VIEWER,
    "GET /v1/notices": Need.VIEWER,
    "GET /v1/notices/{name}": Need.VIEWER,
    # These read a document and change nothing.
    "POST /v1/pipelines/check": Need.VIEWER,
    "POST /v1/pipelines/preview": Need.VIEWER,
    "POST /v1/documents/plan": Need.VIEWER,
    "POST /v1/documents": Need.OPERATOR,
    "POST /v1/jobs/{name}/start": Need.OPERATOR,
    "POST /v1/jobs/{name}/stop": Need.OPERATOR,
    "POST /v1/jobs/{name}/drain": Need.OPERATOR,
    "POST /v1/jobs/{name}/restart": Need.OPERATOR,
    "POST /v1/jobs/{name}/restore": Need.OPERATOR,
    "POST /v1/jobs/{name}/reset": Need.OPERATOR,
    "DELETE /v1/jobs/{name}": Need.OPERATOR,
    "DELETE /v1/streams/{name}": Need.OPERATOR,
    "DELETE /v1/lookups/{name}": Need.OPERATOR,
    "POST /v1/notices/{name}/test": Need.OPERATOR,
    "POST /v1/notices/{name}/mute": Need.OPERATOR,
    "DELETE /v1/notices/{name}": Need.OPERATOR,
    "POST /v1/jobs/{name}/dead-letters/replay": Need.OPERATOR,
    "POST /v1/jobs/{name}/dead-letters/repair": Need.OPERATOR,
    "POST /v1/jobs/{name}/audit": Need.OPERATOR,
    "POST /v1/jobs/{name}/backfills": Need.OPERATOR,
    "POST /v1/jobs/{name}/backfills/{generation}/cancel": Need.OPERATOR,
    "GET /v1/tokens": Need.ADMIN,
    "POST /v1/tokens": Need.ADMIN,
    "POST /v1/tokens/{name}/revoke": Need.ADMIN,
}
"""Each operation of the REST API -> what it needs."""

PAGE_OPERATIONS: dict[str, Need] = {"GET /": Need.OPEN, "GET /console/{name}": Need.OPEN}
"""Requests for the files of the console, which contain no data."""

GATEWAY_PAGES: dict[str, Need] = {
    "GET /healthz": Need.OPEN,
    "GET /readyz": Need.OPEN,
    "GET /metrics": Need.METRICS,
}
"""Pages that each gateway serves -> what they need. `Gateway.actions` has the requests of senders."""

_ROLES = (Role.METRICS, Role.VIEWER, Role.OPERATOR, Role.ADMIN)
_ROLE_OF_NEED = {
    Need.METRICS: Role.METRICS,
    Need.VIEWER: Role.VIEWER,
    Need.OPERATOR: Role.OPERATOR,
    Need.ADMIN: Role.ADMIN,
}


def may(principal: Principal, need: Need, stream: str = "") -> bool:
    """Whether the principal may do what needs this; `stream` is the one that is to be written to."""
    if need is Need.OPEN:
        return True
    if need is Need.WRITE:
        return principal.may_write(stream)
    return principal.role is not None and _ROLES.index(principal.role) >= _ROLES.index(_ROLE_OF_NEED[need])


def require(principal: Principal, need: Need, what: str, stream: str = "") -> None:
    """Raises Forbidden, which says what is missing; `what` completes "may not ..."."""
    if not may(principal, need, stream):
        missing = f"the right to write to stream {stream}" if need is Need.WRITE else f"the role {need.value}"
        raise Forbidden(f"{principal.name} may not {what}: that needs {missing}; ask an admin for a token that has it")
