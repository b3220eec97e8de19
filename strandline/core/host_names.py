"""The names under which an HTTP service answers: a check of the `Host` header.

A web page in a browser can reach a service on loopback if the page's own name resolves to 127.0.0.1 (DNS rebinding). The
browser then sends that name in `Host`, and a service that knows its names refuses the request.

`/healthz` and `/readyz` answer under any name: a kubelet sends the pod's address, and they tell nothing worth stealing.
"""

from __future__ import annotations

from functools import lru_cache
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
