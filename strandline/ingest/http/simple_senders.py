"""Requests of devices that can't be configured: forms, queries, and bodies without a content type.

A stream's document accepts each of them by name (`http: {accept: [form, query, untyped]}`). A form or a query becomes
one record, a JSON object with its parameters as strings, because its bytes alone are no record of any format.
"""

from __future__ import annotations

import json
from urllib.parse import parse_qsl

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.framing import Form, Unframable
from strandline.ingest.gateway.serving.http_request import Refusal, Response
from strandline.ingest.http.record_head import RecordHead

PARAMETERS_MAX = 1_000
_BLANKS = b" \t\r\n"
_ACCEPTED_AS = {Form.FORM: "form", Form.QUERY: "query", Form.UNTYPED: "untyped"}


def plain_form(head: RecordHead, body: bytes, spec: StreamSpec) -> tuple[bytes, Form]:
    """Return the body and its form as other requests have them: a form or a query becomes a JSON object.

    Raises Refusal if the stream doesn't accept such a request, and Unframable if it contains nothing.
    """
    if head.form not in _ACCEPTED_AS:
        return body, head.form
    query = head.query.removeprefix(b"?")
    accepted = spec.http.accept if spec.http is not None else []
    is_empty = not body.strip(_BLANKS)
    form = Form.QUERY if head.form is not Form.QUERY and is_empty and query and "query" in accepted else head.form
    if _ACCEPTED_AS[form] not in accepted:
        raise _refusal(form, spec)
    if form is Form.QUERY:
        return json_of_parameters(query), Form.WHOLE
    start = body.lstrip(_BLANKS)[:1]
    if form is Form.FORM and start not in (b"{", b"["):
        return json_of_parameters(body), Form.WHOLE
    return body, Form(spec.form.untyped_body)  # also JSON that curl or a small library sends as a form


def has_query_as_record(head: RecordHead, body: bytes) -> bool:
    """Return True if the record is made from the query, which then isn't stored with it again."""
    return head.form is Form.QUERY or (head.form in _ACCEPTED_AS and not body.strip(_BLANKS))


def json_of_parameters(text: bytes) -> bytes:
    """Return a JSON object of the parameters of a form or a query. Raises Unframable.

    Values are strings. A parameter that occurs several times becomes an array of strings.
    """
    try:
        pairs = parse_qsl(
            text.strip(_BLANKS).decode("latin-1"),
            keep_blank_values=True,
            errors="replace",
            max_num_fields=PARAMETERS_MAX,
        )
    except ValueError as error:
        raise Unframable(
            f"more than {PARAMETERS_MAX} parameters; nothing was persisted: send them in several requests"
        ) from error
    if not pairs:
        raise Unframable("the request has no parameters; send them as name=value, joined with &")
    found: dict[str, str | list[str]] = {}
    for name, value in pairs:
        before = found.get(name)
        found[name] = value if before is None else [*([before] if isinstance(before, str) else before), value]
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def own_answer(spec: StreamSpec) -> Response | None:
    """Return the response that the stream's document defines for confirmed records. None if it defines none."""
    if spec.http is None or spec.http.answer is None:
        return None
    body = spec.http.answer.encode()
    return Response(200, body, b"application/json" if body[:1] in (b"{", b"[") else b"text/plain; charset=utf-8")


def _refusal(form: Form, spec: StreamSpec) -> Refusal:
    setting = _ACCEPTED_AS[form]
    advice = f"add 'http: {{accept: [{setting}]}}' to stream {spec.stream}, or send a POST with its content type"
    if form is Form.QUERY:
        detail = f"stream {spec.stream} doesn't accept records in a query; nothing was persisted: {advice}"
        return Refusal(405, "method_not_allowed", detail, ((b"allow", b"POST"),))
    what = "forms" if form is Form.FORM else "a body without a content type"
    detail = f"stream {spec.stream} doesn't accept {what}; nothing was persisted: {advice}"
    return Refusal(415, "unsupported_media_type", detail)
