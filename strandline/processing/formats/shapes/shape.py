"""The contract of a shape: the arrays and objects of a record that it opens, and the values of each row in them.

To add a shape, write a module with a class, and add a line to `table.SHAPES`. A shape defines the outcome by `rows_of`, for one
record, from its bytes. `quick_rows_of` may return the same sooner for records whose values are as declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from msgspec import Raw, UnsetType

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.record_fields import Rejection

RawValue = Raw | UnsetType
RowsOfRecord = list[list[RawValue]]
"""For each row the value at each path, UNSET where the row has none of its own."""


@dataclass(frozen=True)
class ShapeConfig:
    """A shape of a stream's document; travels pickled inside Spark."""

    kind: str
    """Name in `table.SHAPES`."""
    containers: tuple[JsonPath, ...]
    """The arrays and objects that are opened."""
    name: str | None = None
    """The field that a member's name fills."""
    match: str | None = None
    """Regular expression of the members that are rows."""
    null_if_shorter: bool = False
    """True if a shorter array means that rows lack its value."""
    index: str | None = None
    """The field that the number of a row fills."""
    time: str | None = None
    """The timestamp field that contains the time of the first row."""
    step_ms: int = 0
    """Time from one row to the next."""
    filled: tuple[str, ...] = ()
    """All fields that the shape fills, and that aren't read from members of a record."""


class QuickRows(NamedTuple):
    """The rows of one record as typed values."""

    size: int
    """Number of rows."""
    columns: Mapping[int, list[Any]]
    """Position of a path -> its value in each row, UNSET where the row has none of its own."""


class Shape(Protocol):
    """Opens the records of one stream. Without state."""

    @property
    def containers(self) -> Sequence[JsonPath]:
        """The arrays and objects that are opened."""

    @property
    def own_only(self) -> frozenset[int]:
        """Positions of the paths whose values are never taken from the record itself."""

    def rows_of(self, containers: Sequence[bytes | None]) -> RowsOfRecord | Rejection:
        """Return the rows of a record. `containers`: the JSON text at each path of `containers`, None if there is none."""

    def letters_of(self, containers: Sequence[bytes], row: int) -> Sequence[bytes]:
        """Return the containers with this row only, for the dead letter of the row."""

    def quick_rows_of(self, containers: Sequence[bytes]) -> QuickRows | None:
        """Return the rows of a plain record. None if a value needs a closer look."""
