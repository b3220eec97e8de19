"""The state machine of notices, what is sent when, and the messages. All pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.ledger.notices import AttemptRow, MessageRow, ProblemRow
from strandline.notices.finding import Finding, Happened, Sight
from strandline.notices.machine import Look, Memory, Rules, look
from strandline.notices.outbox import LIMIT_MS, PAUSE_MAX_MS, choose, pause_ms
from strandline.notices.rendering import render

RULES = Rules("night", ("mail",), wait_ms=10, every_ms=100, cooldown_ms=1_000)


def finding(job: str = "power", title: str = "failed") -> Finding:
    return Finding(f"job {job}", f"{job} {title}", "its results", f"strandline job start {job}", job=job)


def failed(*jobs: str, event: int = 1, now: Sequence[str] | None = None) -> dict[str, Sight]:
    """The jobs failed by events with numbers from `event`; `now`: those that are still failed."""
    happened = tuple(Happened(event + at, at, finding(job)) for at, job in enumerate(jobs))
    holding = {f"job {job}": finding(job) for job in (jobs if now is None else now)}
    return {"job_failed": Sight(holding, happened, by_events=True)}


class Driver:
    """Keeps the state between looks, as the ledger does."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules = rules
        self.memory = Memory()
        self.rows: dict[int, ProblemRow] = {}
        self.messages: list[MessageRow] = []

    def look(self, sights: Mapping[str, Sight], now_ms: int, *, is_held: bool = False) -> list[MessageRow]:
        found: Look = look(
            self.rules,
            Memory.of(self.memory.stored),
            list(self.rows.values()),
            sights,
            now_ms,
            lambda kind, rows: render("night", kind, rows),
            is_held=is_held,
        )
        self.memory = found.memory
        self.rows.update({row.number: row for row in found.problems})
        self.messages += found.messages
        return list(found.messages)

    @property
    def kinds(self) -> list[tuple[str, list[int]]]:
        return [(one.kind, one.problems) for one in self.messages]


def test_problems_of_one_group_wait_for_each_other() -> None:
    driver = Driver()
    assert driver.look(failed("a", "b"), 0) == []
    assert driver.look(failed("c", event=3, now=["a", "b", "c"]), 9) == []
    (message,) = driver.look(failed(now=["a", "b", "c"]), 10)
    assert (message.kind, message.problems, message.channel) == ("problem", [1, 2, 3], "mail")
    assert driver.look(failed(now=["a", "b", "c"]), 20) == []


def test_five_hundred_failed_jobs_are_one_message() -> None:
    driver = Driver()
    driver.look(failed(*(f"job-{number}" for number in range(500))), 0)
    (message,) = driver.look(failed(now=[f"job-{number}" for number in range(500)]), 10)
    assert len(message.problems) == 500 and message.content["title"] == "500 problems, the first: job-0 failed"
    assert "440 more" in message.content["text"] and "strandline notice show night" in message.content["text"]


def test_the_end_is_reported_once_and_only_after_the_problem() -> None:
    driver = Driver()
    driver.look(failed("a"), 0)
    driver.look(failed(now=["a"]), 10)
    driver.look(failed(), 50)
    driver.look(failed(), 60)
    driver.look(failed(), 10_000)
    assert driver.kinds == [("problem", [1]), ("resolved", [1])]
    assert driver.messages[1].content["status"] == "resolved"


def test_a_problem_that_is_over_before_its_report_is_marked_so_in_it() -> None:
    driver = Driver()
    driver.look(failed("a", now=[]), 5)
    driver.look(failed(), 15)
    driver.look(failed(), 10_000)
    assert driver.kinds == [("problem", [1])]
    assert driver.messages[0].content["title"] == "a failed (over by now)"
    assert driver.messages[0].content["status"] == "resolved"


def test_a_second_failure_of_an_open_problem_ends_the_first() -> None:
    driver = Driver(replace(RULES, cooldown_ms=0))
    driver.look(failed("a"), 0)
    driver.look(failed(now=["a"]), 10)
    driver.look(failed("a", event=2), 200)
    driver.look(failed(now=["a"]), 210)
    assert driver.kinds == [("problem", [1]), ("resolved", [1]), ("problem", [2])]
    assert [row.cause for row in driver.rows.values()] == [1, 2]


