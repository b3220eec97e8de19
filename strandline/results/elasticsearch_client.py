"""The only module that uses the Elasticsearch client. It converts the client's errors; callers decide about retries."""

from __future__ import annotations

import json
import os
import ssl
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
from elastic_transport import JsonSerializer, SerializationError, TlsError, TransportError
from elasticsearch import ApiError, Elasticsearch, UnsupportedProductError

from strandline.core.errors import IndexUnavailable, InvalidSettings, PermanentError, StrandlineError
from strandline.core.settings import Settings, secret_files, stamp_of
from strandline.core.urls import without_credentials

log = structlog.get_logger()

JSON = "application/json"
NDJSON = "application/x-ndjson"
_NAMES = tuple(name for name in Settings.model_fields if name.startswith("elasticsearch_"))
_LOGIN_REMEDY = "check STRANDLINE_ELASTICSEARCH_API_KEY, or STRANDLINE_ELASTICSEARCH_USERNAME and its _PASSWORD"
_TLS_REMEDY = "check STRANDLINE_ELASTICSEARCH_CA_FILE, and STRANDLINE_ELASTICSEARCH_CERTIFICATE_FILE"


class RequestRefused(PermanentError):
    """Elasticsearch read the request and will never accept it, however often it is repeated."""

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
    """Return the parsed answer to one request. See `request_bytes`, also for the errors."""
    answer = request_bytes(
        url, method, path, timeout_s=timeout_s, parameters=parameters, body=body, content_type=content_type
    )
    return decode(answer)


def delete(url: str, path: str, *, timeout_s: float) -> None:
    """Delete what is at a path. Do nothing if it doesn't exist. See `request_bytes` for the other errors."""
    try:
        request(url, "DELETE", path, timeout_s=timeout_s)
    except RequestRefused as error:
        if error.status != 404:
            raise


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
    """Return the answer to one request, which is sent once.

    Raises IndexUnavailable if no readable answer arrives in time, or if the server is overloaded or failing. The
    request may have been executed, so repeat it only if that is harmless. Raises RequestRefused for other error
    answers, and InvalidSettings for a URL that can't be read, or for a login that never worked.
    """
    client = _client_of_settings(url).options(request_timeout=timeout_s)
    headers = {"accept": JSON, "content-type": content_type} if body is not None else {"accept": JSON}
    operation = f"{method} {path} at {without_credentials(url)}"
    try:
        return bytes(client.perform_request(method, path, params=parameters, headers=headers, body=body).body or b"")
    except UnsupportedProductError as error:
        message = f"{operation}: the server there is not Elasticsearch; check STRANDLINE_ELASTICSEARCH_URL"
        raise RequestRefused(message, error.status_code, "not_elasticsearch") from error
    except ApiError as error:
        raise error_of(operation, error.status_code, decode(error.body)) from error
    except (TransportError, SerializationError) as error:
        remedy = _TLS_REMEDY if isinstance(error, TlsError) else "check that Elasticsearch runs"
        raise IndexUnavailable(f"{operation}: no answer ({error}); {remedy}") from error


def error_of(operation: str, status: int, answer: Any) -> IndexUnavailable | RequestRefused:
    """Return the error for an answer with this status. `answer`: its parsed content."""
    error_type, reason = _explain(answer)
    message = f"{operation}: Elasticsearch answered {status} {error_type}: {reason}"
    if status == 401:
        message += f"; {_LOGIN_REMEDY}"
    if status in (408, 429) or status >= 500:
        return IndexUnavailable(f"{message}; check its health and disk")
    return RequestRefused(message, status, error_type)


def is_writable(url: str, timeout_s: float) -> bool:
    """Return True if Elasticsearch responds in this time, and results can be written."""
    try:
        health: Any = request(url, "GET", "/_cluster/health", timeout_s=timeout_s)
    except RequestRefused:
        return True  # it reads requests, but doesn't allow this one for every user
    except StrandlineError:
        return False
    return bool(health["status"] != "red")


def decode(answer: bytes) -> Any:
    """Return the parsed content of an answer, or None if it is empty. Raises IndexUnavailable if it isn't JSON."""
    try:
        return msgspec.json.decode(answer) if answer else None
    except msgspec.DecodeError:
        # msgspec is stricter: a document of another program may contain half a surrogate pair, or a number beyond a
        # double.
        try:
            return json.loads(answer)
        except ValueError as error:
            raise IndexUnavailable(f"an answer can't be read ({error}); check that Elasticsearch runs") from error


class _Undecoded(JsonSerializer):
    """Leaves answers undecoded: most bulk answers need not be read, and msgspec reads faster."""

    def loads(self, data: bytes) -> bytes:
        return data


