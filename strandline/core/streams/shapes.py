"""Shapes of records that are several rows: `explode` of the stream document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from strandline.core.document_model import MAPPING, WORD, DocumentModel, word_or_mapping
from strandline.core.document_values import Duration, FieldName, PathText, PathTexts
from strandline.core.documents import Path
from strandline.core.json_paths import JsonPath, parse_json_path, path_text

ShapeKind = Literal["elements", "members", "arrays", "table", "inner"]


class ShapeSpec(DocumentModel):
    """Rule that makes rows from a record: one of `elements`, `members`, `arrays`, and `columns` with `rows`."""

    elements: PathText | None = None
    """Array whose elements are rows, as `$.readings`; `$` if the record is the array."""
    members: PathText | None = None
    """Object whose members are rows, as `$.sensors`; `$` for the members of the record."""
    name: FieldName | None = None
    """Field that the name of a member fills. Only with `members`."""
    match: str | None = Field(default=None, min_length=1, max_length=200)
    """Regular expression of the member names that are rows. Only with `members`. A named group fills the field of its name, as
    `temp_(?P<room>.+)`. The other members are added to each row."""
    arrays: PathTexts | None = None
    """Arrays whose values with the same index are a row, as `[$.time, $.celsius]`; or the object that contains them."""
    shorter: Literal["reject", "null"] = "reject"
    """`null` if the last rows lack the value of a shorter array; `reject` if a shorter array is an error. Only with `arrays`."""
    columns: PathText | None = None
    """Array of the names of columns, as `$.columns`."""
    rows: PathText | None = None
    """Array of arrays of values, as `$.values`, each in the order of `columns`."""
    inner: PathText | None = None
    """Array within each element or member, as `$.items.samples`, whose elements are rows. Only with `elements` or `members`. If
    each member is an array, the path of `members`."""
    index: FieldName | None = None
    """Field that the index of the row in its record fills, from 0."""
    time: FieldName | None = None
    """Timestamp field whose value, from the record, is the time of the first row. The time of each row is one `step` later."""
    step: Duration | None = None
    """Time from one row to the next, as `100ms`."""

    @property
    def kind(self) -> ShapeKind:
        """Kind of this shape."""
        return self._outermost if self.inner is None else "inner"

    @property
    def outer(self) -> ShapeKind | None:
        """Kind of the shape that contains the inner arrays. None if there are none."""
        return None if self.inner is None else self._outermost

    @property
    def _outermost(self) -> ShapeKind:
        kinds: tuple[ShapeKind, ...] = ("elements", "members", "arrays")
        return next((kind for kind in kinds if getattr(self, kind) is not None), "table")

    @property
    def containers(self) -> list[JsonPath]:
        """Paths of the arrays and objects that contain the rows."""
        given = [self.elements, self.members, self.columns, self.rows]
        given += self.arrays if isinstance(self.arrays, list) else [self.arrays]
        return [parse_json_path(path) for path in given if path is not None]

    @property
    def groups(self) -> list[str]:
        """Named groups of `match`."""
        return [] if self.match is None else list(re.compile(self.match).groupindex)

    @property
    def filled(self) -> dict[str, str]:
        """Field -> setting that fills it."""
        given = {self.name: "name", self.index: "index"}
        return {field: setting for field, setting in given.items() if field is not None} | dict.fromkeys(
            self.groups, "match"
        )

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        given = [kind for kind in ("elements", "members", "arrays", "columns") if getattr(self, kind) is not None]
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "has none"
            yield (), f"expected exactly one of elements, members, arrays, and columns with rows; this shape {found}"
            return
        if (self.columns is None) != (self.rows is None):
            yield (), "'columns' names the values of 'rows'; write both, as {columns: $.columns, rows: $.values}"
        for name in ("name", "match"):
            if getattr(self, name) is not None and self.members is None:
                yield (name,), f"'{name}' is for members of an object; remove it, or write 'members'"
        if self.inner is not None:
            yield from self._contradictions_of_inner(self.inner)
        if self.shorter != "reject" and self.arrays is None:
            yield ("shorter",), "'shorter' is for arrays that are read in parallel; remove it"
        if (self.time is None) != (self.step is None):
            yield (), "'time' is the field of the first time, and 'step' the time between two rows; write both"
        elif self.step == 0:
            yield ("step",), "all rows would have the same time; expected at least 1ms"
        if self.match is not None:
            try:
                re.compile(self.match)
            except re.error as error:
                yield ("match",), f"{self.match!r} is not a regular expression: {error}"
        if self.members == "$" and self.match is None and self.name is None:
            yield (
                ("members",),
                "every member is a row, but no field distinguishes the rows; add 'name', a field for the name",
            )

    def _contradictions_of_inner(self, inner: str) -> Iterator[tuple[Path, str]]:
        outer = self.elements or self.members
        if outer is None:
            yield ("inner",), "'inner' is for the elements of an array or the members of an object; remove it"
            return
        for name in ("match", "time", "step"):
            if getattr(self, name) is not None:
                yield (name,), f"'{name}' can't be combined with 'inner'; remove it"
        path, array = parse_json_path(inner), parse_json_path(outer)
        if path[: len(array)] != array or (path == array and self.members is None):
            yield ("inner",), f"expected a path within {outer}, as {path_text((*array, 'samples'))}, got {inner}"


def _of_list(value: object) -> object:
    return {"arrays": value} if isinstance(value, list) else value


Explode = Annotated[
    Annotated[PathText, Tag(WORD)] | Annotated[ShapeSpec, Tag(MAPPING)],
    Discriminator(word_or_mapping),
    BeforeValidator(_of_list),
]
"""Path of an array, a list of paths, or a shape."""
