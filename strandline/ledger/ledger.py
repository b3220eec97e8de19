"""The whole ledger: registrations, the division of the log into slices, and the progress of each job.

All SQL is in this package.
"""

from __future__ import annotations

from strandline.ledger.roles import (
    ApplyLedger,
    BackfillLedger,
    CompactionLedger,
    FollowerLedger,
    GatewayLedger,
    JournalLedger,
    LifecycleLedger,
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
    LifecycleLedger,
    OrderLedger,
    JournalLedger,
    TokenLedger,
    GatewayLedger,
):
    """All repositories, for the control service. Other components use the classes of `roles.py`."""

    @staticmethod
    def migrate(url: str) -> None:
        """Bring the schema up to date. Many processes can call this at the same time. Raises the errors of `open`."""
        Ledger.open(url).close()
