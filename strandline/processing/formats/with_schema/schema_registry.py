"""A client of a schema registry with Confluent's interface. It only queries schemas by id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from strandline.core.errors import RegistryUnavailable
from strandline.core.network.http_limits import ResponseTooLarge, bounded_stream, read_body
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchema, SchemaKind

TIMEOUT_S = 10.0
"""Maximum time in seconds of one request, up to the end of its response."""
ANSWER_BYTES_MAX = 4 << 20
REFERENCES_MAX = 200
"""Maximum number of schemas that one schema uses, including indirectly used ones."""
_NO_SUCH_SCHEMA = 40403


class SchemaRegistry:
    """Client of one registry. Every method raises RegistryUnavailable."""

    def __init__(self, url: str, user: str | None = None, password: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._auth = None if user is None else (user, password or "")

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | None:
        """Return the schema with its references. None if the registry has none with this id, or if it is of another
        kind."""
        # For Protobuf, the registry returns the file descriptor in this form, so that no other program must compile it.
        form = {"format": "serialized"} if kind == "protobuf" else {}
        with httpx.Client(auth=self._auth, timeout=TIMEOUT_S, trust_env=False) as client:
            answer = self._ask(client, f"/schemas/ids/{number}", form)
            if answer is None or answer.get("schemaType", "AVRO") != kind.upper():
                return None
            found: dict[str, str] = {}
            self._add_references(client, answer, form, found)
        return RegisteredSchema(_text_of(answer, self._url), tuple(found.items()))

    def _add_references(
        self, client: httpx.Client, answer: Mapping[str, Any], form: dict[str, str], found: dict[str, str]
    ) -> None:
        """Add the schemas that this one refers to, each after its own references."""
        for one in answer.get("references") or ():
            name = str(one["name"])
            if name in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise self._unavailable(f"returned a schema that uses more than {REFERENCES_MAX} others")
            path = f"/subjects/{quote(str(one['subject']), safe='')}/versions/{int(one['version'])}"
            inner = self._ask(client, path, form)
            if inner is None:
                raise self._unavailable(f"has no {path}, to which another of its schemas refers")
            found[name] = ""  # a schema that refers to itself ends here, and has no content
            self._add_references(client, inner, form, found)
            del found[name]
            found[name] = _text_of(inner, self._url)

    def _ask(self, client: httpx.Client, path: str, form: dict[str, str]) -> dict[str, Any] | None:
        try:
            with bounded_stream(client, "GET", self._url + path, TIMEOUT_S, params=form) as response:
                body = read_body(response, ANSWER_BYTES_MAX)
        except ResponseTooLarge as error:
            raise self._unavailable(f"responded to {path} with more than {ANSWER_BYTES_MAX:,} bytes") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise self._unavailable(f"does not respond to {path}: {error or type(error).__name__}") from error
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        code = answer.get("error_code") if isinstance(answer, dict) else None
        if response.status_code == 404 and code == _NO_SUCH_SCHEMA:
            return None
        if response.status_code != 200 or not isinstance(answer, dict):
            raise self._unavailable(f"responded to {path} with {response.status_code} {body[:200]!r}")
        return answer

    def _unavailable(self, what: str) -> RegistryUnavailable:
        return RegistryUnavailable(
            f"the schema registry at {self._url} {what}; check STRANDLINE_SCHEMA_REGISTRY_URL, its user and password"
        )


def _text_of(answer: Mapping[str, Any], url: str) -> str:
    if not isinstance(text := answer.get("schema"), str):
        raise RegistryUnavailable(
            f"the schema registry at {url} returned a schema without its text; check that it has Confluent's interface"
        )
    return text
