"""The field `enrich` of a step."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FieldName, Name


def _as_pairs(value: object) -> object:
    """`site_id` and `[country, plant]` are short for the mapping of each name to itself."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        if len(set(names)) < len(names):
            raise ValueError("a name stands twice")
        return {name: name for name in names}
    return value


_PAIRS_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
        ]
    }
)


class EnrichSpec(DocumentModel):
    """Adds fields of a lookup to records, by the row that has their key."""

    lookup: Name
    """Which."""
    key: Annotated[dict[str, str], BeforeValidator(_as_pairs), Field(min_length=1), _PAIRS_SCHEMA]
    """The column that holds the key, which is called as the lookup's; a list of several; or {field of the lookup: column}."""
    add: Annotated[dict[FieldName, str], BeforeValidator(_as_pairs), Field(min_length=1), _PAIRS_SCHEMA]
    """The lookup's fields that become columns: a list, or {column: field of the lookup}."""
    optional: bool = False
    """Whether a record without a row goes on, with nulls; else it is a dead letter."""

    @property
    def lookups(self) -> tuple[str, ...]:
        """The lookups that the step reads."""
        return (self.lookup,)


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    enrich: EnrichSpec | None = None
    """Adds fields of a lookup: {lookup, key, add}."""
