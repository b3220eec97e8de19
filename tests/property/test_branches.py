"""A pipeline with branches gives what each branch gives as a job of its own, to the last bit: in other slices, buckets and
chunks, and behind a rewind."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strandline.processing.desk.desk import Desk, DeskResult, Outcome
from strandline.processing.desk.records import DeskRecords
from strandline.processing.operators.cascade import Cascade
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.graph.branches import bucket_key, plan_branches
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from tests.property.test_rewind_windows import require_the_rest
from tests.property.test_window_operator import END, STREAM, Record, digest, histories, run, some_records
from tests.support.examples import examples
from tests.support.step_graphs import Steps, document_of, single_jobs, some_graph

History = list[tuple[list[Record], int | None]]
Found = dict[str, list[dict[str, Any]]]


def checked(steps: Steps) -> CheckedPipeline:
    return check(PipelineSpec.from_document(document_of(steps)), STREAM)


def window(name: str, size: str, by: list[str], source: str | None = None) -> dict[str, Any]:
    is_first = source is None or source == "machines"
    aggregate = {"n": "count(*)" if is_first else "sum(n)", "power": "sum(power)"}
    step = {"window": {"name": name, "tumbling": size, "by": by, "aggregate": aggregate}}
    return {**step, "emit": [{"elasticsearch": name}], **({"from": source} if source else {})}


BOTH = ["machine", "site"]
GRAPHS: dict[str, Steps] = {
    "two keys over the records": [window("a", "5s", ["machine"]), window("b", "10s", ["site"], "machines")],
    "keys that share a field": [
        window("a", "5s", BOTH),
        window("b", "10s", ["machine"], "a"),
        window("c", "20s", BOTH, "a"),
    ],
    "keys that share no field": [
        window("a", "5s", BOTH),
        window("b", "10s", ["machine"], "a"),
        window("c", "10s", ["site"], "a"),
    ],
    "two that regroup widely": [
        window("a", "5s", ["machine"]),
        window("b", "10s", [], "a"),
        window("c", "20s", [], "a"),
        window("d", "10s", ["machine"], "a"),
        window("e", "10s", [], "machines"),
    ],
    "regrouped widely by another key": [
        window("a", "5s", BOTH),
        window("b", "10s", ["site"], "a"),
        window("c", "20s", [], "b"),
        window("d", "10s", [], "a"),
        window("f", "10s", ["site"], "a"),
    ],
    "in one bucket": [
        window("a", "5s", []),
        window("b", "10s", [], "a"),
        window("c", "15s", [], "a"),
    ],
}


def text_of(rows: list[dict[str, Any]]) -> str:
    """Return every bit of the rows, without the position of a step in its document."""
    return re.sub(r"steps\[\d+\]", "steps[]", digest({"": rows}))


def adds_in_another_order(pipeline: CheckedPipeline, job: CheckedPipeline, stage: str) -> bool:
    """Whether a window that regroups widely, the last one of the job, is not the last one of its branch. Then sums of doubles may
    differ in the last bit, as they always have where a window came behind such a one."""
    at = [one.name for one in pipeline.stages].index(stage)
    return bool(pipeline.takers[at]) and bucket_key(job.stages)[1] and len(job.stages) > 1


def bad_ones(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {identity(row) for row in rows if row["@problem"] is not None}


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["@window_start_ms"], row["@window_end_ms"], row.get("machine"), row.get("site")


def assert_as_single_jobs(steps: Steps, history: History, buckets: int, chunk_rows: int) -> None:
    pipeline = checked(steps)
    found = run(pipeline, history, buckets, chunk_rows)
    whole = [([row for rows, _ in history for row in rows], END)]
    failed: dict[str, set[tuple[Any, ...]]] = {stage.name: set() for stage in pipeline.stages}
    for stage, way in single_jobs(steps):
        if stage not in failed:
            continue  # an emission of records
        job = checked(way)
        alone = run(job, whole, 1, 10**6)
        if not adds_in_another_order(pipeline, job, stage):
            assert text_of(found[stage]) == text_of(alone[stage])
        for name in failed:
            failed[name] |= {identity(row) for row in alone.get(f"{name} failed", [])}
    for name, wanted in failed.items():
        rows = found[f"{name} failed"]
        assert {identity(row) for row in rows} == wanted - bad_ones(found[name])
        assert len({identity(row) for row in rows}) == len(rows), "each has one dead letter"
        assert all(row["@problem"] for row in rows)


@pytest.mark.guarantee(
    "G390",
    "Each branch of a pipeline gives the documents of a job with only the steps of that branch, byte for byte, in any "
    "slices, buckets, and chunks, and through restarts.",
    promise="results-depend-only-on-the-log",
)
@examples(40)
@given(histories(), st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 7))
def test_each_branch_gives_what_it_gives_as_a_job_of_its_own(
    history: History, seed: int, buckets: int, chunk_rows: int
) -> None:
    assert_as_single_jobs(some_graph(Random(seed)), history, buckets, chunk_rows)


@pytest.mark.parametrize("steps", GRAPHS.values(), ids=GRAPHS)
@examples(8)
@given(histories(), st.integers(2, 4))
def test_so_do_branches_that_spread_in_other_ways(steps: Steps, history: History, buckets: int) -> None:
    assert_as_single_jobs(steps, history, buckets, 5)


def test_windows_are_computed_once_where_one_bucket_key_does() -> None:
    plans = {name: plan_branches(checked(steps).stages) for name, steps in GRAPHS.items()}
    assert {
        name: [(one.bucket_by, one.stages, one.split, one.emits) for one in plan] for name, plan in plans.items()
    } == {
        "two keys over the records": [(["machine"], [0], [], [0]), (["site"], [1], [], [1])],
        "keys that share a field": [(["machine"], [0, 1, 2], [], [0, 1, 2])],
        "keys that share no field": [(["machine"], [0, 1], [], [0, 1]), (["site"], [0, 2], [], [2])],
        "two that regroup widely": [(["machine"], [0, 1, 2, 3], [1, 2], [0, 1, 2, 3]), ([], [4], [4], [4])],
        "regrouped widely by another key": [
            (["site"], [0, 1, 2, 4], [2], [0, 1, 2, 4]),
            (BOTH, [0, 3], [3], [3]),
        ],
        "in one bucket": [([], [0, 1, 2], [], [0, 1, 2])],
    }
    wide = checked(GRAPHS["two that regroup widely"])
    assert Cascade(wide.stages, 3).split_stages == [1, 2, 4]
    assert not Cascade(wide.stages, 1).is_split


@pytest.mark.guarantee(
    "G391",
    "A job with branches emits each result of each branch once, through a kill, an upgrade that adds a branch, and a "
    "backfill, and its audit is clean. A rewind computes only windows that no branch has emitted, each completely.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
@examples(40)
@given(histories(), st.integers(0, 2**32), st.none() | st.integers(0, 2**32), st.data())
def test_a_rewind_of_all_branches_computes_just_what_is_not_emitted(
    history: History, seed: int, new_seed: int | None, data: st.DataObject
) -> None:
    """Also by a version with other branches: a stage of another name begins with the first window that was not closed."""
    assume(len(history) > 1)
    old = checked(some_graph(Random(seed)))
    new = old if new_seed is None else checked(some_graph(Random(new_seed)))
    number = data.draw(st.integers(1, len(history) - 1), label="the last committed slice")
    require_the_rest(history, old, new, number)


def some_lines(random: Random) -> list[tuple[int, bytes]]:
    """(partition, record), some of which are late, and some broken."""
    lines = []
    ahead_ms = 0
    for record in some_records(random.randrange(2**32), random.choice([6, 40, 80])):
        ahead_ms += random.choice([0, 0, 500, 3_000])
        shown = {
            "machine": record.machine,
            "site": record.site,
            "power": record.power,
            "ts": record.ts_ms // 4 + ahead_ms,
        }
        line = json.dumps(shown | {"count": random.choice([None, 0, 1, 2, -1, record.count])}).encode()
        lines.append((record.partition, line[:-2] if random.random() < 0.05 else line))
    return lines


def at_the_desk(
    pipeline: CheckedPipeline, lines: Sequence[tuple[int, bytes]], slice_records: int | None, *, restarts: bool = False
) -> tuple[dict[str, list[Any]], dict[str, tuple[str, str]]]:
    """Stage -> its results; and of each dead letter where it is from -> reason and message."""
    desk = Desk(pipeline, slice_records, restarts=restarts)
    outcomes: list[Outcome] = []
    for first in range(0, len(lines), 11):
        part = lines[first : first + 11]
        outcomes += desk.feed(DeskRecords([line for _, line in part], [partition for partition, _ in part]))
        if restarts:
            desk.restart()
    outcomes += desk.drain()
    results: dict[str, list[Any]] = defaultdict(list)
    letters: dict[str, tuple[str, str]] = {}
    for one in outcomes:
        if isinstance(one, DeskResult):
            results[one.stage].append((one.document.id, one.document.source))
        else:
            place = json.dumps(one.place)
            if one.reason == "expression" and "index" in one.place:
                document = json.loads(one.value or b"")
                names = [document["strandline"]["stage"], document["window"]["start"], document["window"]["end"]]
                place = json.dumps([*names, document.get("machine"), document.get("site")])
            assert place not in letters, "one record, or result, has one dead letter"
            letters[place] = (one.reason, re.sub(r"steps\[\d+\]", "steps[]", one.message))
    return results, letters


@pytest.mark.guarantee(
    "G7",
    "Each rejected record is one dead letter with its bytes, its reason, and its log position, up to the largest "
    "record that a gateway accepts. Duplicates, and late records with `late: drop`, have none. Records = accepted + "
    "rejected.",
    promise="each-rejected-record-is-one-dead-letter",
)
@pytest.mark.guarantee("G390")
@pytest.mark.guarantee("G392")
@examples(10)
@given(st.integers(0, 2**32), st.none() | st.sampled_from([1, 7, 30]))
def test_documents_and_dead_letters_are_those_of_the_branches(seed: int, slice_records: int | None) -> None:
    """Documents are the same byte for byte. A record, or a result, that fails in several branches has one dead letter; one that
    fails in some is in the others as if it had not."""
    random = Random(seed)
    steps, lines = some_graph(random), some_lines(random)
    pipeline = checked(steps)
    found, letters = at_the_desk(pipeline, lines, slice_records)
    again, letters_again = at_the_desk(pipeline, lines, slice_records, restarts=True)
    assert (again, letters_again) == (found, letters), "restarts change nothing"
    wanted: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for stage, way in single_jobs(steps):
        job = checked(way)
        results, of_branch = at_the_desk(job, lines, slice_records)
        if not (job.stages and adds_in_another_order(pipeline, job, stage)):
            assert sorted(found[stage]) == sorted(results[stage])
        for place, told in of_branch.items():
            wanted[place].add(told)
    assert letters.keys() == wanted.keys()
    assert all(told in wanted[place] for place, told in letters.items())
