"""The checker of mixed shapes computes from records what the platform computes, and finds planted mistakes of the platform."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from strandline.processing.aggregates import consecutive
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter, Outcome
from strandline.processing.desk.records import DeskRecords
from strandline.processing.formats.field_parsers.lenient_values import Markers
from strandline.processing.formats.field_parsers.patterned_times import PatternedTimeParser
from strandline.processing.formats.senml import reader
from strandline.processing.formats.shapes.inner_elements import InnerElements
from strandline.processing.formats.shapes.shaped_rows import ShapedRows
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.services.jobs.apply_documents import check_documents
from tests.support.chaos.checker import count_reached, records_emitted
from tests.support.chaos.checking.documents import Expected, Writers
from tests.support.chaos.checking.graph.pipeline import ANYWHERE
from tests.support.chaos.checking.judging import ClassifiedRecord
from tests.support.chaos.checking.pace import PACES, Windows
from tests.support.chaos.checking.pipelines import Pipeline
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.job_set import SHAPES, ShapeJobs, id_in, jobs_of, pipeline_document, stream_document
from tests.support.chaos.shapes.shape import Shape, ShapeJob
from tests.support.faults.mqtt_load import topic_of

EVENT_MS, NOW_MS = 1_795_000_000_000, 1_795_300_000_000
PACE = PACES[20]
SLICE = {"number": 1, "watermark_ms": None, "version": 1, "epoch": 1}
JOBS = [(shape, job) for shape in SHAPES.values() for job in jobs_of(shape)]
EACH = pytest.mark.parametrize(("shape", "job"), JOBS, ids=[job.name for _, job in JOBS])


def records_of(shape: Shape, seed: int, count: int) -> list[Record]:
    """Return the records of some batches."""
    sender, found = shape.sender(random.Random(seed)), list[Record]()
    event_ms = dict.fromkeys([f"made-{number}" for number in range(3)], EVENT_MS)
    for number in range(count):
        client = f"made-{number % 3}"
        event_ms[client] += 2_000
        if sender.is_away(client, event_ms[client]):
            continue
        for record_id, value in sender.batch(client, number, event_ms[client], NOW_MS):
            assert id_in(value) == record_id
            source = {}
            if shape.gateway == "mqtt-listener":
                source = {"strandline-source": f"mqtt:{topic_of(shape.stream)}/{client}"}
            found.append(Record(0, len(found), NOW_MS, None, value, source))
    return found


def outcomes_at_the_desk(shape: Shape, job: ShapeJob, records: list[Record]) -> list[Outcome]:
    text = stream_document(shape) + "---\n" + pipeline_document(shape, job, PACE, 1)
    stream, document = read_documents(text, "shape.yaml")
    desk = Desk(check(PipelineSpec.parse(document), StreamSpec.parse(stream), document))
    sources = [record.headers["strandline-source"].encode() if record.headers else None for record in records]
    given = DeskRecords(
        [record.value for record in records],
        [0] * len(records),
        [record.log_time_ms for record in records],
        sources if any(sources) else (),
        [record.offset for record in records],
    )
    return list(chain(desk.feed(given), desk.drain()))


def judged_with(pipeline: Pipeline, records: list[Record], late: set[str], stream: str) -> list[ClassifiedRecord]:
    """Return the outcome of each row. `late`: the rows that are late, which the checker knows from the watermarks of slices."""
    found = []
    for record in records:
        judged = pipeline.judge(record, SLICE)
        for one in judged if isinstance(judged, list) else [judged]:
            if one.identity(stream) in late and one.reason is None:
                one.reason, one.member = "late", None
            found.append(one)
    return found


def differences(shape: Shape, job: ShapeJob, seed: int, count: int = 300) -> Iterator[str]:
    """Compare results and dead letters of the platform with those of the checker."""
    records, pipeline = records_of(shape, seed, count), job.pipeline(PACE)
    outcomes = outcomes_at_the_desk(shape, job, records)
    letters = {_place(one): one for one in outcomes if isinstance(one, LocalDeadLetter)}
    late = {place for place, one in letters.items() if one.reason == "late"}
    judged = judged_with(pipeline, records, late, shape.stream)
    results = pipeline.results(judged, Version(1))
    windows = [
        Expected(job.name, stage, pipeline.windows[stage].size_ms, result, 1, 1, (1, 1))
        for (stage, _, _), result in results.items()
    ]
    expected = {one.id: one for one in windows}
    expected |= records_emitted(job.name, shape.stream, pipeline, judged, [SLICE], Writers([SLICE], {}, 1))
    found = {one.document.id: one.document for one in outcomes if isinstance(one, DeskResult)}
    for identity in expected.keys() | found.keys():
        if identity not in found or identity not in expected:
            which = "expected" if identity in expected else "found"
            yield f"a result is only {which}: {expected.get(identity, found.get(identity))}"
            continue
        source = json.loads(found[identity].source)
        source["strandline"] |= {"emission": 1}
        yield from expected[identity].differences(found[identity].index, source)
    wanted = {one.identity(shape.stream): one for one in judged if one.reason}
    for place in letters.keys() | wanted.keys():
        if place not in letters or place not in wanted:
            which = "expected" if place in wanted else "found"
            yield f"the dead letter {place} is only {which}: {wanted.get(place, letters.get(place))}"
            continue
        one, letter = wanted[place], letters[place]
        if one.reason != letter.reason:
            yield f"{place} is refused with {letter.reason}, expected {one.reason}: {letter} {one}"
        elif not (letter.value == one.record.value if one.is_letter is None else one.is_letter(letter.value or b"")):
            yield f"{place} has the letter {letter.value!r} of {one.record.value!r}"


def _place(letter: LocalDeadLetter) -> str:
    names = ("stream", "partition", "offset", "element")
    return "/".join(str(letter.place[name]) for name in names if name in letter.place)


@EACH
@pytest.mark.parametrize("seed", range(2))
def test_the_platform_computes_what_the_checker_computes(shape: Shape, job: ShapeJob, seed: int) -> None:
    """Compare each row, window, and dead letter."""
    assert list(differences(shape, job, seed)) == []


@EACH
def test_the_senders_reach_everything_that_a_job_must_reach(shape: Shape, job: ShapeJob) -> None:
    """Except what depends on slices."""
    pipeline = job.pipeline(PACE)
    records = records_of(shape, 1, 1_500)
    reached = count_reached(records, judged_with(pipeline, records, set(), shape.stream), pipeline)
    of_slices = {"late", "a reset between two slices", "an increase across slices"}
    assert {one for one in pipeline.must_reach if not reached[one]} <= of_slices


def letters_keep_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead letter of a sample has the time of the first sample."""
    monkeypatch.setattr(ShapedRows, "_with_time", lambda _self, value, _row: value)


