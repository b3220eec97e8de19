"""Records that come again, through kills between emission and checkpoint, and in a backfill: real Kafka, Elasticsearch, Spark and
ledger. A plain loop says what must be there, and the audit agrees, also on how many there are."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from strandline.ledger.states import BackfillState
from tests.support.audit_lab import AuditLab

NAME = "metering"
STREAM = f"{NAME}-readings"
HOUR_MS = 3_600_000
BASE_MS = 1_790_000_000_000 // HOUR_MS * HOUR_MS
WITHIN_MS = 300_000
DOCUMENTS = f"""
stream: {STREAM}
partitions: 2
schema: {{meter: string, id: string, site: string, ts: {{type: timestamp, unit: ms}}, kwh: double}}
key: meter
---
pipeline: {NAME}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 2m, max_ahead: null}}
steps:
  - dedupe: {{by: [meter, id], within: 5m}}
  - emit: [{{elasticsearch: {NAME}-records}}]
    name: readings
  - window: {{name: minutes, tumbling: 1m, by: [meter], aggregate: {{n: count(*), kwh: sum(kwh)}}}}
    emit: [{{elasticsearch: {NAME}-minutes}}]
  - window: {{name: sites, tumbling: 5m, by: [site], aggregate: {{n: count(*)}}}}
    from: readings
    emit: [{{elasticsearch: {NAME}-sites}}]
"""


def readings(random: Random) -> list[dict[str, Any]]:
    """Two hours of some meters, out of order by less than the delay. Each third one comes again in its partition, that of
    every second line: soon, or much later, with its time or another one."""
    found: list[dict[str, Any]] = []
    for number in range(6_000):
        at_ms = BASE_MS + number * 1_200 + random.randrange(60_000)
        one = {"meter": f"m{random.randrange(6)}", "id": f"i{number}", "site": f"s{random.randrange(3)}", "ts": at_ms}
        if number > 40 and random.random() < 0.33:
            before = found[number - 2 * random.choice([1, 2, 10, 20])]
            one = {**before, "ts": before["ts"] + random.choice([0, 0, 0, 40, -40])}
        elif number > 2_000 and random.random() < 0.1:
            one["id"] = found[number - 2 * random.choice([100, 120, 130, 300])]["id"]
        found.append({**one, "kwh": number % 97 / 7})
    return found


def first_ones(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = []
    seen: dict[tuple[Any, ...], list[int]] = {}
    for number, one in enumerate(records):
        times = seen.setdefault((number % 2, one["meter"], one["id"]), [])
        if all(abs(one["ts"] - at_ms) >= WITHIN_MS for at_ms in times):
            kept.append(one)
        times.append(one["ts"])
    return kept


@pytest.mark.long
def test_each_record_counts_once_through_kills_and_in_a_backfill(audit_lab: AuditLab) -> None:
    lab = audit_lab
    records = readings(Random(11))
    lines = [json.dumps(one).encode() for one in records]
    kept = first_ones(records)
    assert 1_500 < len(records) - len(kept) < 2_600
    lab.apply(DOCUMENTS)
    lab.send(STREAM, lines[:2_000])
    lab.run_killed_at(NAME, "slice.written")
    lab.send(STREAM, lines[2_000:4_000])
    lab.run_killed_at(NAME, "commit.before_checkpoint")
    lab.send(STREAM, lines[4_000:])
    lab.drain(NAME)

    totals = lab.ledger.totals(NAME, lab.slices(NAME)[-1].number)
    assert totals.rejected == {"duplicate": len(records) - len(kept)}, "none is late, and each repeat is counted once"
    emitted = lab.documents(f"{NAME}-records").values()
    assert len(emitted) == len(kept)
    assert Counter((one["meter"], one["id"], one["kwh"]) for one in emitted) == Counter(
        (one["meter"], one["id"], one["kwh"]) for one in kept
    )
    minutes = lab.documents(f"{NAME}-minutes")
    assert Counter({(one["meter"], one["window"]["start"][:16]): one["n"] for one in minutes.values()}) == Counter(
        (one["meter"], stamp(one["ts"])) for one in kept
    )
    assert sum(one["n"] for one in lab.documents(f"{NAME}-sites").values()) == len(kept)
    report = lab.audit(NAME)
    assert report["outcome"] == "clean", report

    done = lab.backfill(lab.request_backfill(NAME, BASE_MS + HOUR_MS))
    assert done.state is BackfillState.COMPLETE, done.message
    again = lab.documents(f"{NAME}-minutes")
    assert again.keys() == minutes.keys()
    assert all(again[key]["kwh"] == minutes[key]["kwh"] for key in minutes), "to the last bit"
    report = lab.audit(NAME)
    assert report["outcome"] == "clean", report


def stamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()[:16]


SNAPSHOT_JOB = "billing"
SNAPSHOT_DOCUMENTS = f"""
stream: {SNAPSHOT_JOB}-readings
partitions: 2
schema: {{meter: string, id: string, ts: {{type: timestamp, unit: ms}}}}
key: meter
---
pipeline: {SNAPSHOT_JOB}
input: {{stream: {SNAPSHOT_JOB}-readings}}
event_time: {{field: ts, delay: 2m, max_ahead: null}}
recovery: snapshot
steps:
  - dedupe: {{by: [meter, id], within: 12h}}
  - window: {{name: hours, tumbling: 1h, by: [meter], aggregate: {{n: count(*)}}}}
    emit: [{{elasticsearch: {SNAPSHOT_JOB}-hours}}]
