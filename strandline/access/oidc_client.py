"""The console as a client of the OIDC provider: a public client without a secret, which uses PKCE (RFC 7636)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from strandline.core.errors import InvalidSettings
from strandline.core.settings import Settings


@dataclass(frozen=True)
class OidcClient:
    """Values with which the console's page signs users in at the provider. None of them is secret."""

    issuer: str
    """Address of the provider, as in the `iss` of its tokens."""
    client_id: str
    scope: str
    audience: str
    """Audience for which the page requests an access token."""

    @property
    def origin(self) -> str:
        """Scheme, host, and port of the provider. The page may connect to them."""
        parts = urlsplit(self.issuer)
        return f"{parts.scheme}://{parts.netloc}"


def oidc_client(settings: Settings) -> OidcClient | None:
    """Return the client. None if users of the console can't sign in at a provider.

    Raises InvalidSettings if the scopes don't contain `openid`: then the provider would send no ID token.
    """
    if settings.auth != "oidc" or settings.oidc_client_id is None:
        return None
    if "openid" not in settings.oidc_scope.split():
        raise InvalidSettings("STRANDLINE_OIDC_SCOPE is wrong: it must contain openid, for example `openid profile`")
    return OidcClient(
        settings.oidc_issuer or "", settings.oidc_client_id, settings.oidc_scope, settings.oidc_audience or ""
    )
