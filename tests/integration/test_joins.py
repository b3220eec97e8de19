"""A job with a join: each joined row once, through a kill, an upgrade that changes the join, and a backfill. Real Kafka,
Elasticsearch, Spark and ledger. What must be there is worked out here, and by the audit."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from strandline.ledger.states import BackfillState
from strandline.results.document import format_timestamp
from tests.support.audit_lab import AuditLab

NAME = "joined"
STREAM = f"{NAME}-shop"
BASE_MS = 1_790_000_000_000 // 3_600_000 * 3_600_000
DOCUMENTS = f"""
stream: {STREAM}
partitions: 2
schema: {{kind: string, order: "string?", ts: {{type: timestamp, unit: ms}}, amount: "double?", carrier: "string?"}}
---
pipeline: {NAME}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 5s, max_ahead: null}}
steps:
  - where: kind = 'order'
    name: orders
  - where: kind = 'shipment'
    name: shipments
    from: {STREAM}
  - join: {{name: shipped, left: orders, right: shipments, on: [order], within: {{before: 1s, after: 10s}}, type: TYPE,
            add: {{amount: left.amount, ordered: left.ts, carrier: right.carrier, sent: right.ts}}}}
    emit: [{{elasticsearch: {NAME}-shipped}}, {{stream: {NAME}-shipped}}]
  - window: {{name: minutes, tumbling: 1m, by: [carrier], aggregate: {{n: count(*), amount: sum(amount)}}}}
    emit: [{{elasticsearch: {NAME}-minutes}}]
  - join: {{name: meetings, left: orders, right: shipments, on: [order], tumbling: 20s, type: full,
            add: {{carrier: right.carrier}}}}
    emit: [{{elasticsearch: {NAME}-meetings}}]
"""


def orders(first: int, last: int) -> list[dict[str, Any]]:
    """Return one order per second.

    Every third has no shipment, every third one after 5 s, every third one after 3 s and one that is too late. Some
    shipments have no order.
    """
    found = []
    for number in range(first, last):
        at_ms = BASE_MS + number * 1_000
        found.append({"kind": "order", "order": f"o{number}", "ts": at_ms, "amount": number * 0.1})
        for later_ms in ([], [5_000], [3_000, 11_000])[number % 3]:
            row = {"kind": "shipment", "order": f"o{number}", "ts": at_ms + later_ms, "carrier": f"c{number % 4}"}
            found.append(row)
        if number % 10 == 0:
            found.append({"kind": "shipment", "order": None, "ts": at_ms, "carrier": "lost"})
    return sorted(found, key=lambda row: row["ts"])


def lines_of(rows: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def expected(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """(order, ordered, carrier, sent, end) of a left join."""
    found: Counter[tuple[Any, ...]] = Counter()
    for order in (row for row in rows if row["kind"] == "order"):
        at_ms = order["ts"]
        sent = [
            row
            for row in rows
            if row["kind"] == "shipment" and row["order"] == order["order"] and -1_000 <= row["ts"] - at_ms <= 10_000
        ]
        for row in sent:
            found[order["order"], time(at_ms), row["carrier"], time(row["ts"]), time(max(row["ts"], at_ms) + 1)] += 1
        if not sent:
            found[order["order"], time(at_ms), None, None, time(at_ms + 10_001)] += 1
    return found


def time(at_ms: int) -> str:
    return format_timestamp(at_ms * 1000)


def stored(lab: AuditLab) -> Counter[tuple[Any, ...]]:
    return Counter(
        (one["order"], one["ordered"], one["carrier"], one["sent"], one["window"]["end"])
        for one in lab.documents(f"{NAME}-shipped").values()
    )


@pytest.mark.guarantee("G460")
@pytest.mark.guarantee("G464")
@pytest.mark.long
def test_joined_rows_are_there_once_through_a_kill_an_upgrade_and_a_backfill(audit_lab: AuditLab) -> None:
    lab = audit_lab
    lab.apply(DOCUMENTS.replace("TYPE", "inner"))
    rows = orders(0, 600)
    lines = lines_of(rows)
    lab.send(STREAM, lines[:700])
    lab.run_killed_at(NAME, "slice.written")
    lab.apply(DOCUMENTS.replace("TYPE", "left"))  # the version from before finishes its slice
    lab.send(STREAM, lines[700:])
    lab.drain(NAME)
    wanted, found = expected(rows), stored(lab)
    assert found <= wanted
    assert {one for one in wanted - found if one[3] is not None} == set(), (
        "each pair is there, whichever version emitted it"
    )
    assert any(one[3] is None for one in found), "the newer version emits orders without a shipment"
    counts = lab.require_clean(NAME)
    assert counts[f"{NAME}-shipped"] == {"same": found.total()}
    assert counts[f"{NAME}-meetings"]["same"] > 600

    done = lab.backfill(lab.request_backfill(NAME, BASE_MS))
    assert done.state is BackfillState.COMPLETE, done.message
    assert stored(lab) == wanted, "a backfill makes those that the older version left out"
    assert lab.require_clean(NAME)[f"{NAME}-shipped"] == {"same": wanted.total()}