"""


@pytest.mark.guarantee("G603")
@pytest.mark.long
def test_a_run_goes_on_from_a_snapshot_with_all_that_is_remembered(audit_lab: AuditLab) -> None:
    """Every second record comes again thousands of records and several runs later. What is remembered lies in files of the
    snapshot, which a run takes over; where one of them is damaged, the job rewinds, and counts the same."""
    lab = audit_lab
    lab.settings = lab.settings.model_copy(update={"slice_rows_max": 2_000})
    stream, pieces, count = f"{SNAPSHOT_JOB}-readings", 4, 16_000
    ids = [number if number % 2 or number < count // 2 else number - count // 2 for number in range(count)]
    lines = [
        json.dumps({"meter": f"m{one % 8}", "id": f"i{one}", "ts": BASE_MS + number * 1_000}).encode()
        for number, one in enumerate(ids)
    ]
    lab.apply(SNAPSHOT_DOCUMENTS)

    def send(piece: int) -> None:
        lab.send(stream, lines[piece * count // pieces : (piece + 1) * count // pieces])

    def segments() -> list[Path]:
        snapshots = (lab.settings.data_dir / "snapshots" / SNAPSHOT_JOB).iterdir()
        newest = max(snapshots, key=lambda one: int(one.name))
        return [one for one in newest.glob("checkpoint/segments/*/*/*") if one.suffix != ".tmp"]

    def way() -> str:
        event = lab.ledger.last_event(SNAPSHOT_JOB, "run_begins")
        assert event is not None
        return str(event.facts["way"])

    for piece in range(3):
        send(piece)
        with lab.running(SNAPSHOT_JOB, stream):
            pass
        assert way() == ("snapshot" if piece else "rewind")
    assert segments()
    for file in segments():
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.unlink()
        file.write_bytes(content)
    send(3)
    lab.drain(SNAPSHOT_JOB)
    assert way() == "rewind"
    totals = lab.ledger.totals(SNAPSHOT_JOB, lab.slices(SNAPSHOT_JOB)[-1].number)
    assert totals.rejected == {"duplicate": count - len(set(ids))}
    assert sum(one["n"] for one in lab.documents(f"{SNAPSHOT_JOB}-hours").values()) == len(set(ids))
