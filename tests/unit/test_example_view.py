"""The output of the example, and where its event time starts."""

from __future__ import annotations

import io
import signal
import threading
from collections import Counter
from dataclasses import replace

import httpx
import pytest
from rich.console import Console

from strandline.core.errors import PermanentError, TransientError
from strandline.example.run import (
    DOCUMENTS_SHOWN,
    EVENT_START_AGO_MS,
    event_start_ms,
    has_results,
    stop_signals,
    wait_until_caught_up,
)
from strandline.example.sender import Sent
from strandline.example.view import ResultLinks, account, links_shown, plain_line, render, show_counts, show_time
from strandline.example.watch import NO_COUNTS, Facts, ResultsReader, counts_since

EVENT_MS = 1_700_000_000_000
PLACES = ResultLinks(
    console="http://127.0.0.1:8080/",
    api_docs="http://127.0.0.1:8080/openapi.json",
    search="curl 'x'",
    login="user x",
    job_status="strandline job status",
    dead_letters="strandline dead-letters list",
    logs="/data/logs",
    speed=120.0,
    delay_ms=120_000,
)
DOCUMENT = {
    "@timestamp": "2023-11-14T22:00:00.000Z",
    "window": {"start": "2023-11-14T21:00:00.000Z", "end": "2023-11-14T22:00:00.000Z"},
    "turbine": "[red]dune-01",
    "n": 360,
    "load": 0.51249,
    "strandline": {"job": "turbine-health"},
}
JOB = {
    "name": "turbine-health",
    "state": "running",
    "message": "",
    "watermark_ms": EVENT_MS,
    "latest_event_ms": EVENT_MS + 120_000,
    "lag_records": 12,
}
FACTS = Facts(
    running_s=31.2,
    sent=Sent(
        sent=4_800,
        acknowledged=3_560,
        unacknowledged=1_200,
        by_protocol=Counter(HTTP=2_400, MQTT=1_160, UDP=1_200),
        spoiled=Counter(decode=3, late=1),
        event_ms=EVENT_MS + 120_000,
    ),
    per_second=479.6,
    job=JOB,
    counts={"records": 4_760, "accepted": 4_756, "rejected": {"decode": 3, "late": 1}, "results": {"per_minute": 800}},
    documents={"turbine-hour": [DOCUMENT], "turbine-minute": []},
)


def shown(facts: Facts, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(facts, PLACES))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_view_shows_every_fact():
    text = shown(FACTS)
    for fact in (
        "HTTP 2,400, MQTT 1,160, UDP 1,200; 3,560 acknowledged, 480/s",
        "watermark 2023-11-14 22:13:20 UTC", "running, 12 records behind",
        "per_minute 800", "decode 3, late 1", "spoiled on purpose: 4", "[red]dune-01", "0.512",
    ):  # fmt: skip
        assert fact in text


def test_where_to_look_names_every_place():
    text = "\n".join(links_shown(PLACES))
    for place in (PLACES.console, PLACES.api_docs, PLACES.search, PLACES.job_status, PLACES.dead_letters, PLACES.logs):
        assert place in text


def test_the_view_fits_a_small_terminal():
    documents = {alias: [DOCUMENT] * limit for alias, limit in DOCUMENTS_SHOWN.items()}
    assert len(shown(replace(FACTS, documents=documents), width=80).splitlines()) < 24


def test_the_view_says_when_the_next_hour_closes():
    # 46:40 to the full hour, and the watermark is just the delay behind: 2,800 s of event time at 120 times.
    assert "an hour closes in about 23 s" in shown(FACTS)
    behind = replace(FACTS, sent=replace(FACTS.sent, event_ms=EVENT_MS + 7_200_000))
    assert "as soon as the job has caught up" in shown(behind)


def test_the_view_shows_trouble_instead_of_facts_that_it_lacks():
    text = shown(replace(FACTS, job=None, counts=NO_COUNTS, documents={}, trouble="the service does not answer [/red]"))
    assert "the service does not answer [/red]" in text
    assert "not known" in text


def test_the_view_says_why_a_job_does_not_run():
    assert "failed: log is gone" in shown(replace(FACTS, job={**JOB, "state": "failed", "message": "log is gone"}))


def test_the_plain_line_holds_the_main_facts():
    line = plain_line(FACTS)
    assert "\n" not in line
    for fact in (
        "31 s",
        "records in: HTTP 2,400, MQTT 1,160, UDP 1,200",
        "12 records behind",
        "per_minute 800",
        "decode 3, late 1",
    ):
        assert fact in line
    assert "trouble: away" in plain_line(replace(FACTS, job=None, trouble="away"))


