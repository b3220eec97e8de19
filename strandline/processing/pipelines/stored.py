"""Loads the pipeline of a job from the ledger. It starts no Spark, so the control service can use it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import JobVersionRow, RunRow, SliceStatus, StreamVersions
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import as_far_as_known, check
from strandline.processing.pipelines.lookups.lookup_shapes import LookupShape, shape_of_versions
from strandline.processing.pipelines.model.pipeline import PipelineSpec

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader


def load_pipeline(
    ledger: LedgerReader, job: str, version: int, streams: StreamVersions | None = None, *, is_strict: bool = True
) -> CheckedPipeline:
    """Return one version of a job's pipeline, checked against its streams. Raises NotFound if the job, the version, or a stream
    doesn't exist; InvalidDocument if the pipeline doesn't fit its streams.

    Args:
        streams: Versions of the streams' documents, as the ledger has them for a run. None for those of the newest run.
        is_strict: False to leave out the parts that don't fit the streams. Such a pipeline can be compared, but not run. Only a
            version that never ran has such parts: it was being applied together with a stream, and this was interrupted.
    """
    spec = spec_of_version(ledger, job, version)
    if streams is None:
        streams = streams_of_version(ledger, job, version)
    documents = [ledger.stream_documents(name)[streams[name]] for name in spec.streams]
    return check_stored(spec, documents, shapes_of_version(ledger, job, version, spec), is_strict=is_strict)


def spec_of_version(ledger: LedgerReader, job: str, version: int) -> PipelineSpec:
    """Return the document of one version of a job's pipeline. Raises NotFound if the job or the version doesn't exist."""
    return spec_of_row(ledger.job_version(job, version))


def spec_of_row(row: JobVersionRow) -> PipelineSpec:
    """Return the document of a version of a job's pipeline. Documents that are equal are parsed once."""
    return _parsed(json.dumps(row.document))


@lru_cache(maxsize=4_096)
def _parsed(document: str) -> PipelineSpec:
    return PipelineSpec.from_document(json.loads(document))


def load_parts() -> None:
    """Load what the first pipeline of a process needs, such as the parts that packages provide."""
    document: dict[str, object] = {
        "pipeline": "none",
        "input": {"stream": "none"},
        "event_time": {"field": "at", "delay": "0s"},
        "steps": [
            {
                "window": {"name": "none", "tumbling": "1s", "by": ["key"], "aggregate": {"all": "sum(value)"}},
                "emit": [{"elasticsearch": "none"}],
            }
        ],
    }
    stream: dict[str, Any] = {"stream": "none", "schema": {"at": "timestamp", "key": "string", "value": "double"}}
    check_stored(PipelineSpec.from_document(document), [stream], {}, is_strict=False)


def check_stored(
    spec: PipelineSpec, documents: Iterable[dict[str, Any]], lookups: Mapping[str, LookupShape], *, is_strict: bool
) -> CheckedPipeline:
    """Return a pipeline checked against stored documents of its streams. Raises InvalidDocument if parts don't fit them; if
    `is_strict` is False, leave out these parts instead."""
    streams = [StreamSpec.from_document(document) for document in documents]
    return check(spec, streams, lookups=lookups) if is_strict else as_far_as_known(spec, streams, lookups)


def shapes_of_version(ledger: LedgerReader, job: str, version: int, spec: PipelineSpec) -> dict[str, LookupShape]:
    """Return the lookups that this version of the job uses. Raises NotFound."""
    names = spec.lookups()
    if not names:
        return {}
    bases = ledger.job_version(job, version).lookup_versions
    return {name: shape_of_versions(ledger.lookup_documents(name), bases[name]) for name in names}


def followers_of(ledger: LedgerReader, stream: str) -> list[LookupSpec]:
    """Return the lookups whose rows are the latest records of the stream."""
    specs = [LookupSpec.described(row.document) for row in ledger.lookups()]
    return [spec for spec in specs if spec.source is not None and spec.source.stream == stream]


def streams_of_version(ledger: LedgerReader, job: str, version: int) -> StreamVersions:
    """Return the versions of the streams' documents with which this version of the job is compiled.

    They are those of its newest run that has recorded them, or the current versions if no run has.
    """
    recorded = [run.stream_versions for run in ledger.runs(job) if run.version == version and run.stream_versions]
    if recorded:
        return recorded[-1]
    return {stream: ledger.stream_version(stream) for stream in inputs_of(ledger, job, version)}


def streams_of_run(ledger: LedgerReader, run: RunRow) -> StreamVersions:
    """Return the versions of the streams' documents with which a run that begins now is compiled.

    If a slice must be finished, whose results can already be in the sinks, they are the versions of that slice. Otherwise they
    are the current versions.
    """
    last, streams = ledger.last_slice(run.job), inputs_of(ledger, run.job, run.version)
    if last is None or last.status is not SliceStatus.PLANNED or last.version != run.version:
        return {stream: ledger.stream_version(stream) for stream in streams}
    return {stream: last.stream_versions[stream] for stream in streams}


def inputs_of(ledger: LedgerReader, job: str, version: int) -> list[str]:
    """Return the streams that this version of the job reads, in the order of the document. Raises NotFound."""
    return inputs_of_row(ledger.job_version(job, version))


def inputs_of_row(row: JobVersionRow) -> list[str]:
    """Return the streams that a version of a job reads, in the order of the document."""
    document = row.document
    return [str(one["stream"]) for one in document.get("inputs") or [document["input"]]]
