"""The schemas that records of a local run name. They come from the schema registry, and are only kept in memory."""

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
    """Return the schemas for records of this format. None if records name no schemas. The registry is that of the environment.

    Raises InvalidSettings if no registry is set.
    """
    if not config.uses_registry:
        return None
    # Modules that connect to a registry are only imported if one is needed.
    from strandline.core.settings import Settings
    from strandline.processing.source.kept_schemas import registry_of

    registry = registry_of(Settings.read())
    if registry is None:
        raise InvalidSettings(
            f"records of this stream name their {config.name} schemas in a schema registry, but none is set; set "
            "STRANDLINE_SCHEMA_REGISTRY_URL. Or add a schema to the stream (schema_file, descriptor_file) and use records "
            "without a schema id before their content"
        )
    return AskedSchemas(registry)


class AskedSchemas:
    """Queries the registry once for each number."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._results: dict[tuple[str, int], RegisteredSchema | Rejection] = {}

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | Rejection:
        """Return the schema with this number, or a rejection if the registry has none. Raises RegistryUnavailable."""
        if (kind, number) not in self._results:
            given = self._registry.schema(kind, number)
            missing = Rejection(REASON_DECODE, f"the schema registry has no {kind} schema {number}")
            self._results[kind, number] = missing if given is None else given
        return self._results[kind, number]
