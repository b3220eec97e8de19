"""Sign-ins that end while a view is open, in Chromium: users continue in the view, and nothing that they have typed is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from strandline.access.oidc import LEEWAY_S
from tests.support.console import console_with_provider, furnished_console
from tests.support.console_browser import AXE, CHROMIUM, Watched, open_page, violations, within_ms
from tests.support.console_pictures import sign_in
from tests.support.oidc_sign_in import SignInProvider
from tests.support.waiting import stretched, wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")

SAMPLE = '{"device": "d1", "time": "2026-11-30T08:00:00Z", "level": 4.5}\n'
ENDED = "Your sign-in has ended"
PROPOSE = "document.querySelector('.sample form').requestSubmit()"
"""The button can't be clicked if a request of the page itself has opened the dialog already."""
STORED = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, SignInProvider]]:
    with console_with_provider(tmp_path_factory.mktemp("console")) as served:
        yield served


def no_violations(page: Page) -> None:
    if AXE.exists():
        assert violations(page) == []


def lasts_s(idle_s: int) -> int:
    """Return how long a sign-in lasts, so that a busy machine shows the view before the end. It is `idle_s` on an idle one."""
    return min(round(stretched(idle_s)), 90)


def wait_until_refused(page: Page) -> None:
    """Wait until the service refuses the session of the page. It reads revocations now and then."""
    wait_until(lambda: page.request.get("/v1/jobs").status, lambda status: status == 401, "refused")


@pytest.mark.guarantee(
    "G1061",
    "If a sign-in to the console ends while a view is open, the view stays, hidden, until the user has signed in again. What the "
    "user has typed is kept. A user with fewer rights begins with a new view.",
    promise="secrets-and-connections-are-protected",
)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_revoked_token_is_replaced_in_a_dialog_and_the_typed_text_stays(
    browser: Browser, tmp_path: Path, watched: Watched, theme: str
) -> None:
    watched.expected = ("401",)
    with furnished_console(tmp_path, tokens=True, furnished=False) as (url, tokens, api):
        context, page = open_page(browser, url, watched, theme=theme)
        page.goto("/#/begin")
        sign_in(page, tokens["operator"])
        text = page.get_by_label("Records", exact=True)
        text.fill(SAMPLE)
        api.ledger.revoke_token("operator", "admin")
        wait_until_refused(page)
        page.evaluate(PROPOSE)
        dialog = page.locator("dialog.ended")
        expect(dialog).to_contain_text(ENDED, timeout=within_ms(30))
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        expect(dialog).to_be_visible()
        no_violations(page)
        dialog.get_by_label("Token").fill("sl_wrong")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_be_visible()
        dialog.get_by_label("Token").fill(tokens["admin"])
        page.keyboard.press("Enter")
        expect(page.locator("dialog[open]")).to_have_count(0)
        expect(page.locator(".who summary")).to_have_text("admin")
        expect(text).to_have_value(SAMPLE)
        page.get_by_role("button", name="Propose").click()
        expect(page.locator(".proposal")).to_be_visible(timeout=within_ms(60))

        api.ledger.revoke_token("admin", "admin")
        wait_until_refused(page)
        page.evaluate(PROPOSE)
        expect(dialog).to_be_visible(timeout=within_ms(30))
        dialog.get_by_label("Token").fill(tokens["viewer"])
        page.keyboard.press("Enter")
        expect(page.locator(".who summary")).to_have_text("viewer")
        expect(text).to_have_value("")
        context.close()


@pytest.mark.guarantee("G1061")
def test_a_user_of_the_provider_signs_in_again_in_a_window_and_the_view_stays(
    browser: Browser, served: tuple[str, SignInProvider]
) -> None:
    url, provider = served
    watched = Watched(others=(urlsplit(provider.url).netloc,), expected=("401",))
    provider.lasts_s, provider.renews = lasts_s(20) - LEEWAY_S, False
    provider.changed_id = {"exp": 4_000_000_000}
    context, page = open_page(browser, url, watched)
    page.goto("/#/edit")
    page.get_by_role("button", name=f"Sign in with {urlsplit(provider.url).netloc}").click()
    expect(page.locator(".ending")).to_contain_text("Your sign-in ends at", timeout=within_ms(30))
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("stream: gauges\nschema: {gauge: string}\n# half")
    dialog = page.locator("dialog.ended")
    expect(dialog).to_contain_text(ENDED, timeout=within_ms(60))
    provider.lasts_s = 3_600
    with context.expect_page() as opened:
        dialog.get_by_role("button", name="Sign in with").first.click()
    expect(page.locator("dialog[open]")).to_have_count(0, timeout=within_ms(60))
    expect(page.locator(".ending")).to_have_count(0)
    expect(page.locator(".cm-content")).to_contain_text("# half")
    expect(page.locator(".documents .badge")).to_contain_text("valid", timeout=within_ms(60))
    assert page.evaluate(STORED) == '[{},{},""]'
    if not opened.value.is_closed():
        expect(opened.value.get_by_role("status")).to_contain_text("Close this window")
    context.close()
    assert (watched.errors, watched.elsewhere) == ([], [])


@pytest.mark.guarantee("G1060")
def test_the_service_renews_a_sign_in_while_the_page_is_open(
    browser: Browser, served: tuple[str, SignInProvider]
) -> None:
    url, provider = served
    watched = Watched(others=(urlsplit(provider.url).netloc,))
    provider.lasts_s, provider.renews = lasts_s(30) - LEEWAY_S, True
    provider.changed_id = {"exp": 4_000_000_000}
    provider.renewals.clear()
    context, page = open_page(browser, url, watched)
    page.goto("/#/jobs/turbine-health")
    page.get_by_role("button", name=f"Sign in with {urlsplit(provider.url).netloc}").click()
    expect(page.locator("h1")).to_contain_text("turbine-health")
    wait_until(
        lambda: (page.wait_for_timeout(500), len(provider.renewals))[1], lambda count: count >= 2, "two renewals"
    )
    expect(page.locator("dialog[open], .ending")).to_have_count(0)
    expect(page.locator(".link.ok")).to_be_visible()
    assert page.evaluate(STORED) == '[{},{},""]'
    context.close()
    assert (watched.errors, watched.elsewhere) == ([], [])
