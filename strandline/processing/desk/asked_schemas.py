"""The schemas that records at the desk name: as the schema registry gives them now. Nothing is kept but in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.core.errors import InvalidSettings
from strandline.core.record_headers import REASON_DECODE
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.record_rows import RecordFormat
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchema, RegisteredSchemas, SchemaKind

if TYPE_CHECKING:
    from strandline.processing.source.kept_schemas import Registry


def asked_schemas(config: RecordFormat) -> RegisteredSchemas | None:
    """The schemas for records of this format; None where they name none. The registry is that of the environment. Raises
    InvalidSettings where it names none."""
    if not config.uses_registry:
        return None
    # What speaks to a registry is imported where one is needed.
    from strandline.core.settings import Settings
    from strandline.processing.source.kept_schemas import registry_of

    registry = registry_of(Settings.read())
    if registry is None:
        raise InvalidSettings(
            f"records of this stream name their {config.name} schemas in a schema registry, and none is set: set "
            "STRANDLINE_SCHEMA_REGISTRY_URL, or give the stream a schema (schema_file, descriptor_file) and records without a "
            "number"
        )
    return AskedSchemas(registry)


class AskedSchemas:
    """Asks the registry for each number once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._told: dict[tuple[str, int], RegisteredSchema | Rejection] = {}

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | Rejection:
        """As RegisteredSchemas.schema. Raises RegistryUnavailable."""
        if (kind, number) not in self._told:
            given = self._registry.schema(kind, number)
            missing = Rejection(REASON_DECODE, f"the schema registry has no {kind} schema {number}")
            self._told[kind, number] = missing if given is None else given
        return self._told[kind, number]
