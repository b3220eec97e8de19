"""The REST API: one app made of routes, error answers and the host guard.

There are no tokens and roles yet: the API listens on loopback and trusts everyone who reaches it. The host guard will
check tokens, and each route will name the role that it needs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from strandline import __version__
from strandline.services.rest.dependencies import Dependencies
from strandline.services.rest.host_guard import HostGuard
from strandline.services.rest.problems import MEDIA_TYPE, ProblemDetails, install_problem_handlers
from strandline.services.rest.routes import audits, backfills, dead_letters, documents, health, jobs, results, streams

DESCRIPTION = "Register streams, submit pipelines, and lead the jobs that run them."
_PROBLEM_ANSWER: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "What went wrong",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
    }
}


def create_app(dependencies: Dependencies | None, names: Collection[str] = ()) -> FastAPI:
    """The app over `dependencies`. It starts the supervisor, the backfills, the removal of old slices and the copying of dead
    letters when it starts, and closes them when it ends.

    `names` are the host names under which it answers, beside loopback's. Without dependencies it can only describe itself.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        assert dependencies is not None
        await run_in_threadpool(dependencies.supervisor.start)
        dependencies.backfills.start()
        dependencies.old_slices.start()
        dependencies.dead_letter_copies.start()
        yield
        await run_in_threadpool(dependencies.dead_letter_copies.close)
        await run_in_threadpool(dependencies.old_slices.close)
        await run_in_threadpool(dependencies.backfills.close)
        await run_in_threadpool(dependencies.audits.close)
        await run_in_threadpool(dependencies.supervisor.close)

    app = FastAPI(
        title="Strandline",
        version=__version__,
        description=DESCRIPTION,
        # The pages for browsers load their scripts from elsewhere; the description itself is at /openapi.json.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=_PROBLEM_ANSWER,
        generate_unique_id_function=_operation_id,
    )
    app.state.dependencies = dependencies
    for one in (documents, streams, jobs, dead_letters, results, audits, backfills, health):
        app.include_router(one.router)
    install_problem_handlers(app)
    app.add_middleware(HostGuard, names=names)
    _describe_problems(app)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def _describe_problems(app: FastAPI) -> None:
    """Put the shape of a problem into the API's description; no route returns it by type, so FastAPI can't find it."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        description = describe()
        schema = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(schema.pop("$defs", {}))
        schemas["ProblemDetails"] = schema
        for one in schemas.values():
            if "description" in one:  # the rest of a docstring is for readers of the code
                one["description"] = one["description"].partition("\n\n")[0]
        return description

    app.openapi = openapi  # type: ignore[method-assign]


if __name__ == "__main__":
    print(json.dumps(create_app(None).openapi(), indent=2))
