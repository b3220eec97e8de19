"""The only place that decides whether a principal may perform an operation on an object. Pure: no listener, ledger, or clock.

There are four roles. Each includes the rights of the role before it:

- metrics: reads metrics.
- viewer: reads everything (jobs, streams, results, dead letters with their bytes, events, metrics), and checks documents.
- operator: applies documents; starts, stops, resets, and deletes jobs; deletes streams and lookups; audits, backfills, replays
  dead letters.
- admin: makes and revokes tokens, and writes to every stream.

The right to write to a stream is separate, and given for each stream. The token of a sensor has this right and no role, so that
it can't read anything if it is stolen. The tables below contain the required right of each operation. A test compares them with
the API's description and the routes of gateways. An operation without an entry is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strandline.core.errors import Forbidden
from strandline.ledger.states import Role

ALL_STREAMS = "*"
"""Entry in the streams of a principal that permits writing to any stream."""


class Need(StrEnum):
    """Right that an operation requires from its client."""

    OPEN = "open"
    """No right: the operation returns nothing confidential."""
    METRICS = "metrics"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WRITE = "write"
    """The right to write to the named stream."""


@dataclass(frozen=True)
class Principal:
    """An authenticated client."""

    name: str
    role: Role | None = None
    """None if the principal can't read or order anything."""
    writes: frozenset[str] = frozenset()
    """Streams that the principal can write to, in addition to those of its role."""

    def may_write(self, stream: str) -> bool:
        """Return True if the principal can write to the stream. Called for each request to a gateway."""
        return stream in self.writes or self.role is Role.ADMIN or ALL_STREAMS in self.writes


ANYONE = Principal("anyone", Role.ADMIN)
"""Client while `STRANDLINE_AUTH` is `none`: every client that reaches the service can do everything."""
STRANGER = Principal("stranger")
"""Client without a valid token, for operations that require none."""

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
"""Operation of the REST API -> required right."""

PAGE_OPERATIONS: dict[str, Need] = {"GET /": Need.OPEN, "GET /console/{name}": Need.OPEN}
"""Requests for the files of the console, which contain no data."""

GATEWAY_PAGES: dict[str, Need] = {
    "GET /healthz": Need.OPEN,
    "GET /readyz": Need.OPEN,
    "GET /metrics": Need.METRICS,
}
"""Endpoints of each gateway -> required right. `Gateway.actions` has the requests of senders."""

_ROLES = (Role.METRICS, Role.VIEWER, Role.OPERATOR, Role.ADMIN)
_ROLE_OF_NEED = {
    Need.METRICS: Role.METRICS,
    Need.VIEWER: Role.VIEWER,
    Need.OPERATOR: Role.OPERATOR,
    Need.ADMIN: Role.ADMIN,
}


def may(principal: Principal, need: Need, stream: str = "") -> bool:
    """Return True if the principal has the right. `stream`: stream that the operation writes to."""
    if need is Need.OPEN:
        return True
    if need is Need.WRITE:
        return principal.may_write(stream)
    return principal.role is not None and _ROLES.index(principal.role) >= _ROLES.index(_ROLE_OF_NEED[need])


def require(principal: Principal, need: Need, what: str, stream: str = "") -> None:
    """Raise Forbidden, which names the missing right, unless the principal has it. `what` completes "may not ..."."""
    if not may(principal, need, stream):
        missing = f"the right to write to stream {stream}" if need is Need.WRITE else f"the role {need.value}"
        raise Forbidden(f"{principal.name} may not {what}: that needs {missing}; ask an admin for a token that has it")
