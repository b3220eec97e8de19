"""Check that other machines can reach only listeners that require a login, or that the operator has opened."""

from __future__ import annotations

from strandline.core.errors import InvalidSettings
from strandline.core.host_names import is_loopback
from strandline.core.settings import Settings


def require_closed(settings: Settings, host: str, what: str, setting: str, *, asks: bool, way_to_ask: str = "") -> None:
    """Raise InvalidSettings if a listener would accept unauthenticated clients from other machines.

    Args: what, setting: For the message: name of the listener, and the setting that contains `host`.
        `asks`: True if the listener enforces STRANDLINE_AUTH.
        `way_to_ask`: For the message: how to enable authentication otherwise.
    """
    if is_loopback(host) or settings.allow_unauthenticated or (asks and settings.auth != "none"):
        return
    remedy = "set STRANDLINE_AUTH=tokens, or" if asks else f"leave {setting} at 127.0.0.1, {way_to_ask}, or"
    raise InvalidSettings(
        f"{what} would accept every client that reaches {host}: {remedy} set STRANDLINE_ALLOW_UNAUTHENTICATED=true if the "
        "network is protected"
    )
