"""Counts of slices in their checkpoints. A replay compares its own counts with them before it emits anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core.errors import ReplayMismatch
from strandline.core.record_headers import REASON_DUPLICATE, REASON_LATE, REASONS_OF_STEPS
from strandline.ledger.states import StreamVersions
from strandline.processing.source.slice_rows import SourceFacts

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader


@dataclass(frozen=True)
class RecordedCounts:
    """Numbers of read and rejected records of committed slices, as recorded at their commit. Pickled by Spark."""

    job: str
    slice_first: int
    slice_last: int
    records: int
    rejected: Mapping[str, int]
    """Reason -> records. Only reasons whose count must be equal now. Duplicates are left out, because the records before the
    first slice are not known."""
    has_expression: bool
    """True if `rejected` includes records that a step rejected: an expression without a value, or no row of a lookup."""

    def require_same(self, facts: SourceFacts) -> None:
        """Raise ReplayMismatch unless `facts` counts as many records, and as many rejected ones for each reason. `facts`: of all
        records of the slices, when they are read again."""
        found = [("records", self.records, facts.records)]
        for reason in sorted(self.rejected.keys() | facts.rejected.keys()):
            then, now = self.rejected.get(reason, 0), facts.rejected.get(reason, 0)
            # Only a version with windows has late records, so another version can have none.
            is_of_version = reason in REASONS_OF_STEPS or (reason == REASON_LATE and not (then and now))
            if not is_of_version or self.has_expression:
                found.append((f"records rejected as {reason}", then, now))
        differences = [f"{then:,} {what} then, {now:,} now" for what, then, now in found if then != now]
        if differences:
            raise ReplayMismatch(
                f"slices {self.slice_first} to {self.slice_last} of job {self.job} have changed since their commit: "
                f"{'; '.join(differences)}. Nothing that depends on them was emitted. Records were deleted from the topic, or "
                "the topic or its stream's document was changed. Restore the former state and start the job again, or submit "
                "the pipeline under another name."
            )


def recorded_counts(
    ledger: LedgerReader,
    job: str,
    slices: range,
    versions: Collection[int],
    version: int,
    streams: StreamVersions,
) -> RecordedCounts:
    """Return the records of these committed slices, and the rejected ones by reason, that `version` of the job must count again.

    Most reasons for a rejection depend only on the slice and its recorded version of the stream's document. Two reasons depend on
    the version of the job and on field types: an expression without a value, and a missing row of a lookup. They are included
    only if `version` committed all slices, with these stream versions. `versions`: the versions that committed the slices.
    `streams`: stream versions of the reader. Raises LedgerUnavailable.
    """
    first, last = slices[0], slices[-1]
    before, after = ledger.totals(job, first - 1), ledger.totals(job, last)
    has_same_types = all(row.stream_versions == streams for row in ledger.slices(job, first, last))
    is_same = set(versions) == {version} and has_same_types
    rejected = {
        reason: count - before.rejected.get(reason, 0)
        for reason, count in after.rejected.items()
        if reason != REASON_DUPLICATE and (is_same or reason not in REASONS_OF_STEPS)
    }
    return RecordedCounts(job, first, last, after.records - before.records, rejected, is_same)
