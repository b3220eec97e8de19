"""Open windows of a job by key: computed from recorded slices, in pages, with the partition that holds them open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import Conflict, LogUnavailable, TooExpensive
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule
from strandline.log.kafka_status import NewestRecords
from strandline.processing.lineage import replays
from strandline.processing.lineage.record_life import Lives
from strandline.processing.lineage.views import OpenWindow, OpenWindows
from strandline.services.jobs.open_windows import KEPT_S, OpenWindowPages
from strandline.services.jobs.traces import Traces
from tests.support.control import BOTH, HOUR, Api
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.oracle import Sent
from tests.support.recorded_jobs import RecordedLog

MINUTE_MS = 60_000
RULE = EventTimeRule(delay_ms=10_000, idle_timeout_ms=None)
SENT = [
    # (partition, turbine, event time in s): slice 1 is the first four records
    (0, "T1", 5),
    (1, "T2", 10),
    (0, "T1", 50),
    (1, "T2", 130),
    (0, "T1", 125),
    (1, "t11", 190),
    (0, "T1", 130),
    (1, "T2", 185),
]


def record(partition: int, turbine: str, at_s: int) -> Sent:
    line = json.dumps({"turbine": turbine, "ts": at_s * 1000, "power": 1.5}).encode()
    return Sent(0, partition, line, at_s * 1000, {})


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"


@pytest.fixture
def api(ledger_url: str) -> Iterator[Api]:
    ledger = Ledger.open(ledger_url)
    made = Api(ledger)
    assert made.apply(BOTH + HOUR).status_code == 200
    yield made
    ledger.close()


def commit(ledger: Ledger, number: int, reached_s: Mapping[int, int], closed_s: int) -> None:
    """Commit a slice of two records of each partition. Windows that end up to `closed_s` are closed."""
    if number == 1:
        run = ledger.begin_run("power", 1)
        ledger.set_run_streams("power", run.epoch, {"turbines": 1})
    reached = {"turbines": {at: one * 1000 for at, one in reached_s.items()}}
    ends = {0: 2 * number, 1: 2 * number}
    firsts = {0: 2 * number - 2, 1: 2 * number - 2}
    ledger.plan_slice(
        a_slice(number, rule=RULE, reached=reached, offsets_first={"turbines": firsts}, offsets={"turbines": ends})
    )
    ledger.commit_checkpoint(
        a_checkpoint(
            number, records=4, accepted=4, rejected={}, reached=reached, closes_ms=closed_s * 1000,
            latest_event_ms=max(reached_s.values()) * 1000, committed_ms=10**13 + number,
            emitted={"per_minute": closed_s * 1000 // MINUTE_MS * MINUTE_MS, "per_hour": 0},
        )
    )  # fmt: skip


def lives(api: Api, ledger_url: str) -> Lives:
    log = RecordedLog([record(*one) for one in SENT], ["turbines"])
    return Lives(api.ledger, "power", "nowhere", ledger_url, log)


def rows_of(found: OpenWindows, stage: str) -> list[tuple[str, int, int, int]]:
    return [
        (one.key["turbine"], one.start_ms // MINUTE_MS, one.end_ms // MINUTE_MS, one.records)
        for one in found.windows
        if one.stage == stage
    ]


@pytest.mark.guarantee(
    "G980",
    "The open windows of a job are those that a rewind to its last committed slice rebuilds, each with its key and the number of "
    "its records. The service lists them without an index, and searches them by key.",
    promise="results-depend-only-on-the-log",
)
def test_the_open_windows_are_computed_from_the_log(api: Api, ledger_url: str) -> None:
    commit(api.ledger, 1, {0: 50, 1: 130}, closed_s=40)
    found = lives(api, ledger_url).open_windows(None, "")
    assert rows_of(found, "per_minute") == [("T1", 0, 1, 2), ("T2", 0, 1, 1), ("T2", 2, 3, 1)]
    assert (found.slice, found.closed_ms, found.stages) == (1, 40_000, {"per_minute": 3, "per_hour": 0})

    commit(api.ledger, 2, {0: 130, 1: 190}, closed_s=120)
    found = lives(api, ledger_url).open_windows(None, "")
    assert rows_of(found, "per_minute") == [("T1", 2, 3, 2), ("T2", 2, 3, 1), ("T2", 3, 4, 1), ("t11", 3, 4, 1)]
    assert rows_of(found, "per_hour") == [("T1", 0, 60, 2), ("T2", 0, 60, 1)], "records of closed minutes"
    assert (found.matches, found.records_read) == (6, 8)

    some = lives(api, ledger_url).open_windows("per_minute", "T1")
    assert rows_of(some, "per_minute") == [("T1", 2, 3, 2), ("t11", 3, 4, 1)]
    assert (some.matches, some.stages) == (2, {"per_minute": 4, "per_hour": 2})


def test_a_job_without_a_slice_has_no_open_window(api: Api, ledger_url: str) -> None:
    found = lives(api, ledger_url).open_windows(None, "")
    assert (found.slice, found.windows, found.stages) == (None, [], {})


def test_too_many_records_and_other_guarantees_are_refused(
    api: Api, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(api.ledger, 1, {0: 50, 1: 130}, closed_s=40)
    monkeypatch.setattr(replays, "RECORDS_MAX", 3)
    with pytest.raises(TooExpensive, match=r"contain 4 records.*set updates at their emission"):
        lives(api, ledger_url).open_windows(None, "")
    other = BOTH.replace("pipeline: power", "pipeline: fast") + "guarantee: at_least_once\n"
    assert api.apply(other.partition("---\n")[2].replace("turbine-minute", "fast-minute")).status_code == 200
    with pytest.raises(Conflict, match="Only jobs with exactly_once"):
        Lives(api.ledger, "fast", "nowhere", ledger_url).open_windows(None, "")


def a_list(slice_: int, count: int = 3) -> OpenWindows:
    windows = [OpenWindow("per_minute", {"turbine": f"T{at}"}, 0, MINUTE_MS, False, at) for at in range(count)]
    return OpenWindows("power", slice_, 1, 40_000, 10**13, {"per_minute": count}, count, windows, 12)


@pytest.mark.guarantee(
    "G984",
    "Each page of the open windows names the slice that it contains, and the partition that holds the windows open, with its "
    "devices. Pages after the first one need no further replay.",
    promise="failures-are-reported-with-their-remedy",
)
def test_the_route_returns_pages_and_the_partition_that_holds_the_windows_open(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(api.ledger, 1, {0: 50, 1: 130}, closed_s=40)
    asked: list[tuple[Any, ...]] = []

    def run(self: Traces, job: str, arguments: Any, remedy: str = "") -> OpenWindows:
        asked.append(tuple(arguments))
        return a_list(1)

    def newest(topic: str, *_: Any, partitions: Any, **more: Any) -> NewestRecords:
        assert (topic, partitions) == ("turbines", [0])
        values: list[bytes | None] = [b'{"turbine": "T1"}', b'{"turbine": "T9"}']
        return NewestRecords([0, 0], [0, 1], [1_000, 2_000], values, [None, None])

    monkeypatch.setattr(Traces, "_run", run)
    monkeypatch.setattr(api.log, "newest_records", newest)
    first = api.ask("GET", "/v1/jobs/power/windows?key=T&limit=2").json()
    assert [one["key"] for one in first["windows"]] == [{"turbine": "T0"}, {"turbine": "T1"}]
    assert first["next"] == "/v1/jobs/power/windows?key=T&skip=2&limit=2"
    held = first["held_by"]
    assert (held["partition"], held["reached_ms"], held["delay_ms"]) == (0, 50_000, 10_000)
    second = api.ask("GET", first["next"]).json()
    assert ([one["key"]["turbine"] for one in second["windows"]], second["next"]) == (["T2"], None)
    assert asked == [("windows", "--key=T")], "the second page needs no replay"

    def away(*_: Any, **more: Any) -> NewestRecords:
        raise LogUnavailable("Kafka does not answer")

    monkeypatch.setattr(api.log, "newest_records", away)
    assert api.ask("GET", "/v1/jobs/power/windows").json()["held_by"]["devices"] == []
    assert api.ask("GET", "/v1/jobs/nothing/windows").status_code == 404


def test_windows_of_an_older_slice_are_used_again_for_some_seconds(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(api.ledger, 1, {0: 50, 1: 130}, closed_s=40)
    now = [100.0]
    replayed: list[int] = []

    def run(self: Traces, job: str, arguments: Any, remedy: str = "") -> OpenWindows:
        replayed.append(len(replayed) + 1)
        return a_list(replayed[-1])

    monkeypatch.setattr(Traces, "_run", run)
    pages = OpenWindowPages(Traces(tmp_path), lambda: now[0])

    def slice_now() -> int | None:
        return pages.windows(api.ledger, "power", None, "").slice

    assert slice_now() == 1
    now[0] += 100 * KEPT_S
    assert slice_now() == 1, "no slice has been committed since"
    commit(api.ledger, 2, {0: 130, 1: 190}, closed_s=120)
    assert slice_now() == 2, "the first list is too old"
    now[0] += KEPT_S / 2
    assert slice_now() == 2
    assert replayed == [1, 2]
