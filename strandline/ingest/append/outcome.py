"""Outcome of a batch that is appended: it is accepted, or one of these errors is raised.

* LogUnavailable             unknown: all, some, or none of the batch may be in the log
  - LogBusy                  nothing was sent: too many bytes are in flight
    - LogAway                nothing was sent: Kafka is known to be unavailable
    - SpoolFull              nothing was sent or spooled: the spool is full
* RecordTooLarge             the topic accepts smaller records than the gateway; all, some, or none may be in the log
"""

from __future__ import annotations

from enum import Enum

from strandline.core.errors import LogUnavailable, RecordTooLarge

NOT_CONFIRMED = (LogUnavailable, RecordTooLarge)
"""All errors of an append, for `except`. Only a LogUnavailable can succeed when it is tried again."""


class Accepted(Enum):
    """Storage of the records of an accepted batch."""

    LOG = "log"
    """In the log, confirmed and read back."""
    SPOOL = "spool"
    """On this machine's disk, and on the way to the log."""


class LogBusy(LogUnavailable):
    """Too many bytes wait for Kafka's confirmation. Nothing of this batch was sent."""

    code = "log_busy"


class LogAway(LogBusy):
    """Kafka is known to be unavailable. Nothing of this batch was sent."""

    code = "log_away"


class SpoolFull(LogBusy):
    """The spool or its disk is full, or a batch of the same stream was refused that this batch must not overtake.

    Nothing of this batch was sent or spooled.
    """

    code = "spool_full"
