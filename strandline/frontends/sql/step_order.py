"""The relations of a job as the steps of a document, in their order.

Where all inserts of a job take rows on one way from the stream, the steps are that way, and each step takes what the one before
it gives. Else the job has branches: they stand one behind the other, and the first step of each names the one that it takes
`from`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from strandline.core.documents import Path
from strandline.frontends.sql.relations import Emission, Node, stage_name
from strandline.frontends.sql.tokens import SqlText
from strandline.processing.pipelines.model import StepSpec

_FROM = "from"


def ordered_steps(sql: SqlText, taken: Sequence[tuple[int, Node]]) -> tuple[list[dict[str, Any]], dict[Path, int]]:
    """The steps, and the places of their values. `taken`: where each insert stands, and the relation whose rows it takes. Raises
    InvalidDocument for inserts of several streams, and for branches where documents have none."""
    stream = taken[0][1].stream
    for at, node in taken:
        if node.stream != stream:
            raise sql.error(
                at,
                f"reads stream '{node.stream}', and another insert of the job reads '{stream}'; one job reads one "
                "stream, so write a job for each",
            )
    way = max((node.way() for _, node in taken), key=len)
    aside = next((at for at, node in taken if not any(node is one for one in way)), None)
    if aside is not None and not _have_branches():
        raise sql.error(
            aside,
            "takes rows that no other insert of the job reads further, so the job would have branches, which are not "
            "supported yet; write a job of its own for it, or read one insert's rows from the other's by a view",
        )
    steps = _Steps([node for _, node in taken])
    if aside is None:
        for node in way:
            steps.place(node)
            for emission in _together(node):
                steps.emit(node, emission)
        return steps.steps, steps.places
    emitted: set[int] = set()
    for _, node in taken:
        for one in node.way():
            steps.place(one)
        if id(node) not in emitted:
            emitted.add(id(node))
            for emission in _together(node):
                steps.emit(node, emission)
    return steps.steps, steps.places


def _have_branches() -> bool:
    """Whether the model's steps can say what they take from."""
    return any(field.alias == _FROM for field in StepSpec.model_fields.values())


def _together(node: Node) -> Iterator[Emission]:
    """The emissions of a relation. Of results of a window they are one: a window has one place that says where results go."""
    if not node.is_windowed or not node.emissions:
        yield from node.emissions
        return
    places = tuple(place for emission in node.emissions for place in emission.places)
    yield Emission(places, None, node.emissions[0].at)


class _Steps:
    """Steps that are put one behind the other."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.steps: list[dict[str, Any]] = []
        self.places: dict[Path, int] = {}
        self._last: dict[int, int] = {}
        """Of each relation that is placed: its last step, or an emission of its rows behind that; -1 is the stream."""
        self._own_last: dict[int, int] = {}
        """The same without emissions."""
        windows = (
            name
            for node in nodes
            for one in node.way()
            for step in one.steps
            if (name := stage_name(step.document)) is not None
        )
        self._names = {nodes[0].stream, *windows}

    def place(self, node: Node) -> None:
        """Put the relation's own steps behind those that are there, unless they are there already."""
        if id(node) in self._last:
            return
        if node.before is not None and node.beside is not None:
            sides = {"left": self._name_of(node.before), "right": self._name_of(node.beside)}
            (step,) = node.steps
            self._add({"join": {**step.document["join"], **sides}}, step.places, node.at)
        elif node.before is not None:
            taken = self._taken_from(node.before)
            for number, step in enumerate(node.steps):
                self._add(dict(step.document) | (taken if number == 0 else {}), step.places, node.at)
        self._last[id(node)] = self._own_last[id(node)] = len(self.steps) - 1 if node.before is not None else -1

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

    def _taken_from(self, node: Node) -> dict[str, str]:
        """What the next step says to take the relation's rows: nothing, if they come from the step before it."""
        if self._last[id(node)] == len(self.steps) - 1:
            return {}
        return {_FROM: self._name_of(node)}

    def _name_of(self, node: Node) -> str:
        """The name of the relation's last step, which gets one if it has none."""
        if node.before is None:
            return node.stream
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
