"""Changes of sinks: refusals because another stage emits to a sink, or because of the results that it contains."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.lifecycle import ResultStore
from strandline.ledger.roles import LedgerReader
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import emissions_to_streams
from strandline.processing.pipelines.stored import load_pipeline, spec_of_version
from strandline.processing.pipelines.upgrade import forbidden_at_sinks
from strandline.results.names import emit_of_open_index, generation_of, open_index
from strandline.results.sinks.registry import form_of
from strandline.services.jobs.applying.registered import find_job, find_stream

KindAndName = tuple[str, str]


class SinkChecks:
    """Checks the sinks of the pipelines that are applied together. Blocking."""

    def __init__(
        self, ledger: LedgerReader, present: Mapping[str, PipelineSpec], submitted: Mapping[str, PipelineSpec]
    ) -> None:
        """Args: present: Job -> its current version. submitted: Job -> its pipeline that is applied now."""
        self._ledger = ledger
        self._owners: dict[KindAndName, tuple[str, str]] = {}
        """Sink -> (job, stage) that owns it."""
        for job, spec in [*((job, spec) for job, spec in present.items() if job not in submitted), *submitted.items()]:
            for stage, sink in sinks_of(spec):
                self._owners.setdefault(sink, (job, stage))
        self._stores = cache(ledger.result_stores)

    def refuse_shared(self, pipeline: CheckedPipeline) -> None:
        """Refuse a sink that another stage has. Raises Conflict. Two stages can't emit under one name: an index has one strict
        mapping, and the checkpoints of one job determine the end of a stream of results."""
        for stage, (kind, name) in sinks_of(pipeline.spec):
            owner, other = self._owners[kind, name]
            if (owner, other) != (pipeline.job, stage):
                raise Conflict(
                    f"stage {stage} of {pipeline.job} can't emit to {kind} {name}, because stage {other} of "
                    f"{owner} emits to it; choose another name"
                    + (" (NAME.open shows what is open of NAME)" if emit_of_open_index(name) else "")
                )

    def refuse_mixed(self, pipeline: CheckedPipeline) -> None:
        """Refuse sinks with results of another job, of an earlier incarnation, or of another meaning. Raises Conflict. A sink
        that the job already has was checked when the job got it."""
        job = find_job(self._ledger, pipeline.job)
        if job is not None:
            self._refuse_deleted_streams(pipeline)
        before = None if job is None else spec_of_version(self._ledger, job.name, job.version)
        new = _emitted(pipeline.spec) - (set() if before is None else _emitted(before))
        if new:
            self._refuse_left_results(pipeline.job, new)
            documents = self._ledger.documents_of(pipeline.job)
            self._refuse_another_meaning(pipeline, new, documents.present)
            self._refuse_earlier_incarnations(
                pipeline.job, new - _ever_emitted(documents.present.values()), documents.earlier
            )

    def _refuse_deleted_streams(self, pipeline: CheckedPipeline) -> None:
        """Refuse a stream that was recreated: it lacks the results that the job emitted before, which an audit would miss."""
        last = self._ledger.last_checkpoint(pipeline.job)
        for _, stream in emissions_to_streams(pipeline.spec):
            if last is not None and last.result_offsets.get(stream) == {}:
                raise Conflict(
                    f"stream {stream}, to which job {pipeline.job} emitted before, was deleted with its results; emit to a "
                    "stream of another name, or apply the pipeline under another name"
                )

    def _refuse_left_results(self, job: str, new: set[KindAndName]) -> None:
        """Refuse results of an earlier incarnation of a job under an alias: readers would count them together with those of
        another job. (A job of the same name writes its own generation, and the alias shows only that.) Other sinks have the
        same problem with the job's own results."""
        for alias in sorted(name for kind, name in new if form_of(kind).has_generations):
            for store in self._stores():
                if store.job != job and _is_of_earlier_incarnation(store, alias):
                    raise Conflict(_told_of_left(alias, store, job))

    def _refuse_another_meaning(
        self, pipeline: CheckedPipeline, new: set[KindAndName], documents: Mapping[int, dict[str, Any]]
    ) -> None:
        """Refuse a sink to which an earlier version emitted, but not the current one, if the results there have another
        meaning. `forbidden_at_sinks` decides; a version that can't be compared any more counts as different. Raises Conflict.

        Args: documents: Version -> document, of the current incarnation.
        """
        job = pipeline.job
        for version in sorted(documents, reverse=True):
            restored = new & _ever_emitted([documents[version]])
            new = new - restored
            if not restored:
                continue
            try:
                before = load_pipeline(self._ledger, job, version, is_strict=False)
            except NotFound as error:
                raise Conflict(
                    f"job {job} can't emit to {_listed(restored)} again: it contains results of version {version}, and that "
                    f"version can't be compared any more ({error}); emit under another name"
                ) from error
            forbidden = forbidden_at_sinks(before, pipeline, restored)
            if forbidden:
                raise Conflict(
                    f"job {job} emitted to {_listed(restored)} in version {version}, and can't change "
                    f"{'; '.join(f'{one.change} ({one.reason})' for one in forbidden)}; emit under another name"
                )

    def _refuse_earlier_incarnations(self, job: str, new: set[KindAndName], documents: list[dict[str, Any]]) -> None:
        """Refuse sinks without generations that contain results of an earlier incarnation: the job would emit the same results
        again.

        Args: new: Sinks that no version of the current incarnation had. documents: Documents of the versions of earlier
        incarnations.
        """
        for kind, name in sorted(new & _ever_emitted(documents)):
            if form_of(kind).is_elsewhere:
                raise Conflict(
                    f"{kind} {name} can contain results that job {job} wrote before it was reset or deleted. It has no "
                    "generations, so new results would be mixed with them; apply the pipeline under another name, or with "
                    "another sink"
                )
            if form_of(kind).is_stream and find_stream(self._ledger, name) is not None:
                raise Conflict(
                    f"stream {name} contains results that job {job} wrote before it was reset or deleted. New results "
                    f"would be duplicates; delete the stream (strandline stream delete {name}), or emit to another stream"
                )


