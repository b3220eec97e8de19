"""The records that each result contains, of whole pipelines of all kinds of steps, against an oracle in plain Python.

`python -m tests.property.test_lineage --pipelines 200 --records 1000 --seed 1` runs as many as needed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import Phase, given
from hypothesis import strategies as st

from strandline.processing.desk import desk as desk_module
from strandline.processing.desk.desk import Desk, DeskResult, Outcome
from strandline.processing.lineage.tracing import records_in, traced_stages, with_numbers
from strandline.processing.operators.cascade import StageResults, cascade_of
from strandline.processing.operators.record_chain import record_chain_of
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.stages import NumberColumns
from strandline.processing.source.decoding import DecodedChunk
from strandline.processing.source.source_config import TaskConfig
from strandline.results.writer import PROBLEM
from tests.property import test_whole_pipelines as whole
from tests.property.test_whole_pipelines import a_run, functions  # noqa: F401  # the fixture of its functions
from tests.support.examples import examples
from tests.support.installed_package import install
from tests.support.oracle import Lineage, Place
from tests.support.some_pipelines import FUNCTIONS

BASE = 10**6
"""Partitions and offsets of the tests are lower."""


class TracedDesk(Desk):
    """A local run that traces all records."""

    def __init__(self, pipeline: CheckedPipeline, *arguments: Any, **options: Any) -> None:
        stages, columns = traced_stages(pipeline.stages)
        super().__init__(pipeline, *arguments, **options)
        config: TaskConfig = self._task._config
        traced = TaskConfig(**{**vars(config), "stages": stages})
        self._task, self._cascade = desk_module.SourceTask(traced), traced.cascade
        read = self._task.rows
        self._task.rows = lambda chunks, **more: read((with_numbers(one, numbers_of) for one in chunks), **more)  # type: ignore[method-assign]
        self.lineage: dict[str, Lineage] = {}
        emissions = zip(self._emissions, columns, strict=True)
        self._emissions = [_TracedEmission(one, made, self.lineage) for one, made in emissions]  # type: ignore[misc]


class _TracedEmission:
    """Emits the results of a stage as it does, and keeps the records of each."""

    def __init__(self, emission: Any, columns: NumberColumns, lineage: dict[str, Lineage]) -> None:
        self._emission, self._columns, self._lineage = emission, columns, lineage
        self.open_shape = None

    def of_windows(self, results: StageResults, emitted_ms: int | None, counts: Any, number: int) -> Iterator[Outcome]:
        yield from self.outcomes(desk_module._later(results.rows, emitted_ms), counts, number)
        failed = desk_module._later(results.failed, emitted_ms)
        yield from self._emission._unusable(self._plain(failed), number)

    def outcomes(self, new: pa.RecordBatch, counts: Any, number: int) -> Iterator[Outcome]:
        records = iter(records_in(new.filter(pc.is_null(new.column(PROBLEM))), self._columns))
        for one in self._emission.outcomes(self._plain(new), counts, number):
            if isinstance(one, DeskResult):
                window = tuple(map(_ms, json.loads(one.document.source)["window"].values()))
                self._lineage[one.document.id] = one.stage, window, frozenset(map(place_of, next(records)))  # type: ignore[assignment]
            yield one

    def _plain(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.drop_columns([name for name, _ in self._columns])


def numbers_of(chunk: DecodedChunk) -> pa.Array:
    first = (chunk.place * BASE + chunk.partition) * BASE
    return pa.array([first + chunk.offsets[at] for at in chunk.accepted_indices()], pa.int64())


def place_of(number: int) -> Place:
    stream, rest = divmod(number, BASE * BASE)
    return (stream, *divmod(rest, BASE))


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def differences(seed: int, records: int) -> Iterator[str]:
    """Yield the differences between the lineage of all results and the oracle, in one slice, and in slices with restarts."""
    run = a_run(seed, records)
    wanted = Counter({one: count for one, count in run.wanted.lineage.items() if one[1] is not None})
    for slice_records, restarts in ((None, 0), (40, 0), (7, 23)):
        desks: list[TracedDesk] = []

        def traced(*arguments: Any, desks: list[TracedDesk] = desks, **options: Any) -> TracedDesk:
            desks.append(TracedDesk(*arguments, **options))
            return desks[-1]

        kept, whole.Desk = whole.Desk, traced  # type: ignore[misc, assignment]
        try:
            found = whole.at_the_desk(run.pipeline, run.drawn.streams, run.log, slice_records, restarts)
        finally:
            whole.Desk = kept  # type: ignore[misc]
        if whole.bits(found) != whole.bits(run.at_once):
            yield f"slices of {slice_records}: tracing changes results"
        shown = Counter(desks[0].lineage.values())
        for what, some in (("missing", wanted - shown), ("too much", shown - wanted)):
            yield from (f"slices of {slice_records}: {what}: {one}" for one in list(some)[:3])
    cascade_of.cache_clear()
    record_chain_of.cache_clear()


def counted(seed: int, records: int) -> Mapping[str, int]:
    """Return the numbers of records and of results with a window of a run."""
    run = a_run(seed, records)
    return {"records": run.records, "results": sum(count for one, count in run.wanted.lineage.items() if one[1])}


@examples(25, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_each_result_is_traced_to_the_records_that_it_contains(seed: int) -> None:
    assert list(differences(seed, 150)) == []


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pipelines", type=int, default=50)
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    os.environ[whole.ALLOW] = "acme_quality"
    totals: Counter[str] = Counter()
    wrong = 0
    from pathlib import Path

    with TemporaryDirectory() as directory:
        sys.path.insert(0, str(install(Path(directory), functions=FUNCTIONS)))
        random = Random(options.seed)
        for _ in range(options.pipelines):
            seed = random.randrange(2**32)
            found = list(differences(seed, options.records))
            totals.update(counted(seed, options.records))
            wrong += bool(found)
            for one in found:
                print(seed, one, flush=True)
    print(f"{options.pipelines} pipelines, {dict(totals)}, {wrong} with differences")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
