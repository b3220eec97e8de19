"""The rows of one record: its decoded fields, and the outcome of each step on each path. Uses the operators of the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from strandline.processing.formats.timestamps import format_timestamp
from strandline.processing.kinds.stage_words import step_in_words
from strandline.processing.lineage.views import RecordPathView, RecordRowView, StepOutcome
from strandline.processing.operators.row_operator import RowProblem
from strandline.processing.operators.row_steps import RowSteps
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.row_step import DuplicateFilter, RowStep
from strandline.processing.source.decoding import DecodedChunk, RecordReader, decode_pieces, decoding_of
from strandline.processing.source.source_config import Piece

ROWS_MAX = 100
_TEXT_MAX = 64 << 10


@dataclass(frozen=True)
class FoundRecord:
    """A record as it is in the log, with its rows."""

    log_time_ms: int
    key: str | None
    value: str | None
    rows: list[RecordRowView]
    row_count: int
    event_times_ms: tuple[int, ...]
    """Event times of all rows that can be decoded and aren't late."""


def find_record(
    pipeline: CheckedPipeline,
    kafka_bootstrap: str,
    ledger_url: str,
    pieces: Sequence[Sequence[Piece]],
    offset: int,
    reader: RecordReader | None = None,
) -> FoundRecord | None:
    """Return the record at this offset. `pieces`: the part of its partition in its slice. None if there is no record at the
    offset, as at that of a transaction marker."""
    decoding = decoding_of(pipeline, kafka_bootstrap, ledger_url)
    whole = tuple(
        replace(one, columns=tuple(given.stream.types))
        for one, given in zip(decoding.inputs, pipeline.inputs, strict=True)
    )
    rows: list[RecordRowView] = []
    count, events_ms = 0, list[int]()
    found: tuple[int, str | None, str | None] | None = None
    for some in pieces:
        for chunk in decode_pieces(replace(decoding, inputs=whole), some, reader=reader):
            places = [at for at, one in enumerate(chunk.offsets) if one == offset]
            if not places:
                continue
            key, _ = chunk.key_and_source(offset) if chunk.key_and_source is not None else (None, None)
            value = chunk.value_at(places[0])
            found = chunk.log_times_ms[places[0]], _text(key), _text(value)
            accepted = {place: row for row, place in enumerate(chunk.accepted_indices())}
            micros = chunk.decoded.event_time.cast(pa.int64())
            events_ms += [micros[accepted[at]].as_py() // 1000 for at in places if at in accepted]
            count += len(places)
            rows += [_row(pipeline, chunk, at, accepted.get(at)) for at in places[: ROWS_MAX - len(rows)]]
    return None if found is None else FoundRecord(*found, rows, count, tuple(events_ms))


def _row(pipeline: CheckedPipeline, chunk: DecodedChunk, place: int, row: int | None) -> RecordRowView:
    """`row`: index of the row among the accepted rows. None if it was rejected."""
    element = chunk.element_at(place)
    if row is None:
        reject = next(one for one in chunk.decoded.rejects if one.index == place)
        return RecordRowView(element, None, {}, reject.reason, reject.message, "decode")
    columns = {name: column.slice(row, 1) for name, column in chunk.decoded.arrays.items()}
    types = pipeline.inputs[chunk.place].stream.types
    paths, problems = [], []
    of_stages = [(stage.name, path) for stage in pipeline.record_stages for path in stage.paths]
    of_stages += [(stage.name, path) for stage in pipeline.stages for _, path in stage.record_paths]
    for name, path in of_stages:
        if path.stream == chunk.place:
            steps = list(_steps(path.steps, columns, types, chunk))
            paths.append(RecordPathView(name, [one for one, _ in steps]))
            problems += [problem for _, problem in steps if problem is not None]
    first = min(problems, key=lambda one: one.number, default=None)
    return RecordRowView(
        element,
        chunk.decoded.event_time[row].cast(pa.int64()).as_py() // 1000,
        {name: shown(column[0]) for name, column in columns.items()},
        "accepted" if first is None else first.reason,
        "" if first is None else first.message,
        "" if first is None else first.step,
        paths,
    )


def _steps(
    steps: Sequence[RowStep], columns: Mapping[str, pa.Array], types: Mapping[str, str], chunk: DecodedChunk
) -> Iterator[tuple[StepOutcome, RowProblem | None]]:
    """Yield the outcome of each step for one row, and the problem if there is one. Ends after the step that it doesn't pass."""
    for step in steps:
        operator = RowSteps((step,), types)
        stepped = operator.apply(columns, 1, chunk.tables)
        problem = stepped.problems[0] if stepped.problems else None
        outcome = "failed" if problem is not None else "kept" if len(stepped.rows) else "left_out"
        message = "" if problem is None else problem.message
        values = {name: shown(stepped.columns[name][0]) for name, _ in step.added if len(stepped.rows)}
        yield (
            StepOutcome(step.path, step.keyword, step_in_words(step), outcome, message, values),  # type: ignore[arg-type]
            problem,
        )
        if not len(stepped.rows):
            return
        columns, types = stepped.columns, operator.types


def with_duplicate(row: RecordRowView, pipeline: CheckedPipeline) -> RecordRowView:
    """Return a row of a record that the `dedupe` left out."""
    dedupe = pipeline.dedupe
    assert isinstance(dedupe, DuplicateFilter)
    paths = []
    for path in row.paths:
        at = next((number for number, one in enumerate(path.steps) if one.step == dedupe.path), None)
        if at is None:
            paths.append(path)
            continue
        left_out = replace(path.steps[at], outcome="duplicate")
        paths.append(replace(path, steps=[*path.steps[:at], left_out]))
    return replace(row, paths=paths)


def shown(value: pa.Scalar) -> Any:
    """Return a value as JSON contains it."""
    if not value.is_valid:
        return None
    if pa.types.is_timestamp(value.type):
        return format_timestamp(value.cast(pa.timestamp("us")).value)
    if pa.types.is_decimal(value.type):
        return str(value.as_py())
    if pa.types.is_struct(value.type):
        return {name: shown(value[name]) for name in value.type.names}
    if pa.types.is_list(value.type):
        return [shown(one) for one in value.values]
    if pa.types.is_floating(value.type):
        number = value.as_py()
        return number if abs(number) != float("inf") and number == number else str(number)
    return value.as_py()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value[:_TEXT_MAX].decode("utf-8", "backslashreplace")
