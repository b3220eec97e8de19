"""From which steps each step of a pipeline takes, by `name:` and `from:`. Pure; knows only the text of the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from strandline.core.documents import Path, did_you_mean

STREAM = -1
"""The place of what a first step takes: the records of the first stream. Those of the next ones have the places -2, -3 and so
on."""


class NamedStep(Protocol):
    """A step, as far as the graph goes."""

    @property
    def own_name(self) -> str | None:
        """By which others may take from it."""

    @property
    def names_taken(self) -> Sequence[tuple[Path, str]]:
        """The names of the steps from which it takes, or of streams, and where in the step each stands; none: it takes from the
        step before it. A join has two."""


def sources(steps: Sequence[NamedStep], streams: Sequence[str]) -> list[tuple[int, ...]]:
    """For each step the places of those from which it takes, or of streams (see STREAM): of a join two, which may be one. A name
    that `graph_problems` refuses counts for nothing."""
    places = {stream: STREAM - at for at, stream in reversed(list(enumerate(streams)))}
    found = []
    for at, step in enumerate(steps):
        taken = tuple(places.get(name, at - 1) for _, name in step.names_taken)
        found.append(taken or (at - 1,))
        if step.own_name is not None and places.get(step.own_name, STREAM) <= STREAM:
            places[step.own_name] = at
    return found


def stream_place(place: int) -> int | None:
    """The place of a stream among those that the pipeline reads; None: it is that of a step."""
    return STREAM - place if place <= STREAM else None


def graph_problems(steps: Sequence[NamedStep], streams: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """What is wrong with the names and with what takes from them: the path of the field, and a sentence."""
    names: dict[str, int] = {}
    for at, step in enumerate(steps):
        if (name := step.own_name) is not None:
            names.setdefault(name, at)
    if len(streams) > 1 and steps and not steps[0].names_taken:
        united = ", ".join(streams)
        yield (
            ("steps", 0, "from"),
            f"is missing; the pipeline reads several streams, so its first step says which: 'from: {streams[0]}', or "
            f"'from: [{united}]', which unites them",
        )
    for at, step in enumerate(steps):
        for number, (inner, wanted) in enumerate(step.names_taken):
            if inner[0] == "from" and wanted in [name for _, name in step.names_taken[:number]]:
                yield ("steps", at, *inner), f"'{wanted}' stands twice"
            elif problem := _problem(at, wanted, names, streams):
                yield ("steps", at, *inner), problem


def _problem(at: int, wanted: str, names: Mapping[str, int], streams: Sequence[str]) -> str | None:
    stream_words = f"the stream '{streams[0]}'" if len(streams) == 1 else f"a stream ({', '.join(streams)})"
    if wanted in names and wanted in streams:
        which = "the stream" if len(streams) == 1 else "a stream"
        return f"'{wanted}' is {which} and a step as well; give the step another name"
    if wanted in names:
        if names[wanted] == at:
            return f"'{wanted}' is this step itself; expected a step above it, or {stream_words}"
        if names[wanted] > at:
            return (
                f"'{wanted}' stands below; a step takes from one above it, so that none can wait for itself. Move "
                f"'{wanted}' up"
            )
    elif wanted not in streams:
        known = [name for name, place in names.items() if place < at] + list(streams)
        which = "the stream" if len(streams) == 1 else "one of the streams"
        return f"there is no step '{wanted}' above, and it is not {which}{did_you_mean(wanted, known)}"
    return None
