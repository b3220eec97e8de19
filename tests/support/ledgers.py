"""Rows for tests of the ledger."""

from __future__ import annotations

from typing import Any

from strandline.ledger.states import CheckpointRow, SliceKind, SliceRow, SliceStatus


def a_slice(number: int, epoch: int = 1, job: str = "power", **changed: Any) -> SliceRow:
    """Slice `number` of a stream with two partitions: ten records in one, twenty in the other."""
    values: dict[str, Any] = {
        "job": job,
        "number": number,
        "epoch": epoch,
        "version": 1,
        "offsets_first": {"turbines": {0: 10 * (number - 1), 1: 20 * (number - 1)}},
        "offsets": {"turbines": {0: 10 * number, 1: 20 * number}},
        "cut_time_ms": 1_000 * number,
        "watermark_ms": 900 * number,
        "closes_ms": None,
        "tick_ms": None,
        "kind": SliceKind.LIVE,
        "status": SliceStatus.PLANNED,
        "planned_ms": 1_000 * number,
    }
    return SliceRow(**values | changed)


def a_checkpoint(number: int, epoch: int = 1, job: str = "power", **changed: Any) -> CheckpointRow:
    """The checkpoint of `a_slice(number)`: 30 records, of which one was late and one broken."""
    values: dict[str, Any] = {
        "job": job,
        "slice": number,
        "epoch": epoch,
        "version": 1,
        "emitted": {"per_minute": 60_000 * number},
        "latest_event_ms": 1_000 * number,
        "latest_log_ms": 1_100 * number,
        "records": 30,
        "accepted": 28,
        "rejected": {"late": 1, "decode": 1},
        "results": {"per_minute": 5},
        "dead_letter_offsets": {0: 2 * number},
        "committed_ms": 1_200 * number,
        "result_offsets": {"turbine-minute": {0: 7 * number, 1: 3 * number}},
    }
    return CheckpointRow(**values | changed)