@pytest.mark.parametrize(
    ("facts", "is_caught_up", "expected"),
    [
        (replace(FACTS, sent=replace(FACTS.sent, acknowledged=3_600)), True, "every spoiled record is a dead letter"),
        (
            replace(FACTS, sent=replace(FACTS.sent, acknowledged=3_560, sent=4_760, spoiled=Counter(decode=3))),
            True,
            "must not",
        ),
        (
            replace(FACTS, sent=replace(FACTS.sent, spoiled=Counter(decode=3), repeats=1)),
            True,
            "can be in the log twice",
        ),
        (
            replace(
                FACTS,
                sent=replace(FACTS.sent, sent=4_760, spoiled=Counter(decode=4, late=1)),
                counts={**FACTS.counts, "records": 4_757},
            ),
            True,
            "3 records are not in the log: UDP has no guarantee",
        ),
        (replace(FACTS, job=None, trouble="the API is away"), True, "are unknown: the API is away"),
        (FACTS, False, "had not yet read everything"),
    ],
    ids=["equal", "different", "different after repeats", "lost on the way of UDP", "no answer", "not caught up"],
)
def test_the_account_compares_what_was_spoiled_with_the_dead_letters(facts, is_caught_up, expected):
    text = "\n".join(account(facts, is_caught_up))
    assert expected in text


def test_counts_are_those_of_this_run():
    before = {"records": 10, "accepted": 8, "rejected": {"late": 2}, "results": {}}
    now = {"records": 30, "accepted": 27, "rejected": {"late": 2, "decode": 1}, "results": {"hourly": 5}}
    assert counts_since(before, now) == {
        "records": 20, "accepted": 19, "rejected": {"late": 0, "decode": 1}, "results": {"hourly": 5},
    }  # fmt: skip


def test_zero_counts_are_not_shown():
    assert show_counts({"late": 0, "decode": 1_000}) == "decode 1,000"
    assert show_counts({"late": 0}) == "none yet"
    assert show_time(None) == "-"


def test_a_first_run_begins_a_month_ago_and_a_later_one_where_it_stopped():
    fresh = {"latest_event_ms": None, "watermark_ms": None}
    assert event_start_ms(fresh, EVENT_MS) == EVENT_MS - EVENT_START_AGO_MS
    seen = {"latest_event_ms": EVENT_MS - 5_000_000, "watermark_ms": EVENT_MS - 5_120_000}
    assert event_start_ms(seen, EVENT_MS) > EVENT_MS - 5_000_000
    assert event_start_ms({**seen, "latest_event_ms": EVENT_MS - 1}, EVENT_MS) == EVENT_MS, "never in the future"
    old = {"latest_event_ms": EVENT_MS - 2 * EVENT_START_AGO_MS, "watermark_ms": None}
    assert event_start_ms(old, EVENT_MS) == EVENT_MS - EVENT_START_AGO_MS


def test_results_count_when_emitted_by_this_run_and_found_in_the_index():
    assert has_results(FACTS)
    assert not has_results(replace(FACTS, documents={"turbine-hour": []}))
    assert not has_results(replace(FACTS, counts=NO_COUNTS))


def test_the_first_signal_asks_and_the_second_hurries():
    handler_before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert (stop.requested.is_set(), stop.hurry.is_set()) == (True, False)
        signal.raise_signal(signal.SIGINT)
        assert stop.hurry.is_set()
    assert signal.getsignal(signal.SIGTERM) is handler_before


def test_results_are_read_newest_first_and_trouble_is_transient():
    asked = []

    def index(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return httpx.Response(200, json={"hits": {"hits": [{"_source": DOCUMENT}]}})

    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    reader = ResultsReader("http://index", {"turbine-hour": 4}, transport=httpx.MockTransport(index))
    assert reader.newest() == {"turbine-hour": [DOCUMENT]}
    assert asked[0].path == "/turbine-hour/_search"
    assert dict(asked[0].params)["sort"] == "@timestamp:desc"
    with pytest.raises(TransientError, match="Elasticsearch"):
        ResultsReader("http://index", {"turbine-hour": 4}, transport=httpx.MockTransport(away)).newest()


class Control:
    """A control service that answers with one job state after the other. The last one is repeated."""

    def __init__(self, *jobs: dict) -> None:
        self._jobs = list(jobs)

    def job(self, _name: str) -> dict:
        return self._jobs.pop(0) if len(self._jobs) > 1 else self._jobs[0]


STARTING = {"state": "starting", "epoch": 1, "slice": None, "lag_records": 5, "message": ""}
BEHIND = {**STARTING, "state": "running"}
CAUGHT_UP = {**BEHIND, "slice": 3, "lag_records": 0}


def test_waits_until_the_job_runs_and_has_caught_up():
    control = Control(STARTING, BEHIND, CAUGHT_UP)
    assert wait_until_caught_up(control, "job", threading.Event(), stall_timeout_s=60) == CAUGHT_UP


@pytest.mark.parametrize("limits", [{"stall_timeout_s": 0.3}, {"stall_timeout_s": 60, "timeout_s": 0.3}], ids=str)
def test_gives_up_waiting_for_a_job_that_does_not_move(limits):
    assert wait_until_caught_up(Control(BEHIND), "job", threading.Event(), **limits) == BEHIND


def test_a_signal_ends_the_waiting():
    enough = threading.Event()
    enough.set()
    assert wait_until_caught_up(Control(BEHIND), "job", enough, stall_timeout_s=60) == BEHIND


def test_a_job_that_has_failed_is_not_waited_for():
    failed = {**BEHIND, "state": "failed", "message": "the log is gone"}
    with pytest.raises(PermanentError, match="the log is gone"):
        wait_until_caught_up(Control(STARTING, failed), "job", threading.Event(), stall_timeout_s=60)
