"""The checker of a job's results has teeth: each planted fault, alone, is found and named; what is right is never called
wrong.

The faults are planted in a made-up run. A dump that `python -m tests.fault.job_ladder --keep` left, put beside checker.py as
`recorded.json.gz`, is spoilt in the same ways.
"""

from __future__ import annotations

import ast
import copy
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.chaos import checker
from tests.support.chaos.checker import JobVerdict, check_job
from tests.support.chaos.dump import Dump, Record, Row
from tests.support.chaos.made_up import made_up_run

JOB, STREAM = "chaos", "chaos-readings"
RECORDED = Path(checker.__file__).with_name("recorded.json.gz")
Chance = random.Random


RUNS = ["made up", *(["recorded"] if RECORDED.exists() else [])]


@cache
def _kept(which: str) -> Dump:
    return Dump.load(RECORDED) if which == "recorded" else made_up_run(7, JOB, STREAM)


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> Dump:
    """A run in which nothing was wrong, to be spoilt."""
    return copy.deepcopy(_kept(request.param))


def judge(dump: Dump) -> JobVerdict:
    return check_job(dump, JOB, STREAM)


@pytest.mark.parametrize("seed", range(50))
def test_a_right_run_passes(seed: int) -> None:
    verdict = judge(made_up_run(seed, JOB, STREAM))
    assert verdict.violations == []
    assert verdict.records == verdict.accepted + verdict.late + verdict.refused
    assert min(verdict.accepted, verdict.late, verdict.refused, verdict.expected) > 10


def test_the_run_has_something_of_everything(run: Dump) -> None:
    verdict = judge(run)
    assert verdict.violations == []
    assert verdict.records == verdict.accepted + verdict.late + verdict.refused
    assert verdict.epochs > 2, "a run without a restart shows little"
    reasons = {letter.headers["reason"] for letter in run.dead_letters}
    assert reasons == {"decode", "schema", "expression", "future_event", "late"}
    assert {document["_source"]["strandline"]["stage"] for document in run.documents} == set(checker.STAGES)


def test_a_dump_comes_back_from_its_file_as_it_was(run: Dump, tmp_path: Path) -> None:
    run.save(tmp_path / "dump.json.gz")
    assert Dump.load(tmp_path / "dump.json.gz") == run


@pytest.mark.parametrize("module", ["checker", "dump"])
def test_nothing_of_the_platform_is_imported(module: str) -> None:
    tree = ast.parse(Path(checker.__file__).with_name(f"{module}.py").read_text())
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert names and not [name for name in names if name.startswith("strandline")]
    assert [name for name in names if name.startswith("tests.")] in ([], ["tests.support.chaos.dump"])


# --- The log


def _members(dump: Dump) -> list[Record]:
    """The records that windows count."""
    dead = {letter.key for letter in dump.dead_letters}
    used = [one for one in dump.records if f"{STREAM}/{one.partition}/{one.offset}".encode() not in dead]
    return [one for one in used if json.loads(one.value)["power"] / json.loads(one.value)["rated"] < 10]


def drop_a_record(dump: Dump, chance: Chance) -> None:
    dump.records.remove(chance.choice(_members(dump)))


def drop_a_record_that_is_filtered_out(dump: Dump, chance: Chance) -> None:
    members = [id(one) for one in _members(dump)]
    dump.records.remove(chance.choice([one for one in dump.records if id(one) not in members]))


