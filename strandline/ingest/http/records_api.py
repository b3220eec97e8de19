"""Strandline's own dialect:

`POST /v1/streams/STREAM/records`, with a content type that selects the arrangement of the records.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache

from strandline.core.streams.format_registry import all_forms
from strandline.ingest.gateway.framing import FORM_OF_CONTENT_TYPE, Form, Framed
from strandline.ingest.gateway.serving.http_request import Refusal, Request, Response, path_of
from strandline.ingest.http.dialect import BodyForm, Dialect, Target
from strandline.ingest.http.request_headers import EventHead, is_event

PATH_BEFORE, PATH_AFTER = "/v1/streams/", "/records"


class RecordsDialect(Dialect):
    """Records by content type, CloudEvents in all three modes, and forms and queries, if the stream accepts them."""

    methods = (b"POST", b"GET")

    def body_form(self, request: Request) -> BodyForm:
        if request.others and is_event(request):
            return BodyForm(Form.WHOLE, EventHead(request))
        if request.method == b"GET":
            return BodyForm(Form.QUERY)
        return _body_form_of(request.headers.get(b"content-type", b""))

    def accepted(self, request: Request, framed: Framed) -> Response:
        if framed.refused:
            refused = [asdict(record) for record in framed.refused]
            return Response(200, json.dumps({"accepted": len(framed.records), "refused": refused}).encode())
        return Response(200, b'{"accepted":%d}' % len(framed.records))


_DIALECT = RecordsDialect()


def target_of(url: bytes) -> Target | None:
    """Return the target of a request with records. None for other requests."""
    stream = stream_between(path_of(url), PATH_AFTER)
    return Target(stream, _DIALECT) if stream is not None else None


def stream_between(path: str, ending: str) -> str | None:
    """Return STREAM if the path is `/v1/streams/STREAM` with this ending, else None."""
    stream = path[len(PATH_BEFORE) : -len(ending)]
    is_stream = path.startswith(PATH_BEFORE) and path.endswith(ending) and stream and "/" not in stream
    return stream if is_stream else None


@lru_cache(maxsize=100)
def _body_form_of(content_type: bytes) -> BodyForm:
    media_type, _, parameters = content_type.decode("latin-1").partition(";")
    media_type = media_type.strip()
    form = FORM_OF_CONTENT_TYPE.get(media_type.lower()) if media_type else Form.UNTYPED
    form = form or _form_of_package(media_type.lower())
    if form is None:
        raise Refusal(
            415,
            "unsupported_media_type",
            f"content-type {media_type} can't be accepted here; send application/json (an object or an array), "
            "application/x-ndjson (one record per line), application/octet-stream (one record), or another type of the table in "
            "docs/http-ingest.md",
        )
    charset = parameters.lower().partition("charset=")[2].partition(";")[0].strip(' "')
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise Refusal(415, "unsupported_media_type", f"text in {charset} can't be accepted here; send it in UTF-8")
    return BodyForm(form)


def _form_of_package(media_type: str) -> Form | None:
    """Return the form of bodies with the content type of a package's format. None if no package has it."""
    form = next((one for one in all_forms() if one.content_type.decode() == media_type), None)
    return None if form is None else Form(form.untyped_body)
