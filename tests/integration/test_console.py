"""The console in a browser (Debian's Chromium), over a control service with a ledger in SQLite and without other servers."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from strandline.ingest.append.outcome import LogAway
from strandline.ledger.states import Desired
from strandline.log.kafka_status import StoredDeadLetter
from tests.support.console import furnished_console
from tests.support.console_browser import AXE, CHROMIUM, DESKTOP, PHONE, Watched, open_page, violations, within_ms
from tests.support.console_pictures import STEPS, VIEWS, sign_in
from tests.support.control import BOTH, Api
from tests.support.waiting import stretched, wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")


@pytest.mark.guarantee("G1050")
def test_views_that_were_left_keep_no_memory(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    """A chart that was drawn after its view was left kept the listeners of the chart, and with them the view."""
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/")
    sign_in(page, tokens["viewer"])
    devtools = context.new_cdp_session(page)

    def listeners_after_visits(count: int) -> int:
        for _ in range(count):
            page.goto("/#/jobs/turbine-health")
            expect(page.locator("sl-chart canvas").first).to_be_visible()
            page.goto("/#/")
            expect(page.locator("article.job").first).to_be_visible()
        page.wait_for_timeout(500)
        devtools.send("HeapProfiler.collectGarbage")
        return int(devtools.send("Memory.getDOMCounters")["jsEventListeners"])

    before = listeners_after_visits(3)
    assert listeners_after_visits(5) <= before + 5
    context.close()


def test_a_view_that_was_left_requests_nothing(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    """An update that was due when the view was left began its requests again, and they kept the view forever."""
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/")
    sign_in(page, tokens["viewer"])
    expect(page.locator("article.job").first).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    left = """() => {
        const view = document.createElement("sl-job");
        view.name = "turbine-health";
        document.body.append(view);
        setTimeout(() => { view.name = "pump-pressure"; view.remove(); document.body.dataset.left = "yes"; }, 500);
    }"""
    page.evaluate(left)
    page.wait_for_selector("body[data-left]")
    with page.expect_response(re.compile(r"/v1/arrivals")):  # of Home, which goes on
        pass
    assert any("/v1/jobs/turbine-health" in one for one in asked)
    assert not [one for one in asked if "/v1/jobs/pump-pressure" in one]
    context.close()


@pytest.mark.guarantee("G860")
def test_every_view_shows_its_data_without_errors_and_other_hosts(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    """Sign in, open each view, act as an operator, sign out: 0 errors, 0 reports of the policy, 0 requests to other hosts."""
    url, tokens, api = console
    watched.expected = ("401",)
    context, page = open_page(browser, url, watched)
    page.goto("/")
    page.get_by_label("Token").fill("sl_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Token").fill(tokens["operator"])
    page.get_by_role("button", name="Sign in").click()
    rows = page.locator("article.job h3 a")
    expect(rows).to_have_text(["meter-energy", "pump-pressure", "turbine-health", "turbine-export"])
    expect(page.get_by_role("row", name=re.compile("edge-01"))).to_contain_text("3.4 of 8 cores")
    expect(page.get_by_role("row", name=re.compile("edge-01"))).to_contain_text("41 GB of 512 GB 8 % left")
    expect(page.locator("article.job").first).to_contain_text("retention removed it")
    expect(page.locator("h1")).to_contain_text("2 jobs need attention")
    assert page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])") == '[{},{},""]'
    for address, there in VIEWS.values():
        page.goto(f"/{address}")
        expect(page.locator(there).first).to_be_visible()
        assert page.locator(".failure, .stale").count() == 0

    page.goto("/#/")
    page.get_by_role("link", name="strandline dead-letters list pump-pressure").click()
    expect(page).to_have_url(re.compile("#/dead-letters/pump-pressure$"))

    page.goto("/#/jobs/turbine-health")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("dialog[open] code")).to_have_text(
        ["strandline job stop turbine-health", "POST /v1/jobs/turbine-health/stop"]
    )
    page.locator("dialog[open]").get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("h1")).to_contain_text("stopped")
    assert api.ledger.job("turbine-health").desired is Desired.STOPPED
    page.get_by_role("button", name="Start", exact=True).click()
    page.locator("dialog[open]").get_by_role("button", name="Start", exact=True).click()
    expect(page.locator("h1")).to_contain_text("running")

    page.get_by_text("operator", exact=True).click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    context.close()


def test_a_viewer_sees_the_reason_instead_of_actions(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched, size=PHONE, theme="dark")
    page.goto("/#/jobs/pump-pressure")
    sign_in(page, tokens["viewer"])
    expect(page.locator(".actions")).to_contain_text("needs the role operator; viewer has viewer")
    assert page.get_by_role("button", name="Stop", exact=True).count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.goto("/#/dead-letters/pump-pressure")
    expect(page.locator(".aside")).to_contain_text(["Requeue needs the role operator"])
    context.close()


@pytest.mark.long
@pytest.mark.skipif(not AXE.exists(), reason="axe-core isn't installed (make console): views were NOT checked with it")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_in_any_view(browser: Browser, tmp_path: Path, watched: Watched, theme: str) -> None:
    with furnished_console(tmp_path, tokens=True) as (url, tokens, _api):
        context, page = open_page(browser, url, watched, theme=theme)
        page.goto("/")
        sign_in(page, tokens["admin"])
        found = {}
        for name, (address, there) in VIEWS.items():
            page.goto(f"/{address}")
            expect(page.locator(there).first).to_be_visible(timeout=within_ms(60))
            STEPS.get(name, lambda _: None)(page)
            found[name] = violations(page)
        context.close()
    assert found == {name: [] for name in VIEWS}


def test_the_life_of_a_record_leads_to_its_results_and_back(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/records")
    sign_in(page, tokens["viewer"])
    page.locator("form:not(.finder) select[name=stream]").select_option("turbines")
    page.get_by_label("Partition").fill("2")
    page.get_by_label("Offset").fill("402117")
    page.get_by_role("button", name="Show").click()
    life = page.locator("sl-record-life")
    expect(life).to_have_count(2)
    expect(life.filter(has_text="In job turbine-health")).to_contain_text(
        ["1 result contains it, and 1 open window contains it"]
    )
    expect(life.filter(has_text="In job turbine-export")).to_contain_text(["The steps left the record out"])
    page.get_by_role("link", name="Records of this result").click()
    expect(page.locator("sl-result-records .lead")).to_have_text("The result contains 12 records.")
    page.get_by_role("link", name="402109").click()
    expect(page.get_by_label("Offset")).to_have_value("402109")
    expect(life.first).to_contain_text("Steps")
    context.close()


def test_open_windows_are_searched_by_key_and_name_the_slowest_device(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/windows/turbine-health")
    sign_in(page, tokens["viewer"])
    rows = page.locator(".windows tbody tr")
    expect(rows).to_have_count(100)
    expect(page.locator("sl-windows .lead")).to_contain_text("Partition 3 of turbines holds the windows open")
    expect(page.locator("sl-windows .next")).to_contain_text("Its newest records are from T239")
    expect(page.locator("sl-windows tr.slowest")).to_contain_text("3")
    page.get_by_role("link", name="Later").click()
    expect(page.get_by_text("101 to 200 of 300")).to_be_visible()
    page.get_by_label("Key contains").fill("t07")
    page.get_by_label("Stage").select_option("per_minute")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(rows).to_have_count(4)
    expect(rows.first).to_contain_text("T07")
    assert "key=t07" in page.url
    page.reload()
    expect(rows).to_have_count(4)
    context.close()


def test_a_silent_partition_is_a_warning_at_home_and_is_said_to_hold_no_window_open(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)

    def with_silence(route: Route) -> None:
        found = route.fetch().json()
        for row in found["slices"]:
            row["silence_ms"] = {"turbines": {"3": 840_000}}
            row["rule"] |= {"idle_timeout_ms": 60_000, "watermark": "partitions"}
            row["reached"] = {"turbines": {"3": 2**52}}
        route.fulfill(json=found)

    def with_old_partition(route: Route) -> None:
        found = route.fetch().json()
        old, *others = found["arrivals"][0]["partitions"]
        for one in others:
            one["newest_ms"] = found["now_ms"]
        old["newest_ms"] = found["now_ms"] - 840_000
        found["arrivals"] = [found["arrivals"][0] | {"newest_ms": found["now_ms"]}]
        route.fulfill(json=found)

    page.route("**/slices?*", with_silence)
    page.route("**/v1/arrivals*", with_old_partition)
    page.goto("/")
    sign_in(page, tokens["viewer"])
    expect(page.locator("h1")).to_contain_text("1 stream has silent partitions", ignore_case=True)
    expect(page.locator(".badge.warn").filter(has_text="partitions silent")).to_have_count(1)
    for view in ("jobs", "windows"):
        page.goto(f"/#/{view}/turbine-health")
        silent = page.get_by_text("Partition 3 is silent: it is ignored since")
        expect(silent).to_contain_text("doesn't hold windows open")
        expect(silent).not_to_contain_text("Partition 3 is the slowest")
    context.close()


def test_results_of_more_keys_than_the_chart_draws_are_all_in_the_table(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)

    def with_keys(route: Route) -> None:
        found = route.fetch().json()
        found["series"] = [found["series"][0] | {"key": f"K{at:02d}"} for at in range(20)]
        route.fulfill(json=found)

    def with_kibana(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | {"kibana_url": "https://kibana.example.org"})

    page.route(re.compile(r"/v1/results/[^/?]+\?"), with_keys)
    page.route(re.compile(r"/v1/results$"), with_kibana)
    page.goto("/#/results")
    sign_in(page, tokens["viewer"])
    expect(page.locator("sl-results tbody tr")).to_have_count(20)
    view = page.locator("sl-results")
    expect(view).to_contain_text("The table has all 20 keys. The chart draws 16 of 20; choose others in the table.")
    address = re.compile(r"^https://kibana\.example\.org/app/dashboards#/view/strandline-[\w-]+$")
    expect(view.get_by_role("link", name="Dashboard in Kibana")).to_have_attribute("href", address)
    view.get_by_role("button", name="K19").click()
    expect(view).to_contain_text("The chart draws 17 of 20")
    context.close()


def test_the_silent_device_comes_first_and_devices_are_searched(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/streams/turbines")
    sign_in(page, tokens["viewer"])
    page.get_by_role("link", name="Devices").click()
    rows = page.locator("sl-devices tbody tr")
    expect(rows).to_have_count(100)
    expect(rows.first).to_contain_text("T007")
    expect(rows.first).to_contain_text("silent")
    expect(rows.first.get_by_role("link", name="T007")).to_have_attribute(
        "href", re.compile(r"#/records/turbines/\d+/\d+$")
    )
    expect(page.locator("sl-devices")).to_contain_text("Devices without a record since then can be missing")
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("101 to 200 of 240")).to_be_visible()
    page.get_by_label("Device contains").fill("t01")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(rows).to_have_count(10)
    context.close()


def test_a_record_is_found_by_its_device_or_its_payload_and_leads_to_its_life(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/streams/turbines")
    sign_in(page, tokens["viewer"])
    newest = page.locator("sl-found-records tbody tr")
    expect(newest).to_have_count(10)
    expect(newest.first).to_contain_text("state running")
    payload = page.request.get("/v1/streams/turbines/records?device=T011&limit=1").json()["page"][0]["text"]
    page.get_by_role("link", name="Find a record").click()
    page.get_by_label("Device contains").fill("t007")
    page.get_by_role("button", name="Find", exact=True).click()
    found = page.locator("sl-found-records")
    expect(found.locator("tbody tr").first).to_contain_text("T007")
    expect(found).to_contain_text("Only records since")
    page.get_by_label("Device contains").fill("")
    page.get_by_label("Payload").fill(payload.replace(": ", ":"))
    page.get_by_role("button", name="Find", exact=True).click()
    expect(found.locator("tbody tr")).to_have_count(1)
    expect(found.locator("tbody tr").first).to_contain_text("T011")
    found.locator("tbody a").first.click()
    page.wait_for_url(re.compile(r"#/records/turbines/3/\d+$"))
    context.close()


def test_an_undeclared_field_is_added_to_the_schema(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/streams/turbines")
    sign_in(page, tokens["operator"])
    page.get_by_role("link", name="Add $.extra to the schema").click()
    expect(page.locator(".cm-content")).to_contain_text("extra: {type: double, required: false}")
    expect(page.locator("sl-documents")).to_contain_text("job turbine-health uses this version from its next slice")
    context.close()


@pytest.mark.long
def test_an_empty_service_shows_ways_to_begin_and_the_first_job_when_it_exists(
    browser: Browser, tmp_path: Path, watched: Watched
) -> None:
    with furnished_console(tmp_path, furnished=False) as (url, _, _api):
        context, page = open_page(browser, url, watched)
        page.goto("/")
        expect(page.locator(".ways h2")).to_have_text(["Your own records", "The example", "The tutorial"])
        headers = {"Content-Type": "application/yaml"}
        assert httpx.post(f"{url}/v1/documents", content=BOTH, headers=headers).status_code == 200
        expect(page.locator("article.job h3 a")).to_have_text(["power"])
        context.close()


@pytest.mark.long
def test_panels_fail_alone_and_the_page_reconnects(browser: Browser, tmp_path: Path) -> None:
    watched = Watched()
    with furnished_console(tmp_path) as (url, _, _api):
        context, page = open_page(browser, url, watched)
        page.goto("/")
        expect(page.locator("article.job")).to_have_count(4)
        expect(page.locator(".link.ok")).to_be_visible()
        page.route(
            "**/v1/arrivals?*", lambda route: route.fulfill(status=503, json={"code": "x", "detail": "Kafka is away"})
        )
        expect(page.locator(".stale")).to_contain_text("old: Kafka is away", timeout=within_ms(60))
        expect(page.locator("article.job")).to_have_count(4)
        page.unroute("**/v1/arrivals?*")
        expect(page.locator(".stale")).to_have_count(0, timeout=within_ms(60))
        context.set_offline(True)
        expect(page.locator(".stale").first).to_contain_text(
            "The control service doesn't respond", timeout=within_ms(60)
        )
        context.set_offline(False)
        expect(page.locator(".stale")).to_have_count(0, timeout=within_ms(60))
        context.close()
    assert watched.elsewhere == []


@pytest.mark.long
def test_the_page_can_be_used_with_the_keyboard_alone(browser: Browser, tmp_path: Path, watched: Watched) -> None:
    with furnished_console(tmp_path) as (url, _, api):
        context, page = open_page(browser, url, watched, size=DESKTOP)
        page.goto("/")
        expect(page.locator("article.job")).to_have_count(4)
        page.keyboard.press("Control+k")
        expect(page.locator("#palette-list li")).to_have_count(12)
        page.keyboard.type("restart pump")
        expect(page.locator("#palette-list li")).to_have_text(["Restart pump-pressureAction"])
        page.keyboard.press("Enter")
        expect(page.locator("dialog[open] h2")).to_have_text("Restart: pump-pressure")
        before = api.ledger.job("pump-pressure").epoch
        page.locator("dialog[open]").get_by_role("button", name="Restart", exact=True).focus()
        page.keyboard.press("Enter")
        wait_until(lambda: api.ledger.job("pump-pressure").epoch, lambda epoch: epoch > before, "another run")
        page.keyboard.press("Control+k")
        page.keyboard.type("dead")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Dead letters")
        context.close()


SAMPLE = """\
time,meter,kwh
2026-11-30T08:00:00Z,m1,3.5
2026-11-30T08:00:20Z,m2,4.5
2026-11-30T08:00:40Z,m1,4.5
2026-11-30T08:01:00Z,m2,5.5
"""


@pytest.mark.parametrize("role", ["operator", "admin"])
def test_a_pasted_sample_becomes_a_running_job_and_its_first_records(
    browser: Browser, tmp_path: Path, watched: Watched, role: str
) -> None:
    with furnished_console(tmp_path, tokens=True, furnished=False) as (url, tokens, api):
        context, page = open_page(browser, url, watched)
        page.goto("/")
        sign_in(page, tokens[role])
        page.get_by_role("link", name="Begin with a sample").click()
        page.get_by_label("Records", exact=True).fill(SAMPLE)
        page.get_by_label("Name of the stream").fill("meters")
        page.get_by_role("button", name="Propose").click()
        expect(page.locator(".decoded tbody tr")).to_have_count(4, timeout=within_ms(60))
        expect(page.locator(".decoded tbody tr").first).to_contain_text("3.5")
        results = page.locator(".results tbody tr")
        expect(results).to_have_count(3)
        expect(results.filter(has_text="m1")).to_contain_text("4")
        expect(page.locator(".cm-content")).to_contain_text("stream: meters")
        assert api.ledger.streams() == [], "nothing is registered before the user applies"

        page.get_by_role("button", name="Apply…").click()
        dialog = page.locator("dialog[open]")
        expect(dialog.locator("code")).to_have_text(["strandline apply meters.yaml", "POST /v1/documents"])
        dialog.get_by_role("button", name="Apply", exact=True).click()
        expect(page.locator("h1")).to_have_text("Send the first records")
        assert [one.name for one in api.ledger.streams()] == ["meters"]
        first = page.locator("sl-first-records")
        if role == "operator":
            expect(first).to_contain_text(
                "Sending needs the right to write to stream meters, which operator doesn't have"
            )
            expect(first.locator(".senders code").first).to_contain_text("/v1/streams/meters/records")
        else:
            first.get_by_role("button", name="Send these 4 records…").click()
            expect(dialog).to_contain_text("POST /v1/streams/meters/records")
            dialog.get_by_role("button", name="Send", exact=True).click()
            expect(first.locator(".lead")).to_have_text("4 records are in the log.")
            assert api.sent.values == [("meters", line.encode()) for line in SAMPLE.splitlines()[1:]]
            expect(first).to_contain_text("A window has a result when it closes.")
        context.close()


def test_the_page_of_a_stream_sends_records_and_shows_how_devices_send(
    browser: Browser, tmp_path: Path, watched: Watched
) -> None:
    watched.expected = ("415", "503")
    with furnished_console(tmp_path, furnished=False) as (url, _, api):
        headers = {"Content-Type": "application/yaml"}
        stream = BOTH.replace("retention: 7d", "retention: 7d\nmqtt: {topics: [farm/+]}")
        assert httpx.post(f"{url}/v1/documents", content=stream, headers=headers).status_code == 200
        context, page = open_page(browser, url, watched)
        page.goto("/#/streams/turbines")
        panel = page.locator("sl-sending")
        curl = panel.locator(".senders .command code").first.inner_text()
        record = shlex.split(curl)[shlex.split(curl).index("--data-binary") + 1]
        assert set(json.loads(record)) == {"turbine", "ts", "power"}
        expect(panel).to_contain_text("Topics farm/+ at mqtt://127.0.0.1:1884")

        panel.get_by_role("button", name="Use an example").click()
        api.sent.end = LogAway("Kafka is away")
        panel.get_by_role("button", name="Send…").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_role("button", name="Send", exact=True).click()
        expect(dialog.get_by_role("alert")).to_contain_text("Kafka is away")
        assert api.sent.values == []
        api.sent.end = None
        dialog.get_by_role("button", name="Send", exact=True).click()
        expect(panel.get_by_role("status")).to_have_text("1 record is in the log.")
        assert [json.loads(value).keys() for _, value in api.sent.values] == [{"turbine", "ts", "power"}]

        api.sent.values.clear()
        panel.get_by_label("Records, one per line or a JSON array").fill(
            '[\n  {"turbine": "a"},\n  {"turbine": "b"}\n]'
        )
        panel.get_by_role("button", name="Send…").click()
        dialog.get_by_role("button", name="Send", exact=True).click()
        expect(panel.get_by_role("status")).to_have_text("2 records are in the log.")
        assert [json.loads(value) for _, value in api.sent.values] == [{"turbine": "a"}, {"turbine": "b"}]
        context.close()


def test_new_records_can_be_added_from_home_streams_and_the_search(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    for role, is_offered in (("operator", True), ("viewer", False)):
        context, page = open_page(browser, url, watched)
        page.goto("/")
        sign_in(page, tokens[role])
        for address, complete in (("/#/", "article.job"), ("/#/streams", "sl-streams tbody tr")):
            page.goto(address)
            expect(page.locator(complete).first).to_be_visible()
            expect(page.get_by_role("link", name="Add records…")).to_have_count(int(is_offered))
        page.keyboard.press("Control+k")
        for word in ("new", "add", "create", "start", "send", "sample", "topic"):
            page.get_by_label("Search jobs, streams, results, actions").fill(word)
            expect(page.locator("#palette-list li").filter(has_text="Begin with a sample")).to_be_visible()
        context.close()


def test_a_change_is_planned_while_it_is_typed_and_then_applied(
    browser: Browser, tmp_path: Path, watched: Watched
) -> None:
    with furnished_console(tmp_path, tokens=True) as (url, tokens, api):
        context, page = open_page(browser, url, watched)
        page.goto("/#/jobs/turbine-health")
        sign_in(page, tokens["operator"])
        page.get_by_role("link", name="Edit", exact=True).click()
        expect(page.locator(".cm-line").first).to_have_text("pipeline: turbine-health")
        plan, apply = page.locator(".plan"), page.get_by_role("button", name="Apply…")
        expect(plan).to_contain_text("Applying would change nothing", timeout=within_ms(60))
        expect(apply).to_be_disabled()
        text = api.ledger.job_version("turbine-health").text

        write(page, text.replace("tumbling: 1m", "tumbling: 1mm"))
        expect(page.locator(".found li")).to_contain_text(["line 9, column 17"])
        expect(page.locator(".cm-lintRange-error")).to_have_text("1mm")
        expect(plan).to_contain_text("Correct the problems first")
        expect(apply).to_be_disabled()

        write(page, text.replace("elasticsearch: turbine-minute", "elasticsearch: turbine-peaks"))
        expect(plan.locator(".changes li").first).to_contain_text("forbidden")
        expect(plan).to_contain_text("Apply would be refused")
        expect(apply).to_be_disabled()

        write(page, text.replace("power / 3000", "power / 3200"))
        expect(plan.locator(".changes li")).to_contain_text(["rewind"])
        expect(plan).to_contain_text("records again")
        expect(page.locator(".diff .removed")).to_contain_text("power / 3000")
        expect(page.locator(".diff .added")).to_contain_text("power / 3200")
        apply.click()
        expect(page.locator("dialog[open]")).to_contain_text("Restarts job turbine-health with version 2.")
        page.locator("dialog[open]").get_by_role("button", name="Apply", exact=True).click()
        expect(page.locator(".about")).to_contain_text("Version 2")
        assert "power / 3200" in api.ledger.job_version("turbine-health").text
        context.close()


def test_the_editor_of_one_of_several_pipelines_opens_and_previews_that_pipeline(
    browser: Browser, tmp_path: Path, watched: Watched
) -> None:
    with furnished_console(tmp_path, tokens=True) as (url, tokens, api):
        text = api.ledger.job_version("turbine-health").text
        more = "".join(f"---\n{text.replace('turbine-', name)}" for name in ("second-", "third-"))
        headers = {"Authorization": f"Bearer {tokens['operator']}", "Content-Type": "application/yaml"}
        answer = httpx.post(f"{url}/v1/documents", content=text + more, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        context, page = open_page(browser, url, watched)
        page.goto("/#/edit/jobs/third-health")
        sign_in(page, tokens["viewer"])
        expect(page.locator(".cm-opened")).to_have_text("pipeline: third-health", timeout=within_ms(60))
        expect(page.locator(".cm-opened")).to_be_in_viewport()
        expect(page.locator(".about")).to_contain_text("The text contains 3 pipelines that were applied together.")
        page.get_by_role("button", name="Run over the newest 500 records").click()
        expect(page.locator(".results")).to_contain_text("Pipeline third-health:", timeout=within_ms(60))
        context.close()


def test_a_viewer_plans_a_change_and_sees_why_it_cant_be_applied(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched, size=PHONE, theme="dark")
    page.goto("/#/edit/jobs/pump-pressure")
    sign_in(page, tokens["viewer"])
    expect(page.locator(".plan")).to_contain_text(
        "Apply needs the role operator; viewer has viewer.", timeout=within_ms(60)
    )
    expect(page.get_by_role("button", name="Apply…")).to_have_count(0)
    expect(page.locator(".cm-line").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    context.close()


@pytest.mark.long
def test_the_editor_completes_keys_of_the_schema_at_the_position(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/edit")
    sign_in(page, tokens["viewer"])
    expect(page.locator(".cm-line").first).to_have_text("stream: readings")
    for text, offered in (
        ("pipeline: p\nsteps:\n  - window: {tum", "tumbling"),
        ("pipeline: p\nsteps:\n  - window:\n      slid", "sliding"),
        ("stream: s\nform", "format"),
        ("stream: s\nschema: {pressure: double}\n---\npipeline: p\nsteps:\n  - where: pres", "pressure"),
    ):
        write(page, text[:-1])
        page.keyboard.type(text[-1])
        expect(page.locator(".cm-tooltip-autocomplete li").filter(has_text=offered).first).to_be_visible()
        page.keyboard.press("Escape")
    context.close()


def test_the_editor_reports_that_it_cant_complete_words_and_tries_again(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    watched.expected = ("503",)
    context, page = open_page(browser, url, watched)
    problem = {"code": "unavailable", "detail": "The schema is away."}
    page.route("**/v1/documents/schema", lambda route: route.fulfill(status=503, json=problem))
    page.goto("/#/edit")
    sign_in(page, tokens["viewer"])
    note = page.locator("sl-editor > p").last
    expect(note).to_contain_text("the schema of documents can't be read: The schema is away.")
    write(page, "stream: s\nform")
    expect(page.locator(".cm-content")).to_contain_text("form")
    page.unroute("**/v1/documents/schema")
    page.get_by_role("button", name="Try again").click()
    expect(note).to_have_text("Ctrl-Space completes words. Esc, then Tab leaves the editor.")
    page.locator(".cm-content").click()
    page.keyboard.press("Control+End")
    page.keyboard.press("Control+Space")
    expect(page.locator(".cm-tooltip-autocomplete li").filter(has_text="format").first).to_be_visible()
    context.close()


def write(page: Page, text: str) -> None:
    """Replace the documents in the editor."""
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def test_durations_and_fields_are_written_for_people(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, api = console
    message = "ts: 2031-12-01T00:00:00Z is 157679999876 ms ahead of its log time, more than 260w4d"
    headers = {"reason": "future_event", "message": message, "stream": "pumps", "partition": "0", "offset": "7"}
    api.log.letters.append(StoredDeadLetter(64, time.time_ns() // 1_000_000, headers, b"{}"))
    context, page = open_page(browser, url, watched)
    page.goto("/#/dead-letters/pump-pressure/64")
    sign_in(page, tokens["viewer"])
    expect(page.locator(".letter .lead")).to_have_text(
        "ts: 2031-12-01T00:00:00Z is 5 years ahead of its log time, more than 5 years"
    )
    api.log.letters.pop()
    context.close()


def test_a_click_applies_the_proposed_type(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/begin")
    sign_in(page, tokens["operator"])
    sample = "".join(f'{{"pump": "p-{n % 2}", "at": "2026-11-30T08:00:{n:02}Z", "wert": {n}}}\n' for n in range(20))
    page.locator("#sample").fill(sample)
    page.get_by_role("button", name="Propose").click()
    editor = page.locator(".cm-content")
    expect(editor).to_contain_text("wert: long", timeout=1_000 * stretched(30))
    page.get_by_role("button", name="Make wert a double").click()
    expect(editor).to_contain_text("wert: double")
    expect(page.get_by_role("button", name="Make wert a double")).to_have_count(0)
    context.close()


def test_the_menu_stays_at_the_job_that_is_open(
    browser: Browser, console: tuple[str, dict[str, str], Api], watched: Watched
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, watched)
    page.goto("/#/jobs/meter-energy")
    sign_in(page, tokens["viewer"])
    menu = page.get_by_role("navigation", name="Views")
    menu.get_by_role("link", name="Dead letters").click()
    expect(page).to_have_url(re.compile("#/dead-letters/meter-energy$"))
    menu.get_by_role("link", name="Results").click()
    expect(page.locator(".about")).to_contain_text("of job meter-energy")
    page.goto("/#/results/turbine-hour")
    expect(page.locator(".about")).to_contain_text("of job turbine-health")
    menu.get_by_role("link", name="Dead letters").click()
    expect(page).to_have_url(re.compile("#/dead-letters/turbine-health$"))
    context.close()
