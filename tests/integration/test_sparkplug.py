"""Messages of Sparkplug through a job, its restarts, an audit and a backfill: what births declared is in force wherever reading
begins. The recomputation knows what it meant when it wrote the messages, and shares no code with the platform."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from strandline.processing.notebook.data_source import register
from tests.support.audit_lab import AuditLab
from tests.support.sparkplug import metric, payload, topic
from tests.support.sparkplug_floor import ALIAS, EXAMPLE, JOB, NAMES, STREAM, EdgeNode, Floor, found, send
from tests.support.topic_reader import read_messages

pytestmark = pytest.mark.timeout(600)


@pytest.mark.guarantee("G372")
@pytest.mark.long
def test_aliases_mean_what_the_birth_before_them_says_wherever_reading_begins(audit_lab: AuditLab) -> None:
    lab, chance = audit_lab, random.Random(42)
    lab.apply(EXAMPLE.read_text())
    nodes = [EdgeNode(f"n{number}", chance) for number in range(6)]
    floor = Floor(chance, (int(time.time()) - 900) * 1_000 // 60_000 * 60_000, nodes)

    # The values of a node are unknown before its birth.
    send(lab, iter([(nodes[0], topic("NDATA", "n0"), payload(metric("x", 1.0, "Double"), seq=3))]))
    floor.letters["schema"] += 1
    send(lab, ((node, *one) for node in nodes for one in floor.births(node)))
    send(lab, floor.data(3_000, births=True))
    with lab.running(JOB, STREAM):
        pass
    # No birth comes any more: what is known of aliases was recorded.
    send(lab, floor.data(1_200, births=False))
    # What a death leaves is stale by the time of its arrival.
    died = nodes[0]
    floor.stale += sum(len(one) for one in died.aliases.values()) + 1
    after = topic("NDATA", died.name), payload(metric("m0", 1.0, "Double"), seq=(died.seq + 1) % 256)
    floor.letters["schema"] += 1
    death = payload(metric("bdSeq", died.bd_seq, "UInt64"))
    send(lab, iter([(died, topic("NDEATH", died.name), death), (died, *after)]))
    lab.drain(JOB)

    begins = [event.facts["slice_first"] for event in lab.ledger.events_of_kind(JOB, "run_begins")]
    assert begins[-1] > 1, "a run has begun in the middle"
    assert found(lab) == floor.expected()
    assert sum(one["stale"] for one in lab.documents(ALIAS).values()) == floor.stale
    letters = [dict(one.headers() or ()) for one in read_messages(lab.settings.kafka_bootstrap, f"{JOB}.dead-letter")]
    assert Counter(bytes(one["reason"]).decode() for one in letters) == floor.letters  # type: ignore[arg-type]
    report = lab.audit(JOB)
    assert (report["outcome"], report["differences"]) == ("clean", 0), report

    # A backfill reads the same slices, each from what was recorded with it.
    middle_ms = sorted(floor.values, key=lambda key: key[3])[len(floor.values) * 2 // 3][3]
    row = lab.backfill(lab.request_backfill(JOB, middle_ms))
    assert row.state == "complete", row.message
    assert found(lab) == floor.expected()

    # In a notebook, by the slices.
    register(lab.spark)
    asked = lab.spark.read.format("strandline").options(
        ledger=lab.settings.ledger_url, kafka=lab.settings.kafka_bootstrap
    )
    rows = (
        asked.option("job", JOB).option("slices", f"{begins[-1]}-").load().where("strandline_reason is null").collect()
    )
    assert rows and {one.metric for one in rows} <= {*NAMES, "bdSeq"}
