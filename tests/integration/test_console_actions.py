"""Each action of the console as each role, in Chromium: what the page offers, what it changes, and what the service refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from playwright.sync_api import Browser, Page, expect

from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Role
from strandline.services.jobs.dead_letters import DeadLetters, Requeued
from strandline.services.supervision.audit_jobs import AuditState
from tests.integration.test_control_api import a_directory
from tests.support.console import furnished_console
from tests.support.console_actions import PAGE_ACTIONS, PageAction, is_allowed, role_needed
from tests.support.console_browser import CHROMIUM, Watched, open_page
from tests.support.console_pictures import sign_in
from tests.support.control import Api
from tests.support.tokens import tokens_of_each_kind
from tests.support.waiting import stretched, wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, str], Api]]:
    """A service whose audits and requeued records are counted, because they need processes and Kafka."""
    with furnished_console(tmp_path, tokens=True) as (url, tokens, api):
        api.audited, api.requeued = [], []

        def audit(job: str, *_: Any) -> AuditState:
            api.audited.append(job)
            return AuditState(job, "running", None, None, 0, "starting", 0, 0, "", None)

        def requeue(_: DeadLetters, stream: str, records: list[Any], *, dry_run: bool) -> Requeued:
            api.requeued += [] if dry_run else records
            return Requeued(now={one.replay.identity for one in records})

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


def _refusal(action: PageAction) -> str:
    needed = role_needed(action.operation)
    return f"needs the right to write to stream {action.subject}" if needed == "write" else f"needs the role {needed}"


@pytest.mark.parametrize("role", [pytest.param(Role.VIEWER, marks=pytest.mark.long), Role.OPERATOR, Role.ADMIN])
def test_the_page_offers_the_actions_that_the_api_allows_and_each_has_its_effect(
    browser: Browser, console: tuple[str, dict[str, str], Api], role: Role
) -> None:
    url, tokens, api = console
    watched = Watched(expected=("404",))  # the view of a job can read it again while it is deleted
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
            expect(page.locator(action.why_not)).to_contain_text([_refusal(action)])
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


DOCUMENTS = """\
stream: gauges
partitions: 1
key: gauge
schema: {gauge: string, ts: timestamp, value: double}
---
pipeline: gauge-seconds
input: {stream: gauges}
event_time: {field: ts, delay: 1s}
steps:
  - window: {name: per_second, tumbling: 1s, by: [gauge], aggregate: {n: count(*), peak: max(value)}}
    emit: [{elasticsearch: gauge-seconds}]
