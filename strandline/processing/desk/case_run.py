"""Runs a test case locally, and compares the outcome with the expectation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from strandline.core.documents import read_documents, read_values
from strandline.core.errors import InvalidDocument, PermanentError, Problem, StrandlineError
from strandline.core.record_headers import (
    HEADER_SOURCE,
    REASON_LATE,
    SOURCE_MQTT,
    pack_header_values,
    with_record_metadata,
)
from strandline.core.streams.entrances import record_header
from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.cases import CaseSpec, CaseStep, Expected
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter, Outcome, letter_fields
from strandline.processing.desk.desk_pipeline import RowFiles, read_pipeline
from strandline.processing.desk.expectations import Differences, compare
from strandline.processing.desk.record_files import read_records
from strandline.processing.desk.records import DeskRecords, Partitioner, source_of_topic
from strandline.processing.formats.record_rows import record_format
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.results.names import EVENT_TIME_FIELD

_WINDOW_TIMES = ("@timestamp", "window.start", "window.end")
_RECORD_PLACE = ("strandline.stream", "strandline.partition", "strandline.offset", "strandline.element")
_LETTER_PLACE = ("stream", "partition", "offset", "element", "index", "document", "reason", "step")


@dataclass
class CaseReport:
    """The outcome of a test."""

    name: str
    results: Differences = field(default_factory=Differences)
    dead_letters: Differences = field(default_factory=Differences)
    messages: list[str] = field(default_factory=list)
    """Other problems."""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not (self.results or self.dead_letters or self.messages)


def read_cases(path: Path) -> list[CaseSpec]:
    """Return the tests of a file. Raises InvalidDocument with all problems of its `test:` documents."""
    return [CaseSpec.parse(document) for document in read_documents(path.read_bytes(), str(path), ("test",))]


def read_file(path: Path, name: str | None, rows: RowFiles) -> CheckedPipeline:
    """Return the pipeline of a file, as `read_pipeline` does. Raises InvalidDocument, PermanentError."""
    return read_pipeline(_bytes(path), str(path), name, rows=rows)


def run_case(
    case: CaseSpec, directory: Path, pipeline_of: Callable[[Path, str | None, RowFiles], CheckedPipeline] = read_file
) -> CaseReport:
    """Run one test. `directory`: directory of its files. `pipeline_of`: reads the pipeline with this name from a file, and the
    rows of lookups from other files.

    An error of the pipeline's documents, of its files, or (with `on_error: crash`) of its records is a finding.
    """
    begun_s = time.perf_counter()
    report = CaseReport(case.test)
    try:
        read = partial(pipeline_of, directory / case.file, case.pipeline)
        pipeline = read(_row_files(case.lookups, directory))
        outcomes, desk = _outcomes(case, pipeline, directory, read)
        compare_expected(report, case.expect, pipeline, outcomes, desk.counts.rejected[REASON_LATE], directory)
    except StrandlineError as error:
        report.messages.append(str(error))
    report.seconds = time.perf_counter() - begun_s
    return report


def compare_expected(
    report: CaseReport,
    expected: Expected,
    pipeline: CheckedPipeline,
    outcomes: Sequence[Outcome],
    late: int,
    directory: Path,
) -> None:
    """Compare the outcomes of a test with the expected ones, and add the differences to the report. `late`: number of late
    records. `directory`: directory of the file with expected documents."""
    if expected.results is not None:
        wanted = expected.results
        documents = read_expected(directory / wanted) if isinstance(wanted, str) else wanted
        found = [document_of(one) for one in outcomes if isinstance(one, DeskResult)]
        if pipeline.spec.revise_ms:  # the last document replaces those before it
            found = list({one["_id"]: one for one in found}.values())
        by = dict.fromkeys(name for stage in pipeline.stages for name in stage.by)
        types = {name: kind for stage in pipeline.all_stages for name, kind in stage.field_types.items()}
        times = {*_WINDOW_TIMES, EVENT_TIME_FIELD, *(name for name, kind in types.items() if kind == "timestamp")}
        identity = ("_id", "_index", "strandline.stage", *_WINDOW_TIMES, *_RECORD_PLACE, *by)
        report.results = compare(documents, found, identity, times)
    if expected.late is not None and late != expected.late:
        report.messages.append(f"{late} records are late; expected {expected.late}")
    if expected.dead_letters != "any":
        letters = [one for one in outcomes if isinstance(one, LocalDeadLetter)]
        if expected.late is not None and not any(one.get("reason") == REASON_LATE for one in expected.dead_letters):
            letters = [one for one in letters if one.reason != REASON_LATE]
        report.dead_letters = compare(
            [_wanted_letter(one) for one in expected.dead_letters], map(_letter, letters), _LETTER_PLACE
        )


def document_of(result: DeskResult) -> dict[str, Any]:
    """Return the document with its id and its index."""
    document: dict[str, Any] = json.loads(result.document.source)
    return document | {"_id": result.document.id, "_index": result.document.index}


def read_expected(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a file: NDJSON, a JSON array, or a YAML list. Raises InvalidDocument, PermanentError."""
    text = _bytes(path)
    if path.suffix in (".yaml", ".yml"):
        values = read_values(text, str(path))
        found = [one for value in values for one in (value if isinstance(value, list) else [value])]
    else:
        found = _of_json(text, path)
    wrong = next((one for one in found if not isinstance(one, dict)), None)
    if wrong is not None:
        raise InvalidDocument([Problem(f"expected documents, got {str(wrong)[:40]!r}", source=str(path))])
    return found  # type: ignore[return-value]


