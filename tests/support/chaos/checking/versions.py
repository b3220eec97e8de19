"""Differences between the versions of a chaos job. The job's document and the checker use them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Version:
    """A version of the job. Each gives another `total` than all others; two that follow each other count other records, too, so
    that some windows have results by one of them only."""

    number: int
    """From 1, as the ledger counts them."""

    @property
    def load_below(self) -> int:
        """Records with a load of less are counted."""
        return 10 if self.number % 2 else 2

    @property
    def times(self) -> int:
        """Factor of each count before it is added to the total."""
        return self.number
