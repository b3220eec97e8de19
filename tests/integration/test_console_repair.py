"""Repair of dead letters in the console, in Chromium: the way to it, the dry run, the requeue, and what became of the records."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from playwright.sync_api import Browser, Page, expect

from strandline.log.kafka_status import StoredDeadLetter
from strandline.log.reader import OffsetRange
from strandline.processing.lineage.views import RecordLife, RecordRowView
from strandline.services.jobs.dead_letters import DeadLetters, Requeued
from strandline.services.jobs.traces import Traces
from tests.support.console import furnished_console
from tests.support.console_browser import CHROMIUM, Watched, open_page
from tests.support.console_pictures import sign_in
from tests.support.control import Api

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the console was NOT looked at")
NOT_READ = 10**9


class Stream:
    """The stream of the requeued records, which needs Kafka."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.offset = NOT_READ
        """Offset of the first requeued record."""

    def requeue(self, _: DeadLetters, stream: str, records: list[Any], *, dry_run: bool) -> Requeued:
        written = []
        if not dry_run:
            self.records += records
            written = [OffsetRange(stream, 0, 0, 10)] if records else []
        return Requeued({one.replay.identity for one in records}, written=written)

    def requeued_in(self, *_: Any) -> dict[tuple[str, int, int], int]:
        return {("pumps", 0, self.offset + at): one.replay.letter for at, one in enumerate(self.records)}


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    found = Stream()
    monkeypatch.setattr(DeadLetters, "_originals", lambda *_: {})
    monkeypatch.setattr(DeadLetters, "_requeue", lambda *args, **options: found.requeue(*args, **options))
    monkeypatch.setattr(DeadLetters, "_requeued_in", lambda *args: found.requeued_in(*args))
    return found


@pytest.fixture
def console(tmp_path: Path, stream: Stream) -> Iterator[tuple[str, dict[str, str], Api]]:
    with furnished_console(tmp_path, tokens=True) as served:
        yield served


def _confirm(page: Page, command: str, call: str) -> None:
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("This can't be undone")
    expect(dialog.locator("code").first).to_contain_text(command)
    expect(dialog.locator("code").last).to_contain_text(call)
    dialog.locator("footer button").last.click()


