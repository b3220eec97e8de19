"""The pipeline of a file, checked without a stack. The file must contain its stream, or the pipeline that emits to the stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from strandline.core.documents import YamlDocument, did_you_mean, read_documents
from strandline.core.errors import InvalidDocument, Problem
from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.lookup_files import read_lookup_file
from strandline.processing.formats.lookups.documents import ReadLookup, read_lookup
from strandline.processing.formats.lookups.rows import lines_of, read_rows
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.lookups.followed_streams import unfit_sources
from strandline.processing.pipelines.lookups.lookup_shapes import LookupShape, shape_of
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import (
    emissions_to_streams,
    results_beside_streams,
    stream_of_results,
    streams_of_windows,
)

RowFiles = Mapping[str, Path]


def read_pipeline(
    text: bytes,
    source: str,
    name: str | None = None,
    stream: str | None = None,
    rows: RowFiles | None = None,
) -> CheckedPipeline:
    """Return the pipeline called `name`, or the pipeline that reads `stream`, or the only pipeline of a file.

    `rows`: lookup -> a file with its rows, instead of those of its document. Without such a file, a lookup that follows a
    stream or a database has no rows. Raises InvalidDocument if a document has problems, or none or several pipelines fit.
    """
    return pipeline_of(read_documents(text, source), source, name, stream, rows)


def pipeline_of(
    documents: list[YamlDocument],
    source: str,
    name: str | None = None,
    stream: str | None = None,
    rows: RowFiles | None = None,
) -> CheckedPipeline:
    """Return a pipeline of these documents, chosen as by `read_pipeline`. `source`: name of the documents in messages."""
    pipelines = [document for document in documents if document.kind == "pipeline"]
    lookups = {one.name: read_lookup(one) for one in documents if one.kind == "lookup"}
    _check_sources(documents, lookups)
    for given, file in (rows or {}).items():
        if given not in lookups:
            message = f"holds no lookup '{given}'{did_you_mean(given, lookups)}"
            raise InvalidDocument([Problem(message, source=source)])
        lookups[given] = _with_rows(lookups[given], file)
    checked = _checked(_chosen(pipelines, name, stream, source), documents, (), shapes_of(lookups))
    with_rows = {one for one, _ in checked.lookups if lookups[one].spec.source is None or one in (rows or {})}
    return replace(checked, tables={one: lookups[one].table() for one in sorted(with_rows)})


def _check_sources(documents: list[YamlDocument], lookups: Mapping[str, ReadLookup]) -> None:
    """Raise InvalidDocument if a lookup can't follow its stream. Streams that aren't in the file aren't checked."""
    followed = {name: one.spec for name, one in lookups.items() if one.spec.source is not None}
    if not followed:
        return
    streams = {one.name: StreamSpec.parse(one) for one in documents if one.kind == "stream"}
    here = {name: spec for name, spec in followed.items() if spec.source and spec.source.stream in streams}
    if problems := list(unfit_sources(documents, here, streams)):
        raise InvalidDocument(problems)


def _with_rows(lookup: ReadLookup, file: Path) -> ReadLookup:
    text = read_lookup_file(lookup.spec, file)
    rows = read_rows(lookup.spec, lines_of(text))
    assert not isinstance(rows, list), "the reader of the file has checked them"
    return replace(lookup, text=text, rows=rows)


def _chosen(pipelines: list[YamlDocument], name: str | None, stream: str | None, source: str) -> YamlDocument:
    fitting = [
        one for one in pipelines if name in (None, one.name) and (stream is None or stream in _streams_of(one))
    ]  # documents are not checked yet
    if len(fitting) == 1:
        return fitting[0]
    names = [one.name for one in pipelines]
    if not pipelines:
        message = "contains no pipeline; expected a document 'pipeline: NAME'"
    elif fitting:
        message = f"contains several pipelines ({', '.join(names)}); choose one with --pipeline"
    elif name is not None and name not in names:
        message = f"contains no pipeline '{name}'{did_you_mean(name, names)}"
    else:
        message = f"contains no such pipeline that reads stream '{stream}'"
    raise InvalidDocument([Problem(message, source=source)])


def _streams_of(document: YamlDocument) -> list[object]:
    several = document.data.get("inputs")
    reads = several if isinstance(several, list) else [document.data.get("input")]
    return [one.get("stream") for one in reads if isinstance(one, dict)]


def shapes_of(lookups: Mapping[str, ReadLookup]) -> dict[str, LookupShape]:
    """Return the shapes of lookups, for the check."""
    return {name: shape_of(one.spec) for name, one in lookups.items()}


def _checked(
    document: YamlDocument, documents: list[YamlDocument], above: tuple[str, ...], lookups: Mapping[str, LookupShape]
) -> CheckedPipeline:
    """Return the checked pipeline of this document, with its streams. `above`: pipelines that read its results."""
    spec = PipelineSpec.parse(document)
    emitters = {name: emitter for name in spec.streams if (emitter := _emitter_of(name, documents)) is not None}
    emitted = {name for name, one in emitters.items() if name in streams_of_windows(PipelineSpec.parse(one))}
    spec = spec.reading_results(emitted)
    if problems := list(results_beside_streams(spec, document, emitted)):
        raise InvalidDocument(problems)
    found = [
        _stream(name, at, spec, document, documents, above, lookups, emitters.get(name))
        for at, name in enumerate(spec.streams)
    ]
    return check(spec, found, document, lookups)


def _stream(
    name: str,
    at: int,
    spec: PipelineSpec,
    document: YamlDocument,
    documents: list[YamlDocument],
    above: tuple[str, ...],
    lookups: Mapping[str, LookupShape],
    emitter: YamlDocument | None,
) -> StreamSpec:
    """Return the stream of the input with this index: from its document, or as the results of the pipeline that emits to it."""
    for one in documents:
        if one.kind == "stream" and one.name == name:
            return StreamSpec.parse(one)
    if emitter is None or emitter.name in (*above, document.name):
        known = [one.name for one in documents if one.kind == "stream"]
        message = f"there is no stream '{name}' here{did_you_mean(name, known)}; add its document to the file"
        raise InvalidDocument([document.problem((*spec.path_of_input(at), "stream"), message)])
    before = _checked(emitter, documents, (*above, document.name), lookups)
    stage = next(stage for stage in before.all_stages if name in stage.streams)
    return stream_of_results(before, stage, name)


def _emitter_of(stream: str, documents: list[YamlDocument]) -> YamlDocument | None:
    """Return the pipeline that emits to the stream. None if there is none."""
    for document in documents:
        if document.kind == "pipeline":
            spec = PipelineSpec.parse(document)
            if any(emitted == stream for _, emitted in emissions_to_streams(spec)):
                return document
    return None
