"""Thousands of histories of meters with outages, store and forward, bulk uploads, and counter resets.

However the log is sliced and processed, results, late records, and revisions are the same to the last bit.

`python -m tests.simulation.test_samples --histories 100000 --seed 1 --processes 2` runs more of them.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strandline.processing.aggregates import consecutive
from strandline.processing.kinds.previous.operator import PreviousOperator
from strandline.processing.operators.cascade import Chunk
from strandline.processing.operators.windows import ClosedWindows, WindowOperator
from strandline.processing.source.decoding import DecodedChunk
from strandline.processing.source.slice_rows import SliceRowBlob
from strandline.processing.source.source_task import SourceTask
from tests.simulation.samples.check import BLOCK, EXECUTIONS, STATES, shown, simulate
from tests.simulation.samples.history import FAULTS, MINUTE_MS

NAMED = FAULTS + EXECUTIONS + STATES
"""What has to happen now and then. If some of it never does, a campaign shows nothing about it, and fails."""
SUMS = ("histories", "slices", "records", "results", "dead letters")
_PIECE = 2 * BLOCK


@dataclass
class Found:
    """Sums over histories, and the histories with findings."""

    happened: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, list[str]]] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.happened.update(other.happened)
        self.wrong += other.wrong

    @property
    def count(self) -> int:
        return self.happened["tried"]

    @property
    def never_happened(self) -> list[str]:
        return [one for one in NAMED if not self.happened[one]]

    def __str__(self) -> str:
        counts = "\n".join(f"  {one}: {self.happened[one]:,}" for one in NAMED)
        sums = ", ".join(f"{self.happened[one]:,} {one}" for one in SUMS)
        return f"{counts}\n{sums}, {len(self.wrong)} with differences"


def run_seeds(seeds: range) -> Found:
    """Run the histories of these seeds."""
    found = Found()
    for seed in seeds:
        found.happened["tried"] += 1
        try:
            outcome = simulate(seed)
        except Exception as error:  # noqa: BLE001  # a finding like others, with its seed
            found.wrong.append((seed, [f"{type(error).__name__}: {error}"]))
            continue
        found.happened.update(outcome.happened)
        if outcome.findings:
            found.wrong.append((seed, outcome.findings))
    return found


@pytest.mark.guarantee(
    "G1020",
    "In seeded histories with outages, store and forward, bulk uploads, duplicates, wrong clocks, and counter resets, "
    "results equal their definitions. Results, dead letters, and revisions are the same to the last bit after kills, "
    "rewinds, snapshots, and restores, in any batches and buckets. With other slices, only meters with other late "
    "records differ.",
    promise="results-depend-only-on-the-log",
)
def test_no_slicing_changes_a_result_a_late_record_or_a_revision() -> None:
    """Histories of each pipeline. `make test-all` and the command run more."""
    found = run_seeds(range(0, 32 * BLOCK, BLOCK))
    assert found.wrong == []
    assert min(found.happened[one] for one in ("a late record", "a rewind", "a revision", "a reset between two slices"))


def test_chunks_change_no_sender_in_a_checkpoint() -> None:
    """In this history, the late records of two meters of a slice are fetched in several chunks."""
    assert simulate(10_011_348).findings == []


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.guarantee("G1020")
def test_no_slicing_changes_a_result_in_four_thousand_histories() -> None:
    found = Found()
    for piece in run_everywhere(range(1_000, 5_000), len(os.sched_getaffinity(0))):
        found.add(piece)
    assert found.wrong == []
    assert found.never_happened == []


def count_no_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reset, the difference counts instead of the value."""
    monkeypatch.setattr(consecutive.INCREASE, "_is_counter", False)


def lose_the_record_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice doesn't know the last record of the slices before."""
    exact = PreviousOperator._last_rows

    def no_rows(operator: PreviousOperator, settled: pa.RecordBatch, up_to_ms: int) -> pa.RecordBatch:
        return exact(operator, settled, up_to_ms).slice(0, 0)

    monkeypatch.setattr(PreviousOperator, "_last_rows", no_rows)


