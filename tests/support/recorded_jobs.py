"""Jobs whose slices are recorded in a ledger, from drawn pipelines and logs, as a run would record them. Nothing is emitted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import yaml

from strandline.ledger.ledger import Ledger
from strandline.ledger.states import CheckpointRow, EventTimeRule, SliceKind, SliceRow, SliceStatus
from strandline.log.kafka_status import LogRange
from strandline.log.range_reader import FetchedRecords
from strandline.log.reader import OffsetRange
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.stored import load_pipeline, streams_of_version
from strandline.processing.slices.watermark import emitted_up_to
from tests.support.control import Api
from tests.support.oracle import Applied, Followed, Log, Sent
from tests.support.some_lookups import FIRST, LOOKUPS, REGISTRY
from tests.support.some_pipelines import SomePipeline

SLICE_RECORDS = 25
JOB = "whole"
FAR_MS = 400 * 86_400_000


class RecordedLog:
    """The records of all partitions, read as `RangeReader` reads them."""

    def __init__(self, sent: Sequence[Sent], streams: Sequence[str]) -> None:
        self.lines: defaultdict[tuple[str, int], list[tuple[bytes, int]]] = defaultdict(list)
        for one in sent:
            self.lines[streams[one.stream], one.partition].append((one.line, one.at_ms))

    def read(
        self, ranges: Sequence[OffsetRange], headers: Sequence[str] = (), headers_beside: Sequence[str] = ()
    ) -> Iterator[FetchedRecords]:
        for one in ranges:
            offsets = list(range(one.offset_first, one.offset_next))
            found = [self.lines[one.stream, one.partition][offset] for offset in offsets]
            yield FetchedRecords(one, offsets, [ms for _, ms in found], [line for line, _ in found], [])


@dataclass
class RecordedJob:
    """A job of a drawn pipeline, with its recorded slices."""

    ledger: Ledger
    api: Api
    drawn: SomePipeline
    log: RecordedLog
    entries: list[Sent | Applied | Followed] = field(default_factory=list)
    """The log, without the changes of lookups that were refused because the pipeline needs another field."""
    late: dict[int, bool] = field(default_factory=dict)
    """Index of a late record -> True if it counts anyway."""
    closed_ms: int | None = None
    upgraded_at_ms: int | None = None
    """Windows that end later are emitted by version 2. None without an upgrade."""


def record_job(ledger: Ledger, random: Random, drawn: SomePipeline, log: Log, *, drains: bool) -> RecordedJob:
    """Apply the pipeline, cut the log into slices, and commit them. Event time reaches the latest record so far, minus a delay.
    `drains`: the last slice closes every window.

    The pipeline is changed once, in the middle, if it has a window whose results can have one more field."""
    api = Api(ledger)
    sent = [one for one in log if isinstance(one, Sent)]
    for stream in (*drawn.streams, REGISTRY["stream"]):
        api.log.ranges[stream] = LogRange(dict.fromkeys(range(8), 0), dict.fromkeys(range(8), 0))
    documents = [*drawn.stream_documents(), REGISTRY]
    documents += [_with_rows(name, FIRST[name]) for name in LOOKUPS if not LOOKUPS[name].is_followed]
    documents += [one.document for one in LOOKUPS.values() if one.is_followed]
    _apply(api, [*documents, drawn.document()])
    job = RecordedJob(ledger, api, drawn, RecordedLog(sent, drawn.streams))
    recorder = _Recorder(job, random.choice([0, 500, 5_000]))
    upgrades_at = random.choice([None, len(sent) // 2])
    part: list[Sent] = []
    for one in log:
        if isinstance(one, Sent):
            job.entries.append(one)
            part.append(one)
            if len(part) == SLICE_RECORDS:
                recorder.commit(part)
                part = []
                if upgrades_at is not None and recorder.count >= upgrades_at:
                    upgrades_at = None
                    recorder.upgrade()
        elif isinstance(one, Applied):
            if part:
                recorder.commit(part)
                part = []
            document = _with_rows(one.lookup, one.rows)
            document["schema"] = {name: document["schema"][name] for name in one.fields}
            if _apply(api, [document], may_be_refused=True):
                job.entries.append(one)
    recorder.commit(part, is_last=drains)
    return job


def _with_rows(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {**deepcopy(LOOKUPS[name].document), "rows": [dict(row) for row in rows]}


def _apply(api: Api, documents: Sequence[Mapping[str, Any]], *, may_be_refused: bool = False) -> bool:
    answer = api.apply(yaml.safe_dump_all([dict(one) for one in documents], sort_keys=False))
    assert answer.status_code == 200 or (may_be_refused and answer.status_code == 409), answer.text
    return bool(answer.status_code == 200)


class _Recorder:
    """Commits slices."""

    def __init__(self, job: RecordedJob, delay_ms: int) -> None:
        self._job, self._delay_ms = job, delay_ms
        self._ends: Counter[tuple[str, int]] = Counter()
        self._emitted: dict[str, int] = {}
        self._latest_ms: int | None = None
        self._newest_ms = 0
        self._number = self.count = 0
        self._begin()

    def _begin(self) -> None:
        ledger = self._job.ledger
        run = ledger.begin_run(JOB, pid=1, present_version=True)
        self._epoch, self._version = run.epoch, run.version
        self._streams = streams_of_version(ledger, JOB, run.version)
        ledger.set_run_streams(JOB, run.epoch, self._streams)
        self.pipeline: CheckedPipeline = load_pipeline(ledger, JOB, run.version, self._streams)
        self._revise_ms = self.pipeline.spec.revise_ms or 0

    def upgrade(self) -> None:
        document = self._job.drawn.document()
        windows = [one["window"] for one in document["steps"] if "window" in one]
        if not windows or any("select" in one for one in document["steps"]):
            return
        windows[0]["aggregate"] = {**windows[0]["aggregate"], "one_more": "count(*)"}
        answer = self._job.api.apply(yaml.safe_dump(document, sort_keys=False))
        if answer.status_code == 200 and self._job.ledger.job(JOB).version == 2:
            self._job.upgraded_at_ms = self._job.closed_ms or 0
            self._begin()

    def commit(self, part: Sequence[Sent], *, is_last: bool = False) -> None:
        """Plan and commit a slice of these records."""
        job, closed_ms = self._job, self._job.closed_ms
        streams = job.drawn.streams
        before = {place: self._ends[place] for place in self._places}
        for one in part:
            self._ends[streams[one.stream], one.partition] += 1
            if one.columns is not None:
                if closed_ms is not None and one.at_ms < closed_ms:
                    job.late[self.count] = one.at_ms >= closed_ms - self._revise_ms
                if job.late.get(self.count, True):
                    self._latest_ms = max(self._latest_ms or 0, one.at_ms)
            self.count += 1
            self._newest_ms = max(self._newest_ms, one.at_ms)
        self._number += 1
        closes_ms = max(self._newest_ms - self._delay_ms, closed_ms or 0) + (FAR_MS if is_last else 0)
        self._emitted = emitted_up_to(self.pipeline.kept.items(), closes_ms, self._emitted)
        lookups = {name: job.ledger.lookup(name).version for name, _ in self.pipeline.lookups}
        common: dict[str, Any] = {"job": JOB, "epoch": self._epoch, "version": self._version}
        rule = EventTimeRule(delay_ms=self._delay_ms, idle_timeout_ms=None, revise_ms=self._revise_ms)
        job.ledger.plan_slice(
            SliceRow(
                **common,
                number=self._number,
                offsets_first=self._offsets(before),
                offsets=self._offsets(self._ends),
                cut_time_ms=self._newest_ms,
                watermark_ms=closed_ms,
                rule=rule,
                reached={},
                silence_ms={},
                kind=SliceKind.LIVE,
                status=SliceStatus.PLANNED,
                planned_ms=self._newest_ms,
                stream_versions=self._streams,
                lookup_versions=lookups,
            )
        )
        job.ledger.commit_checkpoint(
            CheckpointRow(
                **common,
                slice=self._number,
                emitted=self._emitted,
                latest_event_ms=self._latest_ms,
                latest_log_ms=self._newest_ms,
                records=len(part),
                accepted=len(part),
                rejected={},
                results={},
                dead_letter_offsets={},
                committed_ms=self._newest_ms,
                closes_ms=closes_ms,
            )
        )
        job.closed_ms = closes_ms

    @property
    def _places(self) -> list[tuple[str, int]]:
        return [
            (one["stream"], partition)
            for one in self._job.drawn.stream_documents()
            for partition in range(one["partitions"])
        ]

    def _offsets(self, ends: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for stream, partition in self._places:
            found.setdefault(stream, {})[partition] = ends.get((stream, partition), 0)
        return {stream: found[stream] for stream in self.pipeline.streams}
