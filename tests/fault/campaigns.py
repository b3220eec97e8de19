"""Campaigns of the ladder: which faults each one does, and which states it must reach (`tests/support/chaos/states.py`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Campaign:
    """Kinds of faults, failpoints at which processes are killed afterwards, and states without which the campaign fails."""

    states: tuple[str, ...]
    only: tuple[str, ...] = ()
    """Empty: every kind."""
    failpoints: tuple[str, ...] = ()


_STORES = ("kafka-answers-empty", "kafka-holes", "kafka-unwritable", "ledger-restored", "index-restored")
CAMPAIGNS = {
    "stores": Campaign(
        states=("kafka-answers-empty", "kafka-holes", "kafka-unwritable", "ledger-behind", "index-behind"),
        only=_STORES,
    ),
    "takeovers": Campaign(
        states=("takeover-in-rewind", "backfill-under-kill", "version-takeover", "slice-by-two-runs"),
        only=("rewind-kill", "backfill", "upgrade", "stop-and-start", "runner-family", "python-worker"),
        failpoints=("backfill.chunk_written", "plan.recorded"),
    ),
    "births": Campaign(  # done by test_births_under_kills.py
        states=("birth-replayed", "takeover-in-rewind", "slice-by-two-runs"),
        only=("runner-python",),
        failpoints=("rewind.planned", "rewind.replayed", "slice.written", "commit.before_checkpoint"),
    ),
    "handed-over": Campaign(  # done by test_slice_handed_over.py
        states=("slice-handed-over", "version-takeover", "slice-by-two-runs"),
        only=("upgrade",),
        failpoints=("emit.before_write",),
    ),
    "all": Campaign(
        states=(
            "kafka-answers-empty",
            "kafka-holes",
            "kafka-unwritable",
            "ledger-behind",
            "index-behind",
            "takeover-in-rewind",
            "backfill-under-kill",
            "version-takeover",
            "slice-by-two-runs",
        ),
        failpoints=("backfill.chunk_written", "plan.recorded"),
    ),
}
PROMISED = {
    "kafka answers empty": "kafka-answers-empty",
    "kafka holes": "kafka-holes",
    "kafka unwritable": "kafka-unwritable",
    "ledger restored": "ledger-behind",
    "index restored": "index-behind",
}
"""Kind of fault -> the state that each such fault must reach, in any campaign and without one."""
