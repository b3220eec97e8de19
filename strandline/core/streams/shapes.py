"""Shapes of records that are several rows: `explode` of the stream's document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from strandline.core.document_model import MAPPING, WORD, DocumentModel, word_or_mapping
from strandline.core.document_values import FieldName, PathText, PathTexts
from strandline.core.documents import Path
from strandline.core.json_paths import JsonPath, parse_json_path

ShapeKind = Literal["elements", "members", "arrays", "table"]


class ShapeSpec(DocumentModel):
    """How a record becomes rows: one of `elements`, `members`, `arrays`, and `columns` with `rows`."""

    elements: PathText | None = None
    """The array whose elements are rows, as `$.readings`; `$` if the record is the array."""
    members: PathText | None = None
    """The object whose members are rows, as `$.sensors`; `$` for the members of the record."""
    name: FieldName | None = None
    """Of members: the field that the member's name fills."""
    match: str | None = Field(default=None, min_length=1, max_length=200)
    """Of members: regular expression of the names that are rows. A named group fills the field of its name, as
    `temp_(?P<room>.+)`. The other members hold for each row."""
    arrays: PathTexts | None = None
    """Arrays whose values with the same index are a row, as `[$.time, $.celsius]`; or the object that contains them."""
    shorter: Literal["reject", "null"] = "reject"
    """Of arrays: `null` if a shorter array means that the last rows lack its value; `reject` if that is an error."""
    columns: PathText | None = None
    """The array of the names of columns, as `$.columns`."""
    rows: PathText | None = None
    """The array of arrays of values, as `$.values`, each in the order of `columns`."""
    index: FieldName | None = None
    """The field that the row's number in its record fills, from 0."""

    @property
    def kind(self) -> ShapeKind:
        """Which of the shapes it is."""
        kinds: tuple[ShapeKind, ...] = ("elements", "members", "arrays")
        return next((kind for kind in kinds if getattr(self, kind) is not None), "table")

    @property
    def containers(self) -> list[JsonPath]:
        """The paths of the arrays and objects that are opened."""
        given = [self.elements, self.members, self.columns, self.rows]
        given += self.arrays if isinstance(self.arrays, list) else [self.arrays]
        return [parse_json_path(path) for path in given if path is not None]

    @property
    def groups(self) -> list[str]:
        """The named groups of `match`."""
        return [] if self.match is None else list(re.compile(self.match).groupindex)

    @property
    def filled(self) -> dict[str, str]:
        """Field -> the setting that fills it."""
        given = {self.name: "name", self.index: "index"}
        return {field: setting for field, setting in given.items() if field is not None} | dict.fromkeys(
            self.groups, "match"
        )

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        given = [kind for kind in ("elements", "members", "arrays", "columns") if getattr(self, kind) is not None]
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "has none"
            yield (), f"expected exactly one of elements, members, arrays, and columns with rows; it {found}"
            return
        if (self.columns is None) != (self.rows is None):
            yield (), "'columns' names the values of 'rows'; write both, as {columns: $.columns, rows: $.values}"
        for name in ("name", "match"):
            if getattr(self, name) is not None and self.members is None:
                yield (name,), f"'{name}' is for members of an object; remove it, or write 'members'"
        if self.shorter != "reject" and self.arrays is None:
            yield ("shorter",), "'shorter' is for arrays that are read in parallel; remove it"
        if self.match is not None:
            try:
                re.compile(self.match)
            except re.error as error:
                yield ("match",), f"{self.match!r} is no regular expression: {error}"
        if self.members == "$" and self.match is None and self.name is None:
            yield (
                ("members",),
                "every member is a row, and nothing tells the rows apart; add 'name', a field for the name",
            )


def _of_list(value: object) -> object:
    return {"arrays": value} if isinstance(value, list) else value


Explode = Annotated[
    Annotated[PathText, Tag(WORD)] | Annotated[ShapeSpec, Tag(MAPPING)],
    Discriminator(word_or_mapping),
    BeforeValidator(_of_list),
]
"""A path of an array, a list of paths, or a shape."""
