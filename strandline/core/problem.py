"""`application/problem+json` (RFC 9457): the form of every HTTP error response of the gateways and the REST API."""

from __future__ import annotations

from http import HTTPStatus

PROBLEM_MEDIA_TYPE = "application/problem+json"


def problem_document(status: int, code: str, detail: str, instance: str) -> dict[str, str | int]:
    """Return the problem as a JSON object: `code` is for programs, `detail` is the message for people, `instance` is the path."""
    return {
        "type": f"urn:strandline:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": code,
    }
