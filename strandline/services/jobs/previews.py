"""Preview: a local run of a pipeline over the newest records of a stream. It writes nothing, and is limited in records, bytes,
and time.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from threading import BoundedSemaphore, Lock
from typing import Any

import numpy as np

from strandline.core.described import Described
from strandline.core.errors import InvalidDocument, Problem, TransientError
from strandline.log.kafka_status import KafkaStatus, NewestRecords
from strandline.processing.desk.desk import Desk, LocalDeadLetter, letter_fields
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.source.decoding import decoding_of
from strandline.services.jobs.apply_documents import Batch
from strandline.services.processes.limited_work import RunLimited, run_here

RECORDS_MAX = 10_000
SECONDS_MAX = 30.0
BYTES_MAX = 32 << 20
"""Approximate maximum size in bytes of the records of a preview."""
_RESULTS_MAX = 1_000
_LETTERS_MAX = 100
_SLICE_RECORDS = 1_000
_WAIT_S = 10.0
_one_at_a_time = Lock()
_places = BoundedSemaphore(2)
"""One running preview and one waiting preview. Each holds one of the threads that serve all requests."""


@dataclass(frozen=True)
class PreviewView(Described):
    """Results of a pipeline for the newest records of a stream. Nothing was written."""

    pipeline: str
    stream: str
    records: int
    accepted: int
    rejected: dict[str, int]
    """Reason -> number of records."""
    result_counts: dict[str, int]
    """Stage -> number of results."""
    results: list[dict[str, Any]]
    """Documents, at most 1,000, with an equal share for each stage."""
    dead_letters: list[dict[str, Any]]
    """Records and results that could not be used, at most 100."""
    is_cut: bool
    """True if the stream contains more records than were read."""


def chosen_pipeline(batch: Batch, name: str | None, source: str) -> CheckedPipeline:
    """Return the pipeline of this name, or the single pipeline. Raises InvalidDocument if there is none, or several."""
    fitting = [one for one in batch.pipelines if name in (None, one.job)]
    if len(fitting) != 1:
        names = ", ".join(one.job for one in batch.pipelines) or "none"
        raise InvalidDocument([Problem(f"expected one pipeline, got: {names}", source=source)])
    return fitting[0]


def preview(
    log: KafkaStatus,
    pipeline: CheckedPipeline,
    stream: str,
    records: int,
    seconds: float | None,
    run_limited: RunLimited = run_here,
) -> PreviewView:
    """Run the pipeline over the newest records of the stream, or over the records that arrive within `seconds`.

    If a pipeline reads several streams, the others are empty. This process reads the records. `run_limited` runs the pipeline,
    in a process without a connection to Kafka or the ledger. Records of several partitions are ordered by their log time. At
    the end, all windows are closed, so the first and the last windows contain only the records that were read. An equal number
    of results is returned for each stage, so that emitted records don't hide windows.

    Raises NotFound, LogUnavailable, TooExpensive; TransientError if another preview takes too long or two exist already;
    InvalidSettings, RegistryUnavailable if records name schemas of a registry.
    """
    own = stream if stream in pipeline.streams else pipeline.inputs[0].name
    registry = registry_settings(pipeline)
    with preview_turn():
        headers, beside = run_limited("preview", _headers, pipeline, own, environment=registry)
        if seconds is None:
            newest = log.newest_records(stream, records, BYTES_MAX, headers, headers_beside=beside)
        else:
            begins = log.committed_ends(stream)
            time.sleep(seconds)
            newest = log.newest_records(stream, records, BYTES_MAX, headers, since=begins, headers_beside=beside)
        found = run_limited("preview", _run_desk, pipeline, own, newest, environment=registry)
    return PreviewView(pipeline=pipeline.job, stream=stream, is_cut=newest.is_cut, **found)


def registry_settings(pipeline: CheckedPipeline) -> dict[str, str]:
    """Return the settings of the schema registry, if records of the pipeline name schemas in it."""
    decoding = decoding_of(pipeline, "")
    if not any(one.format.uses_registry for one in decoding.inputs):
        return {}
    return {name: value for name, value in os.environ.items() if name.startswith("STRANDLINE_SCHEMA_REGISTRY_")}


def _headers(pipeline: CheckedPipeline, stream: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return Desk(pipeline, _SLICE_RECORDS).headers_of(stream)


def _run_desk(pipeline: CheckedPipeline, stream: str, newest: NewestRecords) -> dict[str, Any]:
    return run_over(pipeline, replace(in_log_order(newest), stream=stream))


def run_over(pipeline: CheckedPipeline, records: DeskRecords) -> dict[str, Any]:
    """Return the fields of the preview that depend on the records."""
    desk = Desk(pipeline, _SLICE_RECORDS)
    shown = Counter[str]()
    results: list[dict[str, object]] = []
    letters: list[dict[str, object]] = []
    for one in chain(desk.feed(records), desk.drain()):
        if isinstance(one, LocalDeadLetter):
            if len(letters) < _LETTERS_MAX:
                letters.append({**letter_fields(one)})
        elif shown[one.stage] < _RESULTS_MAX // len(pipeline.all_stages):
            shown[one.stage] += 1
            results.append(json.loads(one.document.source))
    return {
        "records": desk.counts.records,
        "accepted": desk.counts.accepted,
        "rejected": dict(desk.counts.rejected),
        "result_counts": dict(desk.counts.results),
        "results": results,
        "dead_letters": letters,
    }


@contextmanager
def preview_turn() -> Iterator[None]:
    """Wait until no other preview runs. Raises TransientError if that takes too long, or if another one waits."""
    has_place = _places.acquire(blocking=False)
    try:
        if not has_place or not _one_at_a_time.acquire(timeout=_WAIT_S):
            raise TransientError("another preview is running; try again in some seconds")
        try:
            yield
        finally:
            _one_at_a_time.release()
    finally:
        if has_place:
            _places.release()


def in_log_order(newest: NewestRecords) -> DeskRecords:
    """Return the records of all partitions, ordered by log time. Records of one partition keep their order."""
    log_ms = np.array(newest.log_times_ms, np.int64)
    partitions = np.array(newest.partitions, np.int64)
    latest = log_ms.copy()
    for partition in np.unique(partitions):  # the broker's clock may have been set back
        mine = partitions == partition
        latest[mine] = np.maximum.accumulate(log_ms[mine])
    order = np.argsort(latest, kind="stable").tolist()
    return DeskRecords(
        [newest.values[at] for at in order],
        [newest.partitions[at] for at in order],
        [newest.log_times_ms[at] for at in order],
        [newest.header_values[at] for at in order],
        [newest.offsets[at] for at in order],
    )
