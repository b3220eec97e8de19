"""What becomes of a batch that is appended: it is accepted, or one of these errors says why not.

* LogUnavailable             unknown: all, some or none of the batch may be in the log
  - LogBusy                  nothing of it was sent: too much is under way
    - LogAway                nothing of it was sent: Kafka is known to be away
    - SpoolFull              nothing of it was sent or spooled: there is no room
* RecordTooLarge             the topic takes less than the gateway; all, some or none of the batch may be in the log
"""

from __future__ import annotations

from enum import Enum

from strandline.core.errors import LogUnavailable, RecordTooLarge

NOT_CONFIRMED = (LogUnavailable, RecordTooLarge)
"""For `except`: all of these errors. Trying again helps only after those that derive from LogUnavailable."""


class Accepted(Enum):
    """Where the records of an accepted batch are."""

    LOG = "log"
    """In the log, confirmed and read back."""
    SPOOL = "spool"
    """On this machine's disk, and on their way to the log."""


class LogBusy(LogUnavailable):
    """Too much is waiting for Kafka's confirmation; nothing of this batch was sent."""

    code = "log_busy"


class LogAway(LogBusy):
    """Kafka is known to be away; nothing of this batch was sent."""

    code = "log_away"


class SpoolFull(LogBusy):
    """The spool or its disk is full, or had no room for a batch of the stream that this one must not overtake; nothing of this
    batch was sent or spooled."""

    code = "spool_full"
