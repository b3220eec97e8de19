"""A job that joins two streams, each with partitions, fields, a form of time and a delay of its own: each joined row once,
through a kill and a backfill. Real Kafka, Elasticsearch, Spark and ledger. What must be there is worked out here, and by the
audit."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from strandline.ledger.states import BackfillState
from strandline.results.document import format_timestamp
from tests.support.audit_lab import AuditLab

NAME = "met"
ORDERS, PARCELS = f"{NAME}-orders", f"{NAME}-parcels"
BASE_MS = 1_790_000_000_000 // 3_600_000 * 3_600_000
DOCUMENTS = f"""
stream: {ORDERS}
partitions: 2
schema: {{order: string, shop: string, placed: {{type: timestamp, unit: ms}}, amount: double}}
key: shop
---
stream: {PARCELS}
partitions: 3
schema: {{parcel: long, order_id: "string?", sent: timestamp, carrier: string}}
key: parcel
---
pipeline: {NAME}
inputs:
  - {{stream: {ORDERS}, event_time: {{field: placed, delay: 2s, max_ahead: null}}}}
  - {{stream: {PARCELS}, event_time: {{field: sent, delay: 5s, max_ahead: null}}}}
steps:
  - {{from: {PARCELS}, derive: {{order: order_id}}, name: parcels}}
  - join: {{name: shipped, left: {ORDERS}, right: parcels, on: [order], within: {{before: 1s, after: 10s}}, type: full,
            add: {{amount: left.amount, placed: left.placed, carrier: right.carrier, sent: right.sent}}}}
    emit: [{{elasticsearch: {NAME}-shipped}}, {{stream: {NAME}-shipped}}]
  - window: {{name: minutes, tumbling: 1m, by: [carrier], aggregate: {{n: count(*), amount: sum(amount)}}}}
    emit: [{{elasticsearch: {NAME}-minutes}}]
  - {{from: {ORDERS}, derive: {{carrier: shop, sent: placed}}, name: fetched}}
  - {{from: [parcels, fetched], where: carrier is not null, name: handed_over}}
  - join: {{name: meetings, left: {ORDERS}, right: handed_over, on: [order], tumbling: 20s, type: inner,
            add: {{carrier: right.carrier}}}}
    emit: [{{elasticsearch: {NAME}-meetings}}]
"""


def orders(first: int, last: int) -> list[dict[str, Any]]:
    """One a second."""
    return [
        {"order": f"o{n}", "shop": f"s{n % 3}", "placed": BASE_MS + n * 1_000, "amount": n * 0.1}
        for n in range(first, last)
    ]


def parcels(first: int, last: int) -> list[dict[str, Any]]:
    """Return the parcels of the orders.

    Every third order has none, every third one has one after 5 s, every third one has one after 3 s and one that is too
    late. Some parcels have no order.
    """
    found: list[dict[str, Any]] = []
    for n in range(first, last):
        times_ms = [BASE_MS + n * 1_000 + later_ms for later_ms in ([], [5_000], [3_000, 11_000])[n % 3]]
        found += [{"order_id": f"o{n}", "sent_ms": at_ms, "carrier": f"c{n % 4}"} for at_ms in times_ms]
        if n % 10 == 0:
            found.append({"order_id": None, "sent_ms": BASE_MS + n * 1_000, "carrier": "lost"})
    return sorted(({"parcel": n, **one} for n, one in enumerate(found)), key=lambda one: one["sent_ms"])


def lines_of(rows: list[dict[str, Any]]) -> list[bytes]:
    """Return the rows as they are sent: the time of a parcel as text."""
    sent = []
    for one in rows:
        row = dict(one)
        if (sent_ms := row.pop("sent_ms", None)) is not None:
            row["sent"] = datetime.fromtimestamp(sent_ms / 1000, UTC).isoformat()
        sent.append(json.dumps(row).encode())
    return sent


def expected(of_orders: list[dict[str, Any]], of_parcels: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """(order, placed, carrier, sent, end) of a full join."""
    found: Counter[tuple[Any, ...]] = Counter()
    met = set[int]()
    for order in of_orders:
        at_ms = order["placed"]
        own = [
            one
            for one in of_parcels
            if one["order_id"] == order["order"] and -1_000 <= one["sent_ms"] - at_ms <= 10_000
        ]
        for one in own:
            met.add(one["parcel"])
            found[
                order["order"], time(at_ms), one["carrier"], time(one["sent_ms"]), time(max(one["sent_ms"], at_ms) + 1)
            ] += 1
        if not own:
            found[order["order"], time(at_ms), None, None, time(at_ms + 10_001)] += 1
    for one in of_parcels:
        if one["parcel"] not in met:
            found[one["order_id"], None, one["carrier"], time(one["sent_ms"]), time(one["sent_ms"] + 1_001)] += 1
    return found


def time(at_ms: int) -> str:
    return format_timestamp(at_ms * 1000)


def stored(lab: AuditLab) -> Counter[tuple[Any, ...]]:
    return Counter(
        (one["order"], one["placed"], one["carrier"], one["sent"], one["window"]["end"])
        for one in lab.documents(f"{NAME}-shipped").values()
    )


@pytest.mark.guarantee("G510")
@pytest.mark.long
def test_joined_rows_of_two_streams_are_there_once_through_a_kill_and_a_backfill(audit_lab: AuditLab) -> None:
    lab = audit_lab
    lab.apply(DOCUMENTS)
    of_orders, of_parcels = orders(0, 500), parcels(0, 500)
    lab.send(ORDERS, lines_of(of_orders[:300]))
    lab.send(PARCELS, lines_of(of_parcels[:280]))
    lab.run_killed_at(NAME, "slice.written")
    lab.send(ORDERS, lines_of(of_orders[300:]))
    lab.send(PARCELS, lines_of(of_parcels[280:]))
    lab.drain(NAME)
    wanted = expected(of_orders, of_parcels)
    assert stored(lab) == wanted
    counts = lab.require_clean(NAME)
    assert counts[f"{NAME}-shipped"] == {"same": wanted.total()}
    assert counts[f"{NAME}-meetings"]["same"] > 500, "each order meets itself, and some a parcel"

    done = lab.backfill(lab.request_backfill(NAME, BASE_MS))
    assert done.state is BackfillState.COMPLETE, done.message
    assert stored(lab) == wanted
    assert lab.require_clean(NAME)[f"{NAME}-shipped"] == {"same": wanted.total()}
