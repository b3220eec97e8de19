"""The whole ledger: what is registered, how the log was cut into slices, and how far each job has come. All SQL is here."""

from __future__ import annotations

from strandline.ledger.roles import (
    ApplyLedger,
    BackfillLedger,
    CompactionLedger,
    FollowerLedger,
    GatewayLedger,
    JournalLedger,
    LivesLedger,
    NoticeLedger,
    OrderLedger,
    ReplayLedger,
    RunLedger,
    SupervisionLedger,
    TaskLedger,
    TokenLedger,
)


class Ledger(
    ApplyLedger,
    RunLedger,
    TaskLedger,
    BackfillLedger,
    ReplayLedger,
    SupervisionLedger,
    CompactionLedger,
    FollowerLedger,
    NoticeLedger,
    LivesLedger,
    OrderLedger,
    JournalLedger,
    TokenLedger,
    GatewayLedger,
):
    """All repositories, for the control service. Others name what they use (`roles.py`)."""

    @staticmethod
    def migrate(url: str) -> None:
        """Bring the schema up to date; safe to call from many processes at once. Raises as `open` does."""
        Ledger.open(url).close()
