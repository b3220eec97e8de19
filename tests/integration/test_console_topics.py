"""Begin with a topic of Kafka, in Chromium: choose it, see its records, and apply the proposed documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.console import furnished_console
from tests.support.console_browser import AXE, CHROMIUM, PHONE, Watched, open_page, violations, within_ms
from tests.support.console_pictures import sign_in
from tests.support.control import Api

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_topic_of_kafka_becomes_a_running_job(browser: Browser, tmp_path: Path, watched: Watched, theme: str) -> None:
    with furnished_console(tmp_path, tokens=True) as (url, tokens, api):
        context, page = open_page(browser, url, watched, theme=theme)
        page.goto("/#/begin")
        sign_in(page, tokens["operator"])
        rows = page.locator("sl-topics tbody tr")
        expect(rows.locator("td:first-child")).to_have_text(
            ["Invoices", "boilers", "meters", "pumps", "turbine-hours", "turbines"]
        )
        expect(rows.nth(0)).to_contain_text("'Invoices' is not a name")
        expect(rows.nth(5).get_by_role("link")).to_have_text("is a stream")
        page.get_by_label("Topic contains").fill("BOIL")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(rows).to_have_count(1)
        page.get_by_role("button", name="Choose boilers").click()

        expect(page.locator(".proposal")).to_contain_text("Proposal for topic boilers", timeout=within_ms(60))
        expect(page.locator(".proposal")).to_contain_text("60 records of the topic")
        expect(page.locator(".decoded tbody tr")).to_have_count(20, timeout=within_ms(60))
        expect(page.locator(".decoded tbody tr").first).to_contain_text("b-0")
        expect(page.locator(".results tbody tr").first).to_be_visible()
        expect(page.locator(".cm-content")).to_contain_text("stream: boilers")
        assert "boilers" not in [one.name for one in api.ledger.streams()]
        if AXE.exists():
            assert violations(page) == []

        page.get_by_role("button", name="Apply…").click()
        page.locator("dialog[open]").get_by_role("button", name="Apply", exact=True).click()
        expect(page.locator("h1")).to_contain_text("boilers-per-minute")
        stream = api.ledger.stream("boilers")
        assert (stream.document["partitions"], api.ledger.job("boilers-per-minute").name) == (2, "boilers-per-minute")
        context.close()


def test_a_viewer_sees_why_no_topic_can_be_chosen(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched, size=PHONE)
    page.goto("/#/begin")
    sign_in(page, tokens["viewer"])
    topics = page.locator("sl-topics")
    expect(topics).to_contain_text("The list of topics needs the role operator; viewer has viewer.")
    expect(topics.get_by_role("button")).to_have_count(0)
    context.close()


def test_a_topic_without_records_is_reported_and_another_one_can_be_chosen(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    watched.expected = ("409",)
    context, page = open_page(browser, url, watched)
    page.route(
        "**/v1/topics/boilers/proposal",
        lambda route: route.fulfill(status=409, json={"code": "x", "detail": "topic boilers contains no record"}),
    )
    page.goto("/#/begin")
    sign_in(page, tokens["operator"])
    page.get_by_role("button", name="Choose boilers").click()
    expect(page.get_by_role("alert")).to_have_text("topic boilers contains no record")
    page.unroute("**/v1/topics/boilers/proposal")
    page.get_by_role("button", name="Choose boilers").click()
    expect(page.locator(".proposal")).to_be_visible(timeout=within_ms(60))
    expect(page.get_by_role("alert")).to_have_count(0)
    context.close()
