"""Base class of all repositories of the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from strandline.ledger.database import Database, now_ms
from strandline.ledger.schema import migrate


class Part:
    """Base class of the ledger's repositories: the database, and a clock in milliseconds since 1970 UTC."""

    def __init__(self, database: Database, clock_ms: Callable[[], int] = now_ms) -> None:
        self._database = database
        self._clock_ms = clock_ms

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the ledger at a SQLAlchemy URL, and bring its schema up to date first.

        Raises InvalidSettings for an invalid ledger URL, LedgerUnavailable if the database does not answer, and
        Conflict if the schema is of a much newer release, or of none.
        """
        database = Database(url)
        try:
            migrate(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        """Close the connections. Objects that share them can't be used afterwards."""
        self._database.close()
