"""Check of a pipeline."""

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
    """Description of the windows."""
    size_ms: int
    """Size of the windows; the maximum for sessions; 0 if the stage emits records."""
    every_ms: int
    """Distance between the starts of windows: less than `size_ms` for sliding windows; the gap for sessions."""
    by: dict[str, str]
    """Key field -> type."""
    aggregates: dict[str, str]
    """Result field -> type."""
    emits: list[str]


@dataclass(frozen=True)
class Checked:
    """Outcome of a check of documents."""

    problems: list[Problem]
    stages: list[StageView]
    """Stages; empty if a document is invalid."""
    reach_ms: int | None = None
    """Maximum time in event time that a rewind must go back."""


def refusal(error: InvalidDocument) -> Checked:
    """Return the response for invalid documents."""
    return Checked(error.problems, [])


def approval(batch: Batch) -> Checked:
    """Return the response for valid documents."""
    stages = [stage for pipeline in batch.pipelines for stage in _stages(pipeline)]
    reach_ms = max((pipeline.reach_ms for pipeline in batch.pipelines), default=None)
    return Checked([], stages, reach_ms)


def check_without_stack(text: bytes, source: str) -> Checked | None:
    """Check documents without a ledger. None if the ledger is needed. It is needed if a stream of a pipeline, a lookup that it
    uses, or the stream that a lookup follows is not in the documents."""
    try:
        if absent(text, source):
            return None
        return approval(check_documents(text, source, {}))
    except InvalidDocument as error:
        return refusal(error)


def wrong_without_stack(text: bytes, source: str) -> list[Problem]:
    """Return problems that exist with every stack, followed by the missing streams and lookups. Empty if only these are
    missing.

    Raises InvalidDocument as `absent`.
    """
    lacking = absent(text, source)
    places = {(one.path, one.line) for one in lacking}
    try:
        check_documents(text, source, {})
    except InvalidDocument as error:
        if wrong := [one for one in error.problems if (one.path, one.line) not in places]:
            hint = "the stack may have it, but no stack was reached"
            return [*wrong, *(replace(one, message=f"there is {one.message}; {hint}") for one in lacking)]
    return []


def absent(text: bytes, source: str) -> list[Problem]:
    """Return the streams and lookups that the documents name but don't contain, as "no stream 'meter'; did you mean 'meters'?".

    Raises InvalidDocument for a text that can't be read. Errors in a document are left to the check.
    """
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
    """Yield the streams that a pipeline's document reads, and their paths."""
    several = pipeline.get("inputs")
    inputs: list[tuple[Path, object]] = [(("input",), pipeline.get("input"))]
    if isinstance(several, list):
        inputs = [(("inputs", at), one) for at, one in enumerate(several)]
    for path, one in inputs:
        if isinstance(one, dict):
            yield (*path, "stream"), one.get("stream")


def _emitted(pipeline: dict[str, object]) -> Iterator[object]:
    """Yield the streams to which a pipeline's document emits."""
    for _, step in _steps(pipeline):
        emits = step.get("emit")
        for emit in emits if isinstance(emits, list) else []:
            if isinstance(emit, dict) and "stream" in emit:
                yield emit["stream"]


def _used(pipeline: dict[str, object]) -> Iterator[tuple[Path, object]]:
    """Yield the lookups that a pipeline's document uses, and their paths."""
    for number, step in _steps(pipeline):
        for keyword, value in step.items():
            if isinstance(value, dict) and "lookup" in value:
                yield ("steps", number, keyword, "lookup"), value["lookup"]


def _followed(lookup: dict[str, object]) -> object:
    """Return the stream that a lookup's document follows."""
    source = lookup.get("source")
    return source.get("stream") if isinstance(source, dict) else None


def _steps(pipeline: dict[str, object]) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the numbered steps of a document that isn't checked yet."""
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
