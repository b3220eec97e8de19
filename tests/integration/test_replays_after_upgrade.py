"""An upgrade corrects an expression, then the dead letters are replayed: each record counts once."""

from __future__ import annotations

import json

import pytest

from strandline.core.errors import Conflict
from strandline.log.kafka_status import KafkaStatus
from strandline.services.jobs.dead_letters import DeadLetterFilter, DeadLetters, ReplayReport
from tests.support.audit_lab import AuditLab

pytestmark = pytest.mark.timeout(600)
NAME, STREAM = "mends", "mends-in"
BASE_MS = 1_793_491_200_000
DOCUMENTS = """
stream: mends-in
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, power: double, rated: double}}
---
pipeline: mends
input: {{stream: mends-in}}
event_time: {{field: ts, delay: 2m, max_ahead: null, idle_timeout: null}}
steps:
  - derive: {{load: {load}}}
  - window: {{name: minute, tumbling: 1m, by: [device], aggregate: {{n: count(*)}}}}
    emit: [{{elasticsearch: mends-minute}}]
"""
DIVIDED, ADDED = "power / rated", "power / (power + rated + 1)"


def lines(count: int, first: int) -> list[bytes]:
    """Return records in order.

    Of ten, one divides by zero, and one is broken. Every second division also fails after the upgrade.
    """
    made = []
    for number in range(first, first + count):
        rated, power = (0, -1 if number % 20 == 3 else 1) if number % 10 == 3 else (2, 6)
        record = {"device": f"d{number % 3}", "ts": BASE_MS + number * 100, "power": power, "rated": rated}
        made.append(b"{" if number % 10 == 7 else json.dumps(record).encode())
    return made


@pytest.mark.guarantee("G371")
@pytest.mark.long
def test_a_record_that_the_upgrade_has_counted_is_not_put_back(audit_lab: AuditLab) -> None:
    lab = audit_lab
    letters = DeadLetters(
        lab.ledger, KafkaStatus(lab.settings.kafka_bootstrap), lab.settings.kafka_bootstrap, 1_000_000
    )

    def replay(*, dry_run: bool) -> ReplayReport:
        return letters.replay(NAME, DeadLetterFilter(), -1, None, force=False, dry_run=dry_run)

    # 400 s of records, of which 280 s are past: four windows are closed, and the last 120 s are not late yet.
    lab.apply(DOCUMENTS.format(load=DIVIDED))
    lab.send(STREAM, lines(4_000, 0))
    with lab.running(NAME, STREAM):
        pass
    assert replay(dry_run=True).skipped == {}
    lab.apply(DOCUMENTS.format(load=ADDED))
    before = replay(dry_run=True)
    lab.send(STREAM, lines(100, 4_000))
    with lab.running(NAME, STREAM):
        pass
    done = replay(dry_run=False)
    # 80 of the 160 in open windows can be used now. Other replayed letters can be left out too: they would be late.
    assert before.skipped == done.skipped and set(done.skipped) == {"counted"}
    assert done.skipped["counted"] >= 80
    # Closed windows are closed; of the new version's own letters nothing has been read again.
    assert set(done.outcomes) <= {"late", "decode", "expression"} and done.outcomes["expression"] >= 50
    page = letters.page(NAME, DeadLetterFilter(reason="expression"), -1, 10_000).letters
    counted = [
        one for one in page if json.loads(one.value)["power"] == 1 and json.loads(one.value)["ts"] >= BASE_MS + 240_000
    ]
    with pytest.raises(Conflict, match="so it would count twice"):
        letters.repair(NAME, str(counted[0].offset), counted[0].value, force=False, dry_run=False)
    lab.drain(NAME)

    open_from = BASE_MS + 240_000
    good = [json.loads(line) for line in lines(4_100, 0) if line != b"{"]
    first = sum(one["ts"] < open_from and one["rated"] != 0 for one in good)
    second = sum(one["ts"] >= open_from and one["power"] > 0 for one in good)
    assert sum(one["n"] for one in lab.documents(f"{NAME}-minute").values()) == first + second
    report = lab.audit(NAME)
    assert (report["outcome"], report["differences"]) == ("clean", 0), report