def _of_json(text: bytes, path: Path) -> list[object]:
    try:
        if text.lstrip()[:1] == b"[":
            return list(json.loads(text))
    except ValueError as error:
        raise InvalidDocument([Problem(f"is not JSON: {error}", source=str(path))]) from error
    found = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise InvalidDocument([Problem(f"is not JSON: {error}", source=str(path), line=number)]) from error
    return found


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PermanentError(f"{path} can't be read: {error.strerror}") from error


def _row_files(lookups: Mapping[str, str], directory: Path) -> RowFiles:
    return {name: directory / file for name, file in lookups.items()}


def _outcomes(
    case: CaseSpec, pipeline: CheckedPipeline, directory: Path, read: Callable[[RowFiles], CheckedPipeline]
) -> tuple[list[Outcome], Desk]:
    """Return the outcomes of the steps. `read`: returns the pipeline with the rows of lookups from these files."""
    desk = Desk(pipeline, None if case.slice == "all" else case.slice, restarts=True)
    partitioners = {name: Partitioner(stream, case.partitions) for name, stream in pipeline.streams.items()}
    found: list[Outcome] = []
    for step in case.steps:
        if step.wait is not None:
            found += desk.wait(step.wait)
        elif step.restart:
            desk.restart()
        elif step.lookups is not None:
            changed = read(_row_files(step.lookups, directory)).tables
            desk.change_lookups({name: table for name, table in changed.items() if name in step.lookups})
        else:
            stream = _stream_of(step, pipeline)
            for records in _records(step, stream, partitioners[stream.stream], directory):
                found += desk.feed(records)
    found += desk.drain() if case.drain else desk.end_slice()
    return found, desk


def _stream_of(step: CaseStep, pipeline: CheckedPipeline) -> StreamSpec:
    """Return the stream of the records of a step. Raises PermanentError if the pipeline doesn't read the stream that the step
    names, or if the step names none and the pipeline reads several."""
    name = pipeline.inputs[0].name if step.stream is None and not pipeline.has_several_inputs else step.stream
    if name not in pipeline.streams:
        what = "names no stream" if name is None else f"names stream '{name}'"
        raise PermanentError(
            f"a step of the test {what}, but pipeline {pipeline.job} reads {', '.join(pipeline.streams)}; write 'stream: NAME' "
            "next to its records"
        )
    return pipeline.streams[name]


def _records(step: CaseStep, stream: StreamSpec, partitioner: Partitioner, directory: Path) -> Iterator[DeskRecords]:
    pieces: Iterator[Sequence[bytes | None]] = iter([step.values()])
    if step.input is not None:
        pieces = read_records(Path("-") if step.input == "-" else directory / step.input, record_format(stream))
    source = None
    if step.topic is not None:
        source = source_of_topic(stream, step.topic)
    elif step.query is not None:
        source = b"?" + step.query.removeprefix("?").encode()
    named = _named(step, source)
    if named:
        source = pack_header_values(source, named)
    for values in pieces:
        count = len(values)
        placed = None if step.partition is None else [step.partition] * count
        partitions = placed or partitioner.of_each(values, step.topic, step.headers)
        times = None if step.at is None else [step.at] * count
        yield DeskRecords(values, partitions, times, () if source is None else [source] * count, stream=stream.stream)


def _named(step: CaseStep, source: bytes | None) -> dict[str, bytes]:
    """Return the headers of the step's records by name, with their metadata."""
    headers = step.headers or {}
    named = {record_header(name): text.encode() for name, text in headers.items()}
    named |= {name: text.encode() for name, text in headers.items()}
    came_from = {"file": step.file, "http": step.sender}
    given = [f"{protocol}:{text}".encode() for protocol, text in came_from.items() if text is not None]
    given += [source] if source is not None and source.startswith(SOURCE_MQTT) else []
    if given:
        named[HEADER_SOURCE] = given[0]
    key = None if step.key is None else step.key.encode()
    return with_record_metadata(named, key, step.at)


def _letter(letter: LocalDeadLetter) -> dict[str, Any]:
    fields = letter_fields(letter)
    return fields | {"value": _value(fields["value"])}


def _wanted_letter(wanted: dict[str, Any]) -> dict[str, Any]:
    return wanted | ({"value": _value(wanted["value"])} if "value" in wanted else {})


def _value(value: object) -> object:
    """Return a value for the comparison: an object as its JSON without spaces."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return [value] if isinstance(value, dict) else value
