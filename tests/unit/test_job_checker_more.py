"""The checker of the other jobs accepts right runs of them, and finds and names each planted fault."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import cache

import pytest

from strandline.results.document import document_id
from strandline.services.jobs.apply_documents import check_documents
from tests.support.chaos.checker import JobVerdict, check_job
from tests.support.chaos.checking.pace import MAX_AHEAD_MS, PACES, Pace, Windows
from tests.support.chaos.checking.pipelines import classify_result
from tests.support.chaos.dump import Dump
from tests.support.chaos.made_up_more import made_up_second, made_up_third
from tests.support.chaos.more_jobs import ChaosJob, documents_of, jobs_of
from tests.support.chaos.planted.in_ledger import JOB, STREAM, Chance
from tests.support.chaos.work import documents, draw_speed

JOBS = jobs_of(JOB, STREAM, 3)
MADE_UP = {JOBS[1].name: made_up_second, JOBS[2].name: made_up_third}
MORE = pytest.mark.parametrize("job", JOBS[1:], ids=["second", "third"])


def judge(dump: Dump, job: ChaosJob) -> JobVerdict:
    return check_job(dump, job.name, job.stream, job.pipeline)


@cache
def kept(job: ChaosJob) -> bytes:
    return pickle.dumps(MADE_UP[job.name](7, job.name, job.stream))


@MORE
@pytest.mark.parametrize("seed", range(4))
def test_a_right_run_passes(seed: int, job: ChaosJob) -> None:
    verdict = judge(MADE_UP[job.name](seed, job.name, job.stream, PACES[draw_speed(seed)]), job)
    assert verdict.violations == []
    assert verdict.records == verdict.accepted + verdict.late + verdict.refused
    assert min(verdict.accepted, verdict.refused, verdict.expected) > 10
    assert (verdict.late > 0) == (job is JOBS[2]), "no result of another job is late"


@pytest.mark.parametrize("pace", PACES.values(), ids=lambda pace: f"{pace.speed}x")
def test_the_checker_knows_the_windows_and_the_rule_of_each_document(pace: Pace) -> None:
    text = "---\n".join(
        [documents(STREAM, JOB, pace), *documents_of(JOBS, pace, dict.fromkeys([job.name for job in JOBS], 1))]
    )
    batch = check_documents(text, "chaos.yaml", {})
    checked = {pipeline.spec.pipeline: pipeline for pipeline in batch.pipelines}
    assert checked.keys() == {job.name for job in JOBS}
    for job in JOBS:
        known, document = job.pipeline(pace), checked[job.name]
        windows = {one.name: Windows(one.size_ms, one.every_ms) for one in document.stages}
        rule = document.event_time_rule.written
        assert (known.windows, known.rule) == (windows, rule)
        assert job.stages == tuple(windows)


def total_by_the_version_before(dump: Dump, chance: Chance) -> None:
    """A platform would do this if it continued with the sums of the version before."""
    newest = dump.tables["job_versions"][-1]["version"]
    sources = [one["_source"] for one in dump.documents]
    found = chance.choice([one for one in sources if one["strandline"]["version"] == newest and one["total"]])
    found["total"] = found["total"] // newest * (newest - 1)


def lose_a_document(dump: Dump, chance: Chance) -> None:
    dump.documents.remove(chance.choice(dump.documents))


def lose_a_record_of_the_log(dump: Dump, chance: Chance) -> None:
    """The job has counted it, and its results may be of it."""
    dead = {letter.headers["offset"] + "/" + letter.headers["partition"] for letter in dump.dead_letters}
    used = [one for one in dump.records if f"{one.offset}/{one.partition}" not in dead]
    dump.records.remove(chance.choice(used))


def lose_a_dead_letter(dump: Dump, chance: Chance) -> None:
    dump.dead_letters.remove(chance.choice(dump.dead_letters))


def repeat_a_document_in_another_month(dump: Dump, chance: Chance) -> None:
    again = copy.deepcopy(chance.choice(dump.documents))
    again["_index"] += "-again"
    dump.documents.append(again)


def write_a_document_over(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_version"] = 2


def repeat_a_dead_letter(dump: Dump, chance: Chance) -> None:
    dump.dead_letters.append(copy.copy(chance.choice(dump.dead_letters)))


def change_a_count(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["n"] += 1


def change_the_last_bit_of_a_load(dump: Dump, chance: Chance) -> None:
    source = chance.choice([one["_source"] for one in dump.documents if one["_source"]["load"] > 0])
    source["load"] *= 1 + 2**-52


def change_a_cost(dump: Dump, chance: Chance) -> None:
    source = chance.choice(dump.documents)["_source"]
    source["cost"] = f"{float(source['cost']) + 0.01:.2f}"


def change_the_origin(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.documents)["_source"]["strandline"]["emission"] += 1


def change_the_bytes_of_a_dead_letter(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.dead_letters).value += b" "


def write_a_result_of_the_first_job(dump: Dump, chance: Chance) -> None:
    """An id that another job's result has."""
    document = chance.choice(dump.documents)
    document["_id"] = document_id(JOB, "short", 0, 10_000, ("site-1", "client-1"))


