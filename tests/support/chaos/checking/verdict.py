"""Findings in a dump."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

SHOWN_MAX = 5


@dataclass
class JobVerdict:
    """Findings. The lists contain violations, each as a message; the job passes if all are empty."""

    records: int = 0
    accepted: int = 0
    late: int = 0
    refused: int = 0
    """Dead letters for another reason than being late."""
    expected: int = 0
    """Results that have to be in the index."""
    unusable: int = 0
    """Number of them that the second stage can't use: each has a dead letter."""
    backfilled: int = 0
    """Results that have to be in the indices of backfills."""
    slices: int = 0
    idle: int = 0
    """Slices in which a partition was idle."""
    epochs: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    """How often each reason of a dead letter, and what else is special in records, occurred."""
    must_reach: tuple[str, ...] = ()
    """What has to occur in a run of this job."""
    lost: list[str] = field(default_factory=list)
    """A result, or a dead letter, that has to be there and is not."""
    repeated: list[str] = field(default_factory=list)
    """A result or dead letter that is there twice, or was written over."""
    wrong: list[str] = field(default_factory=list)
    """Another value, place, id or origin than the log and the ledger say."""
    foreign: list[str] = field(default_factory=list)
    """A result or dead letter that nothing in the log explains."""
    accounts: list[str] = field(default_factory=list)
    """Counts in the ledger that don't add up."""
    ledger: list[str] = field(default_factory=list)
    """Slices and checkpoints that can't be: gaps, cuts that go back, an old epoch after a new one."""
    watermark: list[str] = field(default_factory=list)
    """A rule, an event time, a silence, a watermark or a close that is not what the log leads to."""
    late_without_cause: list[str] = field(default_factory=list)
    """A record that the job calls late, and that the load sent in time."""
    divergence: list[str] = field(default_factory=list)
    """The job itself found another value in the index than it computed."""

    KINDS = (
        "lost",
        "repeated",
        "wrong",
        "foreign",
        "accounts",
        "ledger",
        "watermark",
        "late_without_cause",
        "divergence",
    )

    @property
    def missed(self) -> list[str]:
        """Members of `must_reach` that did not occur. This is no mistake of the job."""
        return [one for one in self.must_reach if not self.reached[one]]

    @property
    def violations(self) -> list[str]:
        return [sentence for kind in self.KINDS for sentence in getattr(self, kind)]

    def __str__(self) -> str:
        counts = (
            f"{self.records} records in {self.slices} slices ({self.idle} with an idle partition) by {self.epochs} runs. "
            f"{self.accepted} accepted, {self.late} late, "
            f"{self.refused} refused. {self.expected} results, {self.unusable} of them with no place in a later window; "
            f"{self.backfilled} of backfills"
        )
        lines = [
            f"{kind.replace('_', ' ')} {len(found)}: " + "; ".join(found[:SHOWN_MAX])
            for kind in self.KINDS
            if (found := getattr(self, kind))
        ]
        return "\n".join([counts, *lines])
