"""Health and readiness of the service, and its metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response

from strandline.core.errors import StrandlineError
from strandline.services.jobs.lookups import lookup_warnings
from strandline.services.rest.dependencies import Control, MayRead
from strandline.services.rest.metrics import CONTENT_TYPE, render_metrics
from strandline.services.rest.views import HealthView

router = APIRouter(tags=["health"])

_KAFKA_WAIT_S = 0.5
"""Kubernetes waits one second for the response of a probe, and Kafka is only reported."""


@router.get("/healthz")
async def health() -> HealthView:  # not in a thread, because other requests can hold all threads
    """Return 200 while the process responds. Nothing else is checked."""
    return HealthView(status="ok")


@router.get(
    "/readyz",
    responses={503: {"model": HealthView, "description": "The ledger does not respond, or the supervisor has ended"}},
)
def readiness(control: Control, may_read: MayRead, response: Response) -> HealthView:
    """Return 200 if this service can lead jobs: the ledger responds and the supervisor runs. Kafka and lookups are
    only reported. Viewers see the problem of each part; other clients see only `failing`.
    """
    checks = {
        "ledger": _check(control.ledger.jobs),
        "supervisor": "ok" if control.supervisor.is_alive() else "has ended; restart the control service",
        "log": _check(lambda: control.log.check(_KAFKA_WAIT_S)),
    }
    if warnings := _lookups(control):
        checks["lookups"] = "; ".join(warnings)
    is_ready = checks["ledger"] == "ok" and checks["supervisor"] == "ok"
    if not may_read:  # addresses, names, and errors of databases are not for unknown clients
        checks = {part: "ok" if said == "ok" else "failing" for part, said in checks.items()}
    response.status_code = 200 if is_ready else 503
    return HealthView(status="ok" if is_ready else "unavailable", checks=checks)


@router.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE: {}}}})
def metrics(control: Control) -> Response:
    """Return the metrics of the service and its jobs in the text format of Prometheus."""
    return Response(render_metrics(control.ledger, control.log), media_type=CONTENT_TYPE)


def _check(ask: Callable[[], object]) -> str:
    try:
        ask()
    except StrandlineError as error:
        return str(error)
    return "ok"


def _lookups(control: Control) -> list[str]:
    try:
        return lookup_warnings(control.ledger)
    except StrandlineError:
        return []  # an error of the ledger, which has its own check
