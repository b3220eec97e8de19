"""Writes the steps of a program as steps of a document. A step names its input if it isn't the step before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strandline.frontends.document_text import window_name
from strandline.frontends.steps import stage_of
from strandline.processing.pipelines.kind_registry import STAGE_KEYWORDS
from strandline.results.sinks.registry import SINKS, form_of


@dataclass(frozen=True)
class CallSite:
    """Position in a program at which a value was set."""

    file: str
    line: int


@dataclass(frozen=True)
class Taken:
    """Input of a step: one of the three fields."""

    key: object | None = None
    """Key of a step."""
    stream: str | None = None
    said: str | None = None
    """Name in the document, whatever is before the step."""


@dataclass(frozen=True)
class Step:
    """A step of a document, without its input."""

    document: Mapping[str, Any]
    call_site: CallSite
    takes: tuple[Taken, ...]
    """Inputs: left and right of a join, several for a union."""
    key: object = field(default_factory=object, compare=False)
    """Key that stays equal in all versions of a step: with a name, with an additional emission."""

    @property
    def is_stage(self) -> bool:
        """True if the step is a window or a join."""
        return any(keyword in self.document for keyword in STAGE_KEYWORDS)

    def with_more(self, other: Step) -> Step:
        """Return the step with the name and the emissions that it has in another flow."""
        emits = [*self.document.get("emit", ())]
        emits += [one for one in other.document.get("emit", ()) if one not in emits]
        return replace(self, document={**self.document, **other.document, **({"emit": emits} if emits else {})})


def laid_out(steps: Sequence[Step], streams: Sequence[str]) -> list[dict[str, Any]]:
    """Return the steps of the document. A step that is the input of a step other than the next gets a name if it has none. A
    window without a name gets the name of its first sink."""
    documents = [dict(step.document) for step in steps]
    at_of = {step.key: at for at, step in enumerate(steps)}
    for step in steps:
        place, at = _first_place(step), _window_of(step, steps, at_of)
        if place is not None and at is not None and _name(documents[at]) is None:
            documents[at]["window"] = {"name": window_name(place)} | documents[at]["window"]
    names = {*streams, *(str(name) for one in documents if (name := _name(one)) is not None)}

    def name_of(taken: Taken) -> str:
        if taken.key is None:
            return str(taken.said or taken.stream)
        document = documents[at_of[taken.key]]
        if (name := _name(document)) is None:
            name, number = "rows", 1
            while name in names:
                number += 1
                name = f"rows_{number}"
            names.add(name)
            document["name"] = name
        return name

    for at, (step, document) in enumerate(zip(steps, documents, strict=True)):
        if "join" in document and len(step.takes) == 2:
            left, right = map(name_of, step.takes)
            name, *_ = document["join"].items()
            document["join"] = dict([name]) | {"left": left, "right": right} | document["join"]
        elif "join" in document or "from" in document:
            continue  # as in the document
        elif len(step.takes) > 1:
            document["from"] = [name_of(taken) for taken in step.takes]
        elif not _is_before(step.takes[0], steps, at, streams):
            document["from"] = name_of(step.takes[0])
    return documents


def _window_of(step: Step, steps: Sequence[Step], at_of: Mapping[object, int]) -> int | None:
    """Return the index of the window whose results this step has. None if it has records, or rows of a join or of several
    steps."""
    while not step.is_stage:
        if len(step.takes) != 1 or step.takes[0].key not in at_of:
            return None
        step = steps[at_of[step.takes[0].key]]
    return at_of[step.key] if isinstance(step.document.get("window"), Mapping) else None


def _first_place(step: Step) -> str | None:
    """Return the name of the first entry of `emit`, in its short or its long form. None if there is no such entry."""
    match step.document.get("emit"):
        case [Mapping() as first, *_]:
            for kind, place in first.items():
                if isinstance(place, Mapping):
                    place = place.get(form_of(kind).named) if kind in SINKS else None
                return place if isinstance(place, str) else None
    return None


def _is_before(taken: Taken, steps: Sequence[Step], at: int, streams: Sequence[str]) -> bool:
    """Return True if this is the input of a step that names none."""
    if taken.stream is not None:
        return at == 0 and len(streams) == 1
    return at > 0 and taken.key is not None and steps[at - 1].key is taken.key


def _name(document: Mapping[str, Any]) -> str | None:
    name = (stage_of(document) or {}).get("name", document.get("name"))
    return name if isinstance(name, str) else None
