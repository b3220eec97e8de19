"""Writes the relations of a job as the steps of a document, in their order.

If the rows of all inserts are on one path, the steps are this path, and the input of each step is the step before. Otherwise
the job has branches. They are written one after the other, and the first step of each branch names its input in `from`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from strandline.core.documents import Path
from strandline.frontends.sql.nodes import Emission, Node, stage_name

_FROM = "from"
_SEVERAL = -2
"""Position of rows that a step must name as its input."""


def ordered_steps(nodes: Sequence[Node], streams: Sequence[str]) -> tuple[list[dict[str, Any]], dict[Path, int]]:
    """Return the steps, and the offsets of their values. `nodes`: relations whose rows are inserted. `streams`: streams that
    are read."""
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
    """Yield the emissions of a relation. Those of a window's results are joined into one, because a window has one list of
    sinks."""
    if not node.is_windowed or not node.emissions:
        yield from node.emissions
        return
    places = tuple(place for emission in node.emissions for place in emission.places)
    yield Emission(places, None, node.emissions[0].at)


class _Steps:
    """Steps in their order, under construction."""

    def __init__(self, nodes: Sequence[Node], streams: Sequence[str]) -> None:
        self.steps: list[dict[str, Any]] = []
        self.places: dict[Path, int] = {}
        self._last: dict[int, int] = {}
        """Relation -> its last step, or a later emission of its rows; -1 is the only stream."""
        self._own_last: dict[int, int] = {}
        """Relation -> its last step, without emissions."""
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
        """Append the relation's own steps, unless they were appended before."""
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
        """Emit the relation's rows: in its window, or in a separate step."""
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
        """Return the fields with which the next step names the relation as its input. Empty if the relation is the step before
        it."""
        if self._last[id(node)] == len(self.steps) - 1:
            return {}
        if node.is_union and self._own_last[id(node)] == _SEVERAL:
            return {_FROM: [self._name_of(part) for part in node.takes]}
        return {_FROM: self._name_of(node)}

    def _name_of(self, node: Node) -> str:
        """Return the name of the relation's last step. It gets a name if it has none."""
        if node.is_stream:
            return str(node.name)
        if node.is_union and self._own_last[id(node)] == _SEVERAL:  # a join has one step on each side
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