def _client_of_settings(url: str) -> Elasticsearch:
    """Return the client for this URL. It logs in with this process's settings, if they are for the same server.

    If a file with a secret or a certificate changes, a new client is created: the next request logs in with the new
    content. While such files are being replaced, one may be missing, or not fit the others. Then the previous client
    stays effective. Raises InvalidSettings if there is none.
    """
    now = _settings_now()
    key = url, os.getpid(), now.environment
    try:
        client = _client(url, os.getpid(), now)
    except InvalidSettings as error:
        if key not in _current_clients:
            raise
        if key not in _outdated:
            log.error("the previous login stays effective", action="login_unusable", reason=str(error))
            _outdated.add(key)
        return _current_clients[key]
    _current_clients[key] = client
    _outdated.discard(key)
    return client


def is_of_settings(url: str, settings: Settings) -> bool:
    """Return True if the settings' login is for the server with this URL."""
    return without_credentials(url) == without_credentials(settings.elasticsearch_url)


def login_of(settings: Settings) -> str:
    """Return the kind of login of these settings, without the secret: to compare the settings of two machines."""
    if settings.elasticsearch_api_key is not None:
        return "API key"
    if settings.elasticsearch_username is not None:
        return f"user {settings.elasticsearch_username}"
    return "certificate" if settings.elasticsearch_certificate_file is not None else ""


class _Now(NamedTuple):
    """Inputs of a client's login: the environment, and the stamps of its files."""

    environment: tuple[str | None, ...]
    files: tuple[tuple[str, int, int], ...]


_ClientKey = tuple[str, int, tuple[str | None, ...]]
"""URL, process, environment."""
_current_clients: dict[_ClientKey, Elasticsearch] = {}
"""The client that was created last."""
_outdated: set[_ClientKey] = set()
"""Clients whose files have changed since, and can't be used now."""


def _settings_now() -> _Now:
    values = tuple(os.environ.get(f"STRANDLINE_{name.upper()}") for name in _NAMES)
    paths = [value for name, value in zip(_NAMES, values, strict=True) if name.endswith("_file") and value]
    return _Now(values, (*secret_files(_NAMES), *(stamp_of(Path(path)) for path in paths)))


def _options(url: str) -> dict[str, Any]:
    """Return the options of the client, in addition to the URL. Raises InvalidSettings."""
    settings = Settings.read()
    if not is_of_settings(url, settings):
        return {}
    options: dict[str, Any] = {}
    key, user, password = (
        settings.elasticsearch_api_key,
        settings.elasticsearch_username,
        settings.elasticsearch_password,
    )
    if (user is None) != (password is None):
        raise InvalidSettings(
            "set both STRANDLINE_ELASTICSEARCH_USERNAME and STRANDLINE_ELASTICSEARCH_PASSWORD, or neither"
        )
    ways = [key is not None, user is not None, without_credentials(url) != url]
    if sum(ways) > 1:
        raise InvalidSettings(
            "several logins for Elasticsearch are set; set only one of STRANDLINE_ELASTICSEARCH_API_KEY, "
            "STRANDLINE_ELASTICSEARCH_USERNAME, or a user in STRANDLINE_ELASTICSEARCH_URL"
        )
    if key is not None:
        options["api_key"] = key.get_secret_value()
    if user is not None and password is not None:
        options["basic_auth"] = (user, password.get_secret_value())
    ca, certificate = settings.elasticsearch_ca_file, settings.elasticsearch_certificate_file
    if ca is not None or certificate is not None:
        if not url.startswith("https://"):
            raise InvalidSettings(
                "STRANDLINE_ELASTICSEARCH_CA_FILE or _CERTIFICATE_FILE is set, but STRANDLINE_ELASTICSEARCH_URL is not https://; "
                "write https:// or unset them"
            )
        options["ssl_context"] = _context(settings)
    return options


def _context(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.elasticsearch_ca_file)
        if settings.elasticsearch_certificate_file is not None:
            # An encrypted key is refused: otherwise the process would ask for its password at the terminal.
            context.load_cert_chain(settings.elasticsearch_certificate_file, settings.elasticsearch_key_file, "")
    except (OSError, ssl.SSLError) as error:
        raise InvalidSettings(f"the certificates for Elasticsearch can't be used ({error}); {_TLS_REMEDY}") from None
    return context


@lru_cache(maxsize=8)
def _client(url: str, process_id: int, now: _Now) -> Elasticsearch:
    """Return a client with its connections, cached per process: Spark's Python workers are forked and outlive their
    tasks.

    It sends no `GET /`: the client recognizes Elasticsearch by a header of every answer, which the embedded server
    sends too.
    """
    options = _options(url)
    try:
        return Elasticsearch(
            url,
            **options,
            max_retries=0,
            retry_on_timeout=False,
            retry_on_status=(),
            serializers={JSON: _Undecoded()},
        )
    except ValueError:  # its message contains the URL, with its password
        raise InvalidSettings(
            "STRANDLINE_ELASTICSEARCH_URL can't be read; write http://HOST:PORT or https://USER:PASSWORD@HOST:PORT, the "
            "password percent-encoded"
        ) from None


def _explain(body: Any) -> tuple[str, str]:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        return str(error.get("type", "unknown")), str(error.get("reason", ""))
    return "unknown", str(error or body)[:500]
