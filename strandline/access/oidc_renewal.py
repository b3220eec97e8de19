"""Renewal of an access token at the OIDC provider by a refresh token (RFC 6749, section 6), as a public client."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import urlsplit

import httpx

from strandline.access.authenticator import TokensUnavailable
from strandline.access.oidc import ANSWER_BYTES_MAX, TOKEN_BYTES_MAX, Fetch, fetch_json
from strandline.access.oidc_client import OidcClient
from strandline.core.errors import Unauthenticated
from strandline.core.network.http_limits import bounded_stream, read_body

_TIMEOUT_S = 5.0
_REFUSALS = (400, 401, 403)
"""Statuses with which a provider refuses a refresh token."""


class RenewedTokens(NamedTuple):
    """Tokens that the provider issued for a refresh token."""

    access_token: str
    refresh_token: str
    """The refresh token for the next renewal: a new one, or the former one if the provider sent none."""


def renew_tokens(client: OidcClient, refresh_token: str, page: str, fetch: Fetch = fetch_json) -> RenewedTokens:
    """Exchange the refresh token. Blocks. The caller must check the access token.

    Args: page: Origin of the console's page. Some providers issue tokens of public clients only to their pages.
    Raises Unauthenticated if the provider refuses the token, TokensUnavailable if it can't be queried now.
    """
    try:
        about = fetch(f"{client.issuer.rstrip('/')}/.well-known/openid-configuration")
        if about["issuer"] != client.issuer:
            raise ValueError("its configuration names another issuer; correct STRANDLINE_OIDC_ISSUER")
        endpoint = about["token_endpoint"]
        if urlsplit(endpoint).scheme != urlsplit(client.issuer).scheme:
            raise ValueError("its token endpoint has another scheme than STRANDLINE_OIDC_ISSUER; use https for both")
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": client.client_id}
        status, answer = _post(endpoint, form, page)
    except (OSError, httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokensUnavailable(
            f"the OIDC provider can't renew the sign-in now ({type(error).__name__}: {error})"[:500]
        ) from error
    if status in _REFUSALS:
        raise Unauthenticated("the OIDC provider doesn't renew the sign-in; sign in again")
    access, following = answer.get("access_token"), answer.get("refresh_token", refresh_token)
    if status != 200 or not _is_token(access) or not _is_token(following):
        raise TokensUnavailable(f"the OIDC provider responds to a renewal with status {status} and without a token")
    return RenewedTokens(access, following)


def _post(url: str, form: dict[str, str], page: str) -> tuple[int, dict[str, Any]]:
    """Return status and JSON object of the response. Follows no redirect; the response is bounded in bytes and time."""
    with (
        httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False) as client,
        bounded_stream(client, "POST", url, _TIMEOUT_S, data=form, headers={"Origin": page}) as answer,
    ):
        body = read_body(answer, ANSWER_BYTES_MAX)
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    return answer.status_code, found if isinstance(found, dict) else {}


def _is_token(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and 0 < len(text) <= TOKEN_BYTES_MAX and all("!" <= one <= "~" for one in text)
