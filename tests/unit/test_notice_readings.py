"""Conditions over the machines of all control services: what a leader knows of a machine that isn't its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.documents import read_documents
from strandline.ledger.ledger import Ledger
from strandline.ledger.notices import ProblemRow
from strandline.notices import readings
from strandline.notices.conditions import disk_full, expiry
from strandline.notices.conditions.disk_full import DiskFullSpec
from strandline.notices.conditions.expiry import CONSEQUENCES, ExpirySpec
from strandline.notices.document import NoticeSpec
from strandline.notices.finding import Sight
from strandline.notices.machine import Memory, Rules, look
from strandline.notices.readings import CURRENT_MS, LOST_MS, take_readings
from strandline.notices.rendering import render
from strandline.notices.service import NoticeService, NoticeTimes
from strandline.notices.view import Surroundings, View
from strandline.services.certificates import make_dev_certificates
from strandline.services.control import ControlSettings
from tests.simulation.notices.twin import TwinNotices
from tests.support.notices import HttpReceiver, a_channel_tools
from tests.support.waiting import wait_until

DISK = "disk of control service"
SETTING = "STRANDLINE_HTTP_TLS_CERTIFICATE"


def machine(host: str, full: float, expires_ms: int = 10**14) -> dict[str, Any]:
    """Return readings of a machine whose disk is full to this share."""
    return {
        "host": host,
        "disk": {"directory": "/data", "total_bytes": 1_000, "free_bytes": round(1_000 * (1 - full))},
        "certificates": [{"setting": SETTING, "path": "/tls/server.pem", "expires_ms": expires_ms}],
    }


def sight_of(ledger: TwinNotices, above: str = "90%") -> Sight:
    view = View(ledger, ledger.now_ms, [])  # type: ignore[arg-type]
    return disk_full.look(DiskFullSpec.model_validate({"above": above}), view)


@pytest.fixture
def ledger() -> TwinNotices:
    return TwinNotices()


@pytest.mark.guarantee(
    "G970",
    "The conditions `disk_full` and `expiry` cover the machine of each control service, whichever service leads the "
    "notices.",
    promise="failures-are-reported-with-their-remedy",
)
def test_the_disks_of_all_control_services_are_checked(ledger: TwinNotices) -> None:
    ledger.record_readings("north-1", machine("north", 0.95))
    ledger.record_readings("south-2", machine("south", 0.5))
    ledger.record_readings("west-3", machine("west", 0.97))
    found = sight_of(ledger)
    assert list(found.holding) == [f"{DISK} north-1", f"{DISK} west-3"]
    finding = found.holding[f"{DISK} north-1"]
    assert finding.title == "The disk of machine north with /data is 95% full"
    assert "On machine north" in finding.action and "north-1" in finding.reason
    assert not found.unknown and not found.lost


@pytest.mark.guarantee(
    "G971",
    "A control service that reports nothing leaves its problems as they are: neither new nor over. After 24 hours they "
    "end with a message that their state is unknown.",
    promise="failures-are-reported-with-their-remedy",
)
@pytest.mark.parametrize(
    ("age_ms", "state"),
    [
        (0, "holding"),
        (CURRENT_MS, "holding"),
        (CURRENT_MS + 1, "unknown"),
        (LOST_MS - 1, "unknown"),
        (LOST_MS, "lost"),
        (-CURRENT_MS - 1, "unknown"),
        (-2 * LOST_MS, "unknown"),
    ],
)
@pytest.mark.parametrize("full", [0.5, 0.95])
def test_readings_count_by_their_age(ledger: TwinNotices, age_ms: int, state: str, full: float) -> None:
    ledger.now_ms = 10 * LOST_MS
    ledger.record_readings("north-1", machine("north", full))
    ledger.now_ms += age_ms
    found = sight_of(ledger)
    subject = f"{DISK} north-1"
    assert (subject in found.holding) == (state == "holding" and full > 0.9)
    assert (subject in found.unknown) == (state == "unknown")
    assert (subject in found.lost) == (state == "lost")


def test_a_disk_that_can_not_be_examined_is_unknown(ledger: TwinNotices, tmp_path: Path) -> None:
    found = take_readings(tmp_path / "missing", {SETTING: tmp_path / "none.pem"})
    ledger.record_readings("north-1", found)
    assert sight_of(ledger).unknown == {f"{DISK} north-1"}
    first, second = readings.unread(found)
    assert str(tmp_path / "missing") in first and first.endswith("No such file or directory")
    assert SETTING in second and "none.pem" in second


def test_a_certificate_is_read_on_its_own_machine(ledger: TwinNotices, tmp_path: Path) -> None:
    made = make_dev_certificates(tmp_path, ["localhost"])
    found = take_readings(tmp_path, {SETTING: made.server})
    (entry,) = found["certificates"]
    assert datetime.fromtimestamp(entry["expires_ms"] / 1_000, UTC) > datetime.now(UTC) + timedelta(days=1)
    ledger.record_readings("north-1", found)
    with mock.patch.object(TwinNotices, "live_tokens", return_value=[], create=True):
        view = View(ledger, entry["expires_ms"] - 1_000, [])  # type: ignore[arg-type]
        ledger.now_ms = view.now_ms
        ledger.record_readings("north-1", found)
        ledger.record_readings("south-2", {**found, "host": "south"})
        sight = expiry.look(ExpirySpec(), view)
    assert set(sight.holding) == {f"certificate {SETTING} of control service {one}" for one in ("north-1", "south-2")}
    finding = sight.holding[f"certificate {SETTING} of control service south-2"]
    assert "on machine south expires in" in finding.title and "On machine south" in finding.action
    assert "can't deliver records" in finding.affected


def test_each_setting_with_a_certificate_exists() -> None:
    fields = {f"STRANDLINE_{name.upper()}" for name in ControlSettings.model_fields}
    assert CONSEQUENCES.keys() <= fields


RULES = Rules("night", ("mail",), wait_ms=0, every_ms=0, cooldown_ms=0)


def checked(
    memory: Memory, known: list[ProblemRow], sight: Sight, now_ms: int
) -> tuple[Memory, list[ProblemRow], list[dict[str, Any]]]:
    """Run one check; return the memory, all problems, and the contents of messages."""
    found = look(RULES, memory, known, {"disk_full": sight}, now_ms, lambda kind, rows: render("night", kind, rows))
    rows = {row.number: row for row in [*known, *found.problems]}
    return found.memory, list(rows.values()), [one.content for one in found.messages]


@pytest.mark.guarantee("G971")
def test_a_lost_machine_is_reported_as_no_longer_checked(ledger: TwinNotices) -> None:
    ledger.record_readings("north-1", machine("north", 0.95))
    memory, rows, (content,) = checked(Memory(), [], sight_of(ledger), ledger.now_ms)
    assert content["title"] == "The disk of machine north with /data is 95% full"
    ledger.now_ms += LOST_MS - 1
    memory, rows, messages = checked(memory, rows, sight_of(ledger), ledger.now_ms)
    assert messages == [] and rows[0].ended_ms is None
    ledger.now_ms += 1
    memory, rows, (content,) = checked(memory, rows, sight_of(ledger), ledger.now_ms)
    assert content["title"] == "No longer checked: The disk of machine north with /data is 95% full"
    assert "Control service north-1 on machine north has reported nothing since" in content["text"]
    assert "nothing to do" not in content["text"]
    ledger.record_readings("north-1", machine("north", 0.95))
    memory, rows, (content,) = checked(memory, rows, sight_of(ledger), ledger.now_ms)
    assert content["title"] == "The disk of machine north with /data is 95% full" and len(rows) == 2


def test_a_lost_problem_before_its_report_and_next_to_others(ledger: TwinNotices) -> None:
    row = ProblemRow("night", 1, "disk_full", "d", None, 0, 1, 1, "Disk a is full", "", "x", "y", ended_ms=9_000)
    lost = replace(row, end_reason="Nothing is known.")
    assert render("night", "problem", [lost])["title"] == "Disk a is full (no longer checked)"
    text = render("night", "problem", [lost])["text"]
    assert "NOT CHECKED: since 1970-01-01 00:00:09Z. Nothing is known." in text and "OVER" not in text
    both = render("night", "resolved", [row, lost])
    assert both["title"] == "Over or no longer checked: 2 problems, the first: Disk a is full"
    assert both["text"].count("There is nothing to do") == 1


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["full", "empty", "wait", "wait long"]), st.sampled_from(["a", "b"])), max_size=30
)


@pytest.mark.guarantee("G971")
@given(ACTIONS)
def test_a_problem_begins_and_ends_only_by_a_current_reading(actions: list[tuple[str, str]]) -> None:
    """A service reports a full or an empty disk, or time passes. After each action, the conditions are checked."""
    ledger, memory, rows = TwinNotices(), Memory(), list[ProblemRow]()
    reported: dict[str, tuple[int, bool]] = {}
    for action, service in actions:
        if action in ("full", "empty"):
            ledger.record_readings(service, machine(f"host-{service}", 0.95 if action == "full" else 0.5))
            reported[service] = (ledger.now_ms, action == "full")
        else:
            ledger.now_ms += CURRENT_MS * 2 // 3 if action == "wait" else LOST_MS // 2
        was_open = {row.subject for row in rows if row.ended_ms is None}
        memory, rows, _ = checked(memory, rows, sight_of(ledger), ledger.now_ms)
        is_open = {row.subject for row in rows if row.ended_ms is None}
        for name, (at_ms, is_full) in reported.items():
            age_ms, subject = ledger.now_ms - at_ms, f"{DISK} {name}"
            if age_ms <= CURRENT_MS:
                assert (subject in is_open) == is_full
            elif age_ms < LOST_MS:
                assert (subject in is_open) == (subject in was_open)
            else:
                assert subject not in is_open
                ended = [row for row in rows if row.subject == subject]
                assert subject not in was_open or ended[-1].end_reason


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    yield opened
    opened.close()


@pytest.mark.guarantee("G970")
def test_a_failover_keeps_the_full_disk_of_the_other_machine(stored: Ledger) -> None:
    """The first leader has the full disk, and is replaced. Its problem stays, and the disk of the new leader is checked too."""
    full = {"a": 0.95, "b": 0.5}
    now_s = 0.0

    def service(name: str) -> NoticeService:
        def read() -> dict[str, Any]:
            return machine(f"host-{name}", full[name])

        times = NoticeTimes(look_s=0.0, send_s=0.01, lease_ms=20_000)
        surroundings = Surroundings(readings=read)
        return NoticeService(stored, name, a_channel_tools(), surroundings, times, monotonic_s=lambda: now_s)

    with HttpReceiver() as http:
        text = f"""
