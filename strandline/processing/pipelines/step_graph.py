"""From which step each step of a pipeline takes, by `name:` and `from:`. Pure; knows only the text of the document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    def source(self) -> str | None:
        """Of the step from which it takes, or of the stream; None: the step before it."""


def sources(steps: Sequence[NamedStep], stream: str) -> list[int]:
    """For each step the place of the one from which it takes, or STREAM. A `from` that `graph_problems` refuses counts for
    nothing."""
    places: dict[str, int] = {}
    found = []
    for at, step in enumerate(steps):
        before = at - 1
        if step.source is not None:
            before = places.get(step.source, STREAM if step.source == stream else before)
        found.append(before)
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
        wanted = step.source
        if wanted is None:
            continue
        path: Path = ("steps", at, "from")
        if wanted in names and wanted == stream:
            yield path, f"'{wanted}' is the stream and a step as well; give the step another name"
        elif wanted in names:
            if names[wanted] == at:
                yield path, f"'{wanted}' is this step itself; expected a step above it, or the stream '{stream}'"
            elif names[wanted] > at:
                yield (
                    path,
                    f"'{wanted}' stands further down; a step takes from one above it, so that none can wait for itself. Move "
                    f"'{wanted}' up",
                )
        elif wanted != stream:
            known = [name for name, place in names.items() if place < at] + [stream]
            yield path, f"there is no step '{wanted}' above, and it is not the stream{did_you_mean(wanted, known)}"
