"""An OIDC provider at which users of the console sign in: authorization code with PKCE, and tokens that it really signs."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc.jwk import RSAKey

from strandline.access.oidc_client import OidcClient
from tests.support.oidc_provider import Provider

CLIENT_ID = "strandline-console"
AUDIENCE = "strandline"
RIGHTS = {"farm-staff": "viewer", "farm-ops": "operator", "farm-boss": "admin"}


class SignInProvider(Provider):
    """A provider with one user, who is signed in there already. It sends the user back without a form.

    It refuses codes that were used before, and codes without the verifier of their challenge.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys["first"] = self.first
        self.about = {f"{name}_endpoint": f"{self.url}/{name}" for name in ("authorization", "token", "end_session")}
        self.changed_answer: dict[str, str] = {}
        """Parameters of the way back that replace the right ones."""
        self.changed_id: dict[str, Any] = {}
        """Claims of the ID token that replace the right ones."""
        self.changed_access: dict[str, Any] = {}
        """Claims of the access token that replace the right ones."""
        self._codes: dict[str, dict[str, str]] = {}
        self.renews = False
        """True if it issues refresh tokens. Each can be used once."""
        self.renewals: list[str] = []
        """Refresh tokens that were exchanged."""
        self._refresh_tokens: set[str] = set()
        """Refresh tokens that can be used."""

    @property
    def client(self) -> OidcClient:
        return OidcClient(self.url, CLIENT_ID, "openid", AUDIENCE)

    def trust(self, page: str) -> None:
        """Allow requests of the page at this origin."""
        self.headers = {"Access-Control-Allow-Origin": page}

    def answer_get(self, path: str) -> tuple[int, dict[str, str], Any]:
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/realm/authorization":
            assert query["response_type"] == "code" and query["code_challenge_method"] == "S256", query
            assert (query["client_id"], query["audience"]) == (CLIENT_ID, AUDIENCE), query
            code = secrets.token_urlsafe(16)
            self._codes[code] = query
            answer = {"code": code, "state": query["state"], "iss": self.url} | self.changed_answer
            if "error" in answer:
                del answer["code"]
            return 302, {"Location": f"{query['redirect_uri']}?{urlencode(answer)}"}, None
        if parts.path == "/realm/end_session":
            return 302, {"Location": query["post_logout_redirect_uri"]}, None
        return super().answer_get(path)

    def answer_client(self, path: str, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if form.get("grant_type") == ["refresh_token"]:
            return self._renewed(form)
        if form.get("grant_type") != ["authorization_code"]:
            return super().answer_client(path, authorization, form)
        assert not authorization and "client_secret" not in form, "the page is a public client"
        wanted = self._codes.pop(form["code"][0], None)
        digest = hashlib.sha256(form["code_verifier"][0].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if wanted is None or challenge != wanted["code_challenge"] or form["redirect_uri"] != [wanted["redirect_uri"]]:
            return 400, {"error": "invalid_grant", "error_description": "the code is not valid"}
        times = {"iat": int(time.time()), "exp": int(time.time()) + self.lasts_s}
        known = {"aud": CLIENT_ID, "nonce": wanted["nonce"], "roles": None} | times
        return 200, {
            "access_token": self.token(**(times | self.changed_access)).decode(),
            "id_token": self.token(**(known | self.changed_id)).decode(),
            "token_type": "Bearer",
            "expires_in": self.lasts_s,
        } | self._refresh_token()

    def _refresh_token(self) -> dict[str, str]:
        if not self.renews:
            return {}
        made = secrets.token_urlsafe(16)
        self._refresh_tokens.add(made)
        return {"refresh_token": made}

    def _renewed(self, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """Return the answer to a refresh token (RFC 6749, section 6)."""
        if self.is_away:
            return 503, {}
        (used,) = form["refresh_token"]
        if used not in self._refresh_tokens or form["client_id"] != [CLIENT_ID]:
            return 400, {"error": "invalid_grant"}
        self._refresh_tokens.remove(used)
        self.renewals.append(used)
        times = {"iat": int(time.time()), "exp": int(time.time()) + self.lasts_s}
        access = self.token(**(times | self.changed_access)).decode()
        return 200, {"access_token": access, "token_type": "Bearer"} | self._refresh_token()


def a_foreign_key() -> RSAKey:
    """Return a key that no provider publishes."""
    return RSAKey.generate_key(2048)