def test_what_happens_within_the_cooldown_is_one_message_at_its_end() -> None:
    driver = Driver()
    driver.look(failed("a"), 0)
    driver.look(failed(now=["a"]), 10)
    for at_ms, event in ((200, 2), (400, 3), (600, 4)):
        driver.look(failed("a", event=event, now=[]), at_ms)
    assert [one.kind for one in driver.messages].count("problem") == 1
    driver.look(failed(), 1_009)
    driver.look(failed(), 1_010)
    reports = [one.problems for one in driver.messages if one.kind == "problem"]
    assert reports == [[1], [2, 3, 4]]


def test_one_reminder_of_an_open_problem() -> None:
    driver = Driver(replace(RULES, remind_after_ms=500))
    driver.look(failed("a"), 0)
    for at_ms in (10, 509, 510, 2_000):
        driver.look(failed(now=["a"]), at_ms)
    assert driver.kinds == [("problem", [1]), ("reminder", [1])]


def test_held_messages_are_sent_at_the_end_and_joined() -> None:
    driver = Driver()
    driver.look(failed("a"), 0, is_held=True)
    driver.look(failed("b", event=2, now=["a"]), 50, is_held=True)
    driver.look(failed(now=["a"]), 500)
    assert driver.kinds == [("problem", [1, 2])]


def test_a_level_must_hold_and_clear_for_a_time_and_blindness_changes_nothing() -> None:
    driver, seen = Driver(), {"job power": finding()}

    def lag(holding: Mapping[str, Finding], **changed: Any) -> dict[str, Sight]:
        return {"lag": Sight(holding, hold_ms=100, clear_ms=50, **changed)}

    driver.look(lag(seen), 0)
    driver.look(lag({}), 90)
    driver.look(lag(seen), 95)
    driver.look(lag({}, is_blind=True), 120)
    assert not driver.rows
    driver.look(lag({}, unknown=frozenset({"job power"})), 150)
    driver.look(lag(seen), 195)
    assert [row.since_ms for row in driver.rows.values()] == [95]
    driver.look(lag({}, is_blind=True), 500)
    driver.look(lag({}), 600)
    driver.look(lag(seen), 640)
    driver.look(lag({}), 700)
    assert driver.rows[1].ended_ms is None
    driver.look(lag({}), 750)
    assert driver.rows[1].ended_ms == 750


def test_a_moment_has_no_end() -> None:
    driver = Driver()
    happened = (Happened(1, 0, finding(title="is complete")),)
    driver.look({"work_ended": Sight(happened=happened, by_events=True, has_end=False)}, 0)
    for at_ms in (10, 200, 5_000):
        driver.look({"work_ended": Sight(by_events=True, has_end=False)}, at_ms)
    assert driver.kinds == [("problem", [1])]
    assert driver.messages[0].content["title"] == "power is complete"


@pytest.mark.guarantee(
    "G972",
    "A problem isn't reported as resolved because its condition was removed from the document of the notice, or because "
    "its job failed, restarts, or was stopped on request.",
    promise="failures-are-reported-with-their-remedy",
)
def test_a_condition_that_left_the_document_ends_its_problems() -> None:
    driver = Driver()
    driver.look(failed("a"), 0)
    driver.look(failed(now=["a"]), 10)
    driver.look({}, 200)
    driver.look({}, 210)
    assert driver.kinds == [("problem", [1]), ("resolved", [1])]
    content = driver.messages[-1].content
    assert content["title"] == "No longer checked: a failed"
    assert "doesn't contain this condition any more" in content["text"] and "nothing to do" not in content["text"]


@pytest.mark.parametrize(
    ("by", "messages"), [("condition", [[1, 2]]), ("notice", [[1, 2]]), ("job", [[1], [2]]), ("problem", [[1], [2]])]
)
def test_groups(by: Any, messages: list[list[int]]) -> None:
    driver = Driver(replace(RULES, group_by=by))
    driver.look(failed("a", "b"), 0)
    driver.look(failed(now=["a", "b"]), 10)
    assert [one.problems for one in driver.messages] == messages


def a_message(number: int, due_ms: int = 0) -> MessageRow:
    return MessageRow("night", number, "mail", "problem", [number], {"title": "t"}, 0, due_ms)


