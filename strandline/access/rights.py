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


class RequiredRight(StrEnum):
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

REST_OPERATIONS: dict[str, RequiredRight] = {
    "GET /healthz": RequiredRight.OPEN,
    "GET /readyz": RequiredRight.OPEN,
    "GET /metrics": RequiredRight.METRICS,
    "GET /openapi.json": RequiredRight.VIEWER,
    "GET /v1/session": RequiredRight.OPEN,
    "POST /v1/session": RequiredRight.OPEN,
    "POST /v1/session/renewal": RequiredRight.OPEN,
    "DELETE /v1/session": RequiredRight.OPEN,
    "GET /v1/arrivals": RequiredRight.VIEWER,
    "GET /v1/documents/schema": RequiredRight.VIEWER,
    "GET /v1/explanations": RequiredRight.VIEWER,
    "GET /v1/histories": RequiredRight.VIEWER,
    "GET /v1/machines": RequiredRight.VIEWER,
    "GET /v1/streams": RequiredRight.VIEWER,
    "GET /v1/streams/{name}": RequiredRight.VIEWER,
    "GET /v1/streams/{name}/document": RequiredRight.VIEWER,
    "GET /v1/streams/{name}/undeclared": RequiredRight.VIEWER,
    "GET /v1/streams/{name}/devices": RequiredRight.VIEWER,
    "GET /v1/streams/{name}/senders": RequiredRight.VIEWER,
    "GET /v1/streams/{name}/records": RequiredRight.VIEWER,
    # The body is what is looked for; nothing is written.
    "POST /v1/streams/{name}/records/search": RequiredRight.VIEWER,
    # Its gateway checks this right again, with the credentials of the same client.
    "POST /v1/streams/{name}/records": RequiredRight.WRITE,
    # Names of topics of other applications, which only an operator can read.
    "GET /v1/topics": RequiredRight.OPERATOR,
    # Addresses, files, and accounts of the installation.
    "GET /v1/settings": RequiredRight.OPERATOR,
    "GET /v1/topics/{name}/proposal": RequiredRight.VIEWER,
    "GET /v1/lookups": RequiredRight.VIEWER,
    "GET /v1/lookups/{name}": RequiredRight.VIEWER,
    "GET /v1/lookups/{name}/rows": RequiredRight.VIEWER,
    "GET /v1/lookups/{name}/versions/{version}/changes": RequiredRight.VIEWER,
    "GET /v1/jobs": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/document": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/explanation": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/kibana": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/graph": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/versions": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/preview": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/log": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/slices": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/checkpoints": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/runs": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/history": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/dead-letters": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/dead-letters/counts": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/dead-letters/requeued": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/dead-letters/{number}": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/records/{stream}/{partition}/{offset}": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/windows": RequiredRight.VIEWER,
    "GET /v1/audits": RequiredRight.VIEWER,
    "GET /v1/backfills": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/audit": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/backfills": RequiredRight.VIEWER,
    "GET /v1/jobs/{name}/backfills/{generation}": RequiredRight.VIEWER,
    "GET /v1/results": RequiredRight.VIEWER,
    "GET /v1/results/{alias}": RequiredRight.VIEWER,
    "GET /v1/results/{alias}/{document}/records": RequiredRight.VIEWER,
    "GET /v1/results/{alias}/{document}/sources": RequiredRight.VIEWER,
    "GET /v1/events": RequiredRight.VIEWER,
    "GET /v1/doctor": RequiredRight.VIEWER,
    "GET /v1/notices": RequiredRight.VIEWER,
    "GET /v1/notices/{name}": RequiredRight.VIEWER,
    # These read a document and change nothing.
    "POST /v1/pipelines/check": RequiredRight.VIEWER,
    "POST /v1/pipelines/preview": RequiredRight.VIEWER,
    "POST /v1/documents/conversion": RequiredRight.VIEWER,
    "POST /v1/documents/plan": RequiredRight.VIEWER,
    "POST /v1/samples/proposal": RequiredRight.VIEWER,
    "POST /v1/samples/preview": RequiredRight.VIEWER,
    "POST /v1/topics/{name}/preview": RequiredRight.VIEWER,
    "POST /v1/documents": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/start": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/stop": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/drain": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/restart": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/restore": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/reset": RequiredRight.OPERATOR,
    "DELETE /v1/jobs/{name}": RequiredRight.OPERATOR,
    "DELETE /v1/streams/{name}": RequiredRight.OPERATOR,
    "DELETE /v1/lookups/{name}": RequiredRight.OPERATOR,
    "POST /v1/notices/{name}/test": RequiredRight.OPERATOR,
    "POST /v1/notices/{name}/mute": RequiredRight.OPERATOR,
    "DELETE /v1/notices/{name}": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/dead-letters/requeue": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/dead-letters/repair": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/dead-letters/repairs": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/audit": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/backfills": RequiredRight.OPERATOR,
    "POST /v1/jobs/{name}/backfills/{generation}/cancel": RequiredRight.OPERATOR,
    "POST /v1/doctor": RequiredRight.OPERATOR,
    "GET /v1/tokens": RequiredRight.ADMIN,
    "POST /v1/tokens": RequiredRight.ADMIN,
    "POST /v1/tokens/{name}/revoke": RequiredRight.ADMIN,
}
"""Operation of the REST API -> required right."""

PAGE_OPERATIONS: dict[str, RequiredRight] = {"GET /": RequiredRight.OPEN, "GET /console/{name}": RequiredRight.OPEN}
"""Requests for the files of the console, which contain no data."""

GATEWAY_PAGES: dict[str, RequiredRight] = {
    "GET /healthz": RequiredRight.OPEN,
    "GET /readyz": RequiredRight.OPEN,
    "GET /metrics": RequiredRight.METRICS,
}
"""Endpoints of each gateway -> required right. `Gateway.actions` has the requests of senders."""

_ROLES = (Role.METRICS, Role.VIEWER, Role.OPERATOR, Role.ADMIN)
_ROLE_OF_RIGHT = {
    RequiredRight.METRICS: Role.METRICS,
    RequiredRight.VIEWER: Role.VIEWER,
    RequiredRight.OPERATOR: Role.OPERATOR,
    RequiredRight.ADMIN: Role.ADMIN,
}


def may(principal: Principal, need: RequiredRight, stream: str = "") -> bool:
    """Return True if the principal has the right. `stream`: stream that the operation writes to."""
    if need is RequiredRight.OPEN:
        return True
    if need is RequiredRight.WRITE:
        return principal.may_write(stream)
    return principal.role is not None and _ROLES.index(principal.role) >= _ROLES.index(_ROLE_OF_RIGHT[need])


def require(principal: Principal, need: RequiredRight, what: str, stream: str = "") -> None:
    """Raise Forbidden, which names the missing right, unless the principal has it. `what` completes "may not ..."."""
    if not may(principal, need, stream):
        missing = f"the right to write to stream {stream}" if need is RequiredRight.WRITE else f"the role {need.value}"
        raise Forbidden(f"{principal.name} may not {what}: that needs {missing}; ask an admin for a token that has it")
