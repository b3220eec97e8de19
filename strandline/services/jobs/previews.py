"""A preview: the newest records of a stream through a pipeline, as at the desk. Nothing is written. Bounded in records, bytes and
time, and one at a time."""

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
from strandline.processing.desk.desk import Desk, DeskLetter, letter_fields
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.source.decoding import decoding_of
from strandline.services.jobs.apply_documents import Batch
from strandline.services.processes.limited_work import RunLimited, run_here

RECORDS_MAX = 10_000
SECONDS_MAX = 30.0
_BYTES_MAX = 32 << 20
_RESULTS_MAX = 1_000
_LETTERS_MAX = 100
_SLICE_RECORDS = 1_000
_WAIT_S = 10.0
_one_at_a_time = Lock()
_places = BoundedSemaphore(2)
"""One that is under way and one that waits. Each holds one of the threads that answer all requests."""


@dataclass(frozen=True)
class PreviewView(Described):
    """What a pipeline makes of the newest records of a stream. Nothing of it was written."""

    pipeline: str
    stream: str
    records: int
    accepted: int
    rejected: dict[str, int]
    """Reason -> records."""
    result_counts: dict[str, int]
    """Stage -> results."""
    results: list[dict[str, Any]]
    """The documents, 1,000 at most: as many of each stage."""
    dead_letters: list[dict[str, Any]]
    """Records and results that could not be used, 100 at most."""
    is_cut: bool
    """Whether the stream holds more than was read."""


def chosen_pipeline(batch: Batch, name: str | None, source: str) -> CheckedPipeline:
    """The pipeline of this name, or the only one. Raises InvalidDocument."""
    fitting = [one for one in batch.pipelines if name in (None, one.job)]
    if len(fitting) != 1:
        names = ", ".join(one.job for one in batch.pipelines) or "none"
        raise InvalidDocument([Problem(f"expected one pipeline; there are: {names}", source=source)])
    return fitting[0]


def preview(
    log: KafkaStatus,
    pipeline: CheckedPipeline,
    stream: str,
    records: int,
    seconds: float | None,
    run_limited: RunLimited = run_here,
) -> PreviewView:
    """Run the pipeline over the newest records of the stream, or over those that come within so many seconds. Of a pipeline that
    reads several streams, the others are empty.

    This process reads the records. `run_limited` runs the pipeline, in a process that has no connection to Kafka or the ledger.
    Records of several partitions are taken in the order of their log time. At the end all windows are closed, so the first
    and the last hold only what was read. Of each stage as many results are shown, so that records that are emitted hide no
    windows. Raises NotFound, LogUnavailable, TooExpensive; TransientError while another preview takes too long or two are there
    already; InvalidSettings, RegistryUnavailable where records name schemas of a registry.
    """
    own = stream if stream in pipeline.streams else pipeline.inputs[0].name
    registry = _registry_settings(pipeline)
    with _turn():
        headers, beside = run_limited("preview", _headers, pipeline, own, environment=registry)
        if seconds is None:
            newest = log.newest_records(stream, records, _BYTES_MAX, headers, headers_beside=beside)
        else:
            begins = log.committed_ends(stream)
            time.sleep(seconds)
            newest = log.newest_records(stream, records, _BYTES_MAX, headers, since=begins, headers_beside=beside)
        found = run_limited("preview", _run_desk, pipeline, own, newest, environment=registry)
    return PreviewView(pipeline=pipeline.job, stream=stream, is_cut=newest.is_cut, **found)


def _registry_settings(pipeline: CheckedPipeline) -> dict[str, str]:
    """The settings of the schema registry, if records of the pipeline name schemas in it."""
    decoding = decoding_of(pipeline, "")
    if not any(one.format.uses_registry for one in decoding.inputs):
        return {}
    return {name: value for name, value in os.environ.items() if name.startswith("STRANDLINE_SCHEMA_REGISTRY_")}


def _headers(pipeline: CheckedPipeline, stream: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return Desk(pipeline, _SLICE_RECORDS).headers_of(stream)


def _run_desk(pipeline: CheckedPipeline, stream: str, newest: NewestRecords) -> dict[str, Any]:
    """Return the fields of the preview that depend on the records."""
    desk = Desk(pipeline, _SLICE_RECORDS)
    shown = Counter[str]()
    results: list[dict[str, object]] = []
    letters: list[dict[str, object]] = []
    for one in chain(desk.feed(replace(_in_order(newest), stream=stream)), desk.drain()):
        if isinstance(one, DeskLetter):
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
def _turn() -> Iterator[None]:
    has_place = _places.acquire(blocking=False)
    try:
        if not has_place or not _one_at_a_time.acquire(timeout=_WAIT_S):
            raise TransientError("another preview is under way; try again in some seconds")
        try:
            yield
        finally:
            _one_at_a_time.release()
    finally:
        if has_place:
            _places.release()


def _in_order(newest: NewestRecords) -> DeskRecords:
    """The records of all partitions by their log time; those of one partition keep their order."""
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
