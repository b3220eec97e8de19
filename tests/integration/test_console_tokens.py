"""The view of tokens in Chromium, over a control service that requires a sign-in."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.console import furnished_console
from tests.support.console_browser import CHROMIUM, PHONE, Watched, open_page
from tests.support.console_pictures import sign_in
from tests.support.control import Api
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")


def status_with(url: str, token: str) -> int:
    return httpx.get(f"{url}/v1/jobs", headers={"Authorization": f"Bearer {token}"}).status_code


def create(page: Page, name: str, **fields: str) -> None:
    """Fill in the form of a new token, and open the dialog."""
    page.get_by_label("Name").fill(name)
    if "role" in fields:
        page.get_by_label("Role").select_option(fields["role"])
    if "writes" in fields:
        page.get_by_label("May write to streams").fill(fields["writes"])
    page.get_by_role("button", name="Create…").click()


def confirm(page: Page, label: str) -> None:
    page.locator("dialog[open]").get_by_role("button", name=label, exact=True).click()


def test_an_admin_sees_a_new_token_once_and_revokes_it(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, api = console
    context, page = open_page(browser, url, watched)
    page.goto("/")
    sign_in(page, tokens["admin"])
    page.locator("details.who summary").click()
    page.get_by_role("link", name="Tokens").click()
    expect(page.locator("details.who")).not_to_have_attribute("open", "")
    rows = page.locator("sl-tokens tbody tr")
    expect(rows.filter(has_text="writer-elsewhere")).to_contain_text("not-turbines")
    expect(rows.filter(has_text="expired")).to_contain_text("expired")
    assert not any(secret in page.content() for secret in tokens.values() if secret.startswith("sl_"))

    create(page, "gauge", writes="turbines, pumps")
    expect(page.locator("dialog[open] code")).to_have_text(
        [
            "strandline token create gauge --role viewer --write 'turbines' --write 'pumps' --expires 90d",
            'POST /v1/tokens {"name":"gauge","role":"viewer","writes":["turbines","pumps"],"expires":"90d"}',
        ]
    )
    assert "gauge" not in [row.name for row in api.ledger.tokens()], "nothing happens before the admin confirms"
    confirm(page, "Create")
    expect(page.get_by_text("it can't be shown again")).to_be_visible()
    secret = page.locator("sl-tokens .command code").inner_text()
    made = next(row for row in api.ledger.tokens() if row.name == "gauge")
    assert (made.role, sorted(made.writes), made.created_by) == ("viewer", ["pumps", "turbines"], "admin")
    assert status_with(url, secret) == 200
    expect(rows.filter(has_text="gauge")).to_contain_text("by admin")
    page.goto("/#/streams")
    page.go_back()
    expect(rows.filter(has_text="gauge")).to_be_visible()
    assert secret not in page.content()
    assert secret not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")

    page.get_by_role("button", name="Revoke gauge").click()
    page.locator("dialog[open]").get_by_role("button", name="Cancel").click()
    assert status_with(url, secret) == 200
    page.get_by_role("button", name="Revoke gauge").click()
    expect(page.locator("dialog[open] code")).to_have_text(
        ["strandline token revoke gauge", "POST /v1/tokens/gauge/revoke"]
    )
    confirm(page, "Revoke")
    expect(rows.filter(has_text="gauge")).to_contain_text("revoked by admin")
    expect(page.get_by_role("button", name="Revoke gauge")).to_have_count(0)
    wait_until(lambda: status_with(url, secret), lambda status: status == 401, "the token is refused")
    context.close()


def test_a_token_that_cant_be_created_shows_the_reason(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, api = console
    watched.expected = ("409", "422")
    before = api.ledger.tokens()
    context, page = open_page(browser, url, watched, size=PHONE, theme="dark")
    page.goto("/#/tokens")
    sign_in(page, tokens["admin"])
    create(page, "No Name")
    expect(page.locator("dialog[open]")).to_have_count(0)
    problem = page.locator("dialog[open] .problem")
    for name, fields, reason in (
        ("viewer", {}, "viewer"),
        ("gauge-2", {"writes": "Not/A/Stream"}, "writes"),
        ("gauge-3", {"role": "", "writes": ""}, "role"),
    ):
        create(page, name, **fields)
        confirm(page, "Create")
        expect(problem).to_contain_text(reason)
        page.locator("dialog[open]").get_by_role("button", name="Cancel").click()
    assert api.ledger.tokens() == before
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    context.close()


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_other_roles_see_which_role_the_tokens_need(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched, role: str
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/tokens")
    sign_in(page, tokens[role])
    expect(page.locator("sl-tokens .empty")).to_have_text(
        f"The list of tokens needs the role admin; {role} has {role}."
    )
    expect(page.locator("sl-tokens form, sl-tokens table")).to_have_count(0)
    context.close()


def test_without_sign_in_the_view_explains_that_tokens_have_no_effect(
    browser: Browser, tmp_path: Path, watched: Watched
) -> None:
    with furnished_console(tmp_path, furnished=False) as (url, _, _api):
        context, page = open_page(browser, url, watched)
        page.goto("/#/tokens")
        expect(page.locator("sl-tokens .empty")).to_contain_text("Tokens have no effect while STRANDLINE_AUTH is none")
        expect(page.locator("sl-tokens form, sl-tokens table")).to_have_count(0)
        context.close()
