"""Check of the schema registry, if one is configured: its responses, and the user's rights."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.errors import RegistryUnavailable
from strandline.core.settings import Settings
from strandline.processing.source.kept_schemas import Registry, registry_of
from strandline.services.doctor.finding import Finding, ok, wrong

SUBJECT = "schema registry"
_NOBODYS = 2_147_483_647
"""Number that no schema has. The response reports that there is no such schema."""


def check_registry(settings: Settings, registry: Registry | None = None) -> Iterator[Finding]:
    """Yield the finding about the configured registry; none if there is none. Raises InvalidSettings if its settings
    are invalid.
    """
    registry = registry or registry_of(settings)
    if registry is None:
        return
    try:
        registry.schema("avro", _NOBODYS)
    except RegistryUnavailable as error:
        remedy = (
            "check STRANDLINE_SCHEMA_REGISTRY_URL, STRANDLINE_SCHEMA_REGISTRY_USER, and "
            "STRANDLINE_SCHEMA_REGISTRY_PASSWORD_FILE"
        )
        yield wrong(SUBJECT, str(error), remedy)
        return
    yield ok(SUBJECT, f"answers at {settings.schema_registry_url}")
