"""Checks of the headers `Host` and `Origin` against the names of an HTTP service.

A web page in a browser can reach a service on loopback if the name of the page resolves to 127.0.0.1 (DNS rebinding). The
browser then sends this name in `Host`, and a service that knows its names refuses the request. An address in `Host` can't be
such a name. A page that calls another service sends its own name in `Origin`.

`/healthz` and `/readyz` respond under any name, because a kubelet sends the address of the pod. They contain no secrets.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HEALTH_PATHS = frozenset({"/healthz", "/readyz"})


@lru_cache(maxsize=1_000)
def host_name(host_header: str) -> str:
    """Return the name in a `Host` header in lower case, without port and brackets. Empty if the header contains no host."""
    try:
        return (urlsplit(f"//{host_header}").hostname or "").lower()
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Return True if the name of a host is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return True if a name or an address belongs to this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_page(origin_header: str, host_header: str) -> bool:
    """Return True if the page that sent the request is from the requested service, or if no page sent it (no `Origin`)."""
    try:
        return not origin_header or urlsplit(origin_header).netloc.lower() == host_header.lower()
    except ValueError:
        return False
