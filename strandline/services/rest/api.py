"""The REST API: one app of routes, error responses, the host guard, and the token guard.

The guards check the rights of a request before it reaches a route (token_guard.py, access/rights.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from strandline import __version__
from strandline.access.authenticator import Authenticator
from strandline.access.oidc_client import OidcClient
from strandline.access.rights import REST_OPERATIONS, RequiredRight
from strandline.access.sessions import Sessions
from strandline.services.console.page import page_routes
from strandline.services.rest.dependencies import Dependencies, require_possible_names
from strandline.services.rest.guards.answer_headers import AnswerHeaders
from strandline.services.rest.guards.host_guard import BODY_BYTES_MAX, HostGuard
from strandline.services.rest.guards.token_guard import TokenGuard, methods_of
from strandline.services.rest.problems import MEDIA_TYPE, ProblemDetails, install_problem_handlers
from strandline.services.rest.routes import (
    audits,
    backfills,
    dead_letters,
    doctor,
    documents,
    events,
    health,
    jobs,
    lookups,
    notices,
    records,
    results,
    samples,
    session,
    settings,
    streams,
    tokens,
)

DESCRIPTION = "Register streams, submit pipelines, and lead the jobs that run them."
_PROBLEM_ANSWER: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "Problem",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
    }
}


def create_app(
    dependencies: Dependencies | None,
    names: Collection[str] = (),
    authenticator: Authenticator | None = None,
    record_bytes_max: int = BODY_BYTES_MAX,
    oidc_client: OidcClient | None = None,
) -> FastAPI:
    """Return the app over `dependencies`. Its start and end include the background services.

    These are the supervisor, backfills, removal of old slices, copying of dead letters, following of lookups, notices, and checks
    of pipelines.
    Args: dependencies: None for an app that can only describe itself.
        `names`: Host names of the service, in addition to loopback.
        `authenticator`: The authenticator, which the caller closes. None if each client can do everything.
        `record_bytes_max`: Maximum size of a record that gateways accept.
        `oidc_client`: The console as a client of the OIDC provider. None if users can't sign in there.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        dependencies: Dependencies | None = app.state.dependencies
        assert dependencies is not None
        await run_in_threadpool(dependencies.supervisor.start)
        dependencies.backfills.start()
        dependencies.old_slices.start()
        dependencies.dead_letter_copies.start()
        dependencies.lookups.start()
        dependencies.notices.start()
        dependencies.checked_ahead.start()
        _build_routes(app)
        following = asyncio.create_task(authenticator.follow()) if authenticator is not None else None
        yield
        if following is not None:
            following.cancel()
        await run_in_threadpool(dependencies.close_limited)
        await run_in_threadpool(dependencies.checked_ahead.close)
        await run_in_threadpool(dependencies.notices.close)
        await run_in_threadpool(dependencies.lookups.close)
        await run_in_threadpool(dependencies.dead_letter_copies.close)
        await run_in_threadpool(dependencies.old_slices.close)
        await run_in_threadpool(dependencies.backfills.close)
        await run_in_threadpool(dependencies.examinations.close)
        await run_in_threadpool(dependencies.audits.close)
        await run_in_threadpool(dependencies.supervisor.close)

    app = FastAPI(
        title="Strandline",
        version=__version__,
        description=DESCRIPTION,
        # FastAPI's pages load scripts from other hosts. The description itself is at /openapi.json.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        dependencies=[Depends(require_possible_names)],
        responses=_PROBLEM_ANSWER,
        generate_unique_id_function=_operation_id,
    )
    app.state.dependencies = dependencies
    app.state.authenticator, app.state.sessions = authenticator, Sessions()
    app.state.oidc_client = oidc_client
    app.state.is_ending = lambda: False  # the server that runs the app replaces it
    for one in (
        documents,
        samples,
        streams,
        lookups,
        jobs,
        events,
        notices,
        dead_letters,
        results,
        records,
        audits,
        backfills,
        tokens,
        doctor,
        settings,
        session,
        health,
    ):
        app.include_router(one.router)
    for path, answer in page_routes(oidc_client.origin if oidc_client is not None else None):
        app.add_route(path, answer, methods=["GET"], include_in_schema=False)
    install_problem_handlers(app, methods_of)
    app.add_middleware(HostGuard, names=names, record_bytes_max=record_bytes_max)
    app.add_middleware(TokenGuard, authenticator=authenticator, sessions=app.state.sessions)
    app.add_middleware(AnswerHeaders)  # the last added middleware is called first
    _describe_problems(app)
    return app


def _build_routes(app: FastAPI) -> None:
    """Build all routes. FastAPI builds a route when it first compares it with a request, which takes 0.2 s for all of them."""
    nothing = {"type": "http", "method": "GET", "path": "", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(nothing)


def _operation_id(route: APIRoute) -> str:
    return route.name


def _describe_problems(app: FastAPI) -> None:
    """Add the schema of a problem to the API's description. No route returns it by type, so FastAPI can't find it."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        description = describe()
        schema = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(schema.pop("$defs", {}))
        schemas["ProblemDetails"] = schema
        _describe_rights(description)
        _describe_parameters(description)
        for one in schemas.values():
            if "description" in one:  # the other paragraphs of a docstring are for readers of the code
                one["description"] = one["description"].partition("\n\n")[0]
        return description

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_rights(description: dict[str, Any]) -> None:
    """Add to each operation the role that it needs if the service requires tokens."""
    description["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "If STRANDLINE_AUTH is not none"}
    }
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            need = REST_OPERATIONS[f"{method.upper()} {path}"]
            operation["x-strandline-needs"] = need.value
            operation["security"] = [] if need is RequiredRight.OPEN else [{"token": []}]


def _describe_parameters(description: dict[str, Any]) -> None:
    """Remove null from the types of optional parameters: a URL or a header can't contain null, only the string `null`."""
    for operations in description["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                schema = parameter["schema"]
                given = [one for one in schema.get("anyOf", []) if one != {"type": "null"}]
                if len(given) == 1:
                    del schema["anyOf"]
                    schema.update(given[0])


if __name__ == "__main__":
    print(json.dumps(create_app(None).openapi(), indent=2))
