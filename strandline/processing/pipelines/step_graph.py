"""From which step each step of a pipeline takes, by `name:` and `from:`. Pure; knows only the text of the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from strandline.core.documents import Path, did_you_mean

STREAM = -1
"""The place of what a first step takes: the records of the stream."""


class NamedStep(Protocol):
    """A step, as far as the graph goes."""

    @property
    def own_name(self) -> str | None:
        """By which others may take from it."""

    @property
    def sources_named(self) -> Sequence[tuple[Path, str | None]]:
        """The names of the steps from which it takes, or of the stream, and where in the step each stands; None: the step before
        it. A join has two."""


def sources(steps: Sequence[NamedStep], stream: str) -> list[tuple[int, ...]]:
    """For each step the places of those from which it takes, or STREAM: one, and of a join two. A name that `graph_problems`
    refuses counts for nothing."""
    places: dict[str, int] = {}
    found = []
    for at, step in enumerate(steps):
        before = at - 1
        found.append(
            tuple(
                before if name is None else places.get(name, STREAM if name == stream else before)
                for _, name in step.sources_named
            )
        )
        if step.own_name is not None:
            places.setdefault(step.own_name, at)
    return found


def graph_problems(steps: Sequence[NamedStep], stream: str) -> Iterator[tuple[Path, str]]:
    """What is wrong with the names and with what takes from them: the path of the field, and a sentence."""
    names: dict[str, int] = {}
    for at, step in enumerate(steps):
        if (name := step.own_name) is not None:
            names.setdefault(name, at)
    for at, step in enumerate(steps):
        for inner, wanted in step.sources_named:
            if wanted is not None and (problem := _problem_of(wanted, at, names, stream)):
                yield ("steps", at, *inner), problem


def _problem_of(wanted: str, at: int, names: Mapping[str, int], stream: str) -> str:
    """What is wrong with this source of the step at this place; empty if nothing is."""
    if wanted in names and wanted == stream:
        return f"'{wanted}' is the stream and a step as well; give the step another name"
    if wanted in names and names[wanted] == at:
        return f"'{wanted}' is this step itself; expected a step above it, or the stream '{stream}'"
    if wanted in names and names[wanted] > at:
        return (
            f"'{wanted}' stands further down; a step takes from one above it, so that none can wait for itself. Move "
            f"'{wanted}' up"
        )
    if wanted not in names and wanted != stream:
        known = [name for name, place in names.items() if place < at] + [stream]
        return f"there is no step '{wanted}' above, and it is not the stream{did_you_mean(wanted, known)}"
    return ""
