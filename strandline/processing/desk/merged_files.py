"""The records of a pipeline's streams as one log: each file in its order, and several files merged by log time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from pathlib import Path

from strandline.processing.desk.asked_schemas import asked_schemas
from strandline.processing.desk.log_times import LogTimes
from strandline.processing.desk.record_files import read_records
from strandline.processing.desk.records import RECORDS_AT_ONCE, DeskRecords, Partitioner
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.pipelines.checked_pipeline import CheckedInput, CheckedPipeline

_Timed = tuple[int, int, bytes | None, int]
"""Log time, index of the stream, record, partition."""


def merged_files(
    pipeline: CheckedPipeline, files: Mapping[str, Path], partitions: int, log_time: str | None = None
) -> Iterator[DeskRecords]:
    """Yield the records of these files (stream -> file).

    Records of one file keep their order: if the time of a record is before that of its predecessor, it gets the predecessor's
    time. If records of several files have equal times, the stream that is listed first in the document comes first. Raises the
    errors of `read_records` and `LogTimes`.

    Args:
        partitions: Number of partitions of each stream.
        log_time: Field with the log time of a record. None if its event time is its log time.
    """
    inputs = [one for one in pipeline.inputs if one.name in files]
    if len(inputs) == 1:
        (only,) = inputs
        partitioner = Partitioner(only.stream, partitions)
        for values in read_records(files[only.name], record_format(only.stream)):
            yield DeskRecords(values, partitioner.of_each(values), stream=only.name)
        return
    streams = [_timed(place, one, files[one.name], partitions, log_time) for place, one in enumerate(inputs)]
    held: list[_Timed] = []
    for record in heapq.merge(*streams, key=lambda one: one[:2]):
        if held and (record[1] != held[0][1] or len(held) >= RECORDS_AT_ONCE):
            yield _records(inputs[held[0][1]], held)
            held = []
        held.append(record)
    if held:
        yield _records(inputs[held[0][1]], held)


def _records(read: CheckedInput, held: list[_Timed]) -> DeskRecords:
    times, _, values, partitions = zip(*held, strict=True)
    return DeskRecords(values, partitions, times, stream=read.name)


def _timed(place: int, read: CheckedInput, file: Path, partitions: int, log_time: str | None) -> Iterator[_Timed]:
    """Yield the records of one file with their log times, which never decrease."""
    form = record_format(read.stream)
    reader = RowReader(form, asked_schemas(form))
    times = LogTimes(form.fields, read.event_time_source, log_time)
    partitioner = Partitioner(read.stream, partitions)
    now_ms = 0
    for values in read_records(file, form):
        latest_ms: dict[int, int] = {}
        first = 0
        for rows in reader.parts(values, ()):
            count = len(rows.texts)
            places = range(first, first + count) if rows.places is None else rows.places
            first += count
            for at, log_ms in zip(places, times.of_rows(rows.texts, None).tolist(), strict=True):
                latest_ms[at] = max(log_ms, latest_ms.get(at, log_ms))
        for at, (value, partition) in enumerate(zip(values, partitioner.of_each(values), strict=True)):
            now_ms = max(now_ms, latest_ms.get(at, now_ms))
            yield now_ms, place, value, partition
