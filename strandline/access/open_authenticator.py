"""Authenticators of services, according to the settings."""

from __future__ import annotations

from strandline.access.authenticator import Authenticator
from strandline.core.settings import Settings
from strandline.ledger.roles import GatewayLedger


def open_authenticator(settings: Settings, ledger: GatewayLedger) -> Authenticator | None:
    """Return the authenticator. None without authentication: then every client can do everything. The caller closes it, before
    the ledger.

    Raises InvalidSettings if the settings of the OIDC provider can't be used.
    """
    if settings.auth == "none":
        return None
    issuer = None
    if settings.auth == "oidc":
        from strandline.access.oidc import OidcIssuer  # its libraries take a while to import, and few need them

        issuer = OidcIssuer(
            settings.oidc_issuer or "",
            settings.oidc_audience or "",
            rights=settings.oidc_rights,
            claim=settings.oidc_claim,
            look_s=settings.oidc_keys_refresh_s,
            kept_s=settings.oidc_keys_grace_s,
        )
    return Authenticator(ledger, look_s=settings.tokens_refresh_s, kept_s=settings.tokens_grace_s, issuer=issuer)


def open_token_keys(settings: Settings, ledger: GatewayLedger) -> Authenticator:
    """Return an authenticator for signatures, which a stream document requires, whatever `STRANDLINE_AUTH` is. The caller
    closes it, before the ledger."""
    return Authenticator(ledger, look_s=settings.tokens_refresh_s, kept_s=settings.tokens_grace_s)
