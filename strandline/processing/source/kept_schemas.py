"""The schemas that records name: as the registry first gave them, kept in the ledger for every replay.

1. The ledger keeps each schema before a record is read by it, and the first slice of each job and stream that reads by it. A
   replay asks the ledger alone: in earlier slices the number is unknown.
2. An open slice queries the registry for a number that no slice has used. The answer counts for the whole slice, also after a
   restart; later slices query again. While the registry is away, the job waits as while Kafka is away.
3. If an open slice comes to a used number, the registry is queried once per process whether it still gives the same schema. A
   number's schema never changes in a sound registry; if it did, new records may mean something else, so the job stops. A registry
   that is away, or has lost the schema, changes nothing.

Records with numbers that the registry doesn't have become dead letters. They cost queries, so a slice takes only UNKNOWN_MAX of
them; the other new numbers of that slice are unknown without a query.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import msgspec

from strandline.core.errors import InvalidSettings, RegistryUnavailable, SchemaChanged
from strandline.core.record_headers import REASON_DECODE
from strandline.core.settings import Settings
from strandline.ledger.roles import TaskLedger
from strandline.ledger.schemas import SchemaNumber
from strandline.ledger.states import RegisteredSchemaRow
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchema, SchemaKind
from strandline.processing.source.opened_ledger import open_ledger

SchemaKey = tuple[SchemaKind, int]
UNKNOWN_MAX = 1_000
"""Maximum number of queries without a schema per stream and slice, or per reading outside a slice."""


@dataclass(frozen=True)
class SliceScope:
    """The slice of a job whose records of one stream are read."""

    job: str
    stream: str
    slice: int
    is_open: bool
    """True if the slice isn't committed yet."""


class Registry(Protocol):
    """A schema registry, as `SchemaRegistry` asks it."""

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | None: ...


