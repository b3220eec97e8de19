"""Tokens of an OIDC provider, against a provider of our own on loopback."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from strandline.access import oidc
from strandline.access.authenticator import Authenticator, TokensUnavailable
from strandline.access.oidc import KEYS_KEPT_S, KEYS_LOOK_S, LEEWAY_S, READ_AGAIN_S, OidcIssuer
from strandline.access.open_authenticator import open_authenticator
from strandline.access.rights import Principal
from strandline.core.errors import InvalidSettings, Unauthenticated
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Role
from tests.support.control import Api
from tests.support.oidc_provider import NOW_S, Provider
from tests.support.tokens import ToldBook, tokens_of_each_kind
from tests.support.waiting import wait_until_async

RIGHTS = {"farm-readers": "viewer", "farm-ops": "operator", "farm-admins": "admin", "farm-senders": "write:readings"}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def key() -> RSAKey:
    return RSAKey.generate_key(2048)


@pytest.fixture
def provider(key: RSAKey) -> Iterator[Provider]:
    """A provider of this test alone: a request that the test before left on its way must not be counted here."""
    made = Provider(key)
    made.keys = {"first": key}
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issuer(provider: Provider, clock: Clock) -> OidcIssuer:
    return OidcIssuer(provider.url, "strandline", rights=RIGHTS, clock_s=clock, now_s=lambda: NOW_S)


def test_a_right_token_says_who_it_is_what_it_may_and_until_when(provider: Provider, issuer: OidcIssuer) -> None:
    assert issuer.principal(provider.token())[:2] == (Principal("oidc:jo", Role.OPERATOR), NOW_S + 600 + LEEWAY_S)
    many = provider.token(aud=["other", "strandline"], roles=["x", "farm-readers", "farm-admins", "farm-senders", 7])
    assert issuer.principal(many)[0] == Principal("oidc:jo", Role.ADMIN, frozenset({"readings"}))
    assert issuer.principal(provider.token(roles=None))[0] == Principal("oidc:jo"), "it was given no right"
    assert issuer.principal(provider.token(roles="farm-readers"))[0].role is Role.VIEWER
    assert provider.asked == ["/realm/.well-known/openid-configuration", "/realm/keys"], "once for all"


def test_a_claim_within_a_claim(provider: Provider) -> None:
    issuer = OidcIssuer(provider.url, "strandline", rights=RIGHTS, claim="realm_access.roles", now_s=lambda: NOW_S)
    assert issuer.principal(provider.token(realm_access={"roles": ["farm-readers"]}))[0].role is Role.VIEWER
    assert issuer.principal(provider.token(realm_access=["farm-readers"]))[0].role is None


@pytest.mark.guarantee("G326")
@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "http://127.0.0.1:1/realm"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"aud": ["strandline-2"]},
        {"aud": "strandline-2"},
        {"exp": NOW_S - LEEWAY_S},
        {"exp": None},
        {"exp": "never"},
        {"exp": True},
        {"exp": 1e300},
        {"nbf": NOW_S + LEEWAY_S + 1},
        {"iat": NOW_S + LEEWAY_S + 1},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"sub": 7},
    ],
    ids=str,
)
def test_a_token_that_is_not_for_us_is_refused(claims: dict[str, Any], provider: Provider, issuer: OidcIssuer) -> None:
    with pytest.raises(Unauthenticated):
        issuer.principal(provider.token(**claims))


def _signed(provider: Provider, alg: str, secret: bytes | None = None) -> bytes:
    """A token of this algorithm, with a shared secret or with nothing for a signature."""
    payload = provider.token().split(b".")[1]
    head = base64.urlsafe_b64encode(json.dumps({"alg": alg, "kid": "first"}).encode()).rstrip(b"=")
    signature = hmac.digest(secret, head + b"." + payload, "sha256") if secret is not None else b""
    return b".".join([head, payload, base64.urlsafe_b64encode(signature).rstrip(b"=")])


@pytest.mark.guarantee(
    "G326",
    "A token of an OIDC provider is valid only if a published key of the provider signed it, for this issuer, "
    "audience, and time. `alg: none` and shared secrets are refused. Unknown keys cost the provider one query in 30 "
    "s.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.filterwarnings("ignore:Key size")
def test_a_token_that_the_provider_did_not_sign_is_refused(provider: Provider, issuer: OidcIssuer) -> None:
    theirs, right = RSAKey.generate_key(2048), provider.token()
    public = provider.keys["first"].as_pem(private=False)
    head, payload, signature = right.split(b".")
    other_payload = provider.token(roles=["farm-admins"]).split(b".")[1]
    wrong = [
        provider.token(key=theirs),
        provider.token("shared", "HS256", OctKey.import_key("c2VjcmV0")),
        _signed(provider, "HS256", public),  # the public key as a shared secret
        _signed(provider, "none"),
        _signed(provider, "None"),
        _signed(provider, "RS256"),
        b".".join([head, other_payload, signature]),
        b".".join([head, payload, signature[:-8] + b"AAAAAAAA"]),
        right[:-1] + b"\xff",
        b"..",
        b"a.b.c",
        b"e30.e30.e30",
        right + b".",
        b"x" * 20_000 + right,
        b"",
    ]
    for token in wrong:
        with pytest.raises(Unauthenticated) as refused:
            issuer.principal(token)
        assert signature.decode() not in str(refused.value)
    assert issuer.principal(right)[0].name == "oidc:jo"


@pytest.mark.parametrize("alg", ["ES256", "PS256", "RS512"])
def test_the_algorithms_that_providers_use(alg: str, provider: Provider, issuer: OidcIssuer) -> None:
    name = "first"
    if alg == "ES256":
        provider.keys[name := "curve"] = ECKey.generate_key("P-256")
    assert issuer.principal(provider.token(name, alg))[0].name == "oidc:jo"


@pytest.mark.guarantee("G326")
def test_a_new_key_is_found_and_unknown_ones_cost_the_provider_little(
    provider: Provider, issuer: OidcIssuer, clock: Clock
) -> None:
    issuer.principal(provider.token())
    provider.keys["second"] = ECKey.generate_key("P-256")
    token = provider.token("second", "ES256")
    for _ in range(20):
        with pytest.raises(Unauthenticated, match="a key that the OIDC provider does not have"):
            issuer.principal(token)
    assert len(provider.asked) == 2, "it was asked a moment ago"
    clock.now_s = READ_AGAIN_S + 1
    assert issuer.principal(token)[0].name == "oidc:jo"
    assert len(provider.asked) == 4
    del provider.keys["first"]
    old = provider.token("first", key=RSAKey.generate_key(2048))
    clock.now_s += KEYS_LOOK_S + 1
    with pytest.raises(Unauthenticated):
        issuer.principal(old)


def test_while_the_provider_is_away_its_keys_are_believed_for_a_day(
    provider: Provider, issuer: OidcIssuer, clock: Clock
) -> None:
    issuer.principal(provider.token())
    provider.is_away = True
    clock.now_s = KEYS_KEPT_S
    assert issuer.principal(provider.token())[0].name == "oidc:jo"
    clock.now_s += 1
    with pytest.raises(TokensUnavailable):
        issuer.principal(provider.token())


@pytest.mark.parametrize(
    "about",
    [
        {"issuer": "http://127.0.0.1:1"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
        {"jwks_uri": "https://x"},
    ],
)
def test_a_provider_that_contradicts_itself_is_not_believed(
    about: dict[str, Any], provider: Provider, issuer: OidcIssuer
) -> None:
    provider.about = about
    with pytest.raises(TokensUnavailable):
        issuer.principal(provider.token())


def test_a_large_answer_is_not_read_to_its_end(
    provider: Provider, issuer: OidcIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "ANSWER_BYTES_MAX", 100)
    with pytest.raises(TokensUnavailable):
        issuer.principal(provider.token())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "STRANDLINE_OIDC_ISSUER"),
        ({"oidc_issuer": "http://login.example.org"}, "STRANDLINE_OIDC_ISSUER"),
        ({"oidc_issuer": "file:///keys"}, "STRANDLINE_OIDC_ISSUER"),
        ({"oidc_issuer": "https://login.example.org"}, "STRANDLINE_OIDC_AUDIENCE"),
        (
            {"oidc_issuer": "https://x.example", "oidc_audience": "a", "oidc_rights": {"a": "root"}},
            "STRANDLINE_OIDC_RIGHTS",
        ),
        ({"oidc_issuer": "https://x.example", "oidc_audience": "a", "oidc_rights": {"a": "write:A B"}}, "OIDC_RIGHTS"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    with pytest.raises(InvalidSettings, match=said):
        open_authenticator(Settings(auth="oidc", **settings), ledger)
    ledger.close()


def test_the_api_takes_the_providers_tokens_beside_its_own(
    provider: Provider, issuer: OidcIssuer, tmp_path: Path
) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    door = Authenticator(ledger, look_s=1, kept_s=10, issuer=issuer, now_s=lambda: NOW_S)
    api = Api(ledger, authenticator=door)
    for token, asked, status in (
        (provider.token(), ("GET", "/v1/jobs"), 200),
        (provider.token(), ("GET", "/v1/tokens"), 403),
        (provider.token(roles=["farm-admins"]), ("GET", "/v1/tokens"), 200),
        (provider.token(roles=["strangers"]), ("GET", "/v1/jobs"), 403),
        (provider.token(aud="other"), ("GET", "/v1/jobs"), 401),
        (tokens_of_each_kind(ledger, "s")["viewer"].encode(), ("GET", "/v1/jobs"), 200),
    ):
        assert api.ask(*asked, headers={"Authorization": f"Bearer {token.decode()}"}).status_code == status
    provider.is_away = True
    lonely = OidcIssuer(provider.url, "strandline", rights=RIGHTS, now_s=lambda: NOW_S)
    away = Api(ledger, authenticator=Authenticator(ledger, look_s=1, kept_s=10, issuer=lonely))
    answer = away.ask("GET", "/v1/jobs", headers={"Authorization": f"Bearer {provider.token().decode()}"})
    assert (answer.status_code, answer.json()["code"]) == (503, "tokens_unavailable")
    door.close()
    ledger.close()


def test_a_token_that_was_right_is_forgotten_when_it_expires(provider: Provider, issuer: OidcIssuer) -> None:
    clock = Clock()
    clock.now_s = NOW_S

    async def run() -> None:
        door = Authenticator(ToldBook(), look_s=1, kept_s=10, issuer=issuer, now_s=clock)
        header = b"Bearer " + provider.token()
        await door.admit(header)
        assert door.known(header) is not None
        clock.now_s = NOW_S + 600 + LEEWAY_S
        door.forget_old()
        assert door.known(header) is None
        door.close()

    asyncio.run(run())


class Withdrawal:
    """One admitted token, and an authenticator that follows the ledger and the provider."""

    def __init__(self, provider: Provider, issuer: OidcIssuer) -> None:
        self.door = Authenticator(ToldBook(), look_s=0.02, kept_s=10, issuer=issuer, now_s=lambda: NOW_S)
        self.header = b"Bearer " + provider.token()

    async def __aenter__(self) -> Withdrawal:
        await self.door.admit(self.header)
        self.following = asyncio.create_task(self.door.follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.following.cancel()
        self.door.close()

    async def wait_until_forgotten(self) -> None:
        await wait_until_async(lambda: self.door.known(self.header) is None, "forgotten")


@pytest.mark.guarantee(
    "G787",
    "A token of an OIDC provider is refused after its signing key was withdrawn, within the refresh interval of the "
    "keys. While the provider doesn't respond, its keys stay valid for a bounded time.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize("change", ["withdrawn", "all withdrawn", "replaced under its name"])
def test_a_token_is_refused_when_its_signing_key_is_withdrawn(
    change: str, provider: Provider, issuer: OidcIssuer, clock: Clock
) -> None:
    async def run() -> None:
        async with Withdrawal(provider, issuer) as one:
            if change == "replaced under its name":
                provider.keys["first"] = RSAKey.generate_key(2048)
            else:
                del provider.keys["first"]
            if change == "withdrawn":
                provider.keys["second"] = ECKey.generate_key("P-256")
            clock.now_s += KEYS_LOOK_S
            await one.wait_until_forgotten()
            with pytest.raises(Unauthenticated, match=r"signed"):
                await one.door.admit(one.header)
            assert one.door.recall(one.header) is None, "so an MQTT connection of it ends"

    asyncio.run(run())


@pytest.mark.guarantee("G787")
def test_an_outage_of_the_provider_logs_nobody_out_until_its_keys_are_too_old(
    provider: Provider, issuer: OidcIssuer, clock: Clock
) -> None:
    async def run() -> None:
        async with Withdrawal(provider, issuer) as one:
            del provider.keys["first"]
            provider.is_away = True
            asked = len(provider.asked)
            clock.now_s += KEYS_LOOK_S
            await wait_until_async(lambda: len(provider.asked) > asked, "asked again")
            one.door.forget_old()
            assert one.door.known(one.header) is not None
            clock.now_s += KEYS_KEPT_S
            await one.wait_until_forgotten()
            with pytest.raises(TokensUnavailable):
                await one.door.admit(one.header)

    asyncio.run(run())


def test_the_keys_are_read_once_in_their_interval(provider: Provider, issuer: OidcIssuer, clock: Clock) -> None:
    issuer.principal(provider.token())
    for _ in range(5):
        issuer.refresh()
    assert len(provider.asked) == 2
    clock.now_s += KEYS_LOOK_S
    for _ in range(5):
        issuer.refresh()
    assert len(provider.asked) == 4
    provider.is_away = True
    clock.now_s += KEYS_LOOK_S
    for _ in range(5):
        issuer.refresh()
    assert len(provider.asked) == 5, "an outage is asked about once in 30 s"


def test_the_intervals_are_settings(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    settings = Settings(
        auth="oidc", oidc_issuer="https://x.example", oidc_audience="a", oidc_keys_refresh_s=7, oidc_keys_grace_s=77
    )
    door = open_authenticator(settings, ledger)
    assert door is not None
    assert isinstance(door._issuer, OidcIssuer)
    assert (door._issuer._look_s, door._issuer._kept_s) == (7, 77)
    door.close()
    ledger.close()
