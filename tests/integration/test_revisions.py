"""Results that late records revise, through a kill between emission and checkpoint, a backfill and an upgrade: real Kafka,
Elasticsearch, Spark and ledger. A plain loop says what must be there, and the audit agrees."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime
from typing import Any

import pytest

from tests.support.audit_lab import AuditLab

NAME = "meters"
STREAM = f"{NAME}-readings"
BASE_MS = 1_790_000_000_000 // 60_000 * 60_000
DOCUMENTS = f"""
stream: {STREAM}
partitions: 2
schema: {{meter: string, ts: {{type: timestamp, unit: ms}}, kwh: long}}
key: meter
---
pipeline: {NAME}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 1s, watermark: newest, idle_timeout: null, max_ahead: null}}
late: {{revise: 10m}}
steps:
  - window: {{name: minutes, sliding: {{size: 2m, every: 1m}}, by: [meter], aggregate: {{n: count(*), kwh: sum(kwh)}}}}
    emit: [{{elasticsearch: {NAME}-minutes}}]
checkpoint: {{records: 400}}
"""
Window = tuple[int, str]
"""End and meter."""


def readings(first: int, count: int) -> list[dict[str, Any]]:
    """One a second; of some pairs, so in both partitions, each is five minutes late, and of some half an hour."""
    back_s = {4: 300, 5: 300, 8: 1_800, 9: 1_800}
    return [
        {
            "meter": f"m{number % 3}",
            "ts": BASE_MS + (number - (back_s.get(number % 20, 0) if number >= 1_000 else 0)) * 1_000,
            "kwh": number,
        }
        for number in range(first, first + count)
    ]


def encoded(records: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(one).encode() for one in records]


def wanted(lab: AuditLab, records: list[dict[str, Any]], revised_after_ms: int) -> tuple[dict[Window, Any], int]:
    """Return (n, kwh, revision) of each window, and the number of records that are left out.

    Computed by a loop over the log, which compares each record with the watermark of its slice.

    `revised_after_ms`: windows that end until then take no late record of the second version's slices.
    """
    found: defaultdict[Window, list[int]] = defaultdict(lambda: [0, 0, 0])
    left_out = 0
    rows = lab.slices(NAME)
    for number, one in enumerate(records):
        partition, offset = number % 2, number // 2
        row = next(row for row in rows if row.offsets[STREAM].get(partition, 0) > offset)
        mark_ms = row.watermark_ms or 0
        limit_ms = max(mark_ms - 600_000, revised_after_ms if row.version > 1 else 0)
        if one["ts"] < limit_ms:
            left_out += 1
            continue
        for start_ms in (one["ts"] // 60_000 * 60_000 - 60_000, one["ts"] // 60_000 * 60_000):
            values = found[start_ms + 120_000, one["meter"]]
            values[0] += 1
            values[1] += one["kwh"]
            values[2] += one["ts"] < mark_ms
    return {window: tuple(values) for window, values in found.items()}, left_out


def closed(lab: AuditLab, records: list[dict[str, Any]]) -> tuple[dict[Window, Any], int, int]:
    """Return for the first version:

    `wanted` for the closed windows, the end of the last one, and the number left out.
    """
    checkpoint = lab.ledger.last_checkpoint(NAME)
    assert checkpoint is not None and checkpoint.closes_ms is not None
    expected, left_out = wanted(lab, records, 0)
    emitted = {window: values for window, values in expected.items() if window[0] <= checkpoint.closes_ms}
    return emitted, checkpoint.closes_ms, left_out


def held(lab: AuditLab) -> dict[Window, Any]:
    found = {}
    for one in lab.documents(f"{NAME}-minutes").values():
        minute = one["@timestamp"]
        window = (_ms(minute), one["meter"])
        assert window not in found, "one document a window"
        found[window] = (one["n"], one["kwh"], one["revision"])
    return found


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.guarantee("G586")
@pytest.mark.guarantee("G587")
@pytest.mark.guarantee("G588")
@pytest.mark.guarantee("G589")
@pytest.mark.long
def test_late_records_revise_results_once_through_a_kill_a_backfill_and_an_upgrade(audit_lab: AuditLab) -> None:
    lab, records = audit_lab, readings(0, 2_000)
    lab.apply(DOCUMENTS)
    lab.send(STREAM, encoded(records[:1_000]))
    with lab.running(NAME, STREAM):
        pass
    # Few, or none: a slice that ends between what was sent to the two partitions makes the rest of it late.
    emitted, _, _ = closed(lab, records[:1_000])
    assert held(lab) == emitted
    lab.send(STREAM, encoded(records[1_000:]))
    lab.run_killed_at(NAME, "commit.before_checkpoint")
    interrupted = held(lab)
    assert any(interrupted[window][2] > emitted[window][2] for window in emitted), (
        "killed when results were revised, before this is recorded"
    )
    with lab.running(NAME, STREAM):
        pass
    emitted, closes_ms, left_out = closed(lab, records)
    assert held(lab) == emitted
    assert lab.ledger.totals(NAME).rejected == {"late": left_out} and left_out > 50
    counts = lab.require_clean(NAME)
    assert counts[f"{NAME}-minutes"].keys() == {"same"}

    row = lab.request_backfill(NAME, 0)
    assert row.windows["minutes"].up_to_ms <= closes_ms - 600_000, "what may still be revised is the job's"
    before = held(lab)
    assert lab.backfill(row).state.value == "complete"
    assert held(lab) == before
    lab.require_clean(NAME)

    more = readings(2_000, 200)
    lab.apply(DOCUMENTS.replace("n: count(*)", "n: count(*), peak: max(kwh)"))
    lab.send(STREAM, encoded(more))
    lab.drain(NAME)
    expected, left_out = wanted(lab, records + more, closes_ms)
    assert held(lab) == expected
    assert lab.ledger.totals(NAME).rejected == {"late": left_out}
    lab.require_clean(NAME)
