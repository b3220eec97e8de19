"""The relations of a job: each is a node, and from each of them the ways back lead to streams.

```
stream <- view (derive) <- per_minute (where, window) <- hourly (window)
                              |                            |
                          insert into ...              insert into ...
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.core.documents import Path
from strandline.frontends.steps import stage_of

EVENT_TIME = "event_time"
"""Stands in descriptor(...) for the event time of each row, where rows of several streams have it in different columns."""


@dataclass(frozen=True)
class SqlStep:
    """A step as a document has it, and where its values stand in the text."""

    document: dict[str, Any]
    places: dict[Path, int]


@dataclass(frozen=True)
class Emission:
    """What one insert does with the rows of a relation."""

    places: tuple[tuple[dict[str, Any], int], ...]
    """Entries of `emit`, and where each stands."""
    stage: tuple[str, int] | None
    at: int


@dataclass(frozen=True)
class TimeClaim:
    """What a window or a join says of the event time of a stream: its column."""

    stream: str
    column: str
    at: int


@dataclass(eq=False)
class Node:
    """A relation."""

    takes: tuple[Node, ...]
    """What it takes rows from: none for a stream, both sides of a join, the parts of a union."""
    at: int
    steps: list[SqlStep] = field(default_factory=list)
    number: int = 0
    """Nodes are numbered as the text makes them."""
    is_windowed: bool = False
    """Whether this is, or follows from, results of a window or a join."""
    claims: tuple[TimeClaim, ...] = ()
    emissions: list[Emission] = field(default_factory=list)
    name: str | None = None
    """Of the stream, the view or the query of `with` that it is."""

    @property
    def is_stream(self) -> bool:
        return not self.takes

    @property
    def is_union(self) -> bool:
        """Whether it unites alone, which no step of a document says: the next step takes from all."""
        return len(self.takes) > 1 and not self.steps

    def way(self) -> list[Node]:
        """The relations from the streams to this one, in the order in which the text makes them: each behind those that it takes
        from."""
        found: dict[int, Node] = {}
        open_ = [self]
        while open_:
            node = open_.pop()
            if id(node) not in found:
                found[id(node)] = node
                open_ += node.takes
        return sorted(found.values(), key=lambda node: node.number)

    @property
    def streams(self) -> list[Node]:
        """Those that its rows come from."""
        return [node for node in self.way() if node.is_stream]

    def window_name(self) -> str | None:
        """The window that the rows are results of."""
        names = [name for node in self.way() for step in node.steps if (name := stage_name(step.document)) is not None]
        return names[-1] if names else None


def stage_name(step: Mapping[str, Any]) -> str | None:
    """The name of the stage that a step of a document is."""
    name = (stage_of(step) or {}).get("name")
    return name if isinstance(name, str) else None


def united(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The parts of a union, and of those among them that are unions."""
    return tuple(part for node in nodes for part in (node.takes if node.is_union else (node,)))
