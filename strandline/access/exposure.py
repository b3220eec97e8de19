"""Which listeners other machines may reach: those that ask for a login, and those that the operator has opened."""

from __future__ import annotations

from strandline.core.errors import InvalidSettings
from strandline.core.host_names import is_loopback
from strandline.core.settings import Settings


def require_closed(settings: Settings, host: str, what: str, setting: str, *, asks: bool, way_to_ask: str = "") -> None:
    """Raises InvalidSettings for a door (`what`, at the address in `setting`) that strangers could use. `asks`: it takes
    nothing from who has no token while STRANDLINE_AUTH says so. `way_to_ask`: what would have another door ask who comes."""
    if is_loopback(host) or settings.allow_open or (asks and settings.auth != "none"):
        return
    remedy = "set STRANDLINE_AUTH=tokens, or" if asks else f"leave {setting} at 127.0.0.1, {way_to_ask}, or"
    raise InvalidSettings(
        f"{what} would be open to everyone who reaches {host}: {remedy} set STRANDLINE_ALLOW_OPEN=true if the network keeps "
        "strangers out"
    )