def write_a_result_of_a_window_that_holds_nothing(dump: Dump, chance: Chance) -> None:
    document = copy.deepcopy(chance.choice(dump.documents))
    document["_id"] = "AAAAAAAAAAAAAAAAAAAAAA"
    dump.documents.append(document)


def bury_a_record_that_is_used(dump: Dump, chance: Chance) -> None:
    letter = copy.copy(chance.choice(dump.dead_letters))
    dead = {one.key for one in dump.dead_letters}
    stream = letter.headers["stream"]
    keys = [f"{stream}/{one.partition}/{one.offset}".encode() for one in dump.records]
    letter.key = chance.choice([key for key in keys if key not in dead])
    dump.dead_letters.append(letter)


def count_one_record_more(dump: Dump, chance: Chance) -> None:
    chance.choice(dump.tables["checkpoints"])["records"] += 1


def raise_a_watermark(dump: Dump, chance: Chance) -> None:
    rows = [row for row in dump.tables["slices"][:-1] if row["watermark_ms"] is not None]
    chance.choice(rows)["watermark_ms"] += 1


def treat_event_time_otherwise(dump: Dump, chance: Chance) -> None:
    rule = chance.choice(dump.tables["slices"])["rule"]
    rule["watermark"] = "newest" if rule["watermark"] == "partitions" else "partitions"


PLANTED: dict[Callable[[Dump, Chance], None], str] = {
    lose_a_document: "lost",
    lose_a_dead_letter: "lost",
    lose_a_record_of_the_log: "accounts",
    repeat_a_document_in_another_month: "repeated",
    write_a_document_over: "repeated",
    repeat_a_dead_letter: "repeated",
    change_a_count: "wrong",
    change_the_last_bit_of_a_load: "wrong",
    change_a_cost: "wrong",
    change_the_origin: "wrong",
    total_by_the_version_before: "wrong",
    change_the_bytes_of_a_dead_letter: "wrong",
    write_a_result_of_the_first_job: "foreign",
    write_a_result_of_a_window_that_holds_nothing: "foreign",
    bury_a_record_that_is_used: "foreign",
    count_one_record_more: "accounts",
    raise_a_watermark: "watermark",
    treat_event_time_otherwise: "watermark",
}


@MORE
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_planted_fault_is_found(seed: int, plant: Callable[[Dump, Chance], None], job: ChaosJob) -> None:
    dump: Dump = pickle.loads(kept(job))
    plant(dump, Chance(seed))
    assert getattr(judge(dump, job), PLANTED[plant]) != []


def test_a_result_of_a_future_that_the_first_job_took_for_the_present_is_refused_by_the_second() -> None:
    """The broker's clock was ahead when the first job's record came, and is right again."""
    record = pickle.loads(kept(JOBS[1])).records[0]
    event_ms = classify_result(record, {"number": 1, "watermark_ms": None}).event_ms
    assert event_ms is not None
    reasons = []
    for ahead_ms in (MAX_AHEAD_MS, MAX_AHEAD_MS + 1):
        record.log_time_ms = event_ms - ahead_ms
        reasons.append(classify_result(record, {"number": 1, "watermark_ms": None}).reason)
    assert reasons[0] != "future_event" and reasons[1] == "future_event"


def test_a_result_that_the_second_job_calls_late_has_no_cause() -> None:
    job = JOBS[1]
    dump: Dump = pickle.loads(kept(job))
    last = dump.tables["slices"][-1]
    number = next(row["number"] for row in dump.tables["slices"] if row["watermark_ms"] is not None)
    for row in dump.tables["slices"][number:]:
        row["watermark_ms"] = last["watermark_ms"]
    assert judge(dump, job).late_without_cause != []
