"""The inputs of each step of a pipeline, by `name:` and `from:`. Pure; knows only the text of the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from strandline.core.documents import Path, did_you_mean

STREAM = -1
"""Index that a first step reads: the records of the first stream. The other streams have -2, -3, and so on."""


class NamedStep(Protocol):
    """The parts of a step that the graph needs."""

    @property
    def own_name(self) -> str | None:
        """Name by which other steps can read it. None if it has no name."""

    @property
    def names_taken(self) -> Sequence[tuple[Path, str]]:
        """Paths in the step and names of the steps or streams that it reads. Empty if it reads the step before it. A join has
        two."""


def sources(steps: Sequence[NamedStep], streams: Sequence[str]) -> list[tuple[int, ...]]:
    """Return, for each step, the indices of the steps or streams that it reads (see STREAM). A join has two, which can be equal.
    Names that `graph_problems` refuses are ignored."""
    places = {stream: STREAM - at for at, stream in reversed(list(enumerate(streams)))}
    found = []
    for at, step in enumerate(steps):
        taken = tuple(places.get(name, at - 1) for _, name in step.names_taken)
        found.append(taken or (at - 1,))
        if step.own_name is not None and places.get(step.own_name, STREAM) <= STREAM:
            places[step.own_name] = at
    return found


def stream_place(place: int) -> int | None:
    """Return the index of a stream among those that the pipeline reads. None if `place` is the index of a step."""
    return STREAM - place if place <= STREAM else None


def graph_problems(steps: Sequence[NamedStep], streams: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield the problems of the names and of the inputs: the path of the field, and a message."""
    names: dict[str, int] = {}
    for at, step in enumerate(steps):
        if (name := step.own_name) is not None:
            names.setdefault(name, at)
    if len(streams) > 1 and steps and not steps[0].names_taken:
        united = ", ".join(streams)
        yield (
            ("steps", 0, "from"),
            f"is missing; the pipeline reads several streams, so its first step must name one: 'from: {streams[0]}', or "
            f"'from: [{united}]', which unites them",
        )
    for at, step in enumerate(steps):
        for number, (inner, wanted) in enumerate(step.names_taken):
            if inner[0] == "from" and wanted in [name for _, name in step.names_taken[:number]]:
                yield ("steps", at, *inner), f"'{wanted}' is listed twice"
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
            return f"'{wanted}' is below this step, but a step can only read steps above it. Move '{wanted}' up"
    elif wanted not in streams:
        known = [name for name, place in names.items() if place < at] + list(streams)
        which = "the stream" if len(streams) == 1 else "one of the streams"
        return f"no step above is called '{wanted}', and it is not {which}{did_you_mean(wanted, known)}"
    return None