notice: night
when: [disk_full]
group: {{wait: 0s, every: 0s}}
cooldown: 0s
to: [{{webhook: {{url: '{http.url}'}}}}]
"""
        (document,) = read_documents(text, "notice.yaml", ("notice",))
        stored.put_notice("night", NoticeSpec.parse(document).as_document())
        first, second = service("a"), service("b")
        steps_until(first, lambda: len(http.received) == 1)
        assert http.received[0].json["title"] == "The disk of machine host-a with /data is 95% full"
        second.step()
        first.close()
        full["b"] = 0.97
        now_s = 100.0
        steps_until(second, lambda: len(http.received) == 2)
        assert http.received[1].json["title"] == "The disk of machine host-b with /data is 97% full"
        full["b"] = 0.5
        now_s = 200.0
        steps_until(second, lambda: len(http.received) == 3)
        assert http.received[2].json["title"] == "Resolved: The disk of machine host-b with /data is 97% full"
        second.close()
    open_problems = [row.subject for row in stored.notice_problems("night") if row.ended_ms is None]
    assert open_problems == [f"{DISK} a"]


def test_readings_are_recorded_at_a_bounded_rate(stored: Ledger) -> None:
    """A service that doesn't lead records them too, every 30 seconds. Without notices, none is recorded."""
    now_s, taken = 0.0, list[float]()

    def read() -> dict[str, Any]:
        taken.append(now_s)
        return machine("north", 0.5)

    service = NoticeService(
        stored, "north-1", a_channel_tools(), Surroundings(readings=read), monotonic_s=lambda: now_s
    )
    service.step()
    assert taken == [] and stored.service_readings() == []
    (document,) = read_documents(
        "notice: night\nwhen: [disk_full]\nto: [{webhook: {url: 'http://127.0.0.1:1'}}]", "notice.yaml", ("notice",)
    )
    stored.put_notice("night", NoticeSpec.parse(document).as_document())
    assert stored.lead_notices("other/1", 20_000) is not None
    for second in range(95):
        now_s = float(second)
        service.step()
    assert taken == [0.0, 30.0, 60.0, 90.0]
    assert [row.service for row in stored.service_readings()] == ["north-1"]
    service.close()


def steps_until(service: NoticeService, is_done: Callable[[], bool]) -> None:
    def step() -> bool:
        service.step()
        return is_done()

    wait_until(step, bool, "the message")
