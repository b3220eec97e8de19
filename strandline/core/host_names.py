"""The names under which an HTTP service answers: checks of the headers `Host` and `Origin`.

A web page in a browser can reach a service on loopback if the page's own name resolves to 127.0.0.1 (DNS rebinding). The
browser then sends that name in `Host`, and a service that knows its names refuses the request. An address in `Host` can't
be such a name. A page that asks another service than its own sends its name in `Origin`.

`/healthz` and `/readyz` answer under any name: a kubelet sends the pod's address, and they tell nothing worth stealing.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HEALTH_PATHS = frozenset({"/healthz", "/readyz"})


@lru_cache(maxsize=1_000)
def host_name(host_header: str) -> str:
    """The name in a `Host` header, in lower case, without port and brackets; empty when the header names no host."""
    try:
        return (urlsplit(f"//{host_header}").hostname or "").lower()
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Whether a host's name is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return True if a name or an address is one of this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_page(origin_header: str, host_header: str) -> bool:
    """Whether the page that asks is one of the service that it asks, or no page asks (there is no `Origin`)."""
    try:
        return not origin_header or urlsplit(origin_header).netloc.lower() == host_header.lower()
    except ValueError:
        return False
