"""Checks of indices before a shared request: they run at the same time, and a slow one holds up no other write."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from strandline.core.errors import Conflict, IndexUnavailable
from strandline.results.shared_bulk import PreparedWrite, check_together
from tests.support.waiting import stretched


def a_write(subject: str, check: Callable[[], None], *, is_checked: bool = False) -> PreparedWrite:
    return PreparedWrite("http://nowhere", 1, np.array([]), [], [], is_checked, check, subject)  # type: ignore[arg-type]


def test_a_slow_check_fails_only_its_own_write_and_is_complete_later() -> None:
    release, calls = threading.Event(), list[str]()

    def slow() -> None:
        calls.append("slow")
        assert release.wait(stretched(60))

    def writes() -> list[PreparedWrite]:
        return [a_write("slow", slow), a_write("fast", lambda: calls.append("fast"))]

    first, fast = writes()
    check_together([first, fast], 0.2)
    assert fast.are_indices_checked and fast.failure is None
    assert isinstance(first.failure, IndexUnavailable) and not first.are_indices_checked
    release.set()
    second, _ = writes()
    check_together([second], stretched(60))
    assert second.are_indices_checked and calls.count("slow") == 1, "the second call waits for the check of the first"


def test_an_error_of_a_check_is_the_failure_of_all_its_writes() -> None:
    def refuse() -> None:
        raise Conflict("another program has this name")

    writes = [a_write("one", refuse), a_write("one", refuse), a_write("other", lambda: None)]
    check_together(writes, stretched(60))
    assert [type(one.failure) for one in writes] == [Conflict, Conflict, type(None)]
    with pytest.raises(Conflict):
        writes[1].is_created(0)


def test_checks_run_at_the_same_time() -> None:
    meeting = threading.Barrier(5, timeout=stretched(60))
    writes = [a_write(str(number), lambda: meeting.wait() and None) for number in range(5)]
    check_together(writes, stretched(60))
    assert all(one.are_indices_checked for one in writes)


def test_indices_that_are_checked_are_not_checked_again() -> None:
    check_together([a_write("one", lambda: pytest.fail("checked again"), is_checked=True)], 0)
