"""Several members in one task: one fetch and one bulk request for all, and a failure that concerns one member alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from strandline.core.errors import (
    BadRecord,
    Divergence,
    IndexMisconfigured,
    IndexUnavailable,
    LogTruncated,
    StrandlineError,
)
from strandline.core.streams.stream import StreamSpec
from strandline.log.range_reader import FetchedBatches, FetchedRecords
from strandline.log.reader import OffsetRange
from strandline.processing.emission import member_configs, pool_task
from strandline.processing.emission.keyed_task import DeadLetterTarget, KeyedTask
from strandline.processing.emission.member_configs import MemberConfig
from strandline.processing.emission.member_outcomes import Failure, MemberOutcome
from strandline.processing.emission.pool_task import PoolDirectory, PoolTask, decode_outcomes, encode_outcomes
from strandline.processing.emission.result_shapes import document_shape, letter_shape
from strandline.processing.emission.stage_emission import StageEmission
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source.decoding import task_config
from strandline.processing.source.member_slices import MemberSlice
from strandline.processing.source.slice_rows import SliceWork, encode
from strandline.processing.source.source_config import Piece
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from tests.support.refusing_index import Fault, RefusingIndex

MEMBERS = [f"job{number}" for number in range(5)]
FAULTY = MEMBERS[2]
SLICE_MS = 10_000


def pipeline_of(job: str) -> CheckedPipeline:
    stream = StreamSpec.from_document(
        {"stream": f"{job}-in", "schema": {"device": "string", "ts": {"type": "timestamp", "unit": "ms"}, "n": "long"}}
    )
    document = {
        "pipeline": job,
        "input": {"stream": f"{job}-in"},
        "event_time": {"field": "ts", "delay": "0s", "max_ahead": None, "idle_timeout": None},
        "on_error": "crash",
        "steps": [
            {
                "window": {"name": "tens", "tumbling": "10s", "by": ["device"], "aggregate": {"n": "sum(n)"}},
                "emit": [{"elasticsearch": job}],
            }
        ],
    }
    return check(PipelineSpec.from_document(document), stream)


class Arrived(FetchedBatches):
    """Batches whose records are the lines of the log."""

    lines: Sequence[bytes] = ()

    def columns(self, headers: Sequence[str], headers_beside: Sequence[str]) -> Iterator[FetchedRecords]:
        one = self.offset_range
        offsets = list(range(one.offset_first, one.offset_next))
        yield FetchedRecords(one, offsets, [0] * len(offsets), [self.lines[offset] for offset in offsets], [])


@dataclass
class Log:
    """The log of all members: stream -> lines. Stands for a RangeReader."""

    lines: dict[str, list[bytes]] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    requests: list[int] = field(default_factory=list)
    """Number of ranges of each request."""

    def batches(self, ranges: Sequence[OffsetRange]) -> Iterator[FetchedBatches]:
        self.requests.append(len(ranges))
        for one in ranges:
            if one.stream in self.errors:
                raise self.errors[one.stream]
            found = Arrived(one, [], is_last=True)
            found.lines = self.lines[one.stream]
            yield found


@pytest.fixture
def index() -> Iterator[RefusingIndex]:
    with RefusingIndex() as index:
        yield index


class Pool:
    """A pool of some members. Each slice has a record of each of three devices, and closes the window of the slice before."""

    def __init__(self, index: RefusingIndex, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.index, self.log, self.directory = index, Log(), PoolDirectory(directory)
        self.task = PoolTask(self.directory, "nowhere", is_tried_once=True)
        self.numbers = Counter[str]()
        self.configs = {job: self.directory.configs.add(self._config(job)) for job in MEMBERS}
        monkeypatch.setattr(pool_task, "reader_of_process", lambda *_: self.log)

    def _config(self, job: str) -> MemberConfig:
        pipeline = pipeline_of(job)
        (stage,) = pipeline.stages
        source = task_config(pipeline, "nowhere", (0,))
        shape = document_shape(pipeline, stage, stage.emits[0], 1)
        writer = ElasticsearchWriter(self.index.url, shape, deadline_s=0.2, wait_first_s=0.001, wait_max_s=0.01)
        letters = letter_shape(pipeline, stage, 1)
        emission = StageEmission((writer,), (), letters, job, stage.name, 1, None, "", "", 0)
        checkpoint = self.directory.of_member(job, 1)
        keyed = KeyedTask(source.stages, (0,), (emission,), DeadLetterTarget("", "", job, 1, 0), checkpoint=checkpoint)
        return MemberConfig(source, keyed)

    def next_slice(self, job: str) -> MemberSlice:
        number = self.numbers[job] + 1
        lines = self.log.lines.setdefault(f"{job}-in", [])
        lines += [
            json.dumps({"device": f"d{at}", "ts": number * SLICE_MS + at, "n": number}).encode() for at in range(3)
        ]
        offsets = OffsetRange(f"{job}-in", 0, 3 * number - 3, 3 * number)
        work = SliceWork(number, True, (number - 1) * SLICE_MS, number * SLICE_MS, {}, {})
        before = number - 1 or None
        return MemberSlice(
            job, 1, self.configs[job], number, before, (Piece(offsets, None, None),), True, False, encode(work)
        )

    def run(self, slices: Sequence[MemberSlice]) -> dict[str, MemberOutcome]:
        """Run a batch. The slices of members that succeed are committed."""
        found = list(decode_outcomes([encode_outcomes(self.task.outcomes(slices))]))
        self.numbers.update(one.job for one in found if one.failure is None)
        assert sorted(one.job for one in found) == sorted(one.job for one in slices)
        return {one.job: one for one in found}

    def batch(self) -> dict[str, MemberOutcome]:
        """Run a batch with the next slice of each member."""
        return self.run([self.next_slice(job) for job in MEMBERS])

    def documents(self, job: str) -> int:
        return sum(name.startswith(f"{job}-") for name, _ in self.index.documents)

    def require_others_have(self, documents: int) -> None:
        assert {job: self.documents(job) for job in MEMBERS if job != FAULTY} == dict.fromkeys(
            [job for job in MEMBERS if job != FAULTY], documents
        )


@pytest.fixture
def pool(index: RefusingIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    return Pool(index, tmp_path, monkeypatch)


def error_of(outcomes: dict[str, MemberOutcome]) -> StrandlineError:
    """Return the failure of the faulty member. All other members have succeeded."""
    assert [job for job, one in outcomes.items() if one.failure is not None] == [FAULTY]
    failure = outcomes[FAULTY].failure
    assert failure is not None
    assert outcomes[FAULTY].done is None
    return failure.error


def test_a_batch_needs_one_fetch_and_one_bulk_request(pool: Pool) -> None:
    pool.batch()
    outcomes = pool.batch()
    assert pool.log.requests == [5, 5]
    assert [len(ids) for ids in pool.index.sent] == [15], "the first batch closes no window"
    for one in outcomes.values():
        assert one.done is not None
        assert (one.done.results, one.done.facts[0].records) == ({"tens": 3}, 3)
        assert one.cpu_us > 0
        assert one.state_bytes > 100
    assert {job: pool.documents(job) for job in MEMBERS} == dict.fromkeys(MEMBERS, 3)


def test_members_with_slices_of_different_numbers_share_a_batch(pool: Pool) -> None:
    pool.run([pool.next_slice(job) for job in MEMBERS[:2]])
    outcomes = pool.batch()
    assert [outcomes[job].number for job in MEMBERS] == [2, 2, 1, 1, 1]
    assert all(one.failure is None for one in outcomes.values())


@pytest.mark.guarantee(
    "G906",
    "In a batch with the slices of several jobs, a failure has no effect on other jobs. Failures are: a bad record, a defect, a "
    "truncated log, a missing state, a store that refuses documents, and a divergence.",
    promise="a-failing-store-costs-no-result",
)
def test_a_bad_record_fails_its_member_alone(pool: Pool) -> None:
    """`on_error: crash`. The record is the last of the slice, and nothing of the slice has an effect."""
    pool.batch()
    slices = [pool.next_slice(job) for job in MEMBERS]
    pool.log.lines[f"{FAULTY}-in"][-1] = b"{"
    error = error_of(pool.run(slices))
    assert isinstance(error, BadRecord)
    assert (error.reason, error.step) == ("decode", "decode")
    assert pool.documents(FAULTY) == 0
    pool.require_others_have(3)
    pool.log.lines[f"{FAULTY}-in"][3:] = [json.dumps({"device": "d", "ts": 2 * SLICE_MS, "n": 1}).encode()] * 3
    slices[2] = replace(slices[2])
    assert pool.run([slices[2]])[FAULTY].failure is None, "the slice is repeated from the state before it"
    assert pool.documents(FAULTY) == 3


@pytest.mark.guarantee("G906")
def test_a_truncated_log_fails_its_member_alone(pool: Pool) -> None:
    pool.log.errors[f"{FAULTY}-in"] = LogTruncated("the topic was deleted")
    assert isinstance(error_of(pool.batch()), LogTruncated)


@pytest.mark.guarantee("G906")
def test_a_missing_state_fails_its_member_alone(pool: Pool) -> None:
    pool.batch()
    (pool.directory.of_member(FAULTY, 1) / "states" / "1").unlink()
    assert "can't be read" in str(error_of(pool.batch()))
    pool.require_others_have(3)


@pytest.mark.guarantee("G906")
def test_a_defect_in_a_member_fails_that_member_alone(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.batch()
    key = str(pool.directory.path / "configs"), pool.configs[FAULTY]
    keyed = member_configs._compiled[key].keyed
    monkeypatch.setattr(type(keyed.cascade), "step", _failing(keyed.cascade, type(keyed.cascade).step))
    assert str(error_of(pool.batch())).startswith("ZeroDivisionError: defect")
    pool.require_others_have(3)


def _failing(of: object, real: object) -> object:
    def step(self, *args, **options):
        if self is of:
            raise ZeroDivisionError("defect")
        return real(self, *args, **options)

    return step


def first_ids(pool: Pool) -> list[str]:
    """Run two batches of another pool directory. Return the ids of the documents of the faulty member."""
    pool.batch()
    pool.batch()
    ids = [identity for name, identity in pool.index.documents if name.startswith(f"{FAULTY}-")]
    for place in [place for place in pool.index.documents if place[0].startswith(f"{FAULTY}-")]:
        del pool.index.documents[place]
    pool.index.sent.clear()
    return ids


def repeated(pool: Pool) -> dict[str, MemberOutcome]:
    """Repeat the last batch, as Spark does it if a worker is lost."""
    pool.numbers.subtract(MEMBERS)
    for lines in pool.log.lines.values():
        del lines[3:]
    return pool.batch()


@pytest.mark.guarantee("G906")
@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (429, "es_rejected_execution_exception", IndexUnavailable),
        (503, "unavailable_shards_exception", IndexUnavailable),
        (403, "cluster_block_exception", IndexMisconfigured),
    ],
)
def test_a_store_that_refuses_the_documents_of_a_member_fails_that_member_alone(
    pool: Pool, status: int, kind: str, expected: type[StrandlineError]
) -> None:
    ids = first_ids(pool)
    pool.index.item_errors |= {one: [(status, kind)] * 100 for one in ids}
    assert isinstance(error_of(repeated(pool)), expected)
    assert len(pool.index.sent[0]) == 15
    of_faulty = [one for request in pool.index.sent[1:] for one in request if one in ids]
    assert not of_faulty or expected is IndexMisconfigured, "a store that is busy is not asked again in this batch"
    pool.require_others_have(3)


@pytest.mark.guarantee("G906")
def test_a_divergence_fails_its_member_alone(pool: Pool) -> None:
    ids = first_ids(pool)
    name = next(name for name, _ in pool.index.documents).replace(MEMBERS[0], FAULTY)
    pool.index.documents[name, ids[0]] = {"device": "d0", "n": 4711}
    assert isinstance(error_of(repeated(pool)), Divergence)
    pool.require_others_have(3)


def test_a_document_that_the_store_refuses_is_no_failure_of_other_members(pool: Pool) -> None:
    """The dead letter of the document can't be written here, so the member fails after its documents were sent alone."""
    ids = first_ids(pool)
    pool.index.item_errors[ids[0]] = [(400, "document_parsing_exception")] * 2
    repeated(pool)
    assert pool.documents(FAULTY) == 2
    pool.require_others_have(3)


