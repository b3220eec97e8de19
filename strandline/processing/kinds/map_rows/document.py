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
    """Fields that the function receives, as the columns of an Arrow RecordBatch."""
    columns: dict[FieldName, str] = Field(min_length=1, json_schema_extra=FIELD_NAMES_SCHEMA)
    """Fields that the function returns: name -> type. A type that ends with `?` permits null."""
    deterministic: bool
    """Must be true: the same record must produce the same values in each run, whatever other records the batch contains."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if not self.deterministic:
            yield (
                ("deterministic",),
                "must be true: a replay must compute the same results, so the same record must produce the same values "
                "in every call, whatever other records the call contains",
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
    """New fields that a Python function computes: {function, reads, columns, deterministic}."""
