"""`application/problem+json` (RFC 9457): the shape of every HTTP answer that is an error, for the gateways and the REST API."""

from __future__ import annotations

from http import HTTPStatus

PROBLEM_MEDIA_TYPE = "application/problem+json"


def problem_document(status: int, code: str, detail: str, instance: str) -> dict[str, str | int]:
    """The problem as a JSON object. Programs compare `code`; `detail` is the sentence for people; `instance` is the path."""
    return {
        "type": f"urn:strandline:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": code,
    }
