"""The field `enrich` of a step."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import FieldName, Name


def _as_pairs(value: object) -> object:
    """Return the mapping of a short form: `site_id` or `[country, plant]` maps each name to itself."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        if len(set(names)) < len(names):
            raise ValueError("a name is listed twice")
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
    """Adds fields of a lookup to records. The lookup row with the key of the record is used."""

    lookup: Name
    """Name of the lookup."""
    key: Annotated[dict[str, str], BeforeValidator(_as_pairs), Field(min_length=1), _PAIRS_SCHEMA]
    """Column with the key, if it has the name of the lookup's field; a list of such columns; or {field of the lookup: column}."""
    add: Annotated[dict[FieldName, str], BeforeValidator(_as_pairs), Field(min_length=1), _PAIRS_SCHEMA]
    """Fields of the lookup that become columns: a list, or {column: field of the lookup}."""
    optional: bool = False
    """True if a record without a lookup row continues with nulls. False if it becomes a dead letter."""

    @property
    def lookups(self) -> tuple[str, ...]:
        """Names of the lookups that the step reads."""
        return (self.lookup,)


class Fields(DocumentModel):
    """Fields that the kind adds to a step."""

    enrich: EnrichSpec | None = None
    """Adds fields of a lookup: {lookup, key, add}."""
