"""Sign-in to the console at an OIDC provider, in Chromium. The provider signs its tokens, and the service checks them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from strandline.access.oidc import LEEWAY_S
from tests.support.console import console_with_provider
from tests.support.console_browser import AXE, CHROMIUM, Watched, open_page, violations, within_ms
from tests.support.oidc_sign_in import SignInProvider, a_foreign_key
from tests.support.waiting import stretched, wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, SignInProvider]]:
    with console_with_provider(tmp_path_factory.mktemp("console")) as served:
        yield served


@pytest.fixture
def provider(served: tuple[str, SignInProvider]) -> Iterator[SignInProvider]:
    """The provider, with right answers at first."""
    found = served[1]
    yield found
    found.changed_answer, found.changed_id, found.changed_access = {}, {}, {}
    found.lasts_s, found.is_away = 300, False


@pytest.fixture
def watched(provider: SignInProvider) -> Iterator[Watched]:
    found = Watched(others=(urlsplit(provider.url).netloc,))
    yield found
    assert (found.errors, found.elsewhere) == ([], [])


def sign_in(page: Page, provider: SignInProvider) -> None:
    page.get_by_role("button", name=f"Sign in with {urlsplit(provider.url).netloc}").click()


@pytest.mark.guarantee(
    "G1010",
    "A user of an OIDC provider signs in to the console by an authorization code with PKCE. The page refuses an answer with "
    "another state, another nonce, or another issuer, and keeps no token.",
    promise="secrets-and-connections-are-protected",
)
def test_a_user_of_the_provider_signs_in_and_out_and_the_page_keeps_no_token(
    browser: Browser, served: tuple[str, SignInProvider], provider: SignInProvider, watched: Watched
) -> None:
    context, page = open_page(browser, served[0], watched)
    page.goto("/#/streams/turbines?range=6h")
    sign_in(page, provider)
    expect(page.locator(".who summary")).to_have_text("oidc:jo")
    expect(page.locator("h1")).to_have_text("turbines")
    assert page.url == f"{served[0]}/#/streams/turbines?range=6h", "the view of before, and no code in the address"
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert kept == '[{},{},""]'
    page.locator(".who summary").click()
    expect(page.locator(".who")).to_contain_text("Role: operator")
    page.reload()
    expect(page.locator(".who summary")).to_have_text("oidc:jo")

    page.locator(".who summary").click()
    page.get_by_role("button", name="Sign out").click()
    ended = "/realm/end_session?client_id=strandline-console"
    wait_until(lambda: provider.asked, lambda asked: any(path.startswith(ended) for path in asked), "a sign-out there")
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.locator(".note")).to_have_count(0)
    context.close()


WRONG_ANSWERS: dict[str, tuple[dict[str, Any], str]] = {
    "state": ({"changed_answer": {"state": "forged"}}, "doesn't belong to a sign-in that this page began"),
    "nonce": ({"changed_id": {"nonce": "forged"}}, "belongs to another sign-in"),
    "issuer of the answer": ({"changed_answer": {"iss": "https://evil.example"}}, "from another provider"),
    "issuer of the ID token": ({"changed_id": {"iss": "https://evil.example"}}, "for another application"),
    "client": ({"changed_id": {"aud": "another-client"}}, "for another application"),
    "old ID token": ({"changed_id": {"exp": 1_700_000_000}}, "has expired"),
    "refused": (
        {"changed_answer": {"error": "access_denied", "error_description": "jo may not use this"}},
        "The provider refused the sign-in: jo may not use this",
    ),
    "code": ({"changed_answer": {"code": "forged"}}, "refused the request"),
    "audience": ({"changed_access": {"aud": "another-service"}}, "the token is for another audience"),
    "signature": ({"changed_access": {"key": "foreign"}}, "not validly signed"),
}


@pytest.mark.guarantee("G1010")
@pytest.mark.parametrize("what", WRONG_ANSWERS)
def test_a_wrong_answer_of_the_provider_signs_nobody_in(
    browser: Browser, served: tuple[str, SignInProvider], provider: SignInProvider, watched: Watched, what: str
) -> None:
    changes, message = WRONG_ANSWERS[what]
    watched.expected = ("401", "400")
    for name, value in changes.items():
        setattr(provider, name, value)
    if provider.changed_access.get("key") == "foreign":
        provider.changed_access = {"key": a_foreign_key()}
    context, page = open_page(browser, served[0], watched)
    page.goto("/")
    if what == "code":
        provider._codes["forged"] = {"code_challenge": "of another page", "redirect_uri": f"{served[0]}/"}
    sign_in(page, provider)
    expect(page.get_by_role("alert")).to_contain_text(message)
    assert page.url == f"{served[0]}/"
    assert page.evaluate("fetch('/v1/session').then((answer) => answer.json()).then((one) => one.name)") is None
    assert page.evaluate("sessionStorage.length") == 0

    provider.changed_answer, provider.changed_id, provider.changed_access = {}, {}, {}
    sign_in(page, provider)
    expect(page.locator(".who summary")).to_have_text("oidc:jo")
    context.close()


def test_an_answer_that_the_page_did_not_ask_for_is_refused(
    browser: Browser, served: tuple[str, SignInProvider], watched: Watched
) -> None:
    """A link of another site can't sign a user in under another name."""
    context, page = open_page(browser, served[0], watched)
    page.goto("/?code=stolen&state=stolen")
    expect(page.get_by_role("alert")).to_contain_text("doesn't belong to a sign-in that this page began")
    assert page.url == f"{served[0]}/"
    context.close()


