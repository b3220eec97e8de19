"""Edit in the console, in Chromium: versions and the way back, the confirmation of a plan, and text that isn't applied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from strandline.ledger.states import Totals
from strandline.processing.audit.reconciliation import Finding, Kind
from strandline.processing.audit.report import AuditReport, StoreReport
from strandline.services.supervision.audit_jobs import AuditState
from tests.support.console import HEALTH, furnished_console
from tests.support.console_browser import CHROMIUM, Watched, open_page
from tests.support.console_pictures import sign_in
from tests.support.control import Api
from tests.support.waiting import stretched, wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")
PLAN_MS = 1_000 * stretched(30)
"""Time for a check and a plan."""


@pytest.fixture
def console(tmp_path: Path) -> Iterator[tuple[str, dict[str, str], Api]]:
    with furnished_console(tmp_path, tokens=True) as served:
        yield served


def type_documents(page: Page, text: str) -> None:
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def apply(url: str, token: str, text: str) -> int:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/yaml"}
    return httpx.post(f"{url}/v1/documents", content=text, headers=headers, timeout=60).status_code


@pytest.mark.guarantee("G1101")
def test_a_job_goes_back_to_an_earlier_version(browser: Browser, console: tuple[str, dict[str, str], Api]) -> None:
    url, tokens, api = console
    watched = Watched()
    context, page = open_page(browser, url, watched)
    page.goto("/#/edit/jobs/turbine-health")
    sign_in(page, tokens["operator"])
    expect(page.locator(".cm-line").first).to_be_visible()
    type_documents(page, HEALTH.replace("power / 3000", "power / 3200"))
    apply = page.get_by_role("button", name="Apply…")
    expect(apply).to_be_enabled(timeout=PLAN_MS)
    apply.click()
    page.locator("dialog[open]").get_by_role("button", name="Apply", exact=True).click()

    versions = page.locator(".versions li")
    expect(versions).to_have_count(2)
    expect(versions.first).to_contain_text("by operator")
    versions.first.get_by_text("Difference from version 1").click()
    expect(versions.first.locator(".diff .removed")).to_contain_text("power / 3000")
    expect(versions.first.locator(".diff .added")).to_contain_text("power / 3200")
    versions.last.get_by_role("link", name="Edit from this version").click()
    expect(page.locator(".about")).to_contain_text("The editor began with version 1; version 2 is running")
    expect(page.locator(".cm-content")).to_contain_text("power / 3000")
    expect(page.locator(".consequences .diff .added")).to_contain_text("power / 3000")
    expect(apply).to_be_enabled(timeout=PLAN_MS)
    apply.click()
    page.locator("dialog[open]").get_by_role("button", name="Apply", exact=True).click()
    wait_until(lambda: api.ledger.job("turbine-health").version, lambda version: version == 3, "version 3")
    assert api.ledger.job_version("turbine-health").document == api.ledger.job_version("turbine-health", 1).document
    expect(versions).to_have_count(3)
    context.close()
    assert (watched.errors, watched.elsewhere) == ([], [])


@pytest.mark.guarantee("G1102")
def test_results_are_those_of_one_window_length(browser: Browser, console: tuple[str, dict[str, str], Api]) -> None:
    url, tokens, _ = console
    assert apply(url, tokens["operator"], HEALTH.replace("tumbling: 1m", "tumbling: 2m")) == 200
    watched = Watched()
    context, page = open_page(browser, url, watched)
    page.goto("/#/results/turbine-minute")
    sign_in(page, tokens["viewer"])
    note = page.locator("sl-results .note")
    expect(note).to_contain_text("Chart and table contain the windows of 2 min only, of version 2 of the job")
    expect(note).to_contain_text("143 results with windows of 1 min, of version 1")
    page.get_by_role("combobox", name="Windows").select_option(label="1 min, version 1 (143)")
    expect(note).to_contain_text("Chart and table contain the windows of 1 min only, of version 1 of the job")
    expect(note).to_contain_text("The current version has windows of another length")
    context.close()
    assert (watched.errors, watched.elsewhere) == ([], [])


def test_the_confirmation_of_a_plan_lists_rewind_and_cost_and_is_renewed(
    browser: Browser, console: tuple[str, dict[str, str], Api]
) -> None:
    url, tokens, _ = console
    watched = Watched()
    context, page = open_page(browser, url, watched)
    page.clock.install()
    page.goto("/#/edit/jobs/turbine-health")
    sign_in(page, tokens["operator"])
    expect(page.locator(".cm-line").first).to_be_visible()
    type_documents(page, HEALTH.replace("tumbling: 1m", "tumbling: 2m"))
    page.clock.run_for(1_000)
    plan = page.locator(".plan")
    expect(plan).to_contain_text("As of ", timeout=PLAN_MS)
    with page.expect_request("**/v1/documents/plan"):
        page.clock.run_for(16_000)
    apply = page.get_by_role("button", name="Apply…")
    expect(apply).to_be_enabled(timeout=PLAN_MS)
    apply.click()
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("Restarts job turbine-health with version 2.")
    expect(dialog.locator(".notes")).to_contain_text("(rewind): ")
    expect(dialog.locator(".notes")).to_contain_text("overlap")
    expect(dialog.locator(".notes")).to_contain_text("records again, about")
    expect(dialog.locator(".notes")).to_contain_text("As of ")
    context.close()
    assert (watched.errors, watched.elsewhere) == ([], [])


def test_text_that_is_not_applied_is_not_lost_without_a_question(
    browser: Browser, console: tuple[str, dict[str, str], Api]
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, Watched())
    page.goto("/#/edit/jobs/turbine-health")
    sign_in(page, tokens["operator"])
    expect(page.locator(".cm-line").first).to_be_visible()
    menu = page.get_by_role("navigation", name="Views")
    menu.get_by_role("link", name="Streams").click()
    expect(page.locator("sl-streams")).to_be_visible()
    page.go_back()
    expect(page.locator(".cm-line").first).to_be_visible()

    type_documents(page, HEALTH.replace("power / 3000", "power / 3200"))
    menu.get_by_role("link", name="Streams").click()
    question = page.get_by_role("dialog", name="Leave without applying?")
    question.get_by_role("button", name="Stay").click()
    expect(page.locator(".cm-content")).to_contain_text("power / 3200")
    expect(page).to_have_url(f"{url}/#/edit/jobs/turbine-health")
    page.go_back()
    expect(question).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".cm-content")).to_contain_text("power / 3200")
    with page.expect_event("dialog") as asked:
        page.close(run_before_unload=True)
    assert asked.value.type == "beforeunload"
    asked.value.dismiss()
    menu.get_by_role("link", name="Streams").click()
    question.get_by_role("button", name="Leave").click()
    expect(page.locator("sl-streams")).to_be_visible()
    context.close()


def test_an_audit_shows_its_progress_and_its_answer_where_it_was_ordered(
    browser: Browser, console: tuple[str, dict[str, str], Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, tokens, api = console
    state = AuditState("turbine-health", "running", None, None, 0, "comparing the documents", 1, 4, "", None)
    monkeypatch.setattr(api.audits, "start", lambda *_: state)
    monkeypatch.setattr(api.audits, "state", lambda _: state)
    watched = Watched()
    context, page = open_page(browser, url, watched)
    page.goto("/#/jobs/turbine-health")
    sign_in(page, tokens["operator"])
    expect(page.get_by_role("heading", name="Slices")).to_be_visible()
    expect(page.locator("sl-audit")).to_have_count(0)
    page.get_by_role("button", name="Audit", exact=True).click()
    page.locator("dialog[open]").get_by_role("button", name="Audit", exact=True).click()
    audit = page.locator("sl-audit")
    expect(audit).to_contain_text("Comparing the documents: 1 of 4")
    store = StoreReport("turbine-minute", "per_minute", None, 1_000, {"same": 42})
    none = Totals(0, 0, {}, {})
    report = AuditReport(
        "turbine-health", "clean", "", None, None, 1, 9, none, none, [], [], [store], 0, [], 2.5
    )  # fmt: skip
    state = replace(state, state="done", report=report)
    expect(audit).to_contain_text("clean 42 documents are equal to those computed from the log.")
    finding = Finding(Kind.MISSING, "turbine-minute", "", 1, "id-7", end_ms=60_000, detail="no document")
    differs = replace(report, outcome="differences", differences=1, sample=[finding])
    state = replace(state, report=differs)
    page.reload()
    expect(page.get_by_role("heading", name="Slices")).to_be_visible()
    page.get_by_role("button", name="Audit", exact=True).click()
    page.locator("dialog[open]").get_by_role("button", name="Audit", exact=True).click()
    expect(audit).to_contain_text("1 difference")
    expect(audit.locator(".found")).to_contain_text("no document")
    context.close()
    assert (watched.errors, watched.elsewhere) == ([], [])
