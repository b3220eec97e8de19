"""Cookie of the console's session, and checks that keep pages of other sites from using it.

A browser adds the cookie to each request for this host, also to requests that other sites cause. Three checks keep other pages
out:
* `SameSite=Strict`: the browser doesn't send the cookie with requests that other sites cause;
* a request with the cookie must come from this service's own page, by `Sec-Fetch-Site` and `Origin`;
* a request with the cookie that changes something must have `Origin`, which each browser sends.

The files of the page are exempt, because they contain no data. Links of other pages lead to them, and so does the redirect of
an OIDC provider.

Browsers share cookies between the ports of a host, and pages of other ports of the host belong to the same site. Therefore the
second check is needed, and the name of a cookie for plain HTTP contains the port.
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.types import Scope

from strandline.core.errors import Conflict
from strandline.core.host_names import host_name, is_loopback, is_own_page

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_FETCHES = frozenset({"", "same-origin", "none"})
"""Values of `Sec-Fetch-Site` for requests of the own page, of the user (an address typed in), and of old browsers."""


def session_of(scope: Scope) -> str | None:
    """Return the session identifier in the request. None if it has no cookie of this service."""
    values = b"; ".join(value for name, value in scope["headers"] if name.lower() == b"cookie")
    if not values:
        return None
    try:
        found = SimpleCookie(values.decode("latin-1")).get(cookie_name(scope))
    except CookieError:
        return None
    return found.value if found is not None else None


def cookie_name(scope: Scope) -> str:
    """Return the name of the cookie. The prefix `__Host-` requires https, so it is left out on plain HTTP."""
    if scope["scheme"] == "https":
        return "__Host-strandline"
    return f"strandline-{_port(_header(scope, b'host'))}"


def cookie(scope: Scope, identifier: str) -> str:
    """Return the value of `Set-Cookie` that signs in, or signs out if the identifier is empty. The browser deletes it when it
    ends.

    Raises Conflict if the request came over plain HTTP from another machine, because a listener could read the token.
    """
    parts = [f"{cookie_name(scope)}={identifier}", "Path=/", "HttpOnly", "SameSite=Strict"]
    if scope["scheme"] == "https":
        parts.append("Secure")
    elif not is_loopback(host_name(_header(scope, b"host"))):
        raise Conflict(
            "signing in over plain HTTP would show the token to the network; open the page by https (set "
            "STRANDLINE_CONTROL_TLS_CERTIFICATE, or STRANDLINE_CONTROL_TRUSTED_PROXIES behind a proxy), or use "
            "a loopback address"
        )
    if not identifier:
        parts.append("Max-Age=0")
    return "; ".join(parts)


def is_of_own_page(scope: Scope) -> bool:
    """Return True if the page of this service sent a request that has the cookie."""
    origin, host = _header(scope, b"origin"), _header(scope, b"host")
    if _header(scope, b"sec-fetch-site").lower() not in _OWN_FETCHES or not is_own_page(origin, host):
        return False
    return bool(origin) or scope["method"] in SAFE_METHODS


def _header(scope: Scope, wanted: bytes) -> str:
    values = [value for name, value in scope["headers"] if name.lower() == wanted]
    return values[0].decode("latin-1") if values else ""


def _port(host: str) -> int:
    try:
        return urlsplit(f"//{host}").port or 80
    except ValueError:
        return 80
