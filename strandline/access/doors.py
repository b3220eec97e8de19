"""The doorkeeper that a service's settings ask for."""

from __future__ import annotations

from strandline.access.doorkeeper import Doorkeeper
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger


def open_doorkeeper(settings: Settings, ledger: Ledger) -> Doorkeeper | None:
    """None while whoever reaches the service may do everything. The caller closes it, before the ledger."""
    if settings.auth == "none":
        return None
    return Doorkeeper(ledger, look_s=settings.tokens_look_s, kept_s=settings.tokens_kept_s)
