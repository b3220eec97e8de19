"""Renewal of a console session by the refresh token of the OIDC provider, which stays in the memory of the control service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from strandline.access.authenticator import Authenticator
from strandline.access.oidc import OidcIssuer
from strandline.access.sessions import SESSION_LASTS_S, Sessions
from strandline.ledger.ledger import Ledger
from tests.support.control import Api
from tests.support.oidc_sign_in import AUDIENCE, RIGHTS, SignInProvider

OWN = {"Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-origin"}
RENEWAL = "/v1/session/renewal"


@pytest.fixture(scope="module")
def issuing() -> Iterator[SignInProvider]:
    made = SignInProvider()
    made.renews = True
    yield made
    made.close()


@pytest.fixture
def provider(issuing: SignInProvider) -> SignInProvider:
    issuing.is_away, issuing.lasts_s, issuing.changed_access = False, 300, {}
    issuing.renewals.clear()
    return issuing


@pytest.fixture
def passed_s() -> list[float]:
    """Seconds by which the clock of the service is ahead."""
    return [0.0]


@pytest.fixture
def authenticator(tmp_path: Path, passed_s: list[float], provider: SignInProvider) -> Iterator[Authenticator]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")

    def now_s() -> float:
        return time.time() + passed_s[0]

    issuer = OidcIssuer(provider.url, AUDIENCE, rights=RIGHTS, now_s=now_s)
    made = Authenticator(ledger, look_s=1, kept_s=60, issuer=issuer, now_s=now_s)
    yield made
    made.close()
    ledger.close()


@pytest.fixture
def api(authenticator: Authenticator, provider: SignInProvider) -> Api:
    made = Api(authenticator._book, authenticator=authenticator)
    made.app.state.oidc_client = provider.client
    return made


def sign_in(api: Api, provider: SignInProvider, lasts_s: int = 120) -> tuple[dict[str, str], dict[str, object]]:
    """Sign in with an access token and a refresh token. Return the header with the cookie, and the session."""
    now_s = int(time.time())
    access = provider.token(iat=now_s, exp=now_s + lasts_s).decode()
    refresh = provider._refresh_token()["refresh_token"]
    answer = api.ask("POST", "/v1/session", json={"token": access, "refresh_token": refresh}, headers=OWN)
    assert answer.status_code == 201, answer.text
    assert refresh not in answer.text and access not in answer.text
    return OWN | {"Cookie": answer.headers["set-cookie"].partition(";")[0]}, answer.json()


def renew(api: Api, cookie: dict[str, str]) -> httpx.Response:
    return api.ask("POST", RENEWAL, headers=cookie)


@pytest.mark.guarantee(
    "G1060",
    "The control service renews a sign-in at the OIDC provider with a refresh token that it keeps in memory only. The session "
    "keeps its user, its cookie, and its end after 12 hours.",
    promise="secrets-and-connections-are-protected",
)
def test_a_renewal_replaces_the_token_and_keeps_the_session(api: Api, provider: SignInProvider) -> None:
    cookie, session = sign_in(api, provider)
    ends_in_ms = session["ends_in_ms"]
    assert session["renews"] is True
    assert isinstance(ends_in_ms, int) and 100_000 < ends_in_ms <= 190_000, "the token, and the tolerance for clocks"
    answer = renew(api, cookie)
    assert answer.status_code == 200, answer.text
    assert "set-cookie" not in answer.headers
    assert answer.json()["name"] == "oidc:jo"
    assert answer.json()["ends_in_ms"] > ends_in_ms
    assert len(provider.renewals) == 1
    assert provider.renewals[0] not in answer.text
    assert api.ask("GET", "/v1/jobs", headers=cookie).status_code == 200


def test_several_tabs_share_a_renewal(api: Api, provider: SignInProvider) -> None:
    cookie, _ = sign_in(api, provider)
    assert [renew(api, cookie).status_code for _ in range(3)] == [200, 200, 200]
    assert len(provider.renewals) == 1


def test_a_session_whose_token_has_expired_can_still_be_renewed(
    api: Api, provider: SignInProvider, authenticator: Authenticator, passed_s: list[float]
) -> None:
    cookie, _ = sign_in(api, provider)
    passed_s[0] = 1_000
    provider.lasts_s = 2_000
    authenticator.forget_old()
    assert api.ask("GET", "/v1/jobs", headers=cookie).status_code == 401
    shown = api.ask("GET", "/v1/session", headers=cookie).json()
    assert (shown["name"], shown["renews"], shown["ends_in_ms"]) == (None, True, 0)
    assert renew(api, cookie).json()["name"] == "oidc:jo"
    assert api.ask("GET", "/v1/jobs", headers=cookie).status_code == 200


@pytest.mark.guarantee("G1060")
def test_a_renewal_for_another_user_is_refused(api: Api, provider: SignInProvider) -> None:
    cookie, _ = sign_in(api, provider)
    provider.changed_access = {"sub": "eve"}
    answer = renew(api, cookie)
    assert (answer.status_code, "another user" in answer.json()["detail"]) == (401, True)
    assert api.ask("GET", "/v1/session", headers=cookie).json()["name"] == "oidc:jo", "the former token is still valid"
    assert api.ask("GET", "/v1/session", headers=cookie).json()["renews"] is False


def test_a_refused_refresh_token_is_not_sent_again(api: Api, provider: SignInProvider) -> None:
    cookie, _ = sign_in(api, provider)
    provider._refresh_tokens.clear()
    before = len(provider.asked)
    assert renew(api, cookie).status_code == 401
    asked = len(provider.asked) - before
    assert renew(api, cookie).status_code == 401
    assert len(provider.asked) - before == asked


def test_a_provider_that_does_not_respond_can_be_queried_again(api: Api, provider: SignInProvider) -> None:
    cookie, _ = sign_in(api, provider)
    provider.is_away = True
    answer = renew(api, cookie)
    assert (answer.status_code, answer.json()["code"]) == (503, "tokens_unavailable")
    provider.is_away = False
    assert renew(api, cookie).status_code == 200


def test_a_token_of_another_audience_is_not_accepted(api: Api, provider: SignInProvider) -> None:
    cookie, _ = sign_in(api, provider)
    provider.changed_access = {"aud": "another-service"}
    assert renew(api, cookie).status_code == 401


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": ""}]
)
def test_another_page_cannot_renew_a_session(api: Api, provider: SignInProvider, headers: dict[str, str]) -> None:
    cookie, _ = sign_in(api, provider)
    assert api.ask("POST", RENEWAL, headers=cookie | headers).status_code == 403
    assert provider.renewals == []


def test_without_a_session_or_a_refresh_token_nothing_is_renewed(api: Api, provider: SignInProvider) -> None:
    assert api.ask("POST", RENEWAL, headers=OWN).status_code == 409
    now_s = int(time.time())
    access = provider.token(iat=now_s, exp=now_s + 60).decode()
    answer = api.ask("POST", "/v1/session", json={"token": access}, headers=OWN)
    assert answer.json()["renews"] is False
    cookie = OWN | {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    assert renew(api, cookie).status_code == 401
    assert provider.renewals == []


def test_a_renewal_does_not_extend_the_session() -> None:
    clock = [0.0]
    sessions = Sessions(lambda: clock[0])
    identifier = sessions.open(b"Bearer one", "refresh", "oidc:jo")
    clock[0] = SESSION_LASTS_S - 1
    session = sessions.find(identifier)
    assert session is not None
    sessions.renew(session, b"Bearer two", "refresh 2")
    assert (sessions.authorization(identifier), sessions.left_s(session)) == (b"Bearer two", 1)
    clock[0] = SESSION_LASTS_S
    assert sessions.authorization(identifier) is None
