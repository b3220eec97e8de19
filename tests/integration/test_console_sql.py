"""Documents in SQL in the editor of the console, in Chromium: converted, completed, checked, planned, compared, and applied."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.test_console import write
from tests.support.console import furnished_console
from tests.support.console_browser import AXE, CHROMIUM, Watched, open_page, violations, within_ms
from tests.support.console_pictures import sign_in
from tests.support.control import Api

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")


def text_of(page: Page) -> str:
    """Return the text in the editor."""
    return "\n".join(line.rstrip("\n") for line in page.locator(".cm-line").all_inner_texts())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_job_is_changed_in_sql(browser: Browser, tmp_path: Path, watched: Watched, theme: str) -> None:
    with furnished_console(tmp_path, tokens=True) as (url, tokens, api):
        context, page = open_page(browser, url, watched, theme=theme)
        page.goto("/#/edit/jobs/turbine-health")
        sign_in(page, tokens["operator"])
        plan, apply = page.locator(".plan"), page.get_by_role("button", name="Apply…")
        page.get_by_role("button", name="SQL", exact=True).click()
        expect(page.get_by_role("textbox", name="Documents in SQL")).to_contain_text("create job `turbine-health`")
        expect(plan).to_contain_text("Applying would change nothing", timeout=within_ms(60))
        expect(page.locator(".diff")).to_have_count(0)
        text = text_of(page)

        write(page, text.replace("avg(load)", "avg(laod)"))
        line = next(at for at, one in enumerate(text.split("\n"), 1) if "avg(load)" in one)
        column = text.split("\n")[line - 1].index("avg(load)") + 1
        expect(page.locator(".found li").first).to_contain_text(f"line {line}, column {column}", timeout=within_ms(60))
        expect(page.locator(".cm-lintRange-error").first).to_have_text("avg")
        expect(apply).to_be_disabled()

        write(page, text.replace("power / 3000", "power / 3200"))
        expect(plan.locator(".changes li")).to_contain_text(["rewind"], timeout=within_ms(60))
        expect(page.locator(".diff .removed")).to_contain_text("power / 3000")
        expect(page.locator(".diff .added")).to_contain_text("power / 3200")
        if AXE.exists():
            assert violations(page) == []
        apply.click()
        dialog = page.locator("dialog[open]")
        expect(dialog.locator("code").first).to_have_text("strandline apply turbine-health.sql")
        dialog.get_by_role("button", name="Apply", exact=True).click()
        expect(page.locator(".about")).to_contain_text("Version 2", timeout=within_ms(60))
        version = api.ledger.job_version("turbine-health")
        assert "power / 3200" in version.text
        assert version.text.startswith("pipeline: turbine-health")
        context.close()


TANKS = """\
-- levels of tanks
create stream tanks (tank string, ts timestamp, level double) with (key = 'tank');
create job levels with (delay = '10s') as
insert into elasticsearch 'levels'
select tank, window_start, window_end, avg(level) as level
from table(tumble(table tanks, descriptor(ts), interval '1' minute))
group by tank, window_start, window_end;
"""


def test_new_documents_in_sql_are_completed_and_converted_back(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/edit")
    sign_in(page, tokens["viewer"])
    expect(page.locator(".cm-line").first).to_have_text("stream: readings")
    page.get_by_role("button", name="SQL", exact=True).click()
    expect(page.locator(".cm-line").first).to_have_text("create stream readings (")
    offers = page.locator(".cm-tooltip-autocomplete li")
    for before, after, offered in (
        ("create str", "", "stream"),
        ("create view v as select * from pum", "", "pumps"),
        ("create view v as select pres", " from pumps", "pressure"),
        (
            "create stream tanks (tank string, level array<double>);\ncreate view v as select lev",
            " from tanks",
            "level",
        ),
        ("create view v as select medi", "", "median"),
        ("create view v as select * from table(tumb", "", "tumble"),
    ):
        write(page, before[:-1] + after)
        for _ in after:
            page.keyboard.press("ArrowLeft")
        page.keyboard.type(before[-1])
        expect(offers.filter(has_text=offered).first).to_be_visible()
        page.keyboard.press("Escape")

    write(page, TANKS)
    expect(page.locator(".documents .badge")).to_contain_text("valid", timeout=within_ms(60))
    expect(page.locator(".planned h3")).to_have_text(["Stream tanks", "Job levels"])
    page.get_by_role("button", name="YAML", exact=True).click()
    expect(page.locator(".cm-content")).to_contain_text("pipeline: levels")
    expect(page.locator(".documents .note")).to_contain_text("Converted from SQL, without its comments.")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".cm-line").first).to_have_text("-- levels of tanks")
    context.close()


def test_documents_that_sql_cannot_express_stay_in_yaml(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    watched.expected = ("409",)
    context, page = open_page(browser, url, watched)
    page.goto("/#/edit")
    sign_in(page, tokens["viewer"])
    expect(page.locator(".cm-line").first).to_have_text("stream: readings")
    write(page, "notice: failures\nwhen: [job_failed]\nsend: [{webhook: {url: 'http://localhost/'}}]\n")
    page.get_by_role("button", name="SQL", exact=True).click()
    expect(page.locator(".documents .problem")).to_contain_text(
        "The documents stay in YAML: SQL has no form for notice"
    )
    expect(page.locator(".cm-line").first).to_have_text("notice: failures")
    context.close()