def revise_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each revised window is emitted two times."""
    exact = WindowOperator._revised_windows

    def twice(operator: WindowOperator, *given: Any) -> Iterator[ClosedWindows]:
        for one in exact(operator, *given):
            yield from (one, one)

    monkeypatch.setattr(WindowOperator, "_revised_windows", twice)


def drop_kept_records_at_a_rewind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay reads, and counts, but doesn't use records that arrived more than ten minutes after their event time."""
    exact_rows, exact_cut, replays = SourceTask.rows, SourceTask._cut, [False]

    def rows(task: SourceTask, *given: Any, **more: Any) -> Iterator[SliceRowBlob]:
        replays[0] = not more["is_new"] and not more["restores"]
        return exact_rows(task, *given, **more)

    def cut(
        task: SourceTask, chunk: DecodedChunk, at: Any, event_us: pa.Array, *more: Any
    ) -> Iterator[tuple[int, Chunk]]:
        arrived_ms = np.asarray(chunk.log_times_ms)[chunk.accepted_indices()]
        is_old = arrived_ms - event_us.to_numpy() // 1_000 > 10 * MINUTE_MS
        return iter(()) if replays[0] and is_old.any() else exact_cut(task, chunk, at, event_us, *more)

    monkeypatch.setattr(SourceTask, "rows", rows)
    monkeypatch.setattr(SourceTask, "_cut", cut)


@pytest.mark.long
@pytest.mark.guarantee("G1020")
@pytest.mark.parametrize(
    "mistake", [count_no_reset, lose_the_record_before, revise_twice, drop_kept_records_at_a_rewind]
)
def test_a_mistake_is_found(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [*range(0, 32 * BLOCK, 4)]
    mistake(monkeypatch)
    assert any(simulate(seed).findings for seed in seeds)


def test_a_campaign_in_which_a_state_never_occurs_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = Found(Counter(dict.fromkeys(NAMED, 1)))
    monkeypatch.setattr(sys, "argv", ["samples", "--histories", "1"])
    monkeypatch.setitem(globals(), "run_everywhere", lambda seeds, processes: iter([everything]))
    assert main() == 0
    del everything.happened["a reset between two slices"]
    assert main() == 1
    assert "never: a reset between two slices" in capsys.readouterr().out


def run_everywhere(seeds: range, processes: int) -> Iterator[Found]:
    """Run the histories in some processes, in their order."""
    pieces = [seeds[first : first + _PIECE] for first in range(0, len(seeds), _PIECE)]
    with get_context("spawn").Pool(processes, _begin_work) as pool:
        yield from pool.imap(run_seeds, pieces)


def _begin_work() -> None:
    """End only with the parent. Collect garbage rarely, and not in what is imported, because that stays."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


def main() -> int:
    """Run a campaign. SIGTERM ends it: then it prints what was found so far, and fails."""
    parser = argparse.ArgumentParser(description="Run histories of meters in many slicings; count what differs.")
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--done", type=int, default=0, help="histories of an earlier campaign with this seed, to go on after"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    first = options.seed * 10_000_000
    began_s, found, is_ended = time.monotonic(), Found(), False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for piece in run_everywhere(
            range(first + options.done, first + options.histories), options.processes or os.cpu_count() or 1
        ):
            found.add(piece)
            for seed, findings in piece.wrong:
                print(shown(seed, findings), flush=True)
            done = found.count
            if done % 1_000 < _PIECE:
                a_minute = 60 * done / (time.monotonic() - began_s)
                print(f"{done:,} histories, {len(found.wrong)} with differences, {a_minute:,.0f} a minute", flush=True)
            if done % 20_000 < _PIECE:
                print(found, flush=True)
    except KeyboardInterrupt:
        is_ended = True
        print(f"ended after {found.count:,} histories; --done {options.done + found.count} goes on")
    never = found.never_happened
    if never:
        print(f"never: {', '.join(never)}")
    print(found)
    if found.wrong:
        print(f"the first failing seed is {min(found.wrong)[0]}")
    return 1 if found.wrong or never or is_ended else 0


if __name__ == "__main__":
    sys.exit(main())