@pytest.mark.guarantee("G1100")
def test_dead_letters_of_a_kind_are_edited_tried_and_followed(
    browser: Browser, console: tuple[str, dict[str, str], Api], stream: Stream
) -> None:
    url, tokens, api = console
    watched = Watched()
    context, page = open_page(browser, url, watched)
    page.goto("/#/jobs/pump-pressure")
    sign_in(page, tokens["operator"])
    page.get_by_role("link", name="Dead letters: repair or requeue").click()
    kind = page.locator("section.kind").filter(has_text="expected double")
    kind.get_by_role("link", name="Repair…").click()
    expect(page.get_by_label("All of its kind")).to_be_checked()
    expect(page.locator(".bytes")).to_be_visible()
    expect(page.get_by_role("combobox", name="Member", exact=True)).to_have_value("pressure")

    page.get_by_label("Value (JSON)").fill("4.5")
    page.get_by_role("button", name="Try it").click()
    tried = page.locator(".outcome-panel")
    expect(tried).to_contain_text("Would repair and requeue 0 of")
    expect(tried.locator("tbody tr").first).to_contain_text("late: ")
    expect(tried.get_by_role("button")).to_have_count(0)

    page.get_by_role("button", name="Another edit").click()
    page.get_by_role("combobox", name="Member", exact=True).last.fill("ts")
    page.get_by_label("Value (JSON)").last.fill(str(time.time_ns() // 1_000_000))
    page.get_by_role("button", name="Try it").click()
    expect(tried).to_contain_text(re.compile(r"Would repair and requeue (\d+) of \1 dead letters"))
    assert stream.records == []
    count = int(re.findall(r"requeue (\d+)", tried.inner_text())[0])
    page.get_by_role("button", name=f"Repair {count}", exact=True).click()
    _confirm(
        page,
        "strandline dead-letters repair pump-pressure --reason decode --kind",
        "POST /v1/jobs/pump-pressure/dead-letters/repairs",
    )
    followed = page.locator("sl-requeued")
    expect(followed).to_contain_text(f"The job has read 0 of {count} requeued records")
    assert {json.loads(one.value)["pressure"] for one in stream.records} == {4.5}
    assert all(one.replay.is_repaired for one in stream.records)

    headers = {"reason": "late", "message": "below the watermark", "stream": "pumps", "partition": "0", "offset": "0"}
    api.log.letters.append(StoredDeadLetter(64, time.time_ns() // 1_000_000, headers, b"{}"))
    stream.offset = 0
    expect(followed).to_contain_text(
        f"The job has read all requeued records: {count - 1} accepted, 1 dead letters again"
    )
    expect(followed.get_by_role("link", name="Dead letter 64")).to_be_visible()
    expect(followed.get_by_role("link", name="Life of pumps/0/1")).to_be_visible()
    expect(followed.get_by_role("link", name="Results of pump-pressure")).to_be_visible()
    context.close()
    assert (watched.errors, watched.elsewhere) == ([], [])


def test_one_dead_letter_is_repaired_from_the_life_of_its_record(
    browser: Browser, console: tuple[str, dict[str, str], Api], stream: Stream
) -> None:
    url, tokens, _ = console

    def life(_traces: Traces, job: str, arguments: list[str], _remedy: str = "") -> RecordLife:
        row = RecordRowView(None, None, {}, "decode", "not valid", paths=[])
        return RecordLife(
            job, "pumps", 1, int(arguments[3]), "read", log_time_ms=0, key="p", value="{", slice=1, version=1,
            stream_version=1, late_below_ms=None, closed_ms=None, lookups={}, rows=[row], row_count=1, results=[],
            open_until_ms=None, records_read=1,
        )  # fmt: skip

    watched = Watched(expected=("409",))
    context, page = open_page(browser, url, watched)
    with patch.object(Traces, "_run", life):
        page.goto("/#/records/pumps/1/46819")
        sign_in(page, tokens["operator"])
        expect(page.get_by_role("link", name="Dead letter 63")).to_be_visible()
        page.get_by_role("link", name="Repair…").click()
    payload = page.get_by_label("New payload")
    payload.fill("{")
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_role("alert")).to_contain_text("would be rejected again")
    repaired = json.dumps({"pump": "p-1", "ts": time.time_ns() // 1_000_000, "pressure": 4})
    payload.fill(repaired)
    page.get_by_role("button", name="Try it").click()
    page.get_by_role("button", name="Repair 1", exact=True).click()
    _confirm(
        page,
        "strandline dead-letters repair pump-pressure 63 --payload FILE",
        "POST /v1/jobs/pump-pressure/dead-letters/repair?dead_letter=63",
    )
    expect(page.locator(".outcome-panel")).to_contain_text("Dead letter 63 is repaired and requeued")
    expect(page.locator("sl-requeued")).to_contain_text("0 of 1 requeued records")
    assert [one.value.decode() for one in stream.records] == [repaired]
    context.close()
    assert (watched.errors, watched.elsewhere) == ([], [])


def test_a_viewer_sees_why_dead_letters_cannot_be_repaired(
    browser: Browser, console: tuple[str, dict[str, str], Api]
) -> None:
    url, tokens, _ = console
    context, page = open_page(browser, url, Watched())
    page.goto("/#/dead-letters/pump-pressure/63")
    sign_in(page, tokens["viewer"])
    expect(page.locator(".letter")).to_contain_text("Repair needs the role operator; viewer has viewer")
    expect(page.get_by_role("link", name="Repair…")).to_have_count(0)
    page.goto("/#/dead-letters/pump-pressure/63/repair")
    expect(page.locator(".why-not")).to_contain_text("Repair needs the role operator; viewer has viewer")
    expect(page.get_by_role("button", name="Try it")).to_have_count(0)
    context.close()
