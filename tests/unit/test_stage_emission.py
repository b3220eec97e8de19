"""The writes of an emission for a stage's results, with a writer that refuses some, and without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pytest

from strandline.processing.emission import stage_emission
from strandline.processing.emission.dead_letters import DeadLetter
from strandline.processing.emission.stage_emission import BackfillEmission, StageEmission
from strandline.processing.operators.cascade import StageResults
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.source.slice_rows import SliceWork
from strandline.results.document import DocumentShape
from strandline.results.writer import Refused, WriteReport

SHAPE = DocumentShape("farm", "power", "tens", 1, (), (("n", "long"),), generation=2)
WORK = SliceWork(42, True, None, 100, {0: 7}, {})


@dataclass
class RefusingWriter:
    """Refuses every window that ends at `refused_ms`."""

    refused_ms: int
    ends_ms: list[int] = field(default_factory=list)
    prepared: list[int | None] = field(default_factory=list)

    def prepare(self, next_end_ms: int | None) -> None:
        self.prepared.append(next_end_ms)

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        assert (epoch, emission) == (3, 42)
        ends = [end for batch in batches for end in batch.column("n").to_pylist()]
        self.ends_ms += ends
        refused = [
            Refused(f"id{end}", "farm.g2-1970.01", 400, "bad", "no", b"{}") for end in ends if end == self.refused_ms
        ]
        return WriteReport(created=len(ends) - len(refused), refused=refused)


def rows_of(*ends_ms: int, problems: Mapping[int, str] = {}) -> pa.RecordBatch:
    """A window for each end; its only aggregate is the end."""
    return pa.RecordBatch.from_pydict(
        {
            "@window_start_ms": pa.array([end - 10 for end in ends_ms], pa.int64()),
            "@window_end_ms": pa.array(ends_ms, pa.int64()),
            "n": pa.array(ends_ms, pa.int64()),
            "@problem": pa.array([problems.get(end) for end in ends_ms], pa.string()),
        }
    )


def results_of(rows: pa.RecordBatch, failed: pa.RecordBatch | None = None) -> StageResults:
    return StageResults("tens", rows, rows.slice(0, 0) if failed is None else failed)


class KeptLetters:
    """Double of the writer of dead letters."""

    written: ClassVar[list[DeadLetter]] = []
    ids: ClassVar[set[str]] = set()

    def __init__(self, bootstrap: str, job: str, transactional_id: str, *_: object, record_bytes_max: int) -> None:
        assert (job, record_bytes_max) == ("power", 1_000_000)
        self.ids.add(transactional_id)

    def write(self, letters: Iterable[DeadLetter], written_before: Mapping[int, int]) -> None:
        assert written_before == {0: 7}
        self.written.extend(letters)


@pytest.fixture(autouse=True)
def letters(monkeypatch: pytest.MonkeyPatch) -> type[KeptLetters]:
    monkeypatch.setattr(stage_emission, "DeadLetterWriter", KeptLetters)
    KeptLetters.written, KeptLetters.ids = [], set()
    return KeptLetters


def emission(writer: RefusingWriter | None, emitted_ms: int | None = 20) -> StageEmission:
    writers = (writer,) if writer else ()
    return StageEmission(writers, (), SHAPE, "power", "tens", 3, emitted_ms, "nowhere", "none", 1_000_000)


def test_a_backfill_writes_the_windows_of_its_range(letters: type[KeptLetters]) -> None:
    writer = RefusingWriter(refused_ms=40)
    backfill = BackfillEmission(
        (writer,), (), SHAPE, "power", "tens", 3, 20, "nowhere", "none", 1_000_000, up_to_ms=50, generation=2
    )
    emitted = backfill.emit(results_of(rows_of(10, 20, 30, 40, 50, 60)), WORK, slot=5)
    assert writer.ends_ms == [30, 40, 50]
    assert (emitted.results, emitted.refused) == (3, 1)
    assert emitted.sample == "tens farm.g2-1970.01/id40: bad: no"
    assert [one.identity for one in letters.written] == ["farm.g2-1970.01/id40"]
    assert letters.ids == {"power.dead-letter.backfill-2-tens-5"}


def test_what_an_earlier_run_emitted_is_left_out(letters: type[KeptLetters]) -> None:
    writer = RefusingWriter(refused_ms=0)
    assert emission(writer).emit(results_of(rows_of(10, 20, 30)), WORK, 0).results == 1
    assert emission(writer, None).emit(results_of(rows_of(10)), WORK, 0).results == 1
    assert writer.ends_ms == [30, 10]
    assert letters.written == []


def test_a_store_is_told_of_which_windows_results_may_come() -> None:
    """For a long window, the next one ends long after the last."""
    writer = RefusingWriter(refused_ms=0)
    emission(writer).prepare(WindowShape(size_ms=10, every_ms=10))
    emission(writer, 365).prepare(WindowShape(size_ms=365, every_ms=365))
    emission(writer, 365).prepare(WindowShape(size_ms=365, every_ms=5))
    emission(writer, None).prepare(WindowShape(size_ms=10, every_ms=10))
    assert writer.prepared == [30, 730, 370, None]


def test_a_result_without_a_value_is_a_dead_letter_and_no_document(letters: type[KeptLetters]) -> None:
    writer = RefusingWriter(refused_ms=0)
    rows = rows_of(30, 40, problems={40: "tens.n: too large for its type"})
    emitted = emission(writer).emit(results_of(rows), WORK, 1)
    assert writer.ends_ms == [30]
    assert (emitted.results, emitted.refused, emitted.letters) == (2, 0, 1)
    (letter,) = letters.written
    assert dict(letter.headers)["reason"] == b"expression"
    assert dict(letter.headers)["step"] == b"tens.n"
    assert b'"n":40' in (letter.value or b"")


def test_a_result_that_the_next_stage_cannot_use_is_a_dead_letter_too(letters: type[KeptLetters]) -> None:
    """Also of a stage that emits nothing; one of a window that an earlier run emitted has its letter already."""
    failed = rows_of(20, 30, problems=dict.fromkeys((20, 30), "steps[2].derive.rate: no value from n / 0"))
    emitted = emission(None).emit(results_of(rows_of(20, 30), failed), WORK, 1)
    assert (emitted.results, emitted.refused, emitted.letters) == (0, 0, 1)
    assert [dict(letter.headers)["step"] for letter in letters.written] == [b"steps[2].derive.rate"]
