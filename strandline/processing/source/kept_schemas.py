"""The schemas that records name: as the registry first gave them, kept in the ledger for every replay.

1. What the ledger keeps of a number counts, for ever, also that the registry had no schema for it.
2. What it doesn't keep is asked of the registry, and kept before any record is read by it. While the registry is away the job
   waits as while Kafka is: that is no fault of a record.
3. Where a new slice comes to a number that is kept, the registry is asked once in each process whether it still gives the same
   schema. A number's schema never changes in a sound registry; if it did, new records may mean something else, so the job stops.
   A registry that is away, or has lost the schema, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Protocol

import msgspec

from strandline.core.errors import InvalidSettings, PermanentError, RegistryUnavailable, SchemaChanged
from strandline.core.record_headers import REASON_DECODE
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchema, SchemaKind
from strandline.processing.source.opened_ledger import open_ledger

UNKNOWN_MAX = 10_000
"""Numbers that the registry has no schema for. More come from records of another kind than the stream says."""


class Registry(Protocol):
    """A schema registry, as `SchemaRegistry` asks it."""

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | None: ...


class KeptSchemas:
    """The schemas of one ledger for one process. Keeps what it read in memory: of a number that never changes."""

    def __init__(self, open_ledger: Callable[[], Ledger], open_registry: Callable[[], Registry | None]) -> None:
        """`open_registry()`: with the password as it is now; None where none is set."""
        self._open_ledger = open_ledger
        self._open_registry = open_registry
        self._read: dict[tuple[str, int], RegisteredSchema | Rejection] = {}
        self._compared: set[tuple[str, int]] = set()

    def schema(self, kind: SchemaKind, number: int, *, is_new: bool) -> RegisteredSchema | Rejection:
        """As `RegisteredSchemas.schema`. `is_new`: whether a record of a new slice names it."""
        key = kind, number
        found = self._read.get(key)
        if found is None:
            found = self._read_or_fetch(kind, number)
            if len(self._read) < UNKNOWN_MAX:
                self._read[key] = found
        if is_new and key not in self._compared and isinstance(found, RegisteredSchema):
            self._compare(kind, number, found)
            self._compared.add(key)
        return found

    def _read_or_fetch(self, kind: SchemaKind, number: int) -> RegisteredSchema | Rejection:
        with closing(self._open_ledger()) as ledger:
            kept = ledger.kept_schema(kind, number)
            if kept is None:
                given = self._asked().schema(kind, number)
                if given is None and ledger.count_unknown_schemas(kind) >= UNKNOWN_MAX:
                    raise PermanentError(
                        f"Records name more than {UNKNOWN_MAX:,} {kind} schemas that the registry does not have, now {number}: "
                        "see that the stream's format and the registry are right."
                    )
                kept = ledger.keep_schema(kind, number, None if given is None else msgspec.json.encode(given).decode())
                if given is not None:
                    self._compared.add((kind, number))
        if kept.document is None:
            return Rejection(REASON_DECODE, f"the schema registry has no {kind} schema {number}")
        return msgspec.json.decode(kept.document, type=RegisteredSchema)

    def _compare(self, kind: SchemaKind, number: int, kept: RegisteredSchema) -> None:
        try:
            registry = self._open_registry()
            given = None if registry is None else registry.schema(kind, number)
        except RegistryUnavailable:
            return
        if given is not None and given != kept:
            raise SchemaChanged(
                f"The schema registry gives another {kind} schema {number} than it gave when it was kept in the ledger "
                "(registered_schemas). Records may be of either: point STRANDLINE_SCHEMA_REGISTRY_URL at the registry that "
                "the senders use, or give their stream another name."
            )

    def _asked(self) -> Registry:
        registry = self._open_registry()
        if registry is None:
            raise InvalidSettings(
                "Records name schemas of a schema registry, and none is set: set STRANDLINE_SCHEMA_REGISTRY_URL, on a cluster "
                "for the Spark worker on each machine, too."
            )
        return registry


class _SchemasOfSlices:
    """What a reader of records asks."""

    def __init__(self, kept: KeptSchemas, *, is_new: bool) -> None:
        self._kept = kept
        self._is_new = is_new

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | Rejection:
        return self._kept.schema(kind, number, is_new=self._is_new)


_kept: dict[str, KeptSchemas] = {}


def schemas_of_process(ledger_url: str, *, is_new: bool) -> _SchemasOfSlices:
    """This process's schemas: Python workers are reused. The registry and its password come from this process's environment, so
    that they don't go through Spark, whenever it is asked: a password may have been replaced. Asking raises InvalidSettings."""
    if ledger_url not in _kept:
        _kept[ledger_url] = KeptSchemas(lambda: open_ledger(ledger_url), lambda: registry_of(Settings.read()))
    return _SchemasOfSlices(_kept[ledger_url], is_new=is_new)


def registry_of(settings: Settings) -> Registry | None:
    """The registry that these settings name; None where they name none. Raises InvalidSettings."""
    from strandline.processing.formats.with_schema.schema_registry import SchemaRegistry

    if settings.schema_registry_url is None:
        return None
    if "@" in settings.schema_registry_url:
        raise InvalidSettings(
            "STRANDLINE_SCHEMA_REGISTRY_URL holds a user, and it is shown in messages: set STRANDLINE_SCHEMA_REGISTRY_USER and "
            "STRANDLINE_SCHEMA_REGISTRY_PASSWORD_FILE."
        )
    password = None
    if (file := settings.schema_registry_password_file) is not None:
        try:
            password = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettings(f"STRANDLINE_SCHEMA_REGISTRY_PASSWORD_FILE can't be read: {error}") from error
    return SchemaRegistry(settings.schema_registry_url, settings.schema_registry_user, password)
