"""Changes of places: where a pipeline can't emit to, because another stage does, or because of the results that are there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.lives import ResultStore
from strandline.ledger.roles import LedgerReader
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import emissions_to_streams
from strandline.processing.pipelines.stored import load_pipeline, spec_of_version
from strandline.processing.pipelines.upgrade import forbidden_at_places
from strandline.results.names import emit_of_open_index, generation_of, open_index
from strandline.results.sinks.registry import form_of
from strandline.services.jobs.applying.registered import find_job, find_stream

KindAndName = tuple[str, str]


class PlaceChanges:
    """Checks those of the pipelines of one text. Blocking."""

    def __init__(
        self, ledger: LedgerReader, present: Mapping[str, PipelineSpec], submitted: Mapping[str, PipelineSpec]
    ) -> None:
        """`present`: job -> its present version. `submitted`: job -> its pipeline in the text."""
        self._ledger = ledger
        self._owners: dict[KindAndName, tuple[str, str]] = {}
        """(job, stage) that is to have the place."""
        for job, spec in [*((job, spec) for job, spec in present.items() if job not in submitted), *submitted.items()]:
            for stage, place in places_of(spec):
                self._owners.setdefault(place, (job, stage))
        self._stores = cache(ledger.result_stores)

    def refuse_shared(self, pipeline: CheckedPipeline) -> None:
        """Refuse a place that another stage has. Two stages can't emit under one name: an index has one strict mapping, and the
        checkpoints of one job say where a stream of results ends. Raises Conflict."""
        for stage, (kind, name) in places_of(pipeline.spec):
            owner, other = self._owners[kind, name]
            if (owner, other) != (pipeline.job, stage):
                raise Conflict(
                    f"stage {stage} of {pipeline.job} can't emit to {kind} {name}, because stage {other} of {owner} does; choose "
                    "another name" + (" (NAME.open shows what is open of NAME)" if emit_of_open_index(name) else "")
                )

    def refuse_mixed(self, pipeline: CheckedPipeline) -> None:
        """Refuse places where the job's results would stand beside those of another job, of an earlier life, or of another
        meaning. A place that the job has was looked at when it got it. Raises Conflict."""
        job = find_job(self._ledger, pipeline.job)
        if job is not None:
            self._refuse_deleted_streams(pipeline)
        before = None if job is None else spec_of_version(self._ledger, job.name, job.version)
        new = _emitted(pipeline.spec) - (set() if before is None else _emitted(before))
        if new:
            self._refuse_left_results(pipeline.job, new)
            documents = self._ledger.documents_of(pipeline.job)
            self._refuse_another_meaning(pipeline, new, documents.present)
            self._refuse_earlier_lives(pipeline.job, new - _ever_emitted(documents.present.values()), documents.earlier)

    def _refuse_deleted_streams(self, pipeline: CheckedPipeline) -> None:
        """A stream of that name is another one: what the job has emitted before is not in it, and an audit would miss that."""
        last = self._ledger.last_checkpoint(pipeline.job)
        for _, stream in emissions_to_streams(pipeline.spec):
            if last is not None and last.result_offsets.get(stream) == {}:
                raise Conflict(
                    f"stream {stream}, to which job {pipeline.job} emitted before, was deleted with its results; emit to a "
                    "stream of another name, or apply the pipeline under another name"
                )

    def _refuse_left_results(self, job: str, new: set[KindAndName]) -> None:
        """What an earlier life of a job left under an alias would be counted together with the results of another job. (A job of
        the same name writes a generation of its own, and the alias shows that alone.) Elsewhere, that holds for its own results,
        too."""
        for alias in sorted(name for kind, name in new if form_of(kind).has_generations):
            for store in self._stores():
                if store.job != job and _is_of_earlier_life(store, alias):
                    raise Conflict(_told_of_left(alias, store, job))

    def _refuse_another_meaning(
        self, pipeline: CheckedPipeline, new: set[KindAndName], documents: Mapping[int, dict[str, Any]]
    ) -> None:
        """At a place that the present version left, there is still what the last version before it emitted there. `documents`: of
        the versions of the present life."""
        job = pipeline.job
        for version in sorted(documents, reverse=True):
            put_back = new & _ever_emitted([documents[version]])
            new = new - put_back
            if not put_back:
                continue
            try:
                before = load_pipeline(self._ledger, job, version, is_strict=False)
            except NotFound as error:
                raise Conflict(
                    f"job {job} can't emit to {_listed(put_back)} again: results of version {version} are there, and whether the "
                    f"new ones have the same meaning can't be told any more ({error}). Emit under another name"
                ) from error
            forbidden = forbidden_at_places(before, pipeline, put_back)
            if forbidden:
                raise Conflict(
                    f"job {job} emitted to {_listed(put_back)} in version {version}, and can't change "
                    f"{'; '.join(f'{one.what} ({one.reason})' for one in forbidden)}"
                )

    def _refuse_earlier_lives(self, job: str, new: set[KindAndName], documents: list[dict[str, Any]]) -> None:
        """Where results have no generations, a job would emit those of an earlier life a second time. `new`: places that no
        version of the present life had. `documents`: of the versions of earlier lives."""
        for kind, name in sorted(new & _ever_emitted(documents)):
            if form_of(kind).is_elsewhere:
                raise Conflict(
                    f"{kind} {name} may hold results of an earlier life of job {job}, before it was reset or deleted, and "
                    "results have no generations there: the new ones would stand beside them. Apply the pipeline under another "
                    "name, or with another place"
                )
            if form_of(kind).is_stream and find_stream(self._ledger, name) is not None:
                raise Conflict(
                    f"stream {name} holds results of an earlier life of job {job}, before it was reset or deleted, and the job "
                    f"would emit the same once more; delete the stream first (strandline stream delete {name}), or choose "
                    "another name for it"
                )


def places_of(pipeline: PipelineSpec) -> Iterator[tuple[str, KindAndName]]:
    """(stage, (kind, name)) of each emission that writes to an index or a stream, and of the index of its open windows."""
    for stage, emit in pipeline.emissions():
        yield stage, (emit.kind, emit.name)
        if emit.index_settings.updates_ms is not None:
            yield stage, (emit.kind, open_index(emit.name))


def _emitted(pipeline: PipelineSpec) -> set[KindAndName]:
    return {(emit.kind, emit.name) for _, emit in pipeline.emissions()}


def _ever_emitted(documents: Iterable[dict[str, Any]]) -> set[KindAndName]:
    """Of each emission of these pipelines."""
    return {place for document in documents for place in _emitted(PipelineSpec.from_document(document))}


def _is_of_earlier_life(store: ResultStore, alias: str) -> bool:
    """Whether the index holds results of this alias that an earlier life of its job wrote."""
    generation = generation_of(alias, store.index)
    return generation is not None and generation < store.generation


def _told_of_left(alias: str, store: ResultStore, job: str) -> str:
    """Why the job can't emit to an alias of this index."""
    if store.is_deleted:
        return (
            f"alias {alias} still shows results of job {store.job}, which was deleted; delete them, too (strandline job delete "
            f"{store.job} --results), or have {job} emit under another name"
        )
    return (
        f"alias {alias} still has results of an earlier life of job {store.job}, from before it was reset or deleted; they go "
        f"only when that job is deleted with its results. Have {job} emit under another name"
    )


def _listed(places: Collection[KindAndName]) -> str:
    return ", ".join(f"{kind} {name}" for kind, name in sorted(places))