@pytest.mark.guarantee("G861")
def test_an_expired_token_ends_the_sign_in_and_the_view_stays(
    browser: Browser, served: tuple[str, SignInProvider], provider: SignInProvider, watched: Watched
) -> None:
    """The token is valid for 4 s on an idle machine, with the tolerance for clocks: longer than the sign-in takes."""
    watched.expected = ("401",)
    provider.lasts_s = round(stretched(4)) - LEEWAY_S
    provider.changed_id = {"exp": 4_000_000_000}
    context, page = open_page(browser, served[0], watched)
    page.goto("/#/jobs/pump-pressure")
    sign_in(page, provider)
    expect(page.locator(".who summary")).to_have_text("oidc:jo")
    # Panels that requested data in the meantime give the same reason.
    notice = page.locator("p.note[role=status]").filter(has_text="Your sign-in has ended")
    expect(notice).to_be_visible(timeout=within_ms(30))
    provider.lasts_s = 300
    page.reload()
    sign_in(page, provider)  # with the cookie of the ended session, as browsers do
    expect(page.locator("h1")).to_contain_text("pump-pressure")
    context.close()


def test_a_provider_that_does_not_respond_leaves_the_sign_in_by_token(
    browser: Browser, served: tuple[str, SignInProvider], provider: SignInProvider, watched: Watched
) -> None:
    watched.expected = ("503",)
    provider.is_away = True
    context, page = open_page(browser, served[0], watched)
    page.goto("/")
    sign_in(page, provider)
    expect(page.get_by_role("alert")).to_contain_text("status 503")
    expect(page.get_by_label("Token")).to_be_enabled()
    expect(page.get_by_role("button", name="Sign in with the token")).to_be_enabled()
    context.close()


@pytest.mark.guarantee("G860")
def test_the_policy_allows_the_provider_and_no_other_host(served: tuple[str, SignInProvider]) -> None:
    url, provider = served
    policy = httpx.get(f"{url}/").headers["content-security-policy"].split("; ")
    assert f"connect-src 'self' {provider.url.removesuffix('/realm')}" in policy
    assert sum("http" in one for one in policy) == 1


@pytest.mark.skipif(
    not AXE.exists(), reason="axe-core isn't installed (make console): the sign-in was NOT checked with it"
)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_at_the_sign_in(
    browser: Browser, served: tuple[str, SignInProvider], provider: SignInProvider, watched: Watched, theme: str
) -> None:
    provider.changed_answer = {"error": "access_denied"}
    context, page = open_page(browser, served[0], watched, theme=theme)
    page.goto("/")
    sign_in(page, provider)
    expect(page.get_by_role("alert")).to_be_visible()
    found = violations(page)
    context.close()
    assert found == []
