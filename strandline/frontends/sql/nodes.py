"""Relations of a job as nodes. Their paths lead back to streams.

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
"""Name in descriptor(...) for the event time of each row, if several streams have it in different columns."""


@dataclass(frozen=True)
class SqlStep:
    """A step of a document, with the offsets of its values in the text."""

    document: dict[str, Any]
    places: dict[Path, int]


@dataclass(frozen=True)
class Emission:
    """Output of an insert: the sinks for the rows of a relation."""

    places: tuple[tuple[dict[str, Any], int], ...]
    """Entries of `emit`, with their offsets."""
    stage: tuple[str, int] | None
    at: int


@dataclass(frozen=True)
class TimeClaim:
    """Column that a window or a join uses as the event time of a stream."""

    stream: str
    column: str
    at: int


@dataclass(eq=False)
class Node:
    """A relation."""

    takes: tuple[Node, ...]
    """Inputs: none for a stream, both sides of a join, the parts of a union."""
    at: int
    steps: list[SqlStep] = field(default_factory=list)
    number: int = 0
    """Nodes are numbered in the order in which the text creates them."""
    is_windowed: bool = False
    """True if the rows are results of a window or a join, or follow from them."""
    claims: tuple[TimeClaim, ...] = ()
    emissions: list[Emission] = field(default_factory=list)
    name: str | None = None
    """Name of the stream, the view, or the query in `with`. None if there is none."""

    @property
    def is_stream(self) -> bool:
        return not self.takes

    @property
    def is_union(self) -> bool:
        """True if the node only unites rows. A document has no step for this: the next step has all of them as its input."""
        return len(self.takes) > 1 and not self.steps

    def way(self) -> list[Node]:
        """Return the relations from the streams to this one, in the order in which the text creates them: each after its
        inputs."""
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
        """Return the streams from which the rows come."""
        return [node for node in self.way() if node.is_stream]

    def window_name(self) -> str | None:
        """Return the window whose results the rows are. None if there is none."""
        names = [name for node in self.way() for step in node.steps if (name := stage_name(step.document)) is not None]
        return names[-1] if names else None


def stage_name(step: Mapping[str, Any]) -> str | None:
    """Return the name of the stage of a document's step. None if it is no stage."""
    name = (stage_of(step) or {}).get("name")
    return name if isinstance(name, str) else None


def united(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the parts of a union, and the parts of unions among them."""
    return tuple(part for node in nodes for part in (node.takes if node.is_union else (node,)))
