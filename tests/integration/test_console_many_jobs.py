"""The console with more jobs than a page of the list, in a browser: what it requests, and how soon it shows a change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from strandline.ledger.states import JobState
from strandline.services.rest.routes import events
from tests.support.console import furnished_console
from tests.support.console_browser import CHROMIUM, Watched, open_page, within_ms
from tests.support.control import PIPELINE, STREAM, Api
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")
JOBS = [f"job-{number:02d}" for number in range(30)]
PAGE = 25
HIDE = """(isHidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
def many(browser: Browser, tmp_path: Path, watched: Watched) -> Iterator[tuple[Page, list[str], Api]]:
    """Home of a service with 30 jobs, and the addresses of its requests."""
    with furnished_console(tmp_path, furnished=False) as (url, _, api):
        texts = [PIPELINE.replace("power", job, 1).replace("turbine-minute", f"{job}-minute") for job in JOBS]
        headers = {"Content-Type": "application/yaml"}
        answer = httpx.post(f"{url}/v1/documents", content="---\n".join([STREAM, *texts]), headers=headers, timeout=300)
        assert answer.status_code == 200, answer.text
        context, page = open_page(browser, url, watched)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto("/")
        expect(page.locator("article.job")).to_have_count(PAGE, timeout=within_ms(60))
        yield page, asked, api
        context.close()


def names_of(page: Page) -> list[str]:
    return page.locator("article.job h3 a").all_inner_texts()


@pytest.mark.guarantee("G1050")
def test_only_shown_jobs_are_requested_often(many: tuple[Page, list[str], Api]) -> None:
    """The rest is requested in one response about all jobs."""
    page, asked, _ = many
    expect(page.get_by_text("1 to 25 of 30")).to_be_visible()
    # The list is in order when each job has its explanation.
    wait_until(lambda: names_of(page), lambda names: names == JOBS[:PAGE], "the first jobs")
    asked.clear()
    page.get_by_role("link", name="Later").click()
    expect(page.get_by_text("26 to 30 of 30")).to_be_visible()
    wait_until(lambda: names_of(page), lambda names: names == JOBS[PAGE:], "the last jobs")
    shown = {"jobs": set(JOBS[PAGE:]), "histories": set(JOBS[PAGE:])}
    wait_until(lambda: _named(page, asked), lambda found: shown.items() <= found.items(), "the shown jobs by name")
    asked.clear()
    wait_until(lambda: _named(page, asked).get("jobs"), lambda names: names == shown["jobs"], "the next request")
    assert not [one for one in asked if one.endswith("/history")]
    page.get_by_role("link", name="Earlier").click()
    expect(page.get_by_text("1 to 25 of 30")).to_be_visible()


@pytest.mark.guarantee("G1050")
def test_a_job_that_fails_moves_to_the_top_before_all_jobs_are_requested_again(
    many: tuple[Page, list[str], Api],
) -> None:
    page, asked, api = many
    expect(page.locator(".link.ok")).to_be_visible()
    asked.clear()
    api.ledger.move_job(JOBS[-1], JobState.STARTING)
    api.ledger.move_job(JOBS[-1], JobState.FAILED, "it can't go on")
    expect(page.locator("article.job h3 a").first).to_have_text(JOBS[-1], timeout=within_ms(25))
    assert not [one for one in asked if urlsplit(one).path == "/v1/jobs" and "name=" not in one]


@pytest.mark.guarantee("G1050")
def test_a_hidden_page_requests_nothing_and_follows_no_events(many: tuple[Page, list[str], Api]) -> None:
    page, asked, api = many
    expect(page.locator(".link.ok")).to_be_visible()
    page.evaluate(HIDE, True)
    wait_until(lambda: len(events._following), lambda found: found == 0, "the end of the stream of events")
    page.wait_for_timeout(500)
    asked.clear()
    api.ledger.record_event("note", "unseen", job=JOBS[0])
    page.wait_for_timeout(7_000)  # longer than the interval between two requests for rows
    assert asked == []
    with page.expect_request(lambda one: urlsplit(one.url).path == "/v1/events", timeout=within_ms(60)):
        page.evaluate(HIDE, False)
    wait_until(lambda: _named(page, asked), lambda found: "jobs" in found, "rows by name")


def _named(page: Page, asked: list[str]) -> dict[str, set[str]]:
    """Return resource -> the names in its last request by name."""
    page.wait_for_timeout(200)  # receives the events of the browser
    found = [urlsplit(one) for one in asked if "name=" in one]
    return {one.path.rsplit("/", 1)[1]: set(parse_qs(one.query)["name"]) for one in found}
