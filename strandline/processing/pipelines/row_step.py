"""The contract of a step that processes rows one by one, for the document and the engine. Each kind of step is a folder of
`processing/kinds`, found by `kind_registry`. Light to import, because every Python worker needs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

Identity = dict[str, Any]
"""JSON object."""
WHOLE_RANGE_MS = 36_525 * 86_400_000
"""A hundred years. Two records are never more than this apart: no event time is before 1970 or far after its arrival."""


class Column(NamedTuple):
    """A named expression with its normalised SQL and the type of its value."""

    name: str
    sql: str
    type: str


@dataclass(frozen=True)
class RowStep:
    """A step that processes rows one by one."""

    number: int
    """Index of the step in the document."""
    kind_package: str = field(default="", kw_only=True)
    """Package of the kind, with its release. Empty for a kind of Strandline."""

    kind: ClassVar[str]
    """Name of the kind in the registry."""
    keyword: ClassVar[str]
    """Field of the step in the document."""

    @property
    def path(self) -> str:
        """Path of the step in the document, for messages and dead letters."""
        return f"steps[{self.number}].{self.keyword}"

    @property
    def identity(self) -> Identity | None:
        """All that the step's results depend on, except the package of the kind. None if the step changes no value."""
        raise NotImplementedError

    @property
    def added(self) -> tuple[tuple[str, str], ...]:
        """(name, type) of each column that the step adds."""
        return ()

    @property
    def lookup_read(self) -> str | None:
        """Lookup whose rows the step reads. None if it reads none."""
        return None

    @property
    def lookup_fields(self) -> tuple[str, ...]:
        """Fields of the lookup that the step reads, without its key."""
        return ()

    @property
    def functions(self) -> dict[str, str]:
        """Python function that the step calls -> its package, with the release."""
        return {}


@dataclass(frozen=True)
class Projection(RowStep):
    """Keeps only these columns, in this order. Internal columns, whose names begin with `@`, always stay."""

    names: tuple[str, ...]
    kind = "select"
    keyword = "select"

    @property
    def identity(self) -> None:
        """None, because the columns that later steps and stages read keep their values. The identity of an emission has its
        fields."""
        return None


@dataclass(frozen=True)
class DuplicateFilter(RowStep):
    """Keeps the first of the records, in log order, that have equal values and close event times. It needs the records before,
    so it runs after the exchange, on the rows that the next steps keep: `operators/dedupe`."""

    by: tuple[str, ...]
    """Columns whose values identify a record. The stream's key is among them, so duplicates are in one partition."""
    within_ms: int
    """Records whose event times differ by less than this are compared. WHOLE_RANGE_MS if all records of a batch are compared."""

    @property
    def compares_all(self) -> bool:
        """True if all records of a batch are compared."""
        return self.within_ms == WHOLE_RANGE_MS


def duplicate_filter_of(steps: Iterable[RowStep]) -> DuplicateFilter | None:
    """Return the duplicate filter among these steps. None if there is none."""
    return next((step for step in steps if isinstance(step, DuplicateFilter)), None)
