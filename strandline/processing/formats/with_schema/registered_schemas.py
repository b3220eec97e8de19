"""Records that name their schema: Confluent's wire format, a zero byte and the number of a schema in the schema registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from strandline.core.record_headers import REASON_DECODE
from strandline.processing.formats.record_fields import Rejection

PREFIX_BYTES = 5
_MAGIC = 0
_NUMBER_MAX = 2**31 - 1
"""A schema's number is an int of Java: to a larger one a registry answers as to a path that does not exist."""

SchemaKind = Literal["avro", "protobuf"]


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as the registry gives it."""

    text: str
    """Of Avro the JSON, of Protobuf a file's descriptor in base64."""
    references: tuple[tuple[str, str], ...] = ()
    """Name and text of each schema that it uses, after those that this one uses itself."""


class RegisteredSchemas(Protocol):
    """The schemas of the registry. What was told of a number once is told again, whatever the registry says later."""

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | Rejection:
        """The schema of a number, or why there is none. Raises RegistryUnavailable, LedgerUnavailable, and SchemaChanged when the
        registry now gives another one."""


def number_of(value: bytes) -> int | Rejection:
    """The number of a record's schema."""
    if len(value) < PREFIX_BYTES or value[0] != _MAGIC:
        found = f"{value[0]:#04x}" if len(value) >= PREFIX_BYTES else f"{len(value)} bytes in all"
        return Rejection(REASON_DECODE, f"expected a zero byte and a schema's number of four, got {found}")
    number = int.from_bytes(value[1:PREFIX_BYTES], "big")
    if number > _NUMBER_MAX:
        return Rejection(REASON_DECODE, f"a schema has a number up to {_NUMBER_MAX}, got {number}")
    return number