class SchemaCache:
    """The schemas that one ledger stores, for one process. A schema's number never gets another schema, so it caches them."""

    def __init__(self, open_ledger: Callable[[], TaskLedger], open_registry: Callable[[], Registry | None]) -> None:
        """`open_registry()`: with the current password; None if no registry is set."""
        self._open_ledger = open_ledger
        self._open_registry = open_registry
        self._read: dict[SchemaKey, RegisteredSchema] = {}
        self._compared: set[SchemaKey] = set()
        self._uses: dict[tuple[str, str], dict[SchemaNumber, int]] = {}
        """(job, stream) -> the first slice that uses each schema, as far as this process knows."""

    def generation(self, job: str, stream: str, slice_number: int) -> int:
        """Return a number that is equal for two committed slices if the same schemas are known in both."""
        return sum(first <= slice_number for first in self._uses_of(job, stream).values())

    def is_used(self, scope: SliceScope, key: SchemaKey) -> bool:
        """Return True if this slice or an earlier one of the job has decoded records with this schema."""
        return self._uses_of(scope.job, scope.stream).get(key, scope.slice + 1) <= scope.slice

    def used(self, scope: SliceScope, key: SchemaKey) -> RegisteredSchema:
        """Return a schema for which `is_used` is True. Raises SchemaChanged if the slice is open and the registry returns another
        schema for the number now."""
        found = self._stored(key)
        assert found is not None, f"the ledger has lost {key}"
        if scope.is_open:
            self.compare_once(key, found)
        return found

    def compare_once(self, key: SchemaKey, kept: RegisteredSchema) -> None:
        """Raise SchemaChanged if the registry now returns another schema. A process queries each number once."""
        if key not in self._compared:
            self._compare(key, kept)
            self._compared.add(key)

    def query(self, key: SchemaKey) -> RegisteredSchema | None:
        """Return the schema in the ledger; if there is none, store and return that of the registry. None if neither has it."""
        stored = self._stored(key)
        if stored is not None:
            return stored
        given = self._asked().schema(*key)
        if given is None:
            return None
        with closing(self._open_ledger()) as ledger:
            kept = ledger.keep_schema(*key, msgspec.json.encode(given).decode())
        self._compared.add(key)
        self._read[key] = _schema_of(kept)
        return self._read[key]

    def record(self, scope: SliceScope, key: SchemaKey, *, is_known: bool) -> bool:
        """Record whether the registry knows the schema, for a slice that isn't committed. Return the answer that was recorded
        first for this slice; all its records are decoded with that. Raises Fenced if the slice is committed by now."""
        with closing(self._open_ledger()) as ledger:
            is_used = ledger.record_schema(
                scope.job, scope.stream, scope.slice, key, is_known=is_known, unknown_max=UNKNOWN_MAX
            )
        if is_used:
            self._uses_of(scope.job, scope.stream)[key] = scope.slice
        return is_used

    def unknown(self, scope: SliceScope) -> tuple[set[SchemaNumber], bool]:
        """Return the schema numbers that are recorded as unknown for this open slice, and True if it has UNKNOWN_MAX of them."""
        with closing(self._open_ledger()) as ledger:
            return ledger.unknown_schemas(scope.job, scope.stream, scope.slice)

    def forget_uses(self, job: str, stream: str) -> None:
        """Forget which slices used which schemas. They are read from the ledger again, because other processes record them
        too."""
        self._uses.pop((job, stream), None)

    def _uses_of(self, job: str, stream: str) -> dict[SchemaNumber, int]:
        if (job, stream) not in self._uses:
            with closing(self._open_ledger()) as ledger:
                self._uses[job, stream] = ledger.schema_uses(job, stream)
        return self._uses[job, stream]

    def _stored(self, key: SchemaKey) -> RegisteredSchema | None:
        if key not in self._read:
            with closing(self._open_ledger()) as ledger:
                kept = ledger.kept_schema(*key)
            if kept is None:
                return None
            self._read[key] = _schema_of(kept)
        return self._read[key]

    def _compare(self, key: SchemaKey, kept: RegisteredSchema) -> None:
        try:
            registry = self._open_registry()
            given = None if registry is None else registry.schema(*key)
        except RegistryUnavailable:
            return
        if given is not None and given != kept:
            raise SchemaChanged(
                f"The schema registry gives another {key[0]} schema {key[1]} than it gave when it was kept in the ledger "
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


def _schema_of(kept: RegisteredSchemaRow) -> RegisteredSchema:
    return msgspec.json.decode(kept.document, type=RegisteredSchema)


def _unknown(key: SchemaKey) -> Rejection:
    return Rejection(REASON_DECODE, f"the schema registry has no {key[0]} schema {key[1]}")


def _not_queried(key: SchemaKey) -> Rejection:
    return Rejection(
        REASON_DECODE,
        f"{key[0]} schema {key[1]} was not looked up: more than {UNKNOWN_MAX:,} schemas of these records are not in the "
        "schema registry; stop the sender that uses them, then requeue this record",
    )


class SchemasOfSlice:
    """The schemas for the records of one stream in one slice, or in committed slices of one generation."""

    def __init__(self, kept: SchemaCache, scope: SliceScope) -> None:
        self._kept = kept
        self._scope = scope
        self._unknown: set[SchemaNumber] = set()
        self._is_full = False
        if scope.is_open:
            self._read_unknown()

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | Rejection:
        """See `RegisteredSchemas.schema`.

        1. If this slice or an earlier one has used the schema, return it.
        2. In a committed slice, or if the slice has recorded the number as unknown, return a rejection.
        3. Otherwise query the registry, and use the answer that the ledger recorded first for the slice.
        """
        key: SchemaKey = (kind, number)
        if self._kept.is_used(self._scope, key):
            return self._kept.used(self._scope, key)
        if not self._scope.is_open or key in self._unknown:
            return _unknown(key)
        if self._is_full:
            return _not_queried(key)
        given = self._kept.query(key)
        if self._kept.record(self._scope, key, is_known=given is not None):
            return self._kept.used(self._scope, key)
        self._read_unknown()
        return _unknown(key) if key in self._unknown else _not_queried(key)

    def _read_unknown(self) -> None:
        self._unknown, self._is_full = self._kept.unknown(self._scope)
        if self._is_full:  # what other processes have recorded still counts, and no more comes
            self._kept.forget_uses(self._scope.job, self._scope.stream)


class SchemasNow:
    """The schemas for records that are read outside a slice, as the registry has them now."""

    def __init__(self, kept: SchemaCache, *, are_new: bool = False) -> None:
        """`are_new`: True if the records are read for the first time, so that their schemas are compared with the registry's."""
        self._kept = kept
        self._are_new = are_new
        self._unknown: set[SchemaKey] = set()

    def schema(self, kind: SchemaKind, number: int) -> RegisteredSchema | Rejection:
        """See `RegisteredSchemas.schema`."""
        key: SchemaKey = (kind, number)
        if key in self._unknown:
            return _unknown(key)
        if len(self._unknown) >= UNKNOWN_MAX:
            return _not_queried(key)
        found = self._kept.query(key)
        if found is None:
            self._unknown.add(key)
            return _unknown(key)
        if self._are_new:
            self._kept.compare_once(key, found)
        return found


_kept: dict[str, SchemaCache] = {}


def schemas_of_process(ledger_url: str) -> SchemaCache:
    """Return the schemas of this process, which Spark reuses.

    URL and password of the registry are read from the environment for each query: so they aren't sent through Spark, and a
    replaced password is used. A query raises InvalidSettings if they are missing or wrong."""
    if ledger_url not in _kept:
        _kept[ledger_url] = SchemaCache(lambda: open_ledger(ledger_url), lambda: registry_of(Settings.read()))
    return _kept[ledger_url]


def registry_of(settings: Settings) -> Registry | None:
    """Return the registry of these settings. None if its URL isn't set. Raises InvalidSettings if it can't be used."""
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
