"""Responses that several clients share: how old they may be, and when one is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from strandline.core.errors import LedgerUnavailable
from strandline.services.rest.kept_answers import KeptAnswer
from tests.support.waiting import stretched, wait_until


class Work:
    """Computations that take a time of a clock, and are counted."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.takes_s = 2.0
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        self.now_s += self.takes_s
        return b"%d" % self.count


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def get(work: Work) -> Callable[[float], bytes]:
    kept = KeptAnswer(lambda: work.now_s)
    return lambda max_age_s: kept.get(max_age_s, work)


def test_an_answer_is_kept_for_ten_times_the_time_that_it_took(work: Work, get: Callable[[float], bytes]) -> None:
    assert get(60) == b"1"  # its data are read at 100 s
    work.now_s = 120.0
    assert get(60) == b"1"
    work.now_s = 120.1
    assert get(60) == b"2"


def test_an_answer_is_never_older_than_the_request_allows(work: Work, get: Callable[[float], bytes]) -> None:
    assert get(60) == b"1"
    work.now_s = 105.0
    assert get(5) == b"1"
    assert get(4) == b"2"
    assert get(0) == b"3"
    assert get(60) == b"3", "also the answer to a request that allows no age is kept"


def test_an_error_is_not_kept(work: Work) -> None:
    kept = KeptAnswer(lambda: work.now_s)

    def fail() -> bytes:
        raise LedgerUnavailable("the ledger is away")

    with pytest.raises(LedgerUnavailable):
        kept.get(60, fail)
    assert kept.get(60, work) == b"1"


def test_while_an_answer_is_computed_others_get_the_one_before(work: Work) -> None:
    kept = KeptAnswer(lambda: work.now_s)
    assert kept.get(60, work) == b"1"
    work.now_s = 130.0
    begun, may_end = threading.Event(), threading.Event()
    answers: list[bytes] = []

    def slow() -> bytes:
        begun.set()
        assert may_end.wait(stretched(30))
        return b"slow"

    thread = threading.Thread(target=lambda: answers.append(kept.get(60, slow)))
    thread.start()
    try:
        assert begun.wait(stretched(30))
        work.now_s = 131.0
        assert kept.get(60, work) == b"1"
        assert kept.get(20, work) == b"2", "the one before is too old for this request"
        may_end.set()
        wait_until(lambda: answers, lambda found: found == [b"slow"], "the slow answer")
        assert kept.get(60, work) == b"2", "its data are newer"
    finally:
        may_end.set()
        thread.join()
