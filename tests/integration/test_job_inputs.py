"""A job reads two streams with different fields, formats of time and delays, unites them, and aggregates a single one.

It runs through a kill and a backfill. Real Kafka, Elasticsearch, Spark and ledger. The expected results are computed
here, and by the audit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from strandline.ledger.states import BackfillState
from tests.support.audit_lab import AuditLab
from tests.support.topic_reader import read_messages

NAME = "united"
TURBINES, INVERTERS = f"{NAME}-turbines", f"{NAME}-inverters"
BASE_MS = 1_790_000_000_000 // 3_600_000 * 3_600_000
DOCUMENTS = f"""
stream: {TURBINES}
partitions: 2
schema: {{turbine: string, site: string, ts: {{type: timestamp, unit: ms}}, power: double}}
key: turbine
---
stream: {INVERTERS}
partitions: 3
schema: {{inverter: string, site: string, at: timestamp, watts: long}}
key: inverter
---
pipeline: {NAME}
inputs:
  - {{stream: {TURBINES}, event_time: {{field: ts, delay: 0s, max_ahead: null}}}}
  - {{stream: {INVERTERS}, event_time: {{field: at, delay: 5s, max_ahead: null}}}}
steps:
  - {{from: {INVERTERS}, name: kilowatts, derive: {{power: watts / 1000}}}}
  - {{from: [{TURBINES}, kilowatts], name: both, where: power >= 0}}
  - emit: [{{elasticsearch: {NAME}-records}}]
    name: all_records
  - window: {{name: sites, tumbling: 10s, by: [site], aggregate: {{n: count(*), power: sum(power)}}}}
    emit: [{{elasticsearch: {NAME}-sites}}]
  - window: {{name: total, tumbling: 1m, aggregate: {{n: sum(n), power: sum(power)}}}}
    emit: [{{elasticsearch: {NAME}-total}}, {{stream: {NAME}-total}}]
  - window: {{name: inverters, tumbling: 30s, by: [inverter], aggregate: {{n: count(*), power: max(watts)}}}}
    from: {INVERTERS}
    emit: [{{elasticsearch: {NAME}-inverters}}]
"""
BROKEN = b'{"inverter": "i0", "site": "north", "at": "yesterday", "watts": 1}'


def turbines(first: int, last: int) -> list[dict[str, Any]]:
    return [
        {"turbine": f"t{n % 5}", "site": "north" if n % 2 else "south", "ts": BASE_MS + n * 250, "power": n % 40 + 0.1}
        for n in range(first, last)
    ]


def inverters(first: int, last: int) -> list[dict[str, Any]]:
    found = []
    for n in range(first, last):
        at = datetime.fromtimestamp((BASE_MS + n * 250 + 100) / 1000, UTC).isoformat()
        found.append({"inverter": f"i{n % 3}", "site": "north" if n % 3 else "west", "at": at, "watts": n % 90 * 100})
    return found


def lines_of(records: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(one).encode() for one in records]


def time_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def expected(size_s: int, rows: list[tuple[int, str | None, float]]) -> dict[tuple[Any, ...], tuple[int, float]]:
    """Return (window's start, key) -> (records, sum of their values).

    `rows`: (event time in ms, key, value).
    """
    found: dict[tuple[Any, ...], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for event_ms, key, value in rows:
        window = event_ms // (size_s * 1_000) * size_s * 1_000, key
        found[window] = found[window][0] + 1, found[window][1] + value
    return dict(found)


def stored(lab: AuditLab, stage: str, by: str | None = None) -> dict[tuple[Any, ...], tuple[int, float]]:
    return {
        (time_ms(one["window"]["start"]), one[by] if by else None): (one["n"], pytest.approx(one["power"]))
        for one in lab.documents(f"{NAME}-{stage}").values()
    }


@pytest.mark.guarantee("G450")
@pytest.mark.long
def test_a_job_over_two_streams_through_a_kill_is_audited_without_a_difference(audit_lab: AuditLab) -> None:
    lab = audit_lab
    lab.apply(DOCUMENTS)
    of_turbines, of_inverters = turbines(0, 1_200), inverters(0, 1_200)
    lab.send(TURBINES, lines_of(of_turbines[:700]))
    lab.send(INVERTERS, [*lines_of(of_inverters[:700]), BROKEN])
    lab.run_killed_at(NAME, "slice.written")
    lab.send(TURBINES, lines_of(of_turbines[700:]))
    lab.send(INVERTERS, lines_of(of_inverters[700:]))
    lab.drain(NAME)

    rows = [(one["ts"], one["site"], one["power"]) for one in of_turbines]
    rows += [(time_ms(one["at"]), one["site"], one["watts"] / 1000) for one in of_inverters]
    assert stored(lab, "sites", "site") == expected(10, rows)
    assert stored(lab, "total") == expected(60, [(at, None, value) for at, _, value in rows])
    of_each = expected(30, [(time_ms(one["at"]), one["inverter"], 0.0) for one in of_inverters])
    assert {window: n for window, (n, _) in stored(lab, "inverters", "inverter").items()} == {
        window: n for window, (n, _) in of_each.items()
    }
    records = lab.documents(f"{NAME}-records").values()
    places = {tuple(one["strandline"][name] for name in ("stream", "partition", "offset")) for one in records}
    assert len(places) == len(records) == 2_400 and {stream for stream, *_ in places} == {TURBINES, INVERTERS}
    (letter,) = read_messages(lab.settings.kafka_bootstrap, f"{NAME}.dead-letter", 1, isolation="read_committed")
    assert dict(letter.headers() or ())["stream"] == INVERTERS.encode() and letter.value() == BROKEN

    rules = {row.rule.by_stream for row in lab.ledger.slices(NAME, 1, 1_000)}
    assert [[(stream, rule.delay_ms) for stream, rule in one] for one in rules] == [[(TURBINES, 0), (INVERTERS, 5_000)]]
    assert lab.require_clean(NAME)[f"{NAME}-records"] == {"same": 2_400}

    done = lab.backfill(lab.request_backfill(NAME, BASE_MS))
    assert done.state is BackfillState.COMPLETE, done.message
    assert stored(lab, "sites", "site") == expected(10, rows)
    lab.require_clean(NAME)