def swap_two_records(dump: Dump, chance: Chance) -> None:
    one = chance.choice(_members(dump))
    minute = json.loads(one.value)["ts"] // 60_000
    other = chance.choice([two for two in _members(dump) if json.loads(two.value)["ts"] // 60_000 > minute + 1])
    one.value, other.value = other.value, one.value


def change_a_byte(dump: Dump, chance: Chance) -> None:
    one = chance.choice(_members(dump))
    parsed = json.loads(one.value)
    old = b'"count":%d' % parsed["count"]
    assert old in one.value
    one.value = one.value.replace(old, b'"count":%d' % (parsed["count"] ^ 1))


def append_a_record_that_no_slice_holds(dump: Dump, chance: Chance) -> None:
    last = max((one for one in dump.records if one.partition == 0), key=lambda one: one.offset)
    dump.records.append(copy.deepcopy(last))
    dump.records[-1].offset += 1


# --- The documents


def remove_a_result(dump: Dump, chance: Chance) -> None:
    dump.documents.remove(chance.choice(dump.documents))


def remove_the_last_result(dump: Dump, chance: Chance) -> None:
    dump.documents.remove(max(dump.documents, key=lambda one: one["_source"]["@timestamp"]))


def add_a_result(dump: Dump, chance: Chance) -> None:
    dump.documents.append(copy.deepcopy(chance.choice(dump.documents)) | {"_id": "AAAAAAAAAAAAAAAAAAAAAA"})


def count_one_more(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["n"] += 1


def change_a_decimals_last_digit(dump: Dump, chance: Chance) -> None:
    source = chance.choice(dump.documents)["_source"]
    source["cost"] = source["cost"][:-1] + str((int(source["cost"][-1]) + 1) % 10)


def sum_a_decimal_as_a_float(dump: Dump, chance: Chance) -> None:
    source = chance.choice(dump.documents)["_source"]
    source["cost"] = float(source["cost"])


def change_a_floats_last_bit(dump: Dump, chance: Chance) -> None:
    """Of a maximum: no order of adding explains it."""
    source = chance.choice(dump.documents)["_source"]
    source["peak"] *= 1 + 2**-52


def change_a_mean_by_more_than_order_explains(dump: Dump, chance: Chance) -> None:
    source = chance.choice(dump.documents)["_source"]
    source["load"] *= 1 + 3e-9


def write_a_result_over(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_version"] = 2


def count_a_deleted_document(dump: Dump, chance: Chance) -> None:
    dump.documents_deleted = 1


def move_a_result_to_another_month(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_index"] = f"{JOB}-ten-1999.01"


def have_a_result_in_two_indices(dump: Dump, chance: Chance) -> None:
    dump.documents.append(copy.deepcopy(chance.choice(dump.documents)) | {"_index": f"{JOB}-ten-1999.01"})


def take_an_id_from_the_attempt(dump: Dump, chance: Chance) -> None:
    document = chance.choice(dump.documents)
    document["_id"] = document["_id"][::-1]


def emit_a_window_by_another_slice(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["strandline"]["emission"] += 1


def emit_a_window_by_an_old_run(dump: Dump, chance: Chance) -> None:
    last = dump.tables["checkpoints"][-1]["epoch"]
    document = chance.choice([one for one in dump.documents if one["_source"]["strandline"]["epoch"] == last])
    document["_source"]["strandline"]["epoch"] = 1


def shift_a_window(dump: Dump, chance: Chance) -> None:
    document = chance.choice(dump.documents)
    document["_source"]["window"]["start"] = document["_source"]["window"]["end"]


def leave_out_a_field(dump: Dump, chance: Chance) -> None:
    del chance.choice(dump.documents)["_source"]["total"]


# --- Dead letters


def lose_a_dead_letter(dump: Dump, chance: Chance) -> None:
    dump.dead_letters.remove(chance.choice(dump.dead_letters))


def write_a_dead_letter_twice(dump: Dump, chance: Chance) -> None:
    again = copy.deepcopy(chance.choice(dump.dead_letters))
    again.offset = dump.dead_letters[-1].offset + 2
    dump.dead_letters.append(again)


def write_a_dead_letter_for_a_good_record(dump: Dump, chance: Chance) -> None:
    letter, record = copy.deepcopy(dump.dead_letters[-1]), chance.choice(_members(dump))
    letter.key, letter.value = f"{STREAM}/{record.partition}/{record.offset}".encode(), record.value
    letter.headers |= {"partition": str(record.partition), "offset": str(record.offset)}
    dump.dead_letters.append(letter)


def write_a_dead_letter_without_its_key(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.dead_letters).key = None


def change_a_byte_of_a_dead_letter(dump: Dump, chance: Chance) -> None:
    letter = chance.choice(dump.dead_letters)
    letter.value = letter.value[:-1] + b" "


def give_a_dead_letter_another_reason(dump: Dump, chance: Chance) -> None:
    letter = chance.choice([one for one in dump.dead_letters if one.headers["reason"] == "late"])
    letter.headers["reason"] = "schema"


# --- The ledger


def _some(rows: list[Row], chance: Chance) -> int:
    """The place of a row in the middle."""
    return chance.randrange(len(rows) // 4, len(rows) * 3 // 4)


def cut_a_slice_twice(dump: Dump, chance: Chance) -> None:
    slices = dump.tables["slices"]
    row = slices[_some(slices, chance)]
    partition = chance.choice(list(row["offsets"][STREAM]))
    row["offsets"][STREAM][partition] += 1


def cut_a_slice_elsewhere(dump: Dump, chance: Chance) -> None:
    """A cut that is whole in itself: only that it isn't the one that was processed."""
    slices = dump.tables["slices"]
    at = next(n for n in range(len(slices) // 2, len(slices)) if slices[n]["offsets"] != slices[n]["offsets_first"])
    row, then = slices[at], slices[at + 1]
    partition = next(p for p, end in row["offsets"][STREAM].items() if end > row["offsets_first"][STREAM][p])
    row["offsets"][STREAM][partition] -= 1
    then["offsets_first"][STREAM][partition] -= 1


def commit_a_slice_twice(dump: Dump, chance: Chance) -> None:
    dump.tables["checkpoints"].append(dump.tables["checkpoints"][-1])


def leave_a_slice_uncommitted(dump: Dump, chance: Chance) -> None:
    slices = dump.tables["slices"]
    at = _some(slices, chance)
    slices[at]["status"] = "planned"
    dump.tables["checkpoints"] = [row for row in dump.tables["checkpoints"] if row["slice"] != slices[at]["number"]]


def lose_a_slice(dump: Dump, chance: Chance) -> None:
    del dump.tables["slices"][_some(dump.tables["slices"], chance)]


def commit_under_an_old_epoch(dump: Dump, chance: Chance) -> None:
    dump.tables["checkpoints"][-1]["epoch"] = 1


def plan_under_an_old_epoch(dump: Dump, chance: Chance) -> None:
    dump.tables["slices"][-1]["epoch"] = 1


def reopen_a_window(dump: Dump, chance: Chance) -> None:
    rows = dump.tables["checkpoints"]
    rows[_some(rows, chance)]["closes_ms"] -= 600_000


def judge_lateness_by_another_watermark(dump: Dump, chance: Chance) -> None:
    """As it would be with one that every run works out for itself: higher than the one that was in force."""
    late = [letter for letter in dump.dead_letters if letter.headers["reason"] == "late"]
    letter = chance.choice(late)
    partition, offset = int(letter.headers["partition"]), int(letter.headers["offset"])
    row = next(one for one in dump.tables["slices"] if one["offsets"][STREAM][str(partition)] > offset)
    row["watermark_ms"] = json.loads(letter.value)["ts"]


def forget_the_watermark(dump: Dump, chance: Chance) -> None:
    dump.tables["slices"][_some(dump.tables["slices"], chance)]["watermark_ms"] = None


def lose_count(name: str) -> Callable[[Dump, Chance], None]:
    def mutate(dump: Dump, chance: Chance) -> None:
        rows = dump.tables["checkpoints"]
        rows[_some(rows, chance)][name] += 1

    mutate.__name__ = f"lose_count_of_{name}"
    return mutate


def count_a_refusal_too_many(dump: Dump, chance: Chance) -> None:
    row = chance.choice([row for row in dump.tables["checkpoints"] if row["rejected"].get("late")])
    row["rejected"]["late"] += 1


def count_a_result_too_few(dump: Dump, chance: Chance) -> None:
    row = chance.choice([row for row in dump.tables["checkpoints"] if row["results"]["ten_seconds"]])
    row["results"]["ten_seconds"] -= 1


def claim_an_emission(dump: Dump, chance: Chance) -> None:
    rows = dump.tables["checkpoints"]
    rows[_some(rows, chance)]["emitted"]["per_minute"] += 60_000


def have_two_runs_of_one_epoch(dump: Dump, chance: Chance) -> None:
    dump.tables["runs"][-1]["epoch"] -= 1


def find_a_divergence(dump: Dump, chance: Chance) -> None:
    dump.tables["events"].append({"kind": "run_failed", "message": "results differ", "facts": {"code": "divergence"}})


MUTATIONS: dict[Callable[[Dump, Chance], None], set[str]] = {
    drop_a_record: {"wrong", "foreign", "accounts"},
    drop_a_record_that_is_filtered_out: {"accounts"},
    swap_two_records: {"wrong", "foreign"},
    change_a_byte: {"wrong"},
    append_a_record_that_no_slice_holds: {"lost"},
    remove_a_result: {"lost"},
    remove_the_last_result: {"lost"},
    add_a_result: {"foreign"},
    count_one_more: {"wrong"},
    change_a_decimals_last_digit: {"wrong"},
    sum_a_decimal_as_a_float: {"wrong"},
    change_a_floats_last_bit: {"wrong"},
    change_a_mean_by_more_than_order_explains: {"wrong"},
    write_a_result_over: {"repeated"},
    count_a_deleted_document: {"repeated"},
    move_a_result_to_another_month: {"wrong"},
    have_a_result_in_two_indices: {"repeated"},
    take_an_id_from_the_attempt: {"foreign", "lost"},
    emit_a_window_by_another_slice: {"wrong"},
    emit_a_window_by_an_old_run: {"wrong"},
    shift_a_window: {"wrong"},
    leave_out_a_field: {"wrong"},
    lose_a_dead_letter: {"lost"},
    write_a_dead_letter_twice: {"repeated"},
    write_a_dead_letter_for_a_good_record: {"foreign"},
    write_a_dead_letter_without_its_key: {"foreign", "lost"},
    change_a_byte_of_a_dead_letter: {"wrong"},
    give_a_dead_letter_another_reason: {"wrong"},
    cut_a_slice_twice: {"ledger"},
    cut_a_slice_elsewhere: {"accounts"},
    commit_a_slice_twice: {"ledger"},
    leave_a_slice_uncommitted: {"ledger"},
    lose_a_slice: {"ledger"},
    commit_under_an_old_epoch: {"ledger"},
    plan_under_an_old_epoch: {"ledger"},
    reopen_a_window: {"ledger"},
    judge_lateness_by_another_watermark: {"foreign", "ledger"},
    forget_the_watermark: {"ledger"},
    lose_count("records"): {"accounts"},
    lose_count("accepted"): {"accounts"},
    lose_count("latest_event_ms"): {"accounts"},
    lose_count("latest_log_ms"): {"accounts"},
    lose_count("records_total"): {"accounts"},
    count_a_refusal_too_many: {"accounts"},
    count_a_result_too_few: {"accounts"},
    claim_an_emission: {"ledger"},
    have_two_runs_of_one_epoch: {"ledger"},
    find_a_divergence: {"divergence"},
}
"""Each planted fault, and the kinds of violation of which at least one must be named."""


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
@pytest.mark.parametrize("which", RUNS)
def test_a_planted_fault_is_found(which: str, mutate: Callable[[Dump, Chance], None]) -> None:
    for seed in range(3):
        dump = copy.deepcopy(_kept(which))
        mutate(dump, Chance(seed))
        verdict = judge(dump)
        found = {kind for kind in JobVerdict.KINDS if getattr(verdict, kind)}
        assert found & MUTATIONS[mutate], f"seed {seed}: {verdict}"


def in_stream(document: Row) -> Record:
    window = document["_source"]["window"]
    source = {**document["_source"], "window_start": window["start"], "window_end": window["end"]}
    return Record(0, 0, 0, None, json.dumps(source).encode(), {"strandline-id": document["_id"]})


@pytest.mark.parametrize("fault", ["", "lost", "repeated", "wrong", "foreign"])
def test_a_fault_in_the_stream_of_results_is_found(fault: str) -> None:
    run = copy.deepcopy(_kept("made up"))
    tens = [one for one in run.documents if one["_source"]["strandline"]["stage"] == "ten_seconds"]
    run.results = [in_stream(one) for one in tens]
    match fault:
        case "lost":
            run.results.pop()
        case "repeated":
            run.results.append(run.results[0])
        case "wrong":
            run.results[3].value = run.results[3].value.replace(b'"n": ', b'"n": 1')
        case "foreign":
            run.results.append(in_stream({**tens[0], "_id": "AAAAAAAAAAAAAAAAAAAAAA"}))
    verdict = judge(run)
    assert [kind for kind in JobVerdict.KINDS if getattr(verdict, kind)] == ([fault] if fault else [])


def test_what_the_order_of_adding_explains_is_no_fault(run: Dump) -> None:
    for document in run.documents:
        document["_source"]["load"] *= 1 + 2e-10
    assert judge(run).violations == []


def test_a_slice_that_is_under_way_may_be_written_in_part(run: Dump) -> None:
    """Its results may be in the index or not, its dead letters too; what is there must be right."""
    tables = run.tables
    with_results = [row for row in tables["checkpoints"] if row["results"]["ten_seconds"] > 1]
    number = with_results[-1]["slice"]
    tables["slices"] = [row for row in tables["slices"] if row["number"] <= number]
    tables["checkpoints"] = [row for row in tables["checkpoints"] if row["slice"] < number]
    tables["slices"][-1]["status"] = "planned"
    ends = {int(partition): end for partition, end in tables["slices"][-1]["offsets"][STREAM].items()}
    run.records = [one for one in run.records if one.offset < ends[one.partition]]
    run.documents = [one for one in run.documents if one["_source"]["strandline"]["emission"] <= number]
    run.dead_letters = [
        one for one in run.dead_letters if int(one.headers["offset"]) < ends[int(one.headers["partition"])]
    ]
    assert judge(run).violations == []
    run.documents.remove(next(one for one in run.documents if one["_source"]["strandline"]["emission"] == number))
    assert judge(run).violations == []
    next(one for one in run.documents if one["_source"]["strandline"]["emission"] == number)["_source"]["n"] += 1
    assert judge(run).wrong