"""


class RealService:
    """A control service over real servers, with the token of an admin to see what actions have changed."""

    def __init__(self, url: str, token: str) -> None:
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False)

    def get(self, path: str) -> Any:
        answer = self._client.get(path)
        return answer.json() if answer.status_code == 200 else answer.status_code

    def wait(self, path: str, wanted: Callable[[Any], object]) -> Any:
        return wait_until(lambda: self.get(path), wanted, path, 150)


def produce(bootstrap: str, first: int, count: int) -> None:
    """Write records of one gauge, one a second, and a broken one."""
    began_ms = time.time_ns() // 1_000_000 - 600_000
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + count):
        producer.produce(
            "gauges", json.dumps({"gauge": "g1", "ts": began_ms + 1_000 * number, "value": number}).encode()
        )
    producer.produce("gauges", b'{"gauge": "g1", "ts"')
    assert producer.flush(30) == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_each_action_has_its_effect_on_a_real_job(
    browser: Browser, kafka: str, elasticsearch: str, class_archive: None, tmp_path: Path
) -> None:
    executed = set()
    watched = Watched(expected=("404",))  # of the view of a job that was deleted
    with a_directory(tmp_path, kafka, elasticsearch) as control:
        control.environment["STRANDLINE_AUTH"] = "tokens"
        control.start_and_wait()
        with closing(Ledger.open(control.environment["STRANDLINE_LEDGER_URL"])) as ledger:
            tokens = tokens_of_each_kind(ledger, "gauges")
        service = RealService(control.url, tokens["admin"])
        context, page = open_page(browser, control.url, watched)
        page.goto("/")
        sign_in(page, tokens["operator"])
        page.locator("header.top").wait_for()

        def execute(operation: str, address: str, button: str) -> None:
            executed.add(operation)
            if not page.url.endswith(address):
                page.goto(f"/{address}")
            page.get_by_role("button", name=button, exact=True).click()
            page.locator("dialog[open] footer button").last.click()
            expect(page.locator("dialog[open]")).to_have_count(0, timeout=1_000 * stretched(60))

        page.goto("/#/edit")
        page.locator(".cm-content").click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(DOCUMENTS)
        page.locator(".planned h3").filter(has_text="gauge-seconds").wait_for()
        execute("POST /v1/documents", "#/edit", "Apply…")
        job, view = "/v1/jobs/gauge-seconds", "#/jobs/gauge-seconds"
        service.wait(job, lambda found: found["state"] == "running")
        produce(kafka, 0, 30)
        service.wait(job, lambda found: sum(found["counts"]["results"].values()) >= 25)
        before = service.get("/v1/streams/gauges")["records"]

        page.goto("/#/dead-letters/gauge-seconds")
        page.get_by_role("button", name="What would requeueing do?").click()
        expect(page.locator(".outcome")).to_contain_text(
            "Of 1 tried with the current version, 1 would be rejected again ("
        )
        execute("POST /v1/jobs/{name}/dead-letters/requeue", "#/dead-letters/gauge-seconds", "Requeue 1")
        expect(page.locator(".outcome")).to_contain_text("Requeued 1 of 1")
        service.wait("/v1/streams/gauges", lambda found: found["records"] >= before + 1)
        service.wait(f"{job}/dead-letters/counts", lambda found: found["dead_letters"] == 2)
        expect(page.locator("sl-requeued")).to_contain_text(
            "The job has read all requeued records: 0 accepted, 1 dead letters again", timeout=1_000 * stretched(60)
        )

        page.locator("sl-requeued").get_by_role("link", name="Dead letter").click()
        page.locator(".letter").get_by_role("link", name="Repair…").click()
        repaired = {"gauge": "g1", "ts": time.time_ns() // 1_000_000, "value": 1}
        page.get_by_label("New payload").fill(json.dumps(repaired))
        page.get_by_role("button", name="Try it").click()
        address = page.url.partition("/#")[2]
        execute("POST /v1/jobs/{name}/dead-letters/repair", address, "Repair 1")
        expect(page.locator("sl-requeued")).to_contain_text(
            "The job has read all requeued records: 1 accepted, 0 dead letters again", timeout=1_000 * stretched(60)
        )
        produce(kafka, 700, 0)
        letters = service.wait(f"{job}/dead-letters?order=newest", lambda found: len(found["dead_letters"]) == 3)
        address = f"#/dead-letters/gauge-seconds/{letters['dead_letters'][0]['number']}/repair?of=kind"
        page.goto(f"/{address}")
        page.get_by_role("combobox", name="Edit", exact=True).select_option("replace")
        page.get_by_role("textbox", name="Text").fill('"ts"')
        page.get_by_label("By").fill(f'"ts": {time.time_ns() // 1_000_000}, "value": 2}}')
        page.get_by_role("button", name="Try it").click()
        execute("POST /v1/jobs/{name}/dead-letters/repairs", address, "Repair 1")
        expect(page.locator("sl-requeued")).to_contain_text(
            "The job has read all requeued records: 1 accepted, 0 dead letters again", timeout=1_000 * stretched(60)
        )

        epoch = service.get(job)["epoch"]
        execute("POST /v1/jobs/{name}/restart", view, "Restart")
        service.wait(job, lambda found: found["epoch"] > epoch and found["state"] == "running")
        execute("POST /v1/jobs/{name}/audit", view, "Audit")
        audit = service.wait(f"{job}/audit", lambda found: found != 404 and found["state"] != "running")
        assert audit["state"] == "done", audit
        execute("POST /v1/jobs/{name}/stop", view, "Stop")
        service.wait(job, lambda found: found["state"] == "stopped")
        execute("POST /v1/jobs/{name}/start", view, "Start")
        service.wait(job, lambda found: found["state"] == "running")
        execute("POST /v1/jobs/{name}/drain", view, "Drain")
        service.wait(job, lambda found: found["state"] == "drained")
        execute("POST /v1/jobs/{name}/reset", view, "Reset to the earliest record")
        kinds = [one["kind"] for one in service.get("/v1/events?job=gauge-seconds&last=100")["events"]]
        assert "job_reset" in kinds
        execute("DELETE /v1/jobs/{name}", view, "Delete")
        assert service.get(job) == 404
        execute("POST /v1/doctor", "#/doctor", "Examine…")
        expect(page.locator("sl-doctor .changes li").first).to_be_visible(timeout=1_000 * stretched(90))
        context.close()

        context, page = open_page(browser, control.url, watched)
        page.goto("/#/tokens")
        sign_in(page, tokens["admin"])
        page.get_by_label("Name").fill("dashboard")
        execute("POST /v1/tokens", "#/tokens", "Create…")
        created = page.locator("sl-tokens .command code").inner_text()
        assert httpx.get(f"{control.url}/v1/jobs", headers={"Authorization": f"Bearer {created}"}).status_code == 200
        execute("POST /v1/tokens/{name}/revoke", "#/tokens", "Revoke dashboard")
        (revoked,) = [one for one in service.get("/v1/tokens")["tokens"] if one["name"] == "dashboard"]
        assert revoked["revoked_by"] == "admin"
        context.close()
    without_gateway = {"POST /v1/streams/{name}/records"}
    assert executed == {action.operation for action in PAGE_ACTIONS} - without_gateway
    assert (watched.errors, watched.elsewhere) == ([], [])
