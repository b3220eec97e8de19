"""Responses that several clients share: how old they may be, and when one is computed."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.requests import Request
from starlette.responses import Response

from strandline.core.errors import LedgerUnavailable
from strandline.services.rest.kept_answers import Answer, KeptAnswers
from tests.support.waiting import stretched


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
    kept = KeptAnswers(lambda: work.now_s)
    return lambda max_age_s: kept.get(None, max_age_s, work).body


def test_an_answer_is_kept_for_fifty_times_the_time_that_it_took(work: Work, get: Callable[[float], bytes]) -> None:
    work.takes_s = 1.0
    assert get(60) == b"1"  # its data are read at 100 s
    work.now_s = 150.0
    assert get(60) == b"1"
    work.now_s = 150.1
    assert get(60) == b"2"


def test_an_answer_is_never_older_than_the_request_allows(work: Work, get: Callable[[float], bytes]) -> None:
    assert get(60) == b"1"
    work.now_s = 105.0
    assert get(5) == b"1"
    assert get(4) == b"2"
    assert get(0) == b"3"
    assert get(60) == b"3", "also the answer to a request that allows no age is kept"


def test_answers_about_different_jobs_are_kept_and_the_oldest_are_dropped(work: Work) -> None:
    kept = KeptAnswers(lambda: work.now_s)
    work.takes_s = 0.01
    assert [kept.get(frozenset({name}), 60, work).body for name in ("a", "b", "a")] == [b"1", b"2", b"1"]
    work.takes_s = 0.0
    for number in range(64):
        kept.get(number, 60, work)
    assert kept.get(frozenset({"a"}), 60, work).body == b"67"


def test_an_error_is_not_kept(work: Work) -> None:
    kept = KeptAnswers(lambda: work.now_s)

    def fail() -> bytes:
        raise LedgerUnavailable("the ledger is away")

    with pytest.raises(LedgerUnavailable):
        kept.get(None, 60, fail)
    assert kept.get(None, 60, work).body == b"1"


class Slow:
    """A computation that ends when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> bytes:
        self.begun.set()
        assert self.may_end.wait(stretched(30))
        if self.error is not None:
            raise self.error
        return b"slow"


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.may_end.set()


def test_while_an_answer_is_computed_others_get_the_one_before(work: Work, slow: Slow) -> None:
    kept = KeptAnswers(lambda: work.now_s)
    assert kept.get(None, 60, work).body == b"1"
    work.now_s = 230.0
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(kept.get, None, 60, slow)
        assert slow.begun.wait(stretched(30))
        work.now_s = 231.0
        assert kept.get(None, 140, work).body == b"1"
        assert kept.get(None, 0, work).body == b"2", "this request allows no earlier data"
        slow.may_end.set()
        assert answer.result(stretched(30)).body == b"slow"
    assert kept.get(None, 60, work).body == b"2", "its data are newer"


@pytest.mark.guarantee(
    "G1050",
    "Open pages of the console share the work of the control service. Requests at the same time wait for one computation, "
    "and one query looks for new events for all pages. Only shown jobs are requested often. A page that isn't visible "
    "requests nothing.",
    promise="open-pages-share-their-cost",
)
@pytest.mark.parametrize("fails", [False, True])
def test_requests_at_the_same_time_wait_for_one_computation(work: Work, slow: Slow, fails: bool) -> None:
    """If it fails, one of the others computes."""
    kept = KeptAnswers(lambda: work.now_s)
    slow.error = LedgerUnavailable("the ledger is away") if fails else None
    with ThreadPoolExecutor(20) as threads:
        first = threads.submit(kept.get, None, 30, slow)
        assert slow.begun.wait(stretched(30))
        others = [threads.submit(kept.get, None, 30, work) for _ in range(19)]
        slow.may_end.set()
        if fails:
            assert isinstance(first.exception(stretched(30)), LedgerUnavailable)
        found = {one.result(stretched(30)).body for one in others}
    assert (found, work.count) == (({b"1"}, 1) if fails else ({b"slow"}, 0))


def test_a_client_that_has_the_answer_gets_none_and_others_get_it_compressed() -> None:
    answer = Answer(b"[" + b"1, " * 1_000 + b"1]")

    def to(**headers: str) -> Response:
        encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return answer.to(Request({"type": "http", "headers": encoded}))

    plain, packed = to(), to(accept_encoding="gzip, br")
    assert (plain.status_code, bytes(plain.body), plain.headers["vary"]) == (200, answer.body, "Accept-Encoding")
    assert (packed.headers["content-encoding"], gzip.decompress(packed.body)) == ("gzip", answer.body)
    assert len(packed.body) < 100
    again = to(if_none_match=plain.headers["etag"], accept_encoding="gzip")
    assert (again.status_code, again.body, again.headers["etag"]) == (304, b"", plain.headers["etag"])
    assert to(if_none_match='W/"another"').status_code == 200
    assert Answer(b"[]").tag != answer.tag
