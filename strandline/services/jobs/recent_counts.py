"""Counts of a job that has had results: since its newest result, and in the last minutes. Pure.

A job that worked for a long time has sums in which a new problem doesn't show. So its causes are counted over a short period.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.core.record_headers import REASON_DUPLICATE
from strandline.core.times.durations import format_about
from strandline.ledger.progress import CountedCheckpoint
from strandline.ledger.states import NO_TOTALS, Offsets, Totals

RECENT_MS = 900_000
"""Period over which the causes of a job with results are counted."""
QUIET_MS_MIN = 120_000
"""Shortest time without a new record, or without a new result, that counts as a silence."""


@dataclass(frozen=True)
class Period:
    """Counts of a period."""

    counts: Totals
    words: str = ""
    """The period, for messages. Empty for all records of the job."""
    from_ms: int | None = None
    """Begin of the period. None for all records of the job."""


@dataclass(frozen=True)
class Recent:
    """Newest result of a job, and the counts after it."""

    result: CountedCheckpoint
    """Checkpoint of the newest slice with a result."""
    before: CountedCheckpoint | None
    """Newest checkpoint that is older than RECENT_MS. None if the job, or its reset, is younger."""
    totals: Totals
    now_ms: int
    reached_early: Offsets = field(default_factory=dict)
    """Stream -> partition -> time of an accepted event of an early slice after the newest result. Empty if there is none, or if
    the result is newer than QUIET_MS_MIN."""

    @property
    def age_ms(self) -> int:
        """Time since the newest result."""
        return self.now_ms - self.result.row.committed_ms

    @property
    def since_result(self) -> Period:
        """The slices after the newest result."""
        words = f"since the last result, {format_about(self.age_ms)} ago,"
        return Period(_difference(self.totals, self.result.totals), words, self.result.row.committed_ms)

    @property
    def last_minutes(self) -> Period:
        """The slices of the last RECENT_MS."""
        counts = self.totals if self.before is None else _difference(self.totals, self.before.totals)
        return Period(counts, f"in the last {format_about(RECENT_MS)}", self.now_ms - RECENT_MS)

    @property
    def period(self) -> Period:
        """The period of the causes: since the newest result, but at most RECENT_MS if these have records.

        While results appear, it is always RECENT_MS, because a few records decide nothing.
        """
        minutes = self.last_minutes
        if self.age_ms < QUIET_MS_MIN or (self.age_ms > RECENT_MS and minutes.counts.records):
            return minutes
        return self.since_result


def rejected_share(totals: Totals, earlier: Totals) -> float:
    """Return the share of records that were rejected after `earlier`, without duplicates. 0 if there were no records.

    If the job was reset in the meantime, `earlier` has the larger sums, and isn't subtracted.
    """
    if earlier.records > totals.records:
        earlier = NO_TOTALS
    records = totals.records - earlier.records
    return (_rejected(totals) - _rejected(earlier)) / records if records else 0.0


def _rejected(totals: Totals) -> int:
    return sum(count for reason, count in totals.rejected.items() if reason != REASON_DUPLICATE)


def risen(before: Offsets, after: Offsets) -> dict[str, dict[int, int]]:
    """Return the event times of the partitions that are later in `after`."""
    found = {
        stream: {one: at_ms for one, at_ms in partitions.items() if at_ms > before.get(stream, {}).get(one, -1)}
        for stream, partitions in after.items()
    }
    return {stream: partitions for stream, partitions in found.items() if partitions}


def _difference(later: Totals, earlier: Totals) -> Totals:
    """Return the counts after `earlier`. 0 instead of less, as after a reset between the two reads."""
    return Totals(
        max(0, later.records - earlier.records),
        max(0, later.accepted - earlier.accepted),
        _subtract(later.rejected, earlier.rejected),
        _subtract(later.results, earlier.results),
        _subtract(later.refused or {}, earlier.refused or {}),
    )


def _subtract(later: dict[str, int], earlier: dict[str, int]) -> dict[str, int]:
    return {key: left for key, count in later.items() if (left := count - earlier.get(key, 0)) > 0}
