"""Imports saved objects into a running Kibana, with the API that its page Saved objects uses.

Format: https://www.elastic.co/docs/api/doc/kibana/v8/operation/operation-importsavedobjects. An answer of 200 may still
report refused objects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

from strandline.core.errors import PermanentError, TransientError
from strandline.core.network.http_limits import ResponseTooLarge, bounded_stream, read_body
from strandline.results.charts.saved_objects import SavedObject, as_ndjson

_TIMEOUT_S = 60.0
_ANSWER_BYTES_MAX = 16 << 20
_REFUSALS_SHOWN = 3


class KibanaUnavailable(TransientError):
    """Kibana did not answer, or is not ready."""

    code = "kibana_unavailable"


class KibanaRefused(PermanentError):
    """Kibana didn't accept all objects."""

    code = "kibana_refused"


def space_url(url: str, space: str) -> str:
    """Return the base URL of one of Kibana's spaces. `space` is its id; empty for the default space."""
    return url.rstrip("/") + (f"/s/{space}" if space else "")


def import_objects(url: str, objects: Sequence[SavedObject], *, space: str = "") -> int:
    """Import the objects and replace those with the same ids. Return the number of imported objects, which is all of
    them.

    `space`: see `space_url`. Raises KibanaUnavailable and KibanaRefused.
    """
    files = {"file": ("strandline.ndjson", as_ndjson(objects), "application/ndjson")}
    try:
        with (
            httpx.Client(timeout=_TIMEOUT_S) as client,
            bounded_stream(
                client,
                "POST",
                f"{space_url(url, space)}/api/saved_objects/_import",
                _TIMEOUT_S,
                params={"overwrite": "true"},
                headers={"kbn-xsrf": "strandline"},
                files=files,
            ) as answer,
        ):
            body = read_body(answer, _ANSWER_BYTES_MAX)
    except (httpx.HTTPError, ResponseTooLarge) as error:
        raise KibanaUnavailable(
            f"no Kibana answers at {url} ({error}); start it, or pass its address with --kibana"
        ) from error
    if answer.status_code >= 500:
        raise KibanaUnavailable(f"Kibana at {url} is not ready (status {answer.status_code}); try again in a moment")
    if answer.status_code != 200:
        raise KibanaRefused(f"Kibana at {url} accepted no objects (status {answer.status_code}): {_reason(body)}")
    report: Any = json.loads(body)
    if not report.get("success"):
        refusals = [_refusal(one) for one in report.get("errors", [])]
        more = "" if len(refusals) <= _REFUSALS_SHOWN else f" and {len(refusals) - _REFUSALS_SHOWN} more"
        raise KibanaRefused(
            f"Kibana at {url} accepted {report.get('successCount', 0)} of {len(objects)} objects; refused: "
            f"{'; '.join(refusals[:_REFUSALS_SHOWN])}{more}"
        )
    return int(report["successCount"])


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _refusal(error: dict[str, Any]) -> str:
    why = error.get("error", {})
    return f"{error.get('type')} {error.get('id')} ({why.get('message') or why.get('type')})"
