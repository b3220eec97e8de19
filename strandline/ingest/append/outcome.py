"""What `append` answers when the records are safe. When they are not, it raises one of `errors`."""

from __future__ import annotations

from enum import Enum


class Accepted(Enum):
    """Where the records of a batch are."""

    LOG = "log"
    """In the log, confirmed and read back."""
    SPOOL = "spool"
    """On this machine's disk, and on their way to the log."""
