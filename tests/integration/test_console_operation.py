"""The views of Operation in Chromium: their menu, and settings."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from strandline.services.control import ControlSettings
from tests.support.console import SECRET
from tests.support.console_browser import CHROMIUM, DESKTOP, PHONE, Watched, open_page
from tests.support.console_pictures import sign_in
from tests.support.control import Api

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")

OPERATION = ["Activity", "Doctor", "Settings", "Tokens"]


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_each_view_of_operation_is_reached_from_one_entry_of_the_menu(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched, size: dict[str, int]
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched, size=size)
    page.goto("/")
    sign_in(page, tokens["admin"])
    menu = page.get_by_role("navigation", name="Views")
    for name in OPERATION:
        box = menu.get_by_role("link", name="Operation").bounding_box()
        assert box is not None and box["x"] + box["width"] <= size["width"], "the entry is cut off"
        menu.get_by_role("link", name="Operation").click()
        expect(page.locator(".operation h2")).to_have_text(OPERATION)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        page.locator(".operation").get_by_role("link", name=name).click()
        expect(page.locator("h1")).to_have_text(name)
        expect(page).to_have_title(f"{name} · Strandline")
        expect(menu.locator("[aria-current]")).to_have_text(["Operation"])
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        page.locator(".crumbs").get_by_role("link", name="Operation").click()
        expect(page.locator("h1")).to_have_text("Operation")
    context.close()


def test_the_search_finds_each_view_of_operation(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/")
    sign_in(page, tokens["viewer"])
    expect(page.locator("article.job").first).to_be_visible()
    for name in OPERATION:
        page.keyboard.press("Control+k")
        page.keyboard.type(f"operation {name}")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text(name)
    context.close()


def test_operation_shows_the_state_of_each_view(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/operation")
    sign_in(page, tokens["viewer"])
    views = page.locator(".operation li")
    expect(views.filter(has_text="Doctor")).to_contain_text("1 wrong")
    expect(views.filter(has_text="Settings:").or_(views.filter(has_text="Settings of"))).to_contain_text(
        "needs the role operator; viewer has viewer"
    )
    context.close()


@pytest.mark.guarantee("G1140")
def test_an_operator_sees_the_settings_and_no_secret(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/settings")
    sign_in(page, tokens["operator"])
    rows = page.locator(".settings li")
    expect(rows).to_have_count(len(ControlSettings.model_fields))
    password = rows.filter(has=page.get_by_text("STRANDLINE_KAFKA_PASSWORD", exact=True))
    expect(password).to_contain_text("set, and secret")
    expect(password).to_contain_text("from a file")
    page.get_by_label("Only values that differ from their default").check()
    expect(rows).to_have_count(8)
    page.get_by_label("Setting contains").fill("ledger url")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("postgresql+psycopg://ledger.example.org/strandline")
    expect(rows).to_contain_text("without user, password, and query")
    page.get_by_label("Setting contains").fill("replication")
    expect(rows).to_contain_text("from the environment, default 1")
    assert SECRET not in page.content()
    context.close()


def test_a_viewer_sees_which_role_the_settings_need(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched, size=PHONE, theme="dark")
    page.goto("/#/settings")
    sign_in(page, tokens["viewer"])
    expect(page.locator("sl-settings .empty")).to_have_text(
        "The list of settings needs the role operator; viewer has viewer."
    )
    expect(page.locator(".settings")).to_have_count(0)
    context.close()
