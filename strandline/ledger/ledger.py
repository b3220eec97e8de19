"""The ledger: what is registered, how the log was cut into slices, and how far each job has come. All SQL is here."""

from __future__ import annotations

from strandline.ledger.backfills import Backfills
from strandline.ledger.database import Database
from strandline.ledger.journal import Journal
from strandline.ledger.leases import Leases
from strandline.ledger.lives import Lives
from strandline.ledger.lookups.sources import LookupSources
from strandline.ledger.lookups.versions import Lookups
from strandline.ledger.notices import Notices
from strandline.ledger.progress import Progress
from strandline.ledger.registry import Registry
from strandline.ledger.replays import Replays
from strandline.ledger.schema import migrate
from strandline.ledger.schemas import Schemas
from strandline.ledger.tokens import Tokens


class Ledger(
    Registry, Leases, Progress, Backfills, Lives, Replays, Journal, Schemas, Lookups, LookupSources, Tokens, Notices
):
    """The ledger's database, SQLite or PostgreSQL. Synchronous; may be shared by the threads of one process.

    Every method may raise LedgerUnavailable: then it is unknown whether a write was done, and it may be repeated.
    """

    @classmethod
    def open(cls, url: str) -> Ledger:
        """Open the ledger at a SQLAlchemy URL, and bring its schema up to date first.

        Raises InvalidSettings for a URL that can't name a ledger, LedgerUnavailable when the database does not answer,
        Conflict when the schema is of a much newer release, or of none.
        """
        database = Database(url)
        try:
            migrate(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @staticmethod
    def migrate(url: str) -> None:
        """Bring the schema up to date; safe to call from many processes at once. Raises as `open` does."""
        Ledger.open(url).close()

    def close(self) -> None:
        """Give the connections back. The ledger can't be used afterwards."""
        self._database.close()
