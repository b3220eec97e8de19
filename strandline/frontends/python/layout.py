"""Steps of a program as the steps of a document: each says what it takes, where that is not the step before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strandline.frontends.document_text import window_name
from strandline.frontends.steps import stage_of
from strandline.processing.pipelines.kind_registry import STAGE_KEYWORDS
from strandline.results.sinks.registry import SINKS, form_of


@dataclass(frozen=True)
class CallPlace:
    """Where in a program something was said."""

    file: str
    line: int


@dataclass(frozen=True)
class Taken:
    """What a step takes from: one of the three."""

    key: object | None = None
    """Of a step."""
    stream: str | None = None
    said: str | None = None
    """A name that the document says, whatever stands before the step."""


@dataclass(frozen=True)
class Step:
    """A step as a document has it, without what it takes from."""

    document: Mapping[str, Any]
    place: CallPlace
    takes: tuple[Taken, ...]
    """Of a join the left and the right; of a union several."""
    key: object = field(default_factory=object, compare=False)
    """The same in all forms that a step has got: with a name, with an emission beside it."""

    @property
    def is_stage(self) -> bool:
        """True if it is a window or a join."""
        return any(keyword in self.document for keyword in STAGE_KEYWORDS)

    def with_more(self, other: Step) -> Step:
        """The same step as another flow has it: with its name and its emissions, too."""
        emits = [*self.document.get("emit", ())]
        emits += [one for one in other.document.get("emit", ()) if one not in emits]
        return replace(self, document={**self.document, **other.document, **({"emit": emits} if emits else {})})


def laid_out(steps: Sequence[Step], streams: Sequence[str]) -> list[dict[str, Any]]:
    """The steps as a document has them. A step from which another takes that isn't the next gets a name, if it has none; a
    window without one is called like the first place to which its results go."""
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
            continue  # as a document says it
        elif len(step.takes) > 1:
            document["from"] = [name_of(taken) for taken in step.takes]
        elif not _is_before(step.takes[0], steps, at, streams):
            document["from"] = name_of(step.takes[0])
    return documents


def _window_of(step: Step, steps: Sequence[Step], at_of: Mapping[object, int]) -> int | None:
    """Where the window stands whose results this step has; None: it has records, or rows of a join or of several steps."""
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
    """Whether a step that says nothing takes from this."""
    if taken.stream is not None:
        return at == 0 and len(streams) == 1
    return at > 0 and taken.key is not None and steps[at - 1].key is taken.key


def _name(document: Mapping[str, Any]) -> str | None:
    name = (stage_of(document) or {}).get("name", document.get("name"))
    return name if isinstance(name, str) else None
