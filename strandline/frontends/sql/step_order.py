"""The relations of a job as the steps of a document, in their order.

Where all inserts of a job take rows on one way, the steps are that way, and each step takes what the one before
it gives. Else the job has branches: they stand one behind the other, and the first step of each names the one that it takes
`from`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from strandline.core.documents import Path
from strandline.frontends.sql.nodes import Emission, Node, stage_name

_FROM = "from"
_SEVERAL = -2
"""The place of what no step can take without saying so."""


def ordered_steps(nodes: Sequence[Node], streams: Sequence[str]) -> tuple[list[dict[str, Any]], dict[Path, int]]:
    """The steps, and the places of their values. `nodes`: the relations whose rows inserts take; `streams`: what is
    read."""
    way = max((node.way() for node in nodes), key=len)
    steps = _Steps(nodes, streams)
    if all(any(node is one for one in way) for node in nodes):
        for node in way:
            steps.place(node)
            for emission in _together(node):
                steps.emit(node, emission)
        return steps.steps, steps.places
    emitted: set[int] = set()
    for node in nodes:
        for one in node.way():
            steps.place(one)
        if id(node) not in emitted:
            emitted.add(id(node))
            for emission in _together(node):
                steps.emit(node, emission)
    return steps.steps, steps.places


def _together(node: Node) -> Iterator[Emission]:
    """The emissions of a relation. Of results of a window they are one: a window has one place that says where results go."""
    if not node.is_windowed or not node.emissions:
        yield from node.emissions
        return
    places = tuple(place for emission in node.emissions for place in emission.places)
    yield Emission(places, None, node.emissions[0].at)


class _Steps:
    """Steps that are put one behind the other."""

    def __init__(self, nodes: Sequence[Node], streams: Sequence[str]) -> None:
        self.steps: list[dict[str, Any]] = []
        self.places: dict[Path, int] = {}
        self._last: dict[int, int] = {}
        """Of each relation that is placed: its last step, or an emission of its rows behind that; -1 is the only stream."""
        self._own_last: dict[int, int] = {}
        """The same without emissions."""
        self._stream_place = -1 if len(streams) == 1 else _SEVERAL
        windows = (
            name
            for node in nodes
            for one in node.way()
            for step in one.steps
            if (name := stage_name(step.document)) is not None
        )
        self._names = {*streams, *windows}

    def place(self, node: Node) -> None:
        """Put the relation's own steps behind those that are there, unless they are there already."""
        if id(node) in self._last:
            return
        if node.is_stream or node.is_union:
            self._last[id(node)] = self._own_last[id(node)] = self._stream_place if node.is_stream else _SEVERAL
            return
        steps = node.steps
        if len(node.takes) > 1:
            sides = dict(zip(("left", "right"), map(self._name_of, node.takes), strict=True))
            join = steps[0].document["join"]
            named = {one: join[one] for one in ("name",) if one in join}
            self._add({"join": named | sides | join | sides}, steps[0].places, node.at)
            steps = steps[1:]
        else:
            taken = self._taken_from(node.takes[0])
            self._add(dict(steps[0].document) | taken, steps[0].places, node.at)
            steps = steps[1:]
        for step in steps:
            self._add(dict(step.document), step.places, node.at)
        self._last[id(node)] = self._own_last[id(node)] = len(self.steps) - 1

    def emit(self, node: Node, emission: Emission) -> None:
        """Emit the relation's rows: beside its window, or in a step of its own."""
        places = [emit for emit, _ in emission.places]
        at = self._last[id(node)]
        if at >= 0 and stage_name(self.steps[at]) is not None and "emit" not in self.steps[at]:
            self.steps[at]["emit"] = places
        else:
            named = {} if emission.stage is None else {"name": emission.stage[0]}
            where: dict[Path, int] = {(): emission.at}
            if emission.stage is not None:
                where["name",] = emission.stage[1]
            self._add({"emit": places, **named, **self._taken_from(node)}, where, emission.at)
            at = self._last[id(node)] = len(self.steps) - 1
        self.places |= {("steps", at, "emit", number): place for number, (_, place) in enumerate(emission.places)}

    def _add(self, step: dict[str, Any], places: dict[Path, int], at: int) -> None:
        number = len(self.steps)
        self.places[("steps", number)] = next(iter(places.values()), at)
        self.places |= {("steps", number, *path): place for path, place in places.items()}
        self.steps.append(step)

    def _taken_from(self, node: Node) -> dict[str, Any]:
        """What the next step says to take the relation's rows: nothing, if they come from the step before it."""
        if self._last[id(node)] == len(self.steps) - 1:
            return {}
        if node.is_union and self._own_last[id(node)] == _SEVERAL:
            return {_FROM: [self._name_of(part) for part in node.takes]}
        return {_FROM: self._name_of(node)}

    def _name_of(self, node: Node) -> str:
        """The name of the relation's last step, which gets one if it has none."""
        if node.is_stream:
            return str(node.name)
        if node.is_union and self._own_last[id(node)] == _SEVERAL:  # a join takes from one step
            self._add({"where": "true", **self._taken_from(node)}, {}, node.at)
            self._last[id(node)] = self._own_last[id(node)] = len(self.steps) - 1
        step = self.steps[self._own_last[id(node)]]
        if (stage := stage_name(step)) is not None:
            return stage
        if "name" not in step:
            name = node.name or "rows"
            while name in self._names:
                name += "_rows"
            self._names.add(name)
            step["name"] = name
        return str(step["name"])
