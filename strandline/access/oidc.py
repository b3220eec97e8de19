"""Tokens of an OIDC provider: JSON web tokens (RFC 7519), checked with the keys that the provider publishes.

A valid token is signed by a key of the provider with an algorithm of `ALGORITHMS`. The algorithm is never `none` and never uses
a shared secret, because a public key would be one. The token is from this issuer and for this audience, has not expired, and is
not from the future. Its holder is `oidc:SUB`. The rights follow from one claim, by the map in the settings.

The keys are cached. They are read again every `look_s`, and if a token names an unknown key, but at most once in READ_AGAIN_S.
Tokens of a withdrawn key are refused from then on. During an outage of the provider, its keys stay valid until they are
`kept_s` old, so that an outage ends no login. Sources: OpenID Connect Discovery 1.0, RFC 7517.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard
from urllib.parse import urlsplit

import httpx
import structlog
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from strandline.access.authenticator import OIDC_PREFIX, TokensUnavailable
from strandline.access.rights import ALL_STREAMS, Principal
from strandline.core.documents import NAME
from strandline.core.errors import InvalidSettings, Unauthenticated
from strandline.core.host_names import is_loopback
from strandline.core.network.http_limits import bounded_stream, read_body
from strandline.ledger.states import Role

logger = structlog.get_logger()

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
KEYS_LOOK_S = 300.0
"""Default seconds between two reads of the keys."""
KEYS_KEPT_S = 86_400.0
"""Default seconds for which keys stay valid if they can't be read again."""
READ_AGAIN_S = 30.0
LEEWAY_S = 60
"""Maximum difference in seconds between the provider's clock and ours."""
TOKEN_BYTES_MAX = 16 * 1024
ANSWER_BYTES_MAX = 1_000_000
_FETCH_TIMEOUT_S = 5.0
_WRITE_MARK = "write:"
_KEY_KINDS: dict[str, type[RSAKey | ECKey | OKPKey]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
_ROLES = (Role.METRICS, Role.VIEWER, Role.OPERATOR, Role.ADMIN)

Fetch = Callable[[str], Any]
"""Function that returns the JSON at a URL. Raises OSError, httpx.HTTPError, ValueError."""


class OidcIssuer:
    """One provider. Thread-safe."""

    def __init__(
        self,
        issuer: str,
        audience: str,
        *,
        rights: Mapping[str, str],
        claim: str = "roles",
        look_s: float = KEYS_LOOK_S,
        kept_s: float = KEYS_KEPT_S,
        fetch: Fetch | None = None,
        now_s: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise InvalidSettings if an argument is invalid.

        Args: rights: Value of the claim -> a role, or `write:STREAM`. look_s: Seconds between two reads of the keys.
        kept_s: Seconds for which the keys stay valid if these fail.
        """
        parts = urlsplit(issuer)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        if not is_safe or not parts.hostname or parts.query or parts.fragment:
            raise InvalidSettings(
                "STRANDLINE_OIDC_ISSUER is wrong: write the provider's address, for example https://login.example.org/realms/farm"
            )
        if not audience:
            raise InvalidSettings(
                "STRANDLINE_OIDC_AUDIENCE is missing; set it to the value that tokens for Strandline have in `aud`"
            )
        self._issuer = issuer
        self._audience = audience
        self._claim = claim.split(".")
        self._look_s = look_s
        self._kept_s = kept_s
        self._roles, self._writes = _rights(rights)
        self._fetch = fetch or fetch_json
        self._now_s = now_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._keys: dict[str, RSAKey | ECKey | OKPKey] = {}
        self._marks: frozenset[str] = frozenset()
        """Thumbprints of the keys (RFC 7638)."""
        self._read_s = self._tried_s = -float("inf")

    def principal(self, text: bytes) -> tuple[Principal, float, str]:
        """Return the holder of a token, its expiry in seconds since 1970, and the thumbprint of its signing key. Raises
        Unauthenticated; TokensUnavailable if the provider's keys can't be read."""
        if text.count(b".") != 2 or len(text) > TOKEN_BYTES_MAX:
            raise Unauthenticated("this is neither a token of Strandline nor of the OIDC provider")
        keys: list[RSAKey | ECKey | OKPKey] = []

        def key_of(guest: Any) -> RSAKey | ECKey | OKPKey:
            keys.append(self._key_of(guest))
            return keys[-1]

        try:
            claims = jwt.decode(text, key_of, algorithms=ALGORITHMS).claims
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise Unauthenticated("the token is not validly signed by the OIDC provider; log in again") from error
        until_s = self._check(claims)
        name = claims.get("sub")
        if not isinstance(name, str) or not name or len(name) > 255 or not name.isprintable():
            raise Unauthenticated("the token does not name its holder (`sub`)")
        values = self._values(claims)
        roles = [self._roles[value] for value in values if value in self._roles]
        writes = frozenset(self._writes[value] for value in values if value in self._writes)
        return (
            Principal(f"{OIDC_PREFIX}{name}", max(roles, key=_ROLES.index, default=None), writes),
            until_s,
            keys[-1].thumbprint(),
        )

    def trusts(self, mark: str) -> bool:
        """Return True if tokens of the key with this thumbprint are still valid, according to the keys that were read last.
        Doesn't block."""
        return mark in self._marks and self._clock_s() - self._read_s <= self._kept_s

    def refresh(self) -> None:
        """Read the keys again if they are older than `look_s`. Blocks."""
        with self._lock:
            now_s = self._clock_s()
            is_due = now_s - self._read_s >= self._look_s and now_s - self._tried_s >= min(READ_AGAIN_S, self._look_s)
            if is_due:
                self._tried_s = now_s
        if is_due:
            self._read_keys(now_s)  # without the lock: tokens of known keys are checked in the meantime

    def _check(self, claims: Mapping[str, Any]) -> float:
        """Return the expiry of the token. Raises Unauthenticated."""
        now_s, until_s = self._now_s(), claims.get("exp")
        audiences = claims.get("aud")
        if claims.get("iss") != self._issuer:
            raise Unauthenticated("the token is from another issuer")
        if self._audience not in (audiences if isinstance(audiences, list) else [audiences]):
            raise Unauthenticated("the token is for another audience")
        if not _is_time(until_s) or now_s >= float(until_s) + LEEWAY_S:
            raise Unauthenticated("the token has expired; log in again")
        for claim in ("nbf", "iat"):
            since_s = claims.get(claim)
            if since_s is not None and not (_is_time(since_s) and since_s <= now_s + LEEWAY_S):
                raise Unauthenticated("the token is not valid yet; check the clocks")
        return float(until_s) + LEEWAY_S

    def _values(self, claims: Mapping[str, Any]) -> list[str]:
        """Return the values of the claim that determines rights. `realm_access.roles` is a claim in a claim."""
        found: Any = claims
        for part in self._claim:
            found = found.get(part) if isinstance(found, Mapping) else None
        values = found if isinstance(found, list) else [found]
        return [value for value in values if isinstance(value, str)]

    def _key_of(self, guest: Any) -> RSAKey | ECKey | OKPKey:
        """Return the key for a token's header. Raises Unauthenticated if the provider doesn't have the key."""
        name = guest.headers().get("kid")
        if not isinstance(name, str):
            raise Unauthenticated("the token does not name its key (`kid`)")
        with self._lock:
            now_s = self._clock_s()
            is_old = now_s - self._read_s > self._look_s
            if (is_old or name not in self._keys) and now_s - self._tried_s > READ_AGAIN_S:
                self._tried_s = now_s
                self._read_keys(now_s)
            if now_s - self._read_s > self._kept_s:
                raise TokensUnavailable(
                    "can't read the OIDC provider's keys, so its tokens can't be checked now; try again"
                )
            key = self._keys.get(name)
        if key is None:
            raise Unauthenticated("the token is signed with a key that the OIDC provider does not have; log in again")
        return key

    def _read_keys(self, now_s: float) -> None:
        try:
            about = self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if about["issuer"] != self._issuer:
                raise ValueError("its configuration names another issuer; correct STRANDLINE_OIDC_ISSUER")
            place = urlsplit(about["jwks_uri"])
            if place.scheme != urlsplit(self._issuer).scheme:
                raise ValueError(
                    "the URL of its keys has another scheme than STRANDLINE_OIDC_ISSUER; use https for both"
                )
            keys = _public_keys(self._fetch(about["jwks_uri"]))
            if withdrawn := self._keys.keys() - keys.keys():
                logger.info(
                    "the OIDC provider has withdrawn keys", action="oidc_keys_withdrawn", keys=sorted(withdrawn)
                )
            self._keys, self._marks = keys, frozenset(key.thumbprint() for key in keys.values())
            self._read_s = now_s
        except (OSError, httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("can't read the OIDC provider's keys", action="oidc_keys_lost", reason=repr(error)[:300])


def fetch_json(url: str) -> Any:
    """Return the JSON document at a URL. Follows no redirect; the response is bounded in bytes and time."""
    with (
        httpx.Client(timeout=_FETCH_TIMEOUT_S, follow_redirects=False) as client,
        bounded_stream(client, "GET", url, _FETCH_TIMEOUT_S) as answer,
    ):
        answer.raise_for_status()
        body = read_body(answer, ANSWER_BYTES_MAX)
    if answer.status_code != 200:
        raise ValueError(f"it responds with {answer.status_code}")
    return json.loads(body)


def _public_keys(document: Any) -> dict[str, RSAKey | ECKey | OKPKey]:
    """Return the signing keys by name. Unknown kinds are left out, as RFC 7517 requires, and shared secrets too."""
    found: dict[str, RSAKey | ECKey | OKPKey] = {}
    for one in document["keys"]:
        kind, name = _KEY_KINDS.get(one.get("kty")), one.get("kid")
        if kind is None or not isinstance(name, str) or one.get("use", "sig") != "sig":
            continue
        try:
            found[name] = kind.import_key(one)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    return found


def _rights(rights: Mapping[str, str]) -> tuple[dict[str, Role], dict[str, str]]:
    roles: dict[str, Role] = {}
    writes: dict[str, str] = {}
    for value, right in rights.items():
        stream = right.removeprefix(_WRITE_MARK)
        if right in set(Role):
            roles[value] = Role(right)
        elif right.startswith(_WRITE_MARK) and (stream == ALL_STREAMS or NAME.fullmatch(stream)):
            writes[value] = stream
        else:
            raise InvalidSettings(
                f"STRANDLINE_OIDC_RIGHTS is wrong: {right!r} is neither metrics, viewer, operator, admin, nor write:STREAM"
            )
    return roles, writes


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