def an_attempt(message: int, begun_ms: int, ended_ms: int | None) -> AttemptRow:
    return AttemptRow("night", message, 1, "mail", begun_ms, ended_ms)


@pytest.mark.guarantee("G822")
def test_one_summary_replaces_what_is_beyond_the_limit() -> None:
    pending = [a_message(number) for number in range(1, 8)]
    sends = choose(pending, [], 3, 0)
    assert [one.number for one in sends.now] == [1, 2]
    assert [one.number for one in sends.merged] == [3, 4, 5, 6, 7]
    assert choose(pending[:3], [], 3, 0).merged == ()


def test_an_attempt_counts_until_a_minute_after_its_end() -> None:
    pending = [a_message(9)]
    assert choose(pending, [an_attempt(1, 0, None)], 1, 10 * LIMIT_MS).now == ()
    ended = [an_attempt(1, 0, 9_000)]
    assert choose(pending, ended, 1, 9_000 + LIMIT_MS - 1).now == ()
    assert choose(pending, ended, 1, 9_000 + LIMIT_MS).now == (pending[0],)
    assert choose([a_message(9, due_ms=5)], [], 1, 4).now == ()
    assert choose(pending, [an_attempt(9, 0, None)], 2, 0).now == (), "it is being sent"


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 20)), min_size=1, max_size=40))
def test_no_window_of_a_minute_has_more_attempts_than_the_limit(limit: int, arrivals: list[tuple[int, int]]) -> None:
    now_ms, number, pending, attempts, begun = 0, 0, [], [], []
    for pause, count in arrivals:
        now_ms += pause
        for _ in range(count):
            number += 1
            pending.append(a_message(number))
        sends = choose(pending, attempts, limit, now_ms)
        gone = {one.number for one in (*sends.now, *sends.merged)}
        pending = [one for one in pending if one.number not in gone]
        if sends.merged:
            number += 1
            pending.append(a_message(number))
        for one in sends.now:
            attempts.append(an_attempt(one.number, now_ms, now_ms + 100))
            begun.append(now_ms)
        assert len(sends.now) + bool(sends.merged) <= limit
    assert all(last - first >= LIMIT_MS for first, last in zip(begun, begun[limit:], strict=False))


def test_pauses_double_up_to_a_bound() -> None:
    assert [pause_ms(number) for number in (1, 2, 3, 100)] == [1_000, 2_000, 4_000, PAUSE_MAX_MS]


jobs = st.sampled_from("abcd")
steps = st.lists(
    st.tuples(st.sampled_from(["fail", "start", "wait", "hold"]), jobs, st.integers(1, 300)), min_size=1, max_size=60
)


@given(steps, st.sampled_from(["condition", "job", "problem", "notice"]), st.sampled_from([0, 500]))
def test_each_event_is_in_one_report_and_each_end_in_one(
    drawn: list[tuple[str, str, int]], by: Any, cooldown_ms: int
) -> None:
    driver = Driver(replace(RULES, group_by=by, cooldown_ms=cooldown_ms, remind_after_ms=200))
    down: dict[str, int] = {}
    event, now_ms, is_held = 0, 0, False
    for what, job, pause in drawn:
        new = []
        if what == "fail" and job not in down:
            event += 1
            down[job], new = event, [job]
        elif what == "start":
            down.pop(job, None)
        elif what == "hold":
            is_held = not is_held
        now_ms += pause
        driver.look(failed(*new, event=event, now=list(down)), now_ms, is_held=is_held)
    for _ in range(20):
        now_ms += 1_000
        driver.look(failed(now=[]), now_ms)
    assert sorted(row.cause for row in driver.rows.values()) == list(range(1, event + 1))
    reported = [number for one in driver.messages if one.kind == "problem" for number in one.problems]
    assert sorted(reported) == sorted(driver.rows)
    ends = [number for one in driver.messages if one.kind == "resolved" for number in one.problems]
    over = [
        fact["number"]
        for one in driver.messages
        if one.kind == "problem"
        for fact in one.content["problems"]
        if fact["ended_ms"] is not None
    ]
    assert sorted(ends + over) == sorted(driver.rows)
    reminders = [number for one in driver.messages if one.kind == "reminder" for number in one.problems]
    assert len(reminders) == len(set(reminders))