def sinks_of(pipeline: PipelineSpec) -> Iterator[tuple[str, KindAndName]]:
    """Yield (stage, (kind, name)) of each emission that writes to an index or a stream, and of the index of its open windows."""
    for stage, emit in pipeline.emissions():
        yield stage, (emit.kind, emit.name)
        if emit.index_settings.updates_ms is not None:
            yield stage, (emit.kind, open_index(emit.name))


def _emitted(pipeline: PipelineSpec) -> set[KindAndName]:
    return {(emit.kind, emit.name) for _, emit in pipeline.emissions()}


def _ever_emitted(documents: Iterable[dict[str, Any]]) -> set[KindAndName]:
    """Return the sinks of all emissions of these pipelines."""
    return {sink for document in documents for sink in _emitted(PipelineSpec.from_document(document))}


def _is_of_earlier_incarnation(store: ResultStore, alias: str) -> bool:
    """Return True if the index contains results of this alias that an earlier incarnation of its job wrote."""
    generation = generation_of(alias, store.index)
    return generation is not None and generation < store.generation


def _told_of_left(alias: str, store: ResultStore, job: str) -> str:
    """Return the reason why the job can't emit to an alias of this index."""
    if store.is_deleted:
        return (
            f"alias {alias} still shows results of the deleted job {store.job}; delete them (strandline job "
            f"delete {store.job} --results), or let {job} emit under another name"
        )
    return (
        f"alias {alias} still contains results that job {store.job} wrote before it was reset or deleted; they "
        f"are deleted only when that job is deleted with its results. Let {job} emit under another name"
    )


def _listed(sinks: Collection[KindAndName]) -> str:
    return ", ".join(f"{kind} {name}" for kind, name in sorted(sinks))
