"""The checker of a job's results finds and names each planted fault, and never reports a right result.

The faults are planted in a made-up run. A dump that `python -m tests.fault.job_ladder --keep` left is changed in the
same ways, if it is next to checker.py as `recorded.json.gz`.
"""

from __future__ import annotations

import ast
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from tests.support.chaos import checker
from tests.support.chaos.checker import JobVerdict, check_job
from tests.support.chaos.checking.cascade import Hundredths, added
from tests.support.chaos.checking.pace import LONG, PACES, SHORT
from tests.support.chaos.dump import Dump
from tests.support.chaos.made_up import MadeUpJob
from tests.support.chaos.made_up_backfills import made_up_run
from tests.support.chaos.made_up_more import in_stream
from tests.support.chaos.planted import in_backfills, in_cascade, in_event_time, in_ledger, in_results, in_versions
from tests.support.chaos.planted.in_ledger import JOB, STREAM, Chance
from tests.support.chaos.work import draw_speed
from tests.support.examples import one_in

RECORDED = Path(checker.__file__).with_name("recorded.json.gz")
RUNS = ["made up", *(["recorded"] if RECORDED.exists() else [])]


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]


@cache
def _kept(which: str) -> bytes:
    return pickle.dumps(Dump.load(RECORDED) if which == "recorded" else made_up_run(7, JOB, STREAM))


def copy_of(which: str) -> Dump:
    """Pickle copies ten times as fast as copy.deepcopy does."""
    run: Dump = pickle.loads(_kept(which))
    return run


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> Dump:
    """A run in which nothing was wrong, to be spoilt."""
    return copy_of(request.param)


def judge(dump: Dump) -> JobVerdict:
    return check_job(dump, JOB, STREAM)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 50))])
def test_a_right_run_passes(seed: int) -> None:
    verdict = judge(made_up_run(seed, JOB, STREAM, PACES[draw_speed(seed)]))
    assert verdict.violations == []
    assert verdict.records == verdict.accepted + verdict.late + verdict.refused
    assert min(verdict.accepted, verdict.late, verdict.refused, verdict.expected, verdict.unusable) > 10


def test_the_run_has_something_of_everything(run: Dump) -> None:
    verdict = judge(run)
    assert verdict.violations == []
    assert verdict.records == verdict.accepted + verdict.late + verdict.refused
    assert verdict.epochs > 2, "a run without a restart shows little"
    assert {row["version"] for row in run.tables["slices"]} > {1, 2}, "a run without an upgrade shows little"
    reasons = {letter.headers["reason"] for letter in run.dead_letters}
    assert reasons == {"decode", "schema", "expression", "future_event", "late"}
    assert {document["_source"]["strandline"]["stage"] for document in run.documents} == {SHORT, LONG}


def test_a_dump_comes_back_from_its_file_as_it_was(run: Dump, tmp_path: Path) -> None:
    run.save(tmp_path / "dump.json.gz")
    assert Dump.load(tmp_path / "dump.json.gz") == run


CHAOS = Path(checker.__file__).parent
CHECKING = [CHAOS / "checker.py", CHAOS / "dump.py", *sorted(CHAOS.glob("checking/**/[a-z]*.py"))]


@pytest.mark.parametrize("module", CHECKING, ids=lambda path: path.stem)
def test_nothing_of_the_platform_is_imported(module: Path) -> None:
    tree = ast.parse(module.read_text())
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert names and not [name for name in names if name.startswith("strandline")]
    ours = {name.removeprefix("tests.support.chaos.") for name in names if name.startswith("tests.")}
    known = {".".join(path.relative_to(CHAOS).with_suffix("").parts) for path in CHECKING}
    assert ours <= known - {"checker"}


KINDS = (in_results, in_cascade, in_ledger, in_event_time, in_versions, in_backfills)
MUTATIONS = {mutate: found for kind in KINDS for mutate, found in kind.PLANTED.items()}


def test_many_different_faults_are_planted() -> None:
    assert len({mutate.__name__ for mutate in MUTATIONS}) == len(MUTATIONS) >= 130


