"""The life of records, and the records of results, from recorded slices of drawn pipelines, against an oracle in plain Python.

The jobs have late records, revisions, lookups whose rows change, and a new version of the pipeline.

`python -m tests.property.test_record_life [--pipelines 50] [--seed 1]` traces 20 records of each of many pipelines. It prints
each difference and the number of records, results, and open windows, and exits with 1 if there is a difference.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
import structlog
from hypothesis import Phase, given
from hypothesis import strategies as st

from strandline.ledger.ledger import Ledger
from strandline.processing.lineage.record_life import Lives
from strandline.processing.lineage.views import RecordLife
from strandline.processing.pipelines.stored import load_pipeline
from tests.property.test_whole_pipelines import FUNCTIONS, a_pipeline, allow, functions  # noqa: F401  # the fixture of its functions
from tests.support.examples import examples
from tests.support.installed_package import install
from tests.support.oracle import Answer, Place, Sent, answer
from tests.support.recorded_jobs import JOB, RecordedJob, record_job
from tests.support.some_lookups import LOOKUPS, first_versions
from tests.support.some_pipelines import some_log

RECORDS, TRACED, RESULTS = 150, 20, 5
REASONS = {"decode": "unreadable", "schema": "unreadable"}
TOTALS: Counter[str] = Counter()


def differences(seed: int, directory: Path) -> Iterator[str]:
    random = Random(seed)
    drawn, pipeline = a_pipeline(random)
    while any(LOOKUPS[name].is_followed for name, _ in pipeline.lookups):  # no control service reads their streams here
        drawn, pipeline = a_pipeline(random)
    log = some_log(random, drawn, RECORDS)
    ledger_url = f"sqlite:///{directory / 'ledger.sqlite'}"
    ledger = Ledger.open(ledger_url)
    try:
        job = record_job(ledger, random, drawn, log, drains=random.random() < 0.7)
        revise_ms = (drawn.revise_s or 0) * 1000
        wanted = answer(
            drawn.steps, job.entries, drawn.times, drawn.streams, revise_ms, first_versions(), late=job.late
        )
        TOTALS["pipelines"] += 1
        TOTALS["upgraded"] += job.upgraded_at_ms is not None
        places = _places([one for one in log if isinstance(one, Sent)])
        lives = Lives(ledger, JOB, "nowhere", ledger_url, job.log)
        results: dict[tuple[str, str], tuple[int, int, tuple[int, int], Place]] = {}
        for place in random.sample(places, TRACED):
            stream = drawn.streams[place[0]]
            life = lives.of_record(stream, *place[1:])
            TOTALS["records"] += 1
            yield from _wrong(job, life, place, wanted)
            if life.late_below_ms is not None and not pipeline.has_late_records:
                yield f"{place}: late below {life.late_below_ms}, but no record of the pipeline can be late"
            for one in life.results:
                if not one.sinks:
                    continue  # results of a stage that emits nothing; the oracle has only those that are emitted
                if one.state == "emitted" and one.window_end_ms is not None and one.window_start_ms is not None:
                    assert one.slice is not None
                    window = one.window_start_ms, one.window_end_ms
                    results[one.stage, one.document] = one.version, one.slice, window, place
        for (stage, document), (version, number, window, place) in random.sample(
            sorted(results.items()), min(RESULTS, len(results))
        ):
            if revise_ms:
                continue  # a later slice may have revised it
            sources = lives.of_result(stage, document, version, number)
            TOTALS["results"] += 1
            found = frozenset((drawn.streams.index(one.stream), one.partition, one.offset) for one in sources.records)
            if (stage, window, found) not in wanted.lineage or place not in found:
                yield f"records of {stage} {window}: {sorted(found)}"
        yield from _wrong_windows(job, lives, wanted)
    finally:
        ledger.close()


def _wrong(job: RecordedJob, life: RecordLife, place: Place, wanted: Answer) -> Iterator[str]:
    """Yield the differences of one record."""
    assert job.closed_ms is not None
    expected: Counter[tuple[str, tuple[int, int] | None]] = Counter()
    for (stage, window, records), count in wanted.lineage.items():
        if place in records and (window is None or window[1] <= job.closed_ms):
            expected[stage, window] += count
    found: Counter[tuple[str, tuple[int, int] | None]] = Counter()
    for one in life.results:
        window = None
        if one.window_start_ms is not None and one.window_end_ms is not None:
            window = one.window_start_ms, one.window_end_ms
        is_version_2 = job.upgraded_at_ms is not None and window is not None and window[1] > job.upgraded_at_ms
        if one.state == "emitted" and one.sinks:
            found[one.stage, window] += 1
            if window is not None and not job.drawn.revise_s and one.version != 1 + is_version_2:
                yield f"{place}: version {one.version} of {window}"
        elif one.state == "open" and window is not None and window[1] <= job.closed_ms:
            yield f"{place}: {window} is open"
    if found != expected:
        yield f"{place}: {found - expected} instead of {expected - found}"
    reasons = {REASONS.get(one.outcome, one.outcome) for one in life.rows} - {"accepted"}
    letter = wanted.letters.get(place)
    if reasons != ({"lookup" if "has no row" in letter else letter} if letter else set()):
        yield f"{place}: {reasons} instead of {letter}"


def _wrong_windows(job: RecordedJob, lives: Lives, wanted: Answer) -> Iterator[str]:
    """Yield the stages whose open windows differ from the results that the oracle has after the last slice.

    A stage that reads other stages lacks the windows of these that are open, which the oracle has closed.
    """
    assert job.closed_ms is not None
    found = lives.open_windows(None, "")
    opened: dict[str, Counter[tuple[int, int, int]]] = {}
    for one in found.windows:
        if one.message:
            continue
        opened.setdefault(one.stage, Counter())[one.start_ms, one.end_ms, one.records] += 1
    pipeline = load_pipeline(job.ledger, JOB, job.ledger.job(JOB).version)
    for stage in pipeline.stages:
        if not stage.has_aggregates or not stage.emits or any(one.stage is not None for one in stage.inputs):
            continue
        expected = Counter[tuple[int, int, int]]()
        for (name, window, records), count in wanted.lineage.items():
            if name == stage.name and window is not None and window[1] > job.closed_ms:
                expected[(*window, len(records))] += count
        TOTALS["windows"] += sum(expected.values())
        if opened.get(stage.name, Counter()) != expected:
            shown = opened.get(stage.name, Counter())
            yield f"open windows of {stage.name}: {shown - expected} instead of {expected - shown}"


def _places(sent: list[Sent]) -> list[Place]:
    offsets: Counter[tuple[int, int]] = Counter()
    found = []
    for one in sent:
        at = one.stream, one.partition
        found.append((*at, offsets[at]))
        offsets[at] += 1
    return found


@pytest.mark.guarantee(
    "G950",
    "The life of a record equals the account of an oracle in plain Python: its results, its dead letter, and the records of each "
    "result. This holds for past slices, late records, revisions, changed lookups, and after an upgrade.",
    promise="results-depend-only-on-the-log",
)
@examples(12, phases=(Phase.explicit, Phase.generate))
@given(st.integers(0, 2**32))
def test_the_life_of_records_equals_the_oracle(seed: int) -> None:
    with TemporaryDirectory() as directory:
        assert list(differences(seed, Path(directory))) == []
    print(dict(TOTALS), file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    wrong = 0
    first = arguments.seed * 1_000_000 + 1
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with TemporaryDirectory() as packages:
        install(Path(packages), functions=FUNCTIONS)
        allow(packages)
        for seed in range(first, first + arguments.pipelines):
            with TemporaryDirectory() as directory:
                found = list(differences(seed, Path(directory)))
            wrong += bool(found)
            for one in found:
                print(f"seed {seed}: {one}", flush=True)
            if TOTALS["pipelines"] % 10 == 0:
                print(f"{TOTALS['pipelines']} pipelines, {wrong} with differences", flush=True)
    print(", ".join(f"{count:,} {name}" for name, count in TOTALS.items()) + f"; {wrong} pipelines with differences")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