def letters_repeat_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InnerElements, "letters_of", lambda _self, containers, _row: containers)


def base_values_are_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = reader._records
    without = lambda pack: [{name: value for name, value in one.items() if name != "bv"} for one in pack]  # noqa: E731
    monkeypatch.setattr(reader, "_records", lambda pack: exact(without(pack)))


def zones_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = PatternedTimeParser.__init__
    monkeypatch.setattr(PatternedTimeParser, "__init__", lambda self, pattern, _tz: exact(self, pattern, None))


def markers_match_their_case_only(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Markers.match
    is_exact = lambda value: not isinstance(value, str) or value in ("Bad", "n/a", "N/A", "nan")  # noqa: E731
    monkeypatch.setattr(Markers, "match", lambda self, value: is_exact(value) and exact(self, value))


def resets_are_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reset, the difference counts instead of the value."""
    monkeypatch.setattr(consecutive.INCREASE, "_is_counter", False)


MISTAKES = (
    (letters_keep_the_first_time, "chaos-samples"),
    (letters_repeat_all_rows, "chaos-bridged"),
    (base_values_are_not_added, "chaos-packs"),
    (zones_are_ignored, "chaos-members"),
    (markers_match_their_case_only, "chaos-members"),
    (resets_are_negative, "chaos-used"),
    (resets_are_negative, "chaos-steps"),
)


@pytest.mark.parametrize(("mistake", "name"), MISTAKES, ids=[f"{one.__name__}-{name}" for one, name in MISTAKES])
def test_a_mistake_of_the_platform_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    shape, job = next((shape, job) for shape, job in JOBS if job.name == name)
    assert list(differences(shape, job, 1))


def test_the_platform_accepts_the_documents() -> None:
    jobs = ShapeJobs()
    pipelines = jobs.pipeline_documents(PACE, dict.fromkeys([job.name for job in jobs.jobs], 1))
    batch = check_documents("---\n".join([*jobs.stream_documents(), *pipelines]), "shapes.yaml", {})
    checked = {pipeline.spec.pipeline: pipeline for pipeline in batch.pipelines}
    for job in jobs.jobs:
        known, document = job.pipeline(PACE), checked[job.name]
        windows = {one.name: Windows(one.size_ms, one.every_ms) for one in document.stages if one.emits}
        assert known.windows.keys() == windows.keys() == set(job.stages)
        assert all(known.windows[name] in (ANYWHERE, shape) for name, shape in windows.items())
        assert known.rule == document.event_time_rule.written
