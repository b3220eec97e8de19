"""The views of Operation in Chromium: their menu, audits, backfills, lookups, notices, and settings."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from strandline.services.control import ControlSettings
from tests.support.console import SECRET
from tests.support.console_browser import CHROMIUM, DESKTOP, PHONE, Watched, open_page
from tests.support.console_pictures import sign_in
from tests.support.control import Api

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")

OPERATION = ["Activity", "Audits and backfills", "Lookups", "Notices", "Doctor", "Settings", "Tokens"]


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
    expect(views.filter(has_text="Audits and")).to_contain_text("auditing pump-pressure")
    expect(views.filter(has_text="Notices")).to_contain_text("messages of 1 notice fail")
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


def test_the_differences_of_an_audit_lead_to_records_and_show_both_values(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/jobs/turbine-health")
    sign_in(page, tokens["viewer"])
    page.get_by_role("link", name="Audits and backfills").click()
    expect(page.locator("h1")).to_have_text("Audits and backfills of turbine-health")
    expect(page.locator(".why-not")).to_have_text("Audit and Backfill: needs the role operator; viewer has viewer.")
    expect(page.locator("#report .lead")).to_have_text("4 differences.")
    shown = page.locator(".differences > li")
    expect(shown).to_have_count(4)
    page.get_by_role("group", name="Kind of difference").get_by_role("button", name="different").click()
    expect(shown).to_have_count(1)
    expect(shown.locator(".held")).to_have_text(["0.8412", "2190.0"])
    expect(shown.locator(".computed")).to_have_text(["0.8401", "2188.0"])
    shown.get_by_role("link", name="Records of this result").click()
    expect(page.locator("sl-result-records .lead")).to_have_text("The result contains 12 records.")
    page.goto("/#/audits/turbine-health?kind=missing")
    expect(shown).to_have_count(2)
    expect(shown.filter(has_text="turbine-minute").get_by_role("link")).to_have_count(0)
    shown.get_by_role("link", name="Life of the record").click()
    expect(page.get_by_label("Offset")).to_have_value("402117")
    context.close()


def test_audits_and_backfills_are_listed_and_ordered_for_a_range(
    browser: Browser,
    console: tuple[str, dict[str, str], Api],
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, tokens, api = console
    ordered: list[tuple[Any, ...]] = []
    state = api.audits.state("pump-pressure")
    monkeypatch.setattr(api.audits, "start", lambda *order: (ordered.append(order), state)[1])
    context, page = open_page(browser, url, watched)
    page.goto("/#/audits?zone=local")
    sign_in(page, tokens["operator"])
    rows = page.locator(".audits tbody tr")
    expect(rows.filter(has_text="pump-pressure")).to_contain_text("25.8 % of 120 parts")
    expect(rows.filter(has_text="turbine-health")).to_contain_text("4 differences")
    expect(page.locator(".backfills tbody tr")).to_have_count(2)
    expect(page.locator(".backfills tbody tr").first).to_contain_text("35.9 % of 412,000 records")

    form, dialog = page.locator("form.range"), page.locator("dialog[open]")
    form.get_by_label("Job").select_option("turbine-health")
    form.get_by_role("button", name="Audit…").click()
    expect(dialog.locator("code")).to_have_text(
        ["strandline job audit turbine-health", "POST /v1/jobs/turbine-health/audit"]
    )
    dialog.get_by_role("button", name="Cancel").click()
    form.get_by_role("button", name="Backfill…").click()
    expect(dialog).to_have_count(0)
    form.get_by_label("Windows that end after").fill("2026-11-29T08:00:00")
    form.get_by_label("up to").fill("2026-11-29T09:00:00")
    form.get_by_role("button", name="Audit…").click()
    first_ms = 1_795_935_600_000
    expect(dialog.locator("code")).to_have_text(
        [
            "strandline job audit turbine-health --from 2026-11-29T07:00:00Z --to 2026-11-29T08:00:00Z",
            f"POST /v1/jobs/turbine-health/audit?after_ms={first_ms}&up_to_ms={first_ms + 3_600_000}",
        ]
    )
    dialog.get_by_role("button", name="Audit", exact=True).click()
    expect(dialog).to_have_count(0)
    assert ordered == [("turbine-health", first_ms, first_ms + 3_600_000)]
    context.close()


def test_a_notice_shows_its_problems_messages_and_failures(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, api = console
    context, page = open_page(browser, url, watched, size=PHONE, theme="dark")
    page.goto("/#/notices")
    sign_in(page, tokens["operator"])
    page.get_by_role("link", name="night").click()
    expect(page.locator(".now .lead")).to_contain_text("answered 503 Service Unavailable")
    problems = page.locator("sl-notices .lives li")
    expect(problems).to_have_count(2)
    expect(problems.first).to_contain_text("Job meter-energy has failed")
    expect(problems.first).to_contain_text("open for")
    expect(problems.last).to_contain_text("over")
    expect(page.locator(".messages tbody tr").first).to_contain_text("next attempt")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.get_by_label("Mute for").select_option("4")
    page.get_by_role("button", name="Mute…").click()
    dialog = page.locator("dialog[open]")
    expect(dialog.locator("code").first).to_contain_text("strandline notice mute night --until 20")
    dialog.get_by_role("button", name="Mute", exact=True).click()
    expect(page.locator(".facts")).to_contain_text("by operator")
    page.get_by_role("button", name="End muting…").click()
    expect(dialog.locator("code")).to_have_text(["strandline notice mute night --off", "POST /v1/notices/night/mute"])
    dialog.get_by_role("button", name="End muting", exact=True).click()
    expect(page.get_by_role("button", name="End muting…")).to_have_count(0)
    assert api.ledger.notice("night").muted_until_ms is None
    context.close()


def test_a_lookup_shows_its_rows_versions_changes_and_jobs(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/lookups")
    sign_in(page, tokens["operator"])
    expect(page.locator("sl-lookups tbody tr")).to_have_count(2)
    page.get_by_role("link", name="sites").click()
    expect(page.locator(".facts")).to_contain_text("turbine-export")
    expect(page.locator(".actions").first).to_contain_text("Delete isn't possible: needed by turbine-export")
    rows = page.locator(".rows tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Next").click()
    expect(rows).to_have_count(10)
    page.get_by_label("Key contains").fill("t07")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Nordkap")
    page.get_by_role("link", name="Changes").click()
    expect(page.locator("#changes .lead")).to_have_text("Since version 1: 1 added, 1 removed, and 1 changed.")
    page.locator(".versions tbody tr").last.get_by_role("link", name="Rows").click()
    expect(rows).to_contain_text("Nordhang")
    context.close()