def test_documents_that_are_there_are_compared_and_not_written_again(pool: Pool) -> None:
    """A repeated batch sends its documents together, and each member compares those that are there."""
    pool.batch()
    pool.batch()
    assert all(one.failure is None for one in repeated(pool).values())
    assert {job: pool.documents(job) for job in MEMBERS} == dict.fromkeys(MEMBERS, 3)


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.UNAVAILABLE, Fault.LOSE_ANSWER])
def test_a_store_that_does_not_respond_is_waited_for_once(pool: Pool, fault: Fault) -> None:
    """All members that write to it fail, and the next batch repeats their slices."""
    pool.batch()
    pool.index.faults = [fault]
    outcomes = pool.batch()
    assert {type(one.failure.error) for one in outcomes.values() if one.failure is not None} == {IndexUnavailable}
    assert len(pool.index.sent) == 1
    for lines in pool.log.lines.values():
        del lines[3:]
    assert all(one.failure is None for one in pool.batch().values())
    assert {job: pool.documents(job) for job in MEMBERS} == dict.fromkeys(MEMBERS, 3)


def test_a_failure_has_the_class_and_the_text_of_the_error() -> None:
    for error in (BadRecord("late", "too late", "decode"), Divergence("other"), IndexUnavailable("away")):
        again = Failure.of(error).error
        assert (type(again), str(again)) == (type(error), str(error))
    assert str(Failure.of(KeyError("x")).error) == "KeyError: 'x'"


def test_only_a_limited_number_of_configs_stays_compiled(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_configs, "COMPILED_MAX", 3)
    monkeypatch.setattr(member_configs, "_compiled", type(member_configs._compiled)())
    for _ in range(3):
        assert all(one.failure is None for one in pool.batch().values())
    assert len(member_configs._compiled) == 3
