"""Additional inputs of decoding, stored so that every replay decodes records like the first run: schemas as the schema
registry first returned them, and declarations of records for later records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from strandline.core.errors import Fenced
from strandline.ledger.jobs import lock_job
from strandline.ledger.models import decoder_contents, registered_schemas, schema_uses, slices, unknown_schemas
from strandline.ledger.part import Part
from strandline.ledger.states import RegisteredSchemaRow, SliceStatus

_HASHES_AT_ONCE = 500


SchemaNumber = tuple[str, int]
"""(kind, number): `avro` or `protobuf`, and the number in records."""
_NO_MORE = ("", -1)
"""Recorded like an unknown number of a slice, if the slice accepts no more numbers."""


class SchemaReader(Part):
    """Reads kept schemas of a registry, and kept contents of decoders."""

    def kept_schema(self, kind: str, number: int) -> RegisteredSchemaRow | None:
        """Return the schema of a number. None if the registry has returned none yet."""
        with self._database.reading(f"read {kind} schema {number}") as connection:
            row = connection.execute(_wanted(kind, number)).first()
            return None if row is None else RegisteredSchemaRow(*row)

    def schema_uses(self, job: str, stream: str) -> dict[SchemaNumber, int]:
        """Return (kind, number) -> the first slice of the job that reads records of the stream with this schema."""
        uses = schema_uses.c
        with self._database.reading(f"read the schemas that job {job} uses") as connection:
            wanted = sa.select(uses.kind, uses.number, uses.slice).where(uses.job == job, uses.stream == stream)
            return {(row.kind, row.number): row.slice for row in connection.execute(wanted)}

    def unknown_schemas(self, job: str, stream: str, slice_number: int) -> tuple[set[SchemaNumber], bool]:
        """Return the numbers that are unknown in this open slice, and True if it accepts no more."""
        unknown = unknown_schemas.c
        of_slice = (unknown.job == job) & (unknown.stream == stream) & (unknown.slice == slice_number)
        with self._database.reading(f"read the unknown schemas of slice {slice_number}") as connection:
            found = {
                (row.kind, row.number)
                for row in connection.execute(sa.select(unknown.kind, unknown.number).where(of_slice))
            }
        return found - {_NO_MORE}, _NO_MORE in found

    def contents(self, hashes: Iterable[str]) -> dict[str, str]:
        """Return the kept documents, by their hashes."""
        wanted, found = list(hashes), dict[str, str]()
        with self._database.reading("read what records declare") as connection:
            for first in range(0, len(wanted), _HASHES_AT_ONCE):
                some = decoder_contents.c.hash.in_(wanted[first : first + _HASHES_AT_ONCE])
                rows = connection.execute(sa.select(decoder_contents.c.hash, decoder_contents.c.document).where(some))
                found.update((row.hash, row.document) for row in rows)
        return found


class Schemas(Part):
    """Schemas by number: each number has one schema of its kind, the first one that the registry returned.

    A job reads the records of a stream with a schema from a recorded slice on (`schema_uses`). In earlier slices the
    number is unknown. So a replay of a slice has the answers of its first run, and a number that was used too early is
    known in later slices.
    """

    def keep_schema(self, kind: str, number: int, document: str) -> RegisteredSchemaRow:
        """Keep the schema that the registry returned for a number.

        Return the kept one. Only the first call keeps a schema.
        """
        with self._database.writing(f"keep {kind} schema {number}") as connection:
            row = RegisteredSchemaRow(kind, number, document, self._clock_ms())
            connection.execute(self._database.insert_new(registered_schemas).values(vars(row)))
            return RegisteredSchemaRow(*connection.execute(_wanted(kind, number)).one())

    def record_schema(
        self, job: str, stream: str, slice_number: int, schema: SchemaNumber, *, is_known: bool, unknown_max: int
    ) -> bool:
        """Record for an open slice whether the registry has this schema; return what counts for the slice from now on.

        The first recorded answer counts, and no later one. After `unknown_max` unknown numbers the slice takes no more
        numbers: those without a recorded answer are unknown. Raises Fenced if the slice isn't open any more.
        """
        scope = {"job": job, "stream": stream}
        unknown = unknown_schemas.c
        of_slice = (unknown.job == job) & (unknown.stream == stream) & (unknown.slice == slice_number)
        with self._database.writing(f"record {schema[0]} schema {schema[1]} of slice {slice_number}") as connection:
            lock_job(connection, job)
            is_open = (
                (slices.c.job == job) & (slices.c.number == slice_number) & (slices.c.status == SliceStatus.PLANNED)
            )
            if connection.execute(sa.select(slices.c.number).where(is_open)).first() is None:
                raise Fenced(f"Slice {slice_number} of job {job} is committed: stop this run now.")
            uses = schema_uses.c
            use = sa.select(uses.slice).where(
                uses.job == job, uses.stream == stream, uses.kind == schema[0], uses.number == schema[1]
            )
            first = connection.execute(use).scalar()
            if first is not None:
                return bool(first <= slice_number)
            recorded = {
                tuple(row) for row in connection.execute(sa.select(unknown.kind, unknown.number).where(of_slice))
            }
            if schema in recorded or _NO_MORE in recorded:
                return False
            kind, number = schema
            if is_known:
                row = {**scope, "kind": kind, "number": number, "slice": slice_number}
                connection.execute(sa.insert(schema_uses).values(row))
                return True
            for one in [schema] if len(recorded) + 1 < unknown_max else [schema, _NO_MORE]:
                row = {**scope, "slice": slice_number, "kind": one[0], "number": one[1]}
                connection.execute(sa.insert(unknown_schemas).values(row))
            # The unknown numbers of committed slices follow from `schema_uses`.
            of_earlier = (unknown.job == job) & (unknown.stream == stream) & (unknown.slice < slice_number)
            connection.execute(sa.delete(unknown_schemas).where(of_earlier))
            return False

    def keep_contents(self, contents: Mapping[str, str]) -> None:
        """Keep documents by their hashes. An existing hash keeps its document."""
        now_ms = self._clock_ms()
        with self._database.writing("keep what records declare") as connection:
            for key, text in contents.items():
                values = {"hash": key, "document": text, "kept_ms": now_ms}
                connection.execute(self._database.insert_new(decoder_contents).values(values))


def _wanted(kind: str, number: int) -> sa.Select[Any]:
    return sa.select(registered_schemas).where(
        (registered_schemas.c.kind == kind) & (registered_schemas.c.number == number)
    )
