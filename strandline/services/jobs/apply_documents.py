"""Application of documents: they become streams, topics, index templates, and jobs. If one document is wrong, none is applied.

All documents are checked before any change. The changes can be repeated: after a failure in the middle, applying the same
documents again makes the remaining changes. Otherwise it changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from strandline.core.documents import Path, YamlDocument, did_you_mean, read_documents, without_packed
from strandline.core.errors import InvalidDocument, NotFound, Problem
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.registry import section_problems
from strandline.ledger.roles import ApplyLedger
from strandline.ledger.states import JobBase, JobRow, Offsets, StageSink
from strandline.log.admin import HazardKind, TopicDescription
from strandline.notices.document import NoticeSpec
from strandline.processing.emission.result_shapes import document_shape
from strandline.processing.formats.lookups.documents import ReadLookup, read_lookup
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.lookups.followed_streams import unfit_sources
from strandline.processing.pipelines.lookups.lookup_shapes import LookupShape, shape_of
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import (
    emissions_to_streams,
    present_pipelines,
    results_beside_streams,
    schema_mismatches,
    stream_of_results,
    streams_of_windows,
    times_in_results,
)
from strandline.processing.pipelines.stored import spec_of_version
from strandline.results.mapping import build_mapping, ensure_index_template
from strandline.results.sinks.registry import sink_of
from strandline.services.jobs.applying.applied import Applied
from strandline.services.jobs.applying.job_changes import JobChanges
from strandline.services.jobs.applying.lookup_changes import LookupChange, LookupChanges, Sources, outcome_of
from strandline.services.jobs.applying.notice_changes import apply_notice
from strandline.services.jobs.applying.planned_changes import PlannedChanges, PlanView
from strandline.services.jobs.applying.registered import find_job, find_stream
from strandline.services.jobs.applying.results_read import ResultsRead
from strandline.services.jobs.applying.sink_checks import SinkChecks, sinks_of
from strandline.services.jobs.applying.stream_changes import StreamChanges
from strandline.services.jobs.applying.topic_checks import TopicChecks
from strandline.services.jobs.job_status import input_streams

_SENDERS_TIMES = (
    "the topic has message.timestamp.type=CreateTime, so its producers set the log time, and max_ahead and 'from: log' use "
    "their clocks. Kafka also deletes by this time: records with old times can be deleted before they are read, and a record "
    "with a time in the future keeps its segment. With message.timestamp.type=LogAppendTime, new records would have their "
    "arrival time"
)


class TopicMaker(Protocol):
    """Operations on topics that applying needs, from `ingest.topics.Topics`."""

    def present_stream_topic(self, spec: StreamSpec) -> TopicDescription | None: ...
    def find(self, topic: str) -> TopicDescription | None: ...
    def ensure_stream_topic(self, spec: StreamSpec, *, creates: bool = True) -> TopicDescription: ...
    def ensure_dead_letter_topic(self, job: str) -> TopicDescription: ...
    def ensure_room_for_records(self, topic: str) -> None: ...
    def require_complete_log(self, topic: str) -> None: ...


@dataclass(frozen=True)
class Batch:
    """Documents that are valid, and fit each other and the streams in the ledger."""

    streams: list[StreamSpec]
    lookups: list[ReadLookup]
    pipelines: list[CheckedPipeline]
    """Pipelines, with the tables of lookups from the same text."""
    notices: list[NoticeSpec] = field(default_factory=list)


def check_documents(
    text: bytes | str,
    source: str,
    registered: Mapping[str, dict[str, Any]],
    emitted: Collection[str] = (),
    lookups: Mapping[str, LookupShape] | None = None,
) -> Batch:
    """Read and check documents without changing anything. A stream can be in the same text, or in `registered`.

    A pipeline that reads a stream of `emitted`, or a stream to which another pipeline of the text emits, gets the defaults of
    pipelines that read results. Raises InvalidDocument with the problems of all documents.

    Args: emitted: Registered streams to which jobs emit results of windows. lookups: Registered lookups.
    """
    documents = read_documents(text, source)
    problems: list[Problem] = list(_repeated(documents))
    streams: dict[str, StreamSpec] = {}
    pipelines: list[tuple[YamlDocument, PipelineSpec]] = []
    read: dict[str, ReadLookup] = {}
    notices: list[NoticeSpec] = []
    shapes = dict(lookups or {})
    for document in documents:
        try:
            if document.kind == "stream":
                streams[document.name] = StreamSpec.parse(document)
                problems.extend(document.problem(*one) for one in section_problems(streams[document.name]))
            elif document.kind == "pipeline":
                pipelines.append((document, PipelineSpec.parse(document)))
            elif document.kind == "notice":
                notices.append(NoticeSpec.parse(document))
            else:
                read[document.name] = read_lookup(document)
                shapes[document.name] = shape_of(read[document.name].spec)
        except InvalidDocument as error:
            problems.extend(error.problems)
    problems.extend(_shared_entrances(documents, streams, registered))
    broken = {document.name for document in documents if document.kind == "stream"} - set(streams)
    broken_lookups = {document.name for document in documents if document.kind == "lookup"} - set(read)
    checked: list[CheckedPipeline] = []
    emitted = {stream for _, pipeline in pipelines for stream in streams_of_windows(pipeline)}.union(emitted)
    for document, spec in _emitters_first(pipelines):
        pipeline = spec.reading_results(emitted)
        if broken.intersection(spec.streams) or broken_lookups.intersection(spec.lookups()):
            continue  # the problems of the stream are listed; their consequences here would only hide them
        unknown = [
            document.problem(
                (*spec.path_of_input(at), "stream"),
                f"there is no stream '{name}'{did_you_mean(name, streams.keys() | registered.keys())}",
            )
            for at, name in enumerate(spec.streams)
            if name not in streams and name not in registered
        ]
        unknown = unknown or [
            *results_beside_streams(pipeline, document, emitted),
            *times_in_results(spec, document, emitted),
        ]
        if unknown:
            problems += unknown
            broken |= {emitted for _, emitted in emissions_to_streams(pipeline)} - streams.keys() - registered.keys()
            continue
        try:
            read_streams = [streams.get(name) or StreamSpec.from_document(registered[name]) for name in spec.streams]
            fitting = check(pipeline, read_streams, document, shapes)
            tables = {
                used: read[used].table() for used, _ in fitting.lookups if used in read and not read[used].is_followed
            }
            checked.append(replace(fitting, tables=tables))
            problems.extend(_fit_streams(document, checked[-1], streams, registered, broken))
        except InvalidDocument as error:
            problems.extend(error.problems)
            broken |= {emitted for _, emitted in emissions_to_streams(pipeline)} - streams.keys() - registered.keys()
    followed = {name: one.spec for name, one in read.items() if one.is_followed and one.followed_stream not in broken}
    if followed:
        there = {name: StreamSpec.from_document(one) for name, one in registered.items()} | streams
        problems.extend(unfit_sources(documents, followed, there))
    if problems:
        raise InvalidDocument(problems)
    return Batch(list(streams.values()), list(read.values()), checked, notices)


def _emitters_first(pipelines: list[tuple[YamlDocument, PipelineSpec]]) -> list[tuple[YamlDocument, PipelineSpec]]:
    """Sort each pipeline after the pipelines whose results it reads. Pipelines that read each other in a circle come last."""
    left, ordered = list(pipelines), []
    while left:
        emitted = {stream for _, pipeline in left for _, stream in emissions_to_streams(pipeline)}
        ready = [one for one in left if not emitted.intersection(one[1].streams)] or left
        ordered += ready
        left = [one for one in left if one not in ready]
    return ordered


def _fit_streams(
    document: YamlDocument,
    pipeline: CheckedPipeline,
    streams: dict[str, StreamSpec],
    registered: Mapping[str, dict[str, Any]],
    broken: set[str],
) -> Iterator[Problem]:
    """Yield a problem for each result that doesn't fit the schema of the stream to which the pipeline emits it.

    For a stream that is neither in `streams` nor in `registered`, add a stream made for the results to `streams`.
    Streams in `broken` aren't checked.
    """
    for stage in pipeline.all_stages:
        for position, emit in enumerate(stage.emits):
            if not sink_of(emit).is_stream or emit.name in broken:
                continue
            if emit.name not in streams and emit.name not in registered:
                streams[emit.name] = stream_of_results(pipeline, stage, emit.name)
                continue
            stream = streams.get(emit.name) or StreamSpec.from_document(registered[emit.name])
            for reason in schema_mismatches(stream, stage):
                path: Path = (
                    "steps",
                    stage.emit_number,
                    "emit",
                    position,
                    "stream",
                )
                yield document.problem(
                    path, f"stream '{emit.name}' can't contain the results of '{stage.name}': {reason}"
                )


class DocumentApplier:
    """Applies documents. Blocking."""

    def __init__(
        self,
        ledger: ApplyLedger,
        topics: TopicMaker,
        ensure_templates: Callable[[CheckedPipeline], None],
        log_starts: Callable[[str], Mapping[int, int]],
        origin: Callable[[PipelineSpec], Offsets] | None = None,
        sources: Sources | None = None,
        check: Callable[..., Batch] = check_documents,
    ) -> None:
        """Args: log_starts: Returns the first offset that each partition of a topic still contains.
        `origin`: Returns the start of a new job. Required for the name of a deleted job, which is refused without it.
        `sources`: Reads the sources of lookups.
        `check`: `check_documents`, or a function that runs it in another process."""
        self._ledger = ledger
        self._topics = topics
        self._check = check
        self._ensure_templates = ensure_templates
        self._origin = origin
        self._stream_changes = StreamChanges(ledger)
        self._lookup_changes = LookupChanges(ledger, sources)
        self._job_changes = JobChanges(ledger, log_starts)
        self._topic_checks = TopicChecks(ledger, topics)

    def check(self, text: bytes | str, source: str) -> Batch:
        """Check documents against each other and the ledger. Raises InvalidDocument."""
        registered = {row.name: row.document for row in self._ledger.streams()}
        emitted = {stream for spec in present_pipelines(self._ledger).values() for stream in streams_of_windows(spec)}
        lookups = {
            row.name: shape_of(LookupSpec.described(row.document), row.version) for row in self._ledger.lookups()
        }
        return self._check(text, source, registered, emitted, lookups)

    def plan(self, text: bytes, source: str) -> PlanView:
        """Return the effect of applying on each job, the notes, and the refusals as forbidden changes. Changes nothing.

        Raises InvalidDocument, NotFound, LogUnavailable, LedgerUnavailable.
        """
        return self._planned_changes(self.check(text, source)).plan()

    def apply(self, text: bytes, source: str, principal: str | None = None) -> list[Applied]:
        """Make the changes, for `principal`, and return the changes.

        1. Check every document. Refuse everything that a plan forbids.
        2. Create or widen the topics, then register the streams, then the lookups.
        3. Create the dead-letter topics and index templates. Let the output topics of the jobs accept the largest
           record. Then submit the jobs; a new job starts. At the end, register the notices.

        Raises InvalidDocument for wrong documents, Conflict for a refused change; LogUnavailable, IndexUnavailable,
        LedgerUnavailable.
        """
        versions = {row.name: row.version for row in self._ledger.streams()}
        batch = self.check(text, source)
        planned = self._planned_changes(batch)
        planned.require_accepted()
        applied = [
            self._apply_stream(
                one, versions.get(one.stream, 0), planned.streams[one.stream], principal, planned.streams.keys()
            )
            for one in batch.streams
        ]
        applied += [
            self._lookup_changes.apply(one, planned.lookups[one.spec.lookup], principal) for one in batch.lookups
        ]
        lookups = {one.name: one.version for one in applied if one.kind == "lookup"}
        written = without_packed(text).decode("utf-8")
        applied += [
            self._apply_pipeline(pipeline, written, planned.bases, lookups, principal) for pipeline in batch.pipelines
        ]
        return applied + [apply_notice(self._ledger, one, principal) for one in batch.notices]

    def _planned_changes(self, batch: Batch) -> PlannedChanges:
        """Compare the documents with the current state: return their changes, and all refusals. Changes nothing."""
        planned = PlannedChanges()
        in_batch = {stream.stream for stream in batch.streams}
        for document in batch.streams:
            self._plan_stream(document, batch, planned)
        for lookup in batch.lookups:
            planned.lookups[lookup.spec.lookup] = LookupChange(0)  # stays if the lookup is refused
            with planned.refusing("lookup", lookup.spec.lookup):
                planned.lookups[lookup.spec.lookup] = self._lookup_changes.check(lookup, batch.pipelines)
            source = lookup.spec.source
            if source is not None and source.stream is not None and source.stream not in in_batch:
                with planned.refusing("lookup", lookup.spec.lookup):
                    self._topic_checks.refuse_lost(source.stream)
        for name, job in self._first_readers(batch).items():
            with planned.refusing("pipeline", job):
                self._topic_checks.refuse_lost(name)
                self._topics.require_complete_log(name)
        for pipeline in batch.pipelines:
            for stream in sorted({stream for _, stream in emissions_to_streams(pipeline.spec)} - in_batch):
                with planned.refusing("pipeline", pipeline.job):
                    self._topic_checks.refuse_lost(stream)
        for pipeline in batch.pipelines:
            planned.bases[pipeline.job] = self._job_changes.base(pipeline)
            planned.jobs[pipeline.job] = plan = self._job_changes.plan(pipeline, batch.pipelines)
            with planned.refusing("pipeline", pipeline.job, is_planned=True):
                self._job_changes.refuse_forbidden(plan)
            with planned.refusing("pipeline", pipeline.job):
                self._job_changes.refuse_unfit_batch(pipeline, plan)
            with planned.refusing("pipeline", pipeline.job):
                self._ledger.require_free_name(pipeline.job)
        present, submitted = present_pipelines(self._ledger), {one.job: one.spec for one in batch.pipelines}
        sink_checks, read = SinkChecks(self._ledger, present, submitted), ResultsRead(present | submitted, submitted)
        for pipeline in batch.pipelines:
            with planned.refusing("pipeline", pipeline.job):
                sink_checks.refuse_shared(pipeline)
            with planned.refusing("pipeline", pipeline.job):
                read.refuse_beside_streams(pipeline.job)
            with planned.refusing("pipeline", pipeline.job):
                read.refuse_circle(pipeline.job)
            with planned.refusing("pipeline", pipeline.job):
                sink_checks.refuse_mixed(pipeline)
        return planned

    def _plan_stream(self, stream: StreamSpec, batch: Batch, planned: PlannedChanges) -> None:
        planned.streams[stream.stream] = notes = []
        with planned.refusing("stream", stream.stream):
            self._lookup_changes.refuse_unfit(stream, batch.lookups)
        with planned.refusing("stream", stream.stream):
            notes += self._stream_changes.check(stream, batch.pipelines)
        with planned.refusing("stream", stream.stream):
            topic = self._topics.present_stream_topic(stream)
            self._topic_checks.refuse_other(stream.stream, topic)
            if topic is not None:
                notes += [_SENDERS_TIMES] * topic.has_senders_times
                notes += _notes_of_hazards(topic, is_adopted=find_stream(self._ledger, stream.stream) is None)

    def _first_readers(self, batch: Batch) -> dict[str, str]:
        """Stream -> first pipeline that reads it, for streams outside of the batch. Their topics are also checked."""
        in_batch = {stream.stream for stream in batch.streams}
        readers: dict[str, str] = {}
        for pipeline in batch.pipelines:
            for name in sorted(set(pipeline.streams) - in_batch):
                readers.setdefault(name, pipeline.job)
        return readers

    def _apply_stream(
        self, stream: StreamSpec, base: int, notes: list[str], principal: str | None, together: Collection[str]
    ) -> Applied:
        """Create or widen the stream's topic, register the stream, and return the outcome. Raises Conflict if the
        stream's topic was lost or replaced, or if the ledger refuses the stream (see `put_stream`). Only the topic of a new
        stream is created.

        Args: base: Version against which the document was checked; 0 if there was none. together: All streams being
        applied.
        """
        is_registered = self._topic_checks.is_registered(stream.stream)
        try:
            topic = self._topics.ensure_stream_topic(stream, creates=not is_registered)
        except NotFound:
            self._topic_checks.refuse_other(stream.stream, None)
            raise
        self._topic_checks.refuse_other(stream.stream, topic)
        row = self._ledger.put_stream(stream.stream, stream.as_document(), base, together)
        if row.topic_id is None:
            self._ledger.set_topic_id(stream.stream, topic.topic_id)
        outcome = outcome_of(base or None, row.version)
        if outcome == "changed" or (principal is not None and outcome != "unchanged"):
            message = f"stream {row.name} {outcome}: version {row.version}"
            facts = {"stream": row.name, "version": row.version}
            self._ledger.record_event(f"stream_{outcome}", message, facts=facts, principal=principal)
        return Applied(kind="stream", name=row.name, outcome=outcome, version=row.version, notes=notes)

    def _apply_pipeline(
        self,
        pipeline: CheckedPipeline,
        written: str,
        bases: Mapping[str, JobBase],
        lookups: Mapping[str, int],
        principal: str | None,
    ) -> Applied:
        """Submit the pipeline as a job, or as the next version of its job, and return the outcome.

        Args: bases: Job -> state against which its pipeline was checked. lookups: Lookup -> its new version, if applied before.
        """
        before = find_job(self._ledger, pipeline.job)
        emitted = {stream for _, stream in emissions_to_streams(pipeline.spec)}
        dead_letters = self._topics.ensure_dead_letter_topic(pipeline.job)
        notes = _notes_of_hazards(dead_letters, is_adopted=before is None)
        for stream in sorted(emitted):
            self._topics.ensure_room_for_records(stream)
        self._ensure_templates(pipeline)
        emits_to = [StageSink(kind, name, stage) for stage, (kind, name) in sinks_of(pipeline.spec)]
        origin = self._origin_of_incarnation(pipeline) if before is None else None
        row = self._ledger.submit_job(
            pipeline.job,
            written,
            pipeline.spec.as_document(),
            emits_to,
            bases.keys(),
            bases[pipeline.job],
            origin,
            {name: lookups.get(name, version) for name, version in pipeline.lookups},
            self._readers(self._emitted_streams(before) ^ emitted),
            {*pipeline.streams, *emitted},
        )
        if origin is not None:
            # A deletion of the earlier job's dead letters may have deleted the topic in the meantime. From now on, none can
            # begin.
            self._topics.ensure_dead_letter_topic(pipeline.job)
        outcome = outcome_of(before.version if before else None, row.version)
        if outcome != "unchanged":
            message = f"job {row.name} {outcome}: version {row.version}"
            facts = {"version": row.version}
            self._ledger.record_event(f"job_{outcome}", message, row.name, facts=facts, principal=principal)
        return Applied(kind="pipeline", name=row.name, outcome=outcome, version=row.version, notes=notes)

    def _origin_of_incarnation(self, pipeline: CheckedPipeline) -> Offsets | None:
        """Return the start of a new job with the name of a deleted job. None for other names."""
        if self._origin is None or not self._ledger.deleted_job(pipeline.job):
            return None
        return self._origin(pipeline.spec)

    def _emitted_streams(self, job: JobRow | None) -> set[str]:
        if job is None:
            return set()
        return {stream for _, stream in emissions_to_streams(spec_of_version(self._ledger, job.name, job.version))}

    def _readers(self, streams: set[str]) -> list[str]:
        """Return the jobs that read one of these streams."""
        jobs = self._ledger.jobs() if streams else []
        return [job.name for job in jobs if streams.intersection(input_streams(self._ledger, job))]


def ensure_templates(elasticsearch_url: str, pipeline: CheckedPipeline, generation: int = 1) -> None:
    """Create the index template of every emission to Elasticsearch, in the job's own generation. Raises Conflict (see
    `ensure_index_template`), IndexUnavailable.
    """
    for stage in pipeline.all_stages:
        for emit in stage.emits:
            if sink_of(emit).has_generations:
                # The mapping is the same for every version of the job.
                mapping = build_mapping(document_shape(pipeline, stage, emit, 1))
                ensure_index_template(elasticsearch_url, emit.name, mapping, generation=generation, settings=emit.index)


def _notes_of_hazards(topic: TopicDescription, *, is_adopted: bool) -> list[str]:
    """Return a note for each setting with which an existing topic can lose confirmed records. A single replica is noted only if
    the topic is adopted: with one broker, each topic has one."""
    return [
        f"{one.message}; {one.remedy}" for one in topic.hazards if is_adopted or one.kind is not HazardKind.ONE_REPLICA
    ]


def _shared_entrances(
    documents: list[YamlDocument], streams: Mapping[str, StreamSpec], registered: Mapping[str, dict[str, Any]]
) -> Iterator[Problem]:
    """Yield a problem for each port or topic filter of two streams. The second stream would get no record, without a message."""
    owners: dict[str, str] = {}
    for name in registered.keys() - streams.keys():
        with contextlib.suppress(InvalidDocument):  # written by a newer version, which checks it when it is applied
            owners.update((what, name) for _, what in StreamSpec.from_document(registered[name]).entrances())
    for document in documents:
        if document.kind == "stream" and document.name in streams:
            for path, what in streams[document.name].entrances():
                owner = owners.setdefault(what, document.name)
                if owner != document.name:
                    yield document.problem(path, f"{what} belongs to stream '{owner}' already; choose another")


def _repeated(documents: list[YamlDocument]) -> Iterator[Problem]:
    seen: set[tuple[str, str]] = set()
    for document in documents:
        if (document.kind, document.name) in seen:
            yield document.problem((document.kind,), f"{document.kind} '{document.name}' occurs twice; remove one")
        seen.add((document.kind, document.name))
