"""The one seam to the Elasticsearch client: what it raises becomes ours here, and retries are the caller's decision."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from typing import Any

import msgspec
from elastic_transport import JsonSerializer, SerializationError, TransportError
from elasticsearch import ApiError, Elasticsearch, UnsupportedProductError

from strandline.core.errors import IndexUnavailable, InvalidSettings, PermanentError
from strandline.core.urls import without_credentials

JSON = "application/json"
NDJSON = "application/x-ndjson"


class RequestRefused(PermanentError):
    """Elasticsearch read the request and will not do it, however often it is repeated."""

    code = "index_request_refused"

    def __init__(self, message: str, status: int, error_type: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type


def request(
    url: str,
    method: str,
    path: str,
    *,
    timeout_s: float,
    parameters: dict[str, str] | None = None,
    body: Any = None,
    content_type: str = JSON,
) -> Any:
    """Return the parsed answer to one request, as `request_bytes` sends it. Raises as that one does."""
    answer = request_bytes(
        url, method, path, timeout_s=timeout_s, parameters=parameters, body=body, content_type=content_type
    )
    return decode(answer)


def request_bytes(
    url: str,
    method: str,
    path: str,
    *,
    timeout_s: float,
    parameters: dict[str, str] | None = None,
    body: Any = None,
    content_type: str = JSON,
) -> bytes:
    """Return the answer to one request, tried once.

    Raises IndexUnavailable when nothing readable came back in time or the server is overloaded or failing: the request
    may have been carried out, so repeat it only if doing it twice is harmless. Raises RequestRefused otherwise, and
    InvalidSettings for a URL that can't be read.
    """
    client = _client(url, os.getpid()).options(request_timeout=timeout_s)
    headers = {"accept": JSON, "content-type": content_type} if body is not None else {"accept": JSON}
    operation = f"{method} {path} at {without_credentials(url)}"
    try:
        return bytes(client.perform_request(method, path, params=parameters, headers=headers, body=body).body or b"")
    except UnsupportedProductError as error:
        message = f"{operation}: what answers there is not Elasticsearch; check STRANDLINE_ELASTICSEARCH_URL"
        raise RequestRefused(message, error.status_code, "not_elasticsearch") from error
    except ApiError as error:
        error_type, reason = _explain(decode(error.body))
        message = f"{operation}: Elasticsearch answered {error.status_code} {error_type}: {reason}"
        if error.status_code in (408, 429) or error.status_code >= 500:
            raise IndexUnavailable(f"{message}; check its health and disk") from error
        raise RequestRefused(message, error.status_code, error_type) from error
    except (TransportError, SerializationError) as error:
        raise IndexUnavailable(f"{operation}: no answer ({error}); check that Elasticsearch runs") from error


def decode(answer: bytes) -> Any:
    """Return what an answer says; None for an empty one. Raises IndexUnavailable for what is not JSON."""
    try:
        return msgspec.json.decode(answer) if answer else None
    except msgspec.DecodeError:
        # Stricter than others: a document not written by us may hold half a surrogate pair or a number beyond a double.
        try:
            return json.loads(answer)
        except ValueError as error:
            raise IndexUnavailable(f"an answer can't be read ({error}); check that Elasticsearch runs") from error


class _Undecoded(JsonSerializer):
    """Leaves answers as they are: most bulk answers need not be read, and reading is cheaper by msgspec."""

    def loads(self, data: bytes) -> bytes:
        return data


@lru_cache(maxsize=8)
def _client(url: str, process_id: int) -> Elasticsearch:
    """Keep one client, with its connections, per process: Spark's Python workers are forked and outlive their tasks.

    It asks no `GET /`: the client knows Elasticsearch by a header of every answer, which the embedded one sends too.
    """
    try:
        return Elasticsearch(
            url, max_retries=0, retry_on_timeout=False, retry_on_status=(), serializers={JSON: _Undecoded()}
        )
    except ValueError:  # quotes the URL, with its password
        raise InvalidSettings(
            "STRANDLINE_ELASTICSEARCH_URL can't be read; write http://HOST:PORT or https://USER:PASSWORD@HOST:PORT, the "
            "password percent-encoded"
        ) from None


def _explain(body: Any) -> tuple[str, str]:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        return str(error.get("type", "unknown")), str(error.get("reason", ""))
    return "unknown", str(error or body)[:500]
