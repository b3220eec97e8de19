"""Why a batch was not taken into the log.

* LogUnavailable             unknown: all, some or none of the batch may be in the log
  - LogBusy                  nothing of it was sent: too much is under way
    - LogAway                nothing of it was sent: Kafka is known to be away
    - SpoolFull              nothing of it was sent or spooled: there is no room
"""

from __future__ import annotations

from strandline.core.errors import LogUnavailable


class LogBusy(LogUnavailable):
    """Too much is waiting for Kafka's confirmation; nothing of this batch was sent."""

    code = "log_busy"


class LogAway(LogBusy):
    """Kafka is known to be away; nothing of this batch was sent."""

    code = "log_away"


class SpoolFull(LogBusy):
    """The spool has no room, or its disk has none; nothing of this batch was sent or spooled."""

    code = "spool_full"
