"""An OIDC provider on loopback: for the API's tokens, and for those that clients of Kafka ask for."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

NOW_S = 1_800_000_000.0


class Provider:
    """An OIDC provider: its discovery document, its keys, and tokens that it signs."""

    def __init__(self, first: RSAKey | None = None) -> None:
        """`first`: a key that is there already, because a new one takes long to compute."""
        self.first = first or RSAKey.generate_key(2048)
        self.keys: dict[str, RSAKey | ECKey] = {}
        self.asked: list[str] = []
        self.is_away = False
        self.about: dict[str, Any] = {}
        self.clients: dict[str, str] = {}
        """Clients that may request their own token at `token_url`: id -> secret."""
        self.headers: dict[str, str] = {}
        """Headers of each response."""
        self.lasts_s = 300
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                status, headers, found = provider.answer_get(self.path)
                self.send_response(status)
                for name, value in (headers | provider.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def do_POST(self) -> None:
                provider.asked.append(self.path)
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                status, found = provider.answer_client(self.path, self.headers.get("authorization", ""), form)
                body = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                for name, value in provider.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/realm"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    def answer_get(self, path: str) -> tuple[int, dict[str, str], Any]:
        """Return status, headers, and JSON of the response to a GET request."""
        found = {
            "/realm/.well-known/openid-configuration": {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                **self.about,
            },
            "/realm/keys": self.document(),
        }.get(path)
        return 503 if self.is_away else 200 if found else 404, {}, found

    def answer_client(self, path: str, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """Return the answer to a client's request for its own token (RFC 6749, section 4.4)."""
        scheme, _, text = authorization.partition(" ")
        client, _, secret = base64.b64decode(text).decode().partition(":") if scheme == "Basic" else ("", "", "")
        if self.is_away:
            return 503, {}
        if path != "/realm/token" or form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        if not secret or self.clients.get(client) != secret:
            return 401, {"error": "invalid_client"}
        now_s = int(time.time())
        scope = {"scope": " ".join(form.get("scope", ["kafka"]))}
        made = self.token(sub=client, iat=now_s, exp=now_s + self.lasts_s, roles=None, **scope)
        return 200, {"access_token": made.decode(), "token_type": "Bearer", "expires_in": self.lasts_s}

    def document(self) -> dict[str, Any]:
        known = [key.as_dict(private=False, kid=name, use="sig") for name, key in self.keys.items()]
        return {"keys": [{"kty": "XYZ", "kid": "new kind"}, {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}, *known]}

    def token(self, name: str = "first", alg: str = "RS256", key: Any = None, **claims: Any) -> bytes:
        """Return a valid token, except for the passed claims. A claim that is None is left out."""
        right = {
            "iss": self.url,
            "aud": "strandline",
            "sub": "jo",
            "exp": NOW_S + 600,
            "iat": NOW_S,
            "roles": ["farm-ops"],
        }
        said = {claim: value for claim, value in (right | claims).items() if value is not None}
        return jwt.encode({"alg": alg, "kid": name}, said, key or self.keys[name], algorithms=[alg]).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
