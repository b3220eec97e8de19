"""The checker of mixed shapes reads each record as the platform does, and finds planted mistakes of the platform."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.services.jobs.apply_documents import check_documents
from tests.support.chaos.checking.documents import Writers, expected_records
from tests.support.chaos.checking.graph.pipeline import ANYWHERE
from tests.support.chaos.checking.pace import PACES, Windows
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.dump import Record
from tests.support.chaos.shapes.job_set import (
    ROWS_SHAPES,
    ShapeJobs,
    id_in,
    jobs_of,
    pipeline_document,
    stream_document,
)
from tests.support.chaos.shapes.pipeline import ROWS, classify_rows, columns_of
from tests.support.chaos.shapes.shape import LATE, Shape
from tests.support.faults.mqtt_load import topic_of

EVENT_MS, NOW_MS = 1_795_000_000_000, 1_795_300_000_000
EACH = pytest.mark.parametrize("shape", ROWS_SHAPES, ids=lambda shape: shape.name)
SLICE = {"number": 1, "watermark_ms": None}


def records_of(shape: Shape, seed: int, count: int) -> list[Record]:
    """Return records that are not late, because lateness depends on the slice."""
    sender, found = shape.sender(random.Random(seed)), list[Record]()
    for number in range(count):
        client = f"made-{number % 3}"
        for record_id, value in sender.batch(client, number, EVENT_MS + 100 * number, NOW_MS):
            assert id_in(value) == record_id
            source = {}
            if shape.gateway == "mqtt-listener":
                source = {"strandline-source": f"mqtt:{topic_of(shape.stream)}/{client}"}
            if LATE not in record_id:
                found.append(Record(0, len(found), NOW_MS, None, value, source))
    return found


def pipeline_at_the_desk(shape: Shape) -> CheckedPipeline:
    stream, document = read_documents(
        stream_document(shape) + "---\n" + pipeline_document(shape, jobs_of(shape)[0], PACES[20], 1), "a.yaml"
    )
    return check(PipelineSpec.parse(document), StreamSpec.parse(stream), document)


def differences(shape: Shape, records: list[Record]) -> Iterator[str]:
    """Compare rows and dead letters of the platform with those of the checker, by their definitions."""
    desk = Desk(pipeline_at_the_desk(shape))
    sources = [record.headers["strandline-source"].encode() if record.headers else None for record in records]
    given = DeskRecords(
        [record.value for record in records],
        [0] * len(records),
        [record.log_time_ms for record in records],
        sources if any(sources) else (),
        [record.offset for record in records],
    )
    outcomes = list(desk.feed(given))
    judged = [one for record in records for one in classify_rows(record, SLICE, shape)]
    rows = [(one, columns_of(one, shape, Version(1))) for one in judged if one.member is not None]
    planned = [{"number": 1, "version": 1, "epoch": 1}]
    expected = expected_records(jobs_of(shape)[0].name, ROWS, shape.stream, rows, Writers(planned, {}, 1))
    found = {one.document.id: one.document for one in outcomes if isinstance(one, DeskResult) and one.stage == ROWS}
    for identity in expected.keys() | found.keys():
        if identity not in found or identity not in expected:
            which = "expected" if identity in expected else "found"
            yield f"a row is only {which}: {expected.get(identity, found.get(identity))}"
            continue
        source = json.loads(found[identity].source)
        source["strandline"] |= {"emission": 1}
        yield from expected[identity].differences(found[identity].index, source)
    letters = {_place(one): one for one in outcomes if isinstance(one, LocalDeadLetter)}
    wanted = {one.identity(shape.stream): one for one in judged if one.reason}
    for place in letters.keys() | wanted.keys():
        if place not in letters or place not in wanted:
            yield f"{place} is a letter only {'here' if place in wanted else 'there'}: {wanted.get(place)} {letters.get(place)}"
            continue
        one, letter = wanted[place], letters[place]
        if one.reason != letter.reason:
            yield f"{place} is refused with {letter.reason}, expected {one.reason}: {letter} {one}"
        elif not (letter.value == one.record.value if one.is_letter is None else one.is_letter(letter.value or b"")):
            yield f"{place} has the letter {letter.value!r} of {one.record.value!r}"


def _place(letter: LocalDeadLetter) -> str:
    return "/".join(
        str(letter.place[name]) for name in ("stream", "partition", "offset", "element") if name in letter.place
    )


@EACH
@pytest.mark.parametrize("seed", range(2))
def test_each_record_is_read_as_the_platform_reads_it(shape: Shape, seed: int) -> None:
    assert list(differences(shape, records_of(shape, seed, 200))) == []


def test_the_platform_accepts_the_documents() -> None:
    jobs = ShapeJobs()
    pipelines = jobs.pipeline_documents(PACES[20], Counter({job.name: 1 for job in jobs.jobs}))
    batch = check_documents("---\n".join([*jobs.stream_documents(), *pipelines]), "shapes.yaml", {})
    checked = {pipeline.spec.pipeline: pipeline for pipeline in batch.pipelines}
    for job in jobs.jobs:
        known, document = job.pipeline(PACES[20]), checked[job.name]
        windows = {one.name: Windows(one.size_ms, one.every_ms) for one in document.stages if one.emits}
        assert known.windows.keys() == windows.keys() == set(job.stages)
        assert all(known.windows[name] in (ANYWHERE, shape) for name, shape in windows.items())
        assert known.rule == document.event_time_rule.written
