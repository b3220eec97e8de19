"""The schema registry, where one is set: whether it answers and lets us ask."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.errors import RegistryUnavailable
from strandline.core.settings import Settings
from strandline.processing.source.kept_schemas import Registry, registry_of
from strandline.services.doctor.finding import Finding, ok, wrong

SUBJECT = "schema registry"
_NOBODYS = 2_147_483_647
"""A number that no schema has: the answer is that there is none."""


def check_registry(settings: Settings, registry: Registry | None = None) -> Iterator[Finding]:
    """The finding. Raises InvalidSettings."""
    registry = registry or registry_of(settings)
    if registry is None:
        return
    try:
        registry.schema("avro", _NOBODYS)
    except RegistryUnavailable as error:
        remedy = "look at STRANDLINE_SCHEMA_REGISTRY_URL, STRANDLINE_SCHEMA_REGISTRY_USER and its _PASSWORD_FILE"
        yield wrong(SUBJECT, str(error), remedy)
        return
    yield ok(SUBJECT, f"answers at {settings.schema_registry_url}")
