"""Choice of the recorded messages that are sent now: the limit per minute, and one summary for the rest. Pure: no clock, no
I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.ledger.notices import AttemptRow, MessageRow

LIMIT_MS = 60_000
PAUSE_FIRST_MS = 1_000
PAUSE_MAX_MS = 300_000
GIVE_UP_MS = 3 * 86_400_000
"""Age at which a message is given up. Later attempts would report problems that are too old to act on."""


@dataclass(frozen=True)
class Sends:
    """Messages to send to one channel of a notice."""

    now: tuple[MessageRow, ...] = ()
    """Messages to send now."""
    merged: tuple[MessageRow, ...] = ()
    """Messages that one summary replaces. It is sent like any other message."""


def choose(pending: Sequence[MessageRow], attempts: Sequence[AttemptRow], limit: int, now_ms: int) -> Sends:
    """Return the messages to send to one channel now.

    An attempt counts from its start until a minute after its end, because the receiver can get the message at any time in
    between. So the receiver gets at most `limit` messages within a minute, even if a message is sent again after a kill. If
    more messages are due, one summary replaces those beyond the limit.
    Args: attempts: Attempts of the channel.
    """
    used = sum(one.ended_ms is None or one.ended_ms > now_ms - LIMIT_MS for one in attempts)
    running = {one.message for one in attempts if one.ended_ms is None}
    due = [row for row in pending if row.due_ms <= now_ms and row.number not in running]
    room = limit - used
    if room <= 0 or not due:
        return Sends()
    if len(due) <= room:
        return Sends(tuple(due))
    return Sends(tuple(due[: room - 1]), tuple(due[room - 1 :]))


def pause_ms(attempts: int) -> int:
    """Return the pause after this number of failed attempts. It doubles with each."""
    return min(PAUSE_MAX_MS, PAUSE_FIRST_MS << min(attempts - 1, 20))


def gives_up(message: MessageRow, now_ms: int) -> bool:
    """Return True if no other attempt follows."""
    return now_ms - message.made_ms > GIVE_UP_MS
