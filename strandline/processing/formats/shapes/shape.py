"""The contract of a shape: the arrays and objects of a record that it opens, and the values of each row in them.

To add a shape, write a module with a class, and add a line to `table.SHAPES`. `rows_of` defines the outcome of one record, from
its bytes. `quick_rows_of` can return the rows of many records faster, if their values are as declared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

from msgspec import Raw, UnsetType

from strandline.core.json_paths import JsonPath
from strandline.processing.formats.record_fields import Rejection

RawValue = Raw | UnsetType
RowsOfRecord = list[list[RawValue]]
"""For each row, the value at each path. UNSET if the row has no value of its own."""


@dataclass(frozen=True)
class ShapeConfig:
    """A shape of a stream's document. Pickled by Spark."""

    kind: str
    """Name in `table.SHAPES`."""
    containers: tuple[JsonPath, ...]
    """Arrays and objects that are opened."""
    name: str | None = None
    """Field that a member's name fills. None if there is none."""
    match: str | None = None
    """Regular expression of the members that are rows."""
    null_if_shorter: bool = False
    """True if a shorter array means that rows lack its value."""
    index: str | None = None
    """Field that the index of a row fills. None if there is none."""
    time: str | None = None
    """The timestamp field that contains the time of the first row."""
    step_ms: int = 0
    """Time from one row to the next."""
    inner: JsonPath | None = None
    """Array within each element or member. None if there is none."""
    outer: str | None = None
    """Kind of the shape that contains the inner arrays. None if there are none."""
    filled: tuple[str, ...] = ()
    """All fields that the shape fills, and that aren't read from members of a record."""


class QuickRows(NamedTuple):
    """The rows of some records as typed values."""

    counts: list[int]
    """Number of rows of each record."""
    columns: dict[int, list[Any]]
    """Index of a path -> its value in each row. UNSET if the row has no value of its own."""
    names: Counter[str]
    """Number of members with each name that were read in the rows."""
    brackets: int
    """Number of rows that are an object or an array."""
    sizes: Sequence[int] | None = None
    """Number of members of each record's container, if it is an object that must have each name once."""
    strings: Counter[str] | None = None
    """Number of other strings with each name that were read."""

    def add_index(self, at: int) -> None:
        """Add the column with the number of each row in its record."""
        self.columns[at] = list(chain.from_iterable(map(range, self.counts)))


class Shape(Protocol):
    """Opens the records of one stream. Stateless."""

    @property
    def containers(self) -> Sequence[JsonPath]:
        """Arrays and objects that are opened."""

    @property
    def own_only(self) -> frozenset[int]:
        """Indices of the paths whose values are never read from the record itself."""

    def rows_of(self, containers: Sequence[bytes | None]) -> RowsOfRecord | Rejection:
        """Return the rows of a record. `containers`: the JSON text at each path of `containers`, None if there is none."""

    def letters_of(self, containers: Sequence[bytes], row: int) -> Sequence[bytes]:
        """Return the containers with only this row, for the dead letter of the row."""

    @property
    def quick_types(self) -> Sequence[Any]:
        """Type of the value at each path of `containers`, for `quick_rows_of`. Empty if rows aren't read in this way."""

    def quick_rows_of(self, containers: Sequence[Sequence[Any]]) -> QuickRows | None:
        """Return the rows of plain records. None if a value needs a closer check. The caller checks that each name occurs
        once, as far as it must.

        `containers`: for each path of `containers`, the value in each record. Raises msgspec.DecodeError or RecursionError if a
        value isn't as declared.
        """
