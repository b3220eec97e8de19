"""Each action of the console as each role, in Chromium: what the page offers, what it changes, and what the service refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from strandline.ledger.states import Role
from strandline.processing.emission.requeue import RequeueResult
from strandline.services.jobs.dead_letters import DeadLetters
from strandline.services.supervision.audit_jobs import AuditState
from tests.support.console import furnished_console
from tests.support.console_actions import PAGE_ACTIONS, PageAction, is_allowed, role_needed
from tests.support.console_browser import CHROMIUM, Watched, chromium, open_page
from tests.support.console_pictures import sign_in
from tests.support.control import Api
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, str], Api]]:
    """A service whose audits and requeued records are counted, because they need processes and Kafka."""
    with furnished_console(tmp_path, tokens=True) as (url, tokens, api):
        api.audited, api.requeued = [], []

        def audit(job: str, *_: Any) -> AuditState:
            api.audited.append(job)
            return AuditState(job, "running", None, None, 0, "starting", 0, 0, "", None)

        def requeue(_: DeadLetters, stream: str, records: list[Any], *, dry_run: bool) -> RequeueResult:
            api.requeued += [] if dry_run else records
            return RequeueResult(now={one.replay.identity for one in records})

        monkeypatch.setattr(api.audits, "start", audit)
        monkeypatch.setattr(DeadLetters, "_originals", lambda *_: {})
        monkeypatch.setattr(DeadLetters, "_requeue", requeue)
        yield url, tokens, api


def show(page: Page, action: PageAction) -> None:
    """Show the view of the action, complete."""
    page.goto("/#/activity")
    page.goto(f"/{action.address}")
    expect(page.locator(action.why_not).or_(page.get_by_role("button", name=action.button)).first).to_be_visible()


def execute(page: Page, action: PageAction, api: Api) -> None:
    """Confirm the dialog of the action, and wait for its effect."""
    before = action.state(api)
    dialog = page.locator("dialog[open]")
    method = action.operation.partition(" ")[0]
    expect(dialog.locator("code").last).to_contain_text(f"{method} {action.path}")
    dialog.locator("footer button").last.click()
    wait_until(
        lambda: action.state(api),
        lambda after: action.is_done(before, after),
        action.operation,
        20,
        describe=lambda: page.locator("dialog[open]").all_inner_texts(),
    )
    wait_until(dialog.all_inner_texts, lambda texts: texts == [], f"{action.operation} is confirmed", 20)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.ADMIN])
def test_the_page_offers_the_actions_that_the_api_allows_and_each_has_its_effect(
    browser: Browser, console: tuple[str, dict[str, str], Api], role: Role
) -> None:
    url, tokens, api = console
    watched = Watched()
    context, page = open_page(browser, url, watched)
    page.goto("/")
    sign_in(page, tokens[role])
    for action in PAGE_ACTIONS:
        show(page, action)
        button = page.get_by_role("button", name=action.button, exact=True)
        before = action.state(api)
        if is_allowed(role, action.operation):
            action.ready(page)
            button.click()
            execute(page, action, api)
        else:
            expect(page.locator(action.why_not)).to_contain_text([f"needs the role {role_needed(action.operation)}"])
            expect(button).to_have_count(0)
            headers = {"Authorization": f"Bearer {tokens[role]}"}
            method = action.operation.partition(" ")[0]
            answer = httpx.request(method, f"{url}{action.path}", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), action.operation
            assert action.state(api) == before, action.operation
    context.close()
    assert (watched.errors, watched.elsewhere) == ([], [])


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_the_search_finds_the_actions_that_the_api_allows(
    browser: Browser, console: tuple[str, dict[str, str], Api], role: Role
) -> None:
    url, tokens, _ = console
    watched = Watched()
    context, page = open_page(browser, url, watched)
    page.goto("/")
    sign_in(page, tokens[role])
    expect(page.locator("article.job")).to_have_count(4)
    page.keyboard.press("Control+k")
    expect(page.locator("#palette-list li").filter(has_text="meter-energy").first).to_be_visible()
    page.keyboard.type("action")
    of_jobs = [one for one in PAGE_ACTIONS if one.address.startswith("#/jobs/")]
    found = page.locator("#palette-list li")
    if all(is_allowed(role, one.operation) for one in of_jobs):
        expect(found.first).to_contain_text("Action")
    else:
        assert not any(is_allowed(role, one.operation) for one in of_jobs), "the search needs a check of each action"
        expect(found).to_have_count(0)
    context.close()
    assert (watched.errors, watched.elsewhere) == ([], [])
