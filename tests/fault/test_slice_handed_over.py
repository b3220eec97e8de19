"""A campaign in which a version can't finish its slice, and another version has to: no window is computed by both."""

from __future__ import annotations

import json
import threading

import pytest

from strandline.ledger.states import Desired
from strandline.processing.run.runner import Runner
from tests.fault.campaigns import CAMPAIGNS
from tests.support.audit_lab import AuditLab
from tests.support.chaos.dump import TABLES, query
from tests.support.chaos.states import missed, times_reached
from tests.support.waiting import wait_until

JOB, STREAM, ALIAS = "handed", "handed-readings", "handed-tens"
BASE_MS = 1_790_000_000_000
DEVICES, PER_S = 3, 10
_DOCUMENTS = f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
---
pipeline: {JOB}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 0s, max_ahead: null}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*)%s}}}}
    emit: [{{elasticsearch: {ALIAS}}}]
"""
TIMEOUT_S = 300.0


def readings(first: int, last: int) -> list[bytes]:
    return [
        json.dumps({"device": f"d{n % DEVICES}", "ts": BASE_MS + n * 1_000 // PER_S, "temp": n}).encode()
        for n in range(first, last)
    ]


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_a_slice_that_its_version_can_not_finish_is_done_by_another_one(audit_lab: AuditLab) -> None:
    """The index refuses writes until the slice is handed over, and before that none of its results was written."""
    lab, campaign = audit_lab, CAMPAIGNS["handed-over"]
    lab.apply(_DOCUMENTS % "")
    lab.send(STREAM, readings(0, 2_000))
    with lab.running(JOB, STREAM):
        pass
    lab.send(STREAM, readings(2_000, 4_000))
    for point in campaign.failpoints:
        lab.run_failed_at(JOB, point)
    planned = lab.ledger.last_slice(JOB)
    assert planned is not None and planned.version == 1
    assert lab.ledger.last_checkpoint(JOB).slice < planned.number, "version 1 has begun a slice and not finished it"  # type: ignore[union-attr]
    lab.apply(_DOCUMENTS % ", most: max(temp)")
    _block_writes(lab, True)
    freed = threading.Event()

    def free() -> None:
        wait_until(lambda: lab.ledger.events_of_kind(JOB, "slice_handed_on"), bool, "handed over: a slice", TIMEOUT_S)
        _block_writes(lab, False)
        freed.set()

    freeing = threading.Thread(target=free)
    freeing.start()
    lab.ledger.set_desired(JOB, Desired.DRAINED)
    assert Runner(lab.settings, JOB, lab.spark).run() == 0
    freeing.join()
    assert freed.is_set()
    documents = lab.documents(ALIAS).values()
    assert sum(one["n"] for one in documents) == 4_000
    assert {one["strandline"]["version"] for one in documents} == {1, 2}
    lab.require_clean(JOB)
    tables = {
        table: query(lab.settings.ledger_url, f"SELECT * FROM {table} WHERE job = '{JOB}' ORDER BY {column}")
        for table, column in TABLES.items()
    }
    assert missed(campaign.states, times_reached([tables], {})) == []


def _block_writes(lab: AuditLab, is_blocked: bool) -> None:
    answer = lab.index.put(f"/{ALIAS}*/_settings", json={"index.blocks.write": is_blocked})
    assert answer.status_code == 200, answer.text
