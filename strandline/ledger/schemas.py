"""Schemas of the schema registry as it first gave them, so that every replay reads records as the first run did."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from strandline.ledger.database import Part
from strandline.ledger.models import registered_schemas
from strandline.ledger.states import RegisteredSchemaRow


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
