"""Check that written SQL text means the documents for which it was written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from strandline.core.documents import YamlDocument
from strandline.core.errors import InvalidDocument, PermanentError
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.sql.nodes import stage_name
from strandline.frontends.sql.tokens import SqlText
from strandline.frontends.sql.translation import translate
from strandline.processing.pipelines.model.pipeline import PipelineSpec

DOCUMENT_MODELS: dict[str, type[StreamSpec | LookupSpec | PipelineSpec]] = {
    "stream": StreamSpec,
    "lookup": LookupSpec,
    "pipeline": PipelineSpec,
}
"""Kind of a document that has a form in SQL -> its model."""


def refuse_other_documents(text: str, documents: Sequence[Mapping[str, Any]]) -> None:
    """Raise PermanentError if the text means other documents. Differences that don't matter: the order of branches, the names
    of steps in them, comments, and whether an emission is in its window or in a step after it."""
    try:
        again = translate(text, "SQL").documents
    except InvalidDocument as error:
        raise PermanentError(f"SQL has no form for these documents: {error}; keep them in YAML") from error
    for document, read in zip(documents, again, strict=True):
        if read.data == document:
            continue
        wanted, found = _meaning(read.kind, dict(document)), _meaning(read.kind, read.data)
        if wanted != found:
            other = next((part for key, part in wanted.items() if found.get(key) != part), "an additional step")
            raise PermanentError(
                f"SQL has no form for this part of {read.kind} '{read.name}', and would change it: {other}; "
                "keep this document in YAML, or change that part"
            )


def _meaning(kind: str, data: dict[str, Any]) -> dict[str, str]:
    """Return the meaning of the canonical document: key -> part. Keys of equal parts are equal. The key of a step includes its
    input."""
    found = DOCUMENT_MODELS[kind].parse(YamlDocument(kind, data[kind], data)).as_document()
    steps: list[dict[str, Any]] = found.pop("steps", [])  # type: ignore[assignment]
    parts = {name: json.dumps({name: value}, sort_keys=True) for name, value in found.items()}
    inputs: list[Any] = data.get("inputs") or [data.get("input", {"stream": ""})]
    named: dict[str, str] = {one["stream"]: one["stream"] for one in inputs}
    """Name of an input -> its key."""
    last, windowed = inputs[0]["stream"], set[str]()
    for step in steps:
        taken, name = step.pop("from", last), step.pop("name", None)
        emits, stage = step.pop("emit", []), stage_name(step)
        if "join" in step:
            taken = [step["join"].pop(side) for side in ("left", "right")]
            sources = [named[one] for one in taken]
        else:
            sources = (
                [taken] if taken == last else [named[one] for one in ([taken] if isinstance(taken, str) else taken)]
            )
        if step:
            last = _add(parts, _without_comments(step), sources)
            if stage is not None or windowed & {*sources}:
                windowed.add(last)
        else:
            (last,) = sources if len(sources) == 1 else (_add(parts, {}, sources),)
        if last in windowed:
            for emit in emits:
                _add(parts, {"emit": emit}, [last])
        elif emits:
            _add(parts, {"emit": emits, "name": name}, [last])
        if (stage or name) is not None:
            named[stage or name] = last
    return parts


def _add(parts: dict[str, str], step: Mapping[str, Any], sources: Sequence[str]) -> str:
    """Add a step whose inputs are the steps with these keys, and return its own key."""
    part = json.dumps(step, sort_keys=True)
    key = sha256(json.dumps([part, *sources]).encode()).hexdigest()
    parts[key] = part
    return key


def _without_comments(step: dict[str, Any]) -> dict[str, Any]:
    """Return the step with its expressions as SQL reads them."""
    for fields in (step, step.get("derive", {}), step.get("window", {}).get("aggregate", {})):
        for name, text in fields.items():
            if isinstance(text, str):
                fields[name] = _written(text)
    return step


def _written(expression: str) -> str:
    sql = SqlText(expression, "SQL")
    return sql.written(sql.tokens)
