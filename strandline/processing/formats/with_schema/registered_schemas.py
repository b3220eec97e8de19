"""Records that name their schema: Confluent's wire format, a zero byte and the id of a schema in the schema registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from strandline.core.record_headers import REASON_DECODE
from strandline.processing.formats.record_fields import Rejection

PREFIX_BYTES = 5
_MAGIC = 0
_NUMBER_MAX = 2**31 - 1
"""Maximum id of a schema, which is an int of Java. For a larger one, a registry responds as for an unknown path."""

SchemaKind = Literal["avro", "protobuf"]


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of the registry."""

    text: str
    """JSON of an Avro schema, or file descriptor of a Protobuf schema in base64."""
    references: tuple[tuple[str, str], ...] = ()
    """Name and text of each schema that it uses. A schema comes after those that it uses."""


class RegisteredSchemas(Protocol):
    """The schemas of the registry. The first response for an id is kept, whatever the registry returns later."""

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | Rejection:
        """Return the schema with an id, or the reason why there is none. Raises RegistryUnavailable, LedgerUnavailable, and
        SchemaChanged if the registry now returns another one."""


def number_of(value: bytes) -> int | Rejection:
    """Return the id of a record's schema."""
    if len(value) < PREFIX_BYTES or value[0] != _MAGIC:
        found = f"{value[0]:#04x}" if len(value) >= PREFIX_BYTES else f"{len(value)} bytes in all"
        return Rejection(REASON_DECODE, f"expected a zero byte and the id of a schema in four bytes, got {found}")
    number = int.from_bytes(value[1:PREFIX_BYTES], "big")
    if number > _NUMBER_MAX:
        return Rejection(REASON_DECODE, f"expected an id of a schema up to {_NUMBER_MAX}, got {number}")
    return number
