"""What the emission of a backfill writes of a batch, with a writer that refuses some, and without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pytest

from strandline.processing.emission import stage_emission
from strandline.processing.emission.dead_letters import DeadLetter
from strandline.processing.emission.slice_context import SliceContext
from strandline.processing.emission.stage_emission import REFUSED_RESULTS, REFUSED_SAMPLE, BackfillEmission
from strandline.results.writer import Refused, WriteReport


@dataclass
class RefusingWriter:
    """Refuses every window that ends at `refused_ms`."""

    refused_ms: int
    ends_ms: list[int] = field(default_factory=list)

    def write_batches(self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int) -> WriteReport:
        assert (epoch, emission) == (3, 42)
        ends = [one["end"] // 1_000 for batch in batches for one in _windows(batch)]
        self.ends_ms += ends
        refused = [
            Refused(f"id{end}", "farm.g2-1970.01", 400, "bad", "no", b"{}") for end in ends if end == self.refused_ms
        ]
        return WriteReport(created=len(ends) - len(refused), refused=refused)


def _windows(batch: pa.RecordBatch) -> list[dict[str, int]]:
    kind = pa.struct([("start", pa.int64()), ("end", pa.int64())])
    return list(batch.column("window").cast(kind).to_pylist())


def batch_of(*ends_ms: int) -> pa.RecordBatch:
    kind = pa.timestamp("us", tz="UTC")
    ends = pa.array([end * 1_000 for end in ends_ms], pa.int64()).cast(kind)
    starts = pa.array([(end - 10) * 1_000 for end in ends_ms], pa.int64()).cast(kind)
    window = pa.StructArray.from_arrays([starts, ends], names=["start", "end"])
    return pa.RecordBatch.from_arrays([window, pa.array(ends_ms, pa.int64())], names=["window", "n"])


class KeptLetters:
    """Stands for the writer of dead letters."""

    written: ClassVar[list[DeadLetter]] = []

    def __init__(self, bootstrap: str, job: str, transactional_id: str, *_: object, record_bytes_max: int) -> None:
        assert (job, transactional_id, record_bytes_max) == ("power", "power.dead-letter.backfill-2-tens-5", 1_000_000)

    def write(self, letters: Iterable[DeadLetter], written_before: Mapping[int, int]) -> None:
        assert written_before == {0: 7}
        self.written.extend(letters)


def test_it_writes_the_windows_of_its_range_and_passes_all_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_emission, "DeadLetterWriter", KeptLetters)
    writer, context = RefusingWriter(refused_ms=40), SliceContext(42, {0: 7}, {})
    emission = BackfillEmission(
        (writer,), (), "power", "tens", 3, 20, "nowhere", "none", 1_000_000, context=context, up_to_ms=50, generation=2
    )
    batches = iter([batch_of(10, 20, 30, 40), batch_of(), batch_of(50, 60)])
    passed = list(emission.emit(batches, context, task=5))
    assert writer.ends_ms == [30, 40, 50]
    assert [batch.column("n").to_pylist() for batch in passed] == [[10, 20, 30, 40], [], [50, 60]]
    assert [batch.column(REFUSED_RESULTS).to_pylist() for batch in passed] == [[1, 0, 0, 0], [], [0, 0]]
    why = "tens farm.g2-1970.01/id40: bad: no"
    assert [batch.column(REFUSED_SAMPLE).to_pylist() for batch in passed] == [[why, None, None, None], [], [None, None]]
    assert [one.identity for one in KeptLetters.written] == ["farm.g2-1970.01/id40"]
