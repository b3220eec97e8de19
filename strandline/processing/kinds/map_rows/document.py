"""The field `map` of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FIELD_NAMES_SCHEMA, FieldName
from strandline.core.documents import Path
from strandline.core.field_types import TYPE_NAMES, normal_type


class MapSpec(DocumentModel):
    """Fields that a Python function of an installed package computes."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", max_length=200)]
    """`package.module:function`. The setting ALLOW_FUNCTIONS must name it or its module."""
    reads: list[str] = Field(min_length=1)
    """The fields that it gets, as the columns of a RecordBatch of Arrow."""
    columns: dict[FieldName, str] = Field(min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA)
    """The fields that it gives: name -> type; with a `?` behind the type no value is an answer."""
    deterministic: bool
    """Must be true: the same record gives the same values in each run, whatever records are beside it."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if not self.deterministic:
            yield (
                ("deterministic",),
                "must be true: a result is the same in every replay, so the same record must give the same values whenever, and "
                "with whatever other records, the function is called",
            )
        for name, kind in self.columns.items():
            try:
                if normal_type(kind.removesuffix("?")) is None:
                    yield ("columns", name), f"'{kind}' is not a type; expected one of: {', '.join(TYPE_NAMES)}"
            except ValueError as error:
                yield ("columns", name), f"{kind}: {error}"


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    map: MapSpec | None = None
    """New fields by a Python function: {function, reads, columns, deterministic}."""