@pytest.mark.parametrize("mutate", one_in(3, list(MUTATIONS)), ids=lambda mutate: mutate.__name__)
@pytest.mark.parametrize("which", RUNS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_planted_fault_is_found(seed: int, which: str, mutate: Callable[[Dump, Chance], None]) -> None:
    dump = copy_of(which)
    mutate(dump, Chance(seed))
    verdict = judge(dump)
    found = {kind for kind in JobVerdict.KINDS if getattr(verdict, kind)}
    assert found & MUTATIONS[mutate], verdict


@pytest.mark.parametrize("fault", ["", "lost", "repeated", "wrong", "foreign"])
def test_a_fault_in_the_stream_of_results_is_found(fault: str) -> None:
    run = copy_of("made up")
    short = [one for one in run.documents if one["_source"]["strandline"]["stage"] == "short"]
    run.results = [in_stream(one) for one in short]
    match fault:
        case "lost":
            run.results.pop()
        case "repeated":
            run.results.append(run.results[0])
        case "wrong":
            run.results[3].value = run.results[3].value.replace(b'"n": ', b'"n": 1')
        case "foreign":
            run.results.append(in_stream({**short[0], "_id": "AAAAAAAAAAAAAAAAAAAAAA"}))
    verdict = judge(run)
    assert [kind for kind in JobVerdict.KINDS if getattr(verdict, kind)] == ([fault] if fault else [])


@pytest.mark.parametrize(
    ("exact", "added", "allowed"),
    [
        ("0.1249", 0.1249, [0.12]),
        ("1/8", 0.125, [0.13]),  # a tie, and doubles have it exactly
        ("-1/8", -0.125, [-0.13]),
        ("1.005", 1.005, [1.0, 1.01]),  # a tie, and doubles don't have it
        ("1.00499999999999989", 1.005, [1.0, 1.01]),  # what the double 1.005 is: its shortest digits are a tie
        ("1.0050000000000001", 1.005, [1.0, 1.01]),
        ("1.00500000001", 1.00500000001, [1.01]),
        ("1.00499999999", 1.00499999999, [1.0]),
        ("1.00500000000101", 1.005, [1.01]),  # the first beyond 1e-12 of the tie
        ("99999.995000000001", 99999.995, [99999.99, 100000.0]),
        ("0", 0.0, [0.0]),
    ],
)
def test_a_mean_may_be_rounded_to_either_side_only_where_doubles_can_not_tell(
    exact: str, added: float, allowed: list[float]
) -> None:
    rounded = Hundredths(Fraction(exact), added)
    steps = [round(n / 100 + math.floor(added * 100) / 100, 2) for n in range(-2, 4)]
    assert [step for step in steps if rounded.allows(step)] == allowed
    assert not rounded.allows(None) and not rounded.allows(math.nextafter(allowed[0], 2e9))


def test_doubles_are_added_one_after_the_other() -> None:
    values = [0.1] * 10
    assert added(values) == 0.9999999999999999 != math.fsum(values)


def test_what_was_cut_off_before_the_job_ran_first_is_missed_only_where_nobody_says_so() -> None:
    made_up = MadeUpJob(3, JOB, STREAM)
    made_up.offsets |= {0: 7, 2: 30}
    for _ in range(40):
        made_up.slice(20)
    dump = made_up.finish()
    dump.log_starts |= {"0": 7, "2": 30}
    dump.read_from = {"0": 7, "1": 0, "2": 30}
    assert judge(dump).violations == []
    dump.read_from = {"0": 6, "1": 0, "2": 30}
    assert judge(dump).lost and judge(dump).ledger
    dump.read_from = {}
    assert judge(dump).lost and judge(dump).ledger


def test_a_slice_that_is_under_way_may_be_written_in_part(run: Dump) -> None:
    """The results of such a slice can be in the index or not, its dead letters too. Those that exist must be right."""
    tables = run.tables
    with_results = [row for row in tables["checkpoints"] if row["results"]["short"] > 1]
    number = with_results[-1]["slice"]
    tables["slices"] = [row for row in tables["slices"] if row["number"] <= number]
    tables["checkpoints"] = [row for row in tables["checkpoints"] if row["slice"] < number]
    tables["slices"][-1]["status"] = "planned"
    ends = {int(partition): end for partition, end in tables["slices"][-1]["offsets"][STREAM].items()}
    run.records = [one for one in run.records if one.offset < ends[one.partition]]
    run.documents = [one for one in run.documents if one["_source"]["strandline"]["emission"] <= number]
    results = {f"{one['_index']}/{one['_id']}".encode() for one in (*run.documents, *run.backfilled)}
    assert run.shown is not None
    run.shown = {stage: [one for one in shown if one.encode() in results] for stage, shown in run.shown.items()}
    run.dead_letters = [
        one
        for one in run.dead_letters
        if (
            one.key in results
            if "document" in one.headers
            else int(one.headers["offset"]) < ends[int(one.headers["partition"])]
        )
    ]
    assert judge(run).violations == []
    run.documents.remove(next(one for one in run.documents if one["_source"]["strandline"]["emission"] == number))
    assert judge(run).violations == []
    next(one for one in run.documents if one["_source"]["strandline"]["emission"] == number)["_source"]["n"] += 1
    assert judge(run).wrong
