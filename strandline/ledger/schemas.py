"""What reading records takes beside them, so that every replay reads them as the first run did: schemas of the schema registry as
it first gave them, and what records have declared for those after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from strandline.ledger.database import Part
from strandline.ledger.models import decoder_contents, registered_schemas
from strandline.ledger.states import RegisteredSchemaRow

_HASHES_AT_ONCE = 500


class Schemas(Part):
    """Each number has one schema of its kind for ever. A null document: the registry had none."""

    def keep_schema(self, kind: str, number: int, document: str | None) -> RegisteredSchemaRow:
        """Keep what the registry gave for a number; return what is kept. Only the first call for a number keeps something."""
        with self._database.writing(f"keep {kind} schema {number}") as connection:
            row = RegisteredSchemaRow(kind, number, document, self._clock_ms())
            connection.execute(self._database.insert_new(registered_schemas).values(vars(row)))
            return RegisteredSchemaRow(*connection.execute(_wanted(kind, number)).one())

    def kept_schema(self, kind: str, number: int) -> RegisteredSchemaRow | None:
        """What is kept of a number; None if it was never asked for."""
        with self._database.reading(f"read {kind} schema {number}") as connection:
            row = connection.execute(_wanted(kind, number)).first()
            return None if row is None else RegisteredSchemaRow(*row)

    def keep_contents(self, contents: Mapping[str, str]) -> None:
        """Keep texts by their hashes. A hash that is there keeps its text."""
        now_ms = self._clock_ms()
        with self._database.writing("keep what records declare") as connection:
            for key, text in contents.items():
                values = {"hash": key, "document": text, "kept_ms": now_ms}
                connection.execute(self._database.insert_new(decoder_contents).values(values))

    def contents(self, hashes: Iterable[str]) -> dict[str, str]:
        """Those of the texts that are kept, by their hashes."""
        wanted, found = list(hashes), dict[str, str]()
        with self._database.reading("read what records declare") as connection:
            for first in range(0, len(wanted), _HASHES_AT_ONCE):
                some = decoder_contents.c.hash.in_(wanted[first : first + _HASHES_AT_ONCE])
                rows = connection.execute(sa.select(decoder_contents.c.hash, decoder_contents.c.document).where(some))
                found.update((row.hash, row.document) for row in rows)
        return found

    def count_unknown_schemas(self, kind: str) -> int:
        """How many numbers the registry had no schema for."""
        unknown = (registered_schemas.c.kind == kind) & registered_schemas.c.document.is_(None)
        with self._database.reading("count the schemas that the registry did not know") as connection:
            return int(
                connection.execute(
                    sa.select(sa.func.count()).select_from(registered_schemas).where(unknown)
                ).scalar_one()
            )


def _wanted(kind: str, number: int) -> sa.Select[Any]:
    return sa.select(registered_schemas).where(
        (registered_schemas.c.kind == kind) & (registered_schemas.c.number == number)
    )
