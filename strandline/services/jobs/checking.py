"""The check of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from strandline.core.described import Described
from strandline.core.documents import Path, did_you_mean, read_documents
from strandline.core.errors import InvalidDocument, Problem
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.services.jobs.apply_documents import Batch, check_documents


@dataclass(frozen=True)
class StageView(Described):
    """One compiled stage of a pipeline."""

    name: str
    windows: str
    """Which windows, in words."""
    size_ms: int
    """How long its windows are; of sessions, at most; 0 where it emits records."""
    every_ms: int
    """How far apart they begin: less than `size_ms` where they slide; the gap of sessions."""
    by: dict[str, str]
    """Key field -> type."""
    aggregates: dict[str, str]
    """Result field -> type."""
    emits: list[str]


@dataclass(frozen=True)
class Checked:
    """What a check of documents found."""

    problems: list[Problem]
    stages: list[StageView]
    """Empty unless it is valid."""
    reach_ms: int | None = None
    """How far back in event time a rewind may have to go."""


def refusal(error: InvalidDocument) -> Checked:
    """The answer for documents that are wrong."""
    return Checked(error.problems, [])


def approval(batch: Batch) -> Checked:
    """The answer for documents that are right."""
    stages = [stage for pipeline in batch.pipelines for stage in _stages(pipeline)]
    reach_ms = max((pipeline.reach_ms for pipeline in batch.pipelines), default=None)
    return Checked([], stages, reach_ms)


def check_without_stack(text: bytes, source: str) -> Checked | None:
    """Check documents without a ledger; None when a pipeline's stream, a lookup that it uses, or the stream that a lookup follows
    is not among them, so that the ledger is needed."""
    try:
        if absent(text, source):
            return None
        return approval(check_documents(text, source, {}))
    except InvalidDocument as error:
        return refusal(error)


def wrong_without_stack(text: bytes, source: str) -> list[Problem]:
    """What is wrong in documents whatever a stack may have, and behind it what they name and don't hold. Empty when nothing else
    is wrong than that. Raises InvalidDocument as `absent`."""
    lacking = absent(text, source)
    places = {(one.path, one.line) for one in lacking}
    try:
        check_documents(text, source, {})
    except InvalidDocument as error:
        if wrong := [one for one in error.problems if (one.path, one.line) not in places]:
            hint = "a stack may have it, and none was reached"
            return [*wrong, *(replace(one, message=f"there is {one.message}; {hint}") for one in lacking)]
    return []


def absent(text: bytes, source: str) -> list[Problem]:
    """What the documents name and don't hold, as "no stream 'meter'; did you mean 'meters'?", where they name it. Raises
    InvalidDocument for a text that can't be read; what is wrong inside a document, the check says."""
    documents = read_documents(text, source)
    streams = {document.name for document in documents if document.kind == "stream"}
    streams |= {str(emit) for document in documents for emit in _emitted(document.data)}
    lookups = {document.name for document in documents if document.kind == "lookup"}
    found = []
    for document in documents:
        if document.kind == "lookup":
            read: list[tuple[Path, object]] = [(("source", "stream"), _followed(document.data))]
        else:
            read = list(_read(document.data)) if document.kind == "pipeline" else []
        for kind, names, known in (("stream", read, streams), ("lookup", list(_used(document.data)), lookups)):
            found += [
                document.problem(path, f"no {kind} '{name}'{did_you_mean(name, known)}")
                for path, name in names
                if isinstance(name, str) and name not in known
            ]
    return found


def _read(pipeline: dict[str, object]) -> Iterator[tuple[Path, object]]:
    """The streams that a pipeline's document says it reads, and where."""
    several = pipeline.get("inputs")
    inputs: list[tuple[Path, object]] = [(("input",), pipeline.get("input"))]
    if isinstance(several, list):
        inputs = [(("inputs", at), one) for at, one in enumerate(several)]
    for path, one in inputs:
        if isinstance(one, dict):
            yield (*path, "stream"), one.get("stream")


def _emitted(pipeline: dict[str, object]) -> Iterator[object]:
    """The streams that a pipeline's document says it emits to."""
    for _, step in _steps(pipeline):
        emits = step.get("emit")
        for emit in emits if isinstance(emits, list) else []:
            if isinstance(emit, dict) and "stream" in emit:
                yield emit["stream"]


def _used(pipeline: dict[str, object]) -> Iterator[tuple[Path, object]]:
    """The lookups that a pipeline's document says it uses, and where."""
    for number, step in _steps(pipeline):
        for keyword, value in step.items():
            if isinstance(value, dict) and "lookup" in value:
                yield ("steps", number, keyword, "lookup"), value["lookup"]


def _followed(lookup: dict[str, object]) -> object:
    """The stream that a lookup's document says it follows."""
    source = lookup.get("source")
    return source.get("stream") if isinstance(source, dict) else None


def _steps(pipeline: dict[str, object]) -> Iterator[tuple[int, dict[str, object]]]:
    """The steps of a document, numbered. It may be wrong: it is not checked yet."""
    steps = pipeline.get("steps")
    yield from (
        (number, step) for number, step in enumerate(steps if isinstance(steps, list) else []) if isinstance(step, dict)
    )


def _stages(pipeline: CheckedPipeline) -> list[StageView]:
    records = [
        StageView(
            name=stage.name,
            windows="records",
            size_ms=0,
            every_ms=0,
            by={},
            aggregates=stage.field_types,
            emits=[f"{emit.kind}: {emit.name}" for emit in stage.emits],
        )
        for stage in pipeline.record_stages
    ]
    return records + [
        StageView(
            name=stage.name,
            windows=str(stage.shape),
            size_ms=stage.size_ms,
            every_ms=stage.every_ms,
            by=dict(zip(stage.by, stage.by_types, strict=True)),
            aggregates=stage.value_types,
            emits=[f"{emit.kind}: {emit.name}" for emit in stage.emits],
        )
        for stage in pipeline.stages
    ]
