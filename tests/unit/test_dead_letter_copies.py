"""Processes that copy dead letters, the pieces of their work, and that a problem with one job stops no other."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import IndexUnavailable
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobVersionRow
from strandline.log.kafka_status import DeadLetterRange, KafkaStatus, StoredDeadLetter
from strandline.results.document import Document
from strandline.services.supervision import dead_letter_copies
from strandline.services.supervision.dead_letter_copies import LETTERS_AT_ONCE, DeadLetterCopies
from tests.support.control import BOTH, Api
from tests.support.statements import counted_statements
from tests.support.waiting import stretched

FIRST, END = 5, 2 * LETTERS_AT_ONCE + 10


class FullLog(KafkaStatus):
    """Double of a Kafka with dead letters of each job. It records which pieces were read."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, int, int]] = []

    def dead_letter_range(self, job: str, since_ms: int = 0) -> DeadLetterRange | None:
        return None if job == "fresh" else DeadLetterRange("topic-a", FIRST, END)

    def read_dead_letters(self, job: str, offset_first: int, offset_next: int) -> Generator[list[StoredDeadLetter]]:
        if offset_first < offset_next:
            self.pieces.append((job, offset_first, offset_next))
            yield [StoredDeadLetter(offset_first, 1_000, {"reason": "late"}, b"x")]


class Index:
    """Double of the index of a job."""

    copied_of: dict[str, dict[str, int]]
    failing: dict[str, Exception]

    def __init__(self, url: str, job: str) -> None:
        self.name = job

    def copied(self) -> dict[str, int]:
        return self.copied_of.get(self.name, {})

    def remember(self, topic_id: str, number_next: int) -> None:
        self.copied_of[self.name] = {topic_id: number_next}

    def create(self, documents: list[Document]) -> int:
        if self.name in self.failing:
            raise self.failing[self.name]
        return len(documents)

    def forget(self, before_ms: int, topic_id: str, before_number: int) -> int:
        return 0


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """With the jobs `fresh`, `one` and `two`, whose dead letters are to be in an index, and `quiet`."""
    Index.copied_of, Index.failing = {}, {}
    monkeypatch.setattr(dead_letter_copies, "DeadLetterIndex", Index)
    monkeypatch.setattr(dead_letter_copies, "PAUSE_S", 0)
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    api = Api(ledger)
    for job in ("fresh", "one", "quiet", "two"):
        text = BOTH.replace("pipeline: power", f"pipeline: {job}").replace("turbine-minute", f"{job}-minute")
        more = "" if job == "quiet" else "dead_letters: {index: true, max_documents: 10000}\n"
        assert api.apply(text + more).status_code == 200
    yield ledger
    ledger.close()


def pieces(job: str) -> list[tuple[str, int, int]]:
    edges = [FIRST, FIRST + LETTERS_AT_ONCE, FIRST + 2 * LETTERS_AT_ONCE, END]
    return [(job, first, next_) for first, next_ in pairwise(edges)]


def test_all_is_copied_in_bounded_pieces_of_the_jobs_that_say_so(ledger: Ledger) -> None:
    log = FullLog()
    copies = DeadLetterCopies(ledger, lambda job: True, log, "")
    assert copies.copy() == 6
    assert log.pieces == pieces("one") + pieces("two")
    assert Index.copied_of == {"one": {"topic-a": END}, "two": {"topic-a": END}}
    log.pieces.clear()
    assert copies.copy() == 0
    assert log.pieces == []


def test_a_service_that_leads_the_job_no_more_copies_no_more(ledger: Ledger) -> None:
    log = FullLog()
    told: dict[str, int] = {}

    def leads(job: str) -> bool:
        told[job] = told.get(job, 0) + 1
        return job == "two" and told[job] <= 2

    DeadLetterCopies(ledger, leads, log, "").copy()
    assert log.pieces == pieces("two")[:2]


@pytest.mark.guarantee("G196")
@pytest.mark.parametrize("error", [IndexUnavailable("away"), IndexError("list index out of range")])
def test_trouble_with_one_job_stops_no_other_and_records_nothing(
    ledger: Ledger, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    log = FullLog()
    copies = DeadLetterCopies(ledger, lambda job: True, log, "")
    Index.failing = {"one": error}
    assert copies.copy() == 3
    assert Index.copied_of == {"two": {"topic-a": END}}
    assert [one for one in caplog.messages if "can't copy dead letters" in one and "job='one'" in one], caplog.messages
    Index.failing = {}
    assert copies.copy() == 3, "from where it was"


def test_it_goes_on_until_it_is_closed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the ledger is away for a while."""
    monkeypatch.setattr(dead_letter_copies, "POLL_INTERVAL_S", 0)
    looks: list[Any] = []
    versions = ledger.current_versions_of_jobs

    def look() -> dict[str, JobVersionRow]:
        looks.append(1)
        if len(looks) == 1:
            raise ValueError("a mistake of ours")
        if len(looks) == 3:
            copies._sweep._closing.set()
        return versions()

    monkeypatch.setattr(ledger, "current_versions_of_jobs", look)
    copies = DeadLetterCopies(ledger, lambda job: True, FullLog(), "")
    copies.start()
    copies._sweep._thread.join(stretched(30))
    assert len(looks) == 3
    copies.close()


def test_jobs_without_copies_cost_no_queries(ledger: Ledger) -> None:
    copies = DeadLetterCopies(ledger, lambda job: False, FullLog(), "")
    copies.copy()  # the first statements of a connection
    counts = []
    for first in (0, 3):
        for number in range(first, first + 3):
            ledger.submit_job(f"more-{number}", "", ledger.job_version("quiet").document)
        with counted_statements() as statements:
            assert copies.copy() == 0
        counts.append(len(statements))
    assert counts[0] == counts[1]
