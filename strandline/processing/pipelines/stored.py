"""Loads a job's pipeline from the ledger. Starts no Spark, so the control service may use it too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import RunRow, SliceStatus, StreamVersions
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import as_far_as_known, check
from strandline.processing.pipelines.lookups.lookup_shapes import LookupShape, shape_of_versions
from strandline.processing.pipelines.model.pipeline import PipelineSpec

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader


def load_pipeline(
    ledger: LedgerReader, job: str, version: int, streams: StreamVersions | None = None, *, is_strict: bool = True
) -> CheckedPipeline:
    """One version of a job's pipeline, checked against its streams. Raises NotFound, InvalidDocument.

    `streams`: by which version of each stream's document, as the ledger has it of a run; None: as the newest run of this version.
    Not `is_strict`: without what doesn't fit the streams; to be compared, and not run. Only a version that never ran can have
    such parts: a stream was changed without it, because applying both of them was interrupted.
    """
    spec = spec_of_version(ledger, job, version)
    if streams is None:
        streams = streams_of_version(ledger, job, version)
    documents = [ledger.stream_documents(name)[streams[name]] for name in spec.streams]
    return check_stored(spec, documents, shapes_of_version(ledger, job, version, spec), is_strict=is_strict)


def spec_of_version(ledger: LedgerReader, job: str, version: int) -> PipelineSpec:
    """Return the document of one version of a job's pipeline. Raises NotFound."""
    return PipelineSpec.from_document(ledger.job_version(job, version).document)


def check_stored(
    spec: PipelineSpec, documents: Iterable[dict[str, Any]], lookups: Mapping[str, LookupShape], *, is_strict: bool
) -> CheckedPipeline:
    """Check a pipeline against stored documents of its streams. Not `is_strict`: leave out what doesn't fit them. Raises
    InvalidDocument."""
    streams = [StreamSpec.from_document(document) for document in documents]
    return check(spec, streams, lookups=lookups) if is_strict else as_far_as_known(spec, streams, lookups)


def shapes_of_version(ledger: LedgerReader, job: str, version: int, spec: PipelineSpec) -> dict[str, LookupShape]:
    """The lookups that this version of the job uses. Raises NotFound."""
    names = spec.lookups()
    if not names:
        return {}
    bases = ledger.job_version(job, version).lookup_versions
    return {name: shape_of_versions(ledger.lookup_documents(name), bases[name]) for name in names}


def followers_of(ledger: LedgerReader, stream: str) -> list[LookupSpec]:
    """The lookups whose rows are the latest records of the stream."""
    specs = [LookupSpec.described(row.document) for row in ledger.lookups()]
    return [spec for spec in specs if spec.source is not None and spec.source.stream == stream]


def streams_of_version(ledger: LedgerReader, job: str, version: int) -> StreamVersions:
    """Return the versions of its streams' documents by which this version of the job is compiled.

    They are those of its newest run that has recorded them, or the current versions if none has.
    """
    recorded = [run.stream_versions for run in ledger.runs(job) if run.version == version and run.stream_versions]
    if recorded:
        return recorded[-1]
    return {stream: ledger.stream_version(stream) for stream in inputs_of(ledger, job, version)}


def streams_of_run(ledger: LedgerReader, run: RunRow) -> StreamVersions:
    """By which versions of its streams' documents a run that begins now is compiled: by those of the slice that it has to
    finish, some of whose results may be out, else by the present ones."""
    last, streams = ledger.last_slice(run.job), inputs_of(ledger, run.job, run.version)
    if last is None or last.status is not SliceStatus.PLANNED or last.version != run.version:
        return {stream: ledger.stream_version(stream) for stream in streams}
    return {stream: last.stream_versions[stream] for stream in streams}


def inputs_of(ledger: LedgerReader, job: str, version: int) -> list[str]:
    """The streams that this version of the job reads, in the order of the document. Raises NotFound."""
    document = ledger.job_version(job, version).document
    return [str(one["stream"]) for one in document.get("inputs") or [document["input"]]]
