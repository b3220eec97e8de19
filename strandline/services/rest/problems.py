"""Error responses of the REST API, as `application/problem+json` (RFC 9457).

Programs compare `code`, people read `detail`, and `errors` lists the errors of a document or a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from strandline.core.errors import (
    Conflict,
    Fenced,
    Forbidden,
    FunctionUnusable,
    InvalidDocument,
    InvalidSettings,
    LogTruncated,
    NotFound,
    Problem,
    StrandlineError,
    TooExpensive,
    TransientError,
    Unauthenticated,
)
from strandline.processing.formats.inference.schemas import NoSampleError
from strandline.results.elasticsearch_client import RequestRefused
from strandline.services.jobs.record_relay import RelayBusy, RelayOutcomeUnknown

logger = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
_STATUS_OF_CLASS: tuple[tuple[type[StrandlineError], int], ...] = (
    (InvalidDocument, 422),
    (TooExpensive, 422),
    (NoSampleError, 422),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (Conflict, 409),
    (Fenced, 409),
    (FunctionUnusable, 409),
    (LogTruncated, 409),
    (InvalidSettings, 409),
    (RequestRefused, 502),
    (RelayBusy, 429),
    (RelayOutcomeUnknown, 504),
    (TransientError, 503),
)
_CODE_OF_STATUS = {
    400: "bad_request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    421: "misdirected_request",
}


class ProblemError(BaseModel):
    """One error in a document or in a request."""

    detail: str
    pointer: str = Field(default="", description="Field, as `steps[1].window.tumbling`, or `query.limit`")
    source: str = Field(default="", description="Name of the file, from the request")
    line: int | None = Field(default=None, description="Counted from 1")
    column: int | None = Field(default=None, description="Counted from 1; null if the documents aren't SQL")


class ProblemDetails(BaseModel):
    """Body of every response that is not a success."""

    type: str = Field(description="`urn:strandline:problem:` and the code")
    title: str
    status: int
    detail: str = Field(description="What happened, to which object, and what to do next")
    instance: str = Field(description="The path of the request")
    code: str = Field(description="Stable; programs compare this")
    errors: list[ProblemError] = []


def problem_errors(problems: Sequence[Problem]) -> list[ProblemError]:
    """Return the problems of a document in the form of the API."""
    return [
        ProblemError(detail=p.message, pointer=p.path, source=p.source, line=p.line, column=p.column) for p in problems
    ]


def problem_response(
    path: str,
    status: int,
    code: str,
    detail: str,
    *,
    errors: Sequence[ProblemError] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """Return the response for one problem."""
    problem = ProblemDetails(
        type=f"urn:strandline:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=path,
        code=code,
        errors=list(errors),
    )
    return Response(problem.model_dump_json(), status, headers, MEDIA_TYPE)


def install_problem_handlers(app: FastAPI, methods_of: Callable[[str], list[str]]) -> None:
    """Convert every exception of a route to a problem. The server logs unexpected exceptions.

    Args: methods_of: Returns the methods of a path. A router knows only those of the first matching route.
    """
    app.add_exception_handler(StrandlineError, _answer_own_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_request)
    app.add_exception_handler(HTTPException, partial(_answer_http_error, methods_of))
    app.add_exception_handler(Exception, _answer_unexpected_error)


def _answer_own_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StrandlineError)
    path = request.url.path
    status = next((status for kind, status in _STATUS_OF_CLASS if isinstance(error, kind)), 500)
    if isinstance(error, InvalidDocument):
        count = len(error.problems)
        detail = str(error.problems[0]) if count == 1 else f"{count} problems; the first: {error.problems[0]}"
        return problem_response(path, status, error.code, detail, errors=problem_errors(error.problems))
    # A request whose outcome is unknown isn't repeated without a look at its effect.
    is_repeatable = isinstance(error, TransientError) and not isinstance(error, RelayOutcomeUnknown)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if is_repeatable else None
    if status in (500, 502):
        logger.error("request failed", path=path, code=error.code, error=str(error))
    return problem_response(path, status, error.code, str(error), headers=headers)


def _answer_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [
        ProblemError(detail=fault["msg"], pointer=".".join(str(part) for part in fault["loc"]))
        for fault in error.errors()
    ]
    detail = (
        f"{errors[0].pointer}: {errors[0].detail}" if errors else "the request does not match the API's description"
    )
    return problem_response(request.url.path, 422, "invalid_request", detail, errors=errors)


def _answer_http_error(methods_of: Callable[[str], list[str]], request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    code = _CODE_OF_STATUS.get(error.status_code, f"http_{error.status_code}")
    detail = error.detail
    if error.status_code == 404 and detail == HTTPStatus.NOT_FOUND.phrase:
        detail = f"there is no route {path}; GET /openapi.json lists all"
    elif error.status_code == 405:
        allowed = ", ".join(methods_of(path))
        detail = f"{path} does not support {request.method}; it supports {allowed}"
        return problem_response(path, 405, code, detail, headers={"Allow": allowed})
    return problem_response(path, error.status_code, code, detail, headers=dict(error.headers or {}))


def _answer_unexpected_error(request: Request, error: Exception) -> Response:
    detail = "the control service failed; see its log for the reason"
    return problem_response(request.url.path, 500, "internal", detail)
