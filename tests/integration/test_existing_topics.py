"""A topic that was there before Strandline, with its producers' times: its document is proposed, and a job reads it rightly."""

from __future__ import annotations

import json
import random

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from strandline.services.cli.commands import app
from tests.support.waiting import stretched

RECORDS = 3_000
BASE_MS = 1_700_000_000_000 // 60_000 * 60_000
FAR_MS = BASE_MS + 86_400_000_000
PIPELINE = """
pipeline: {topic}
input: {{stream: {topic}}}
event_time: {{field: ts, delay: 10m, max_ahead: null, idle_timeout: null}}
checkpoint: {{records: 200}}
steps:
  - where: site = 'north'
  - window: {{name: minutes, tumbling: 1m, aggregate: {{n: count(*), mean: avg(temp), held: max(rest)}}}}
    emit: [{{elasticsearch: {topic}-minutes}}]
"""


@pytest.mark.guarantee("G264")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_topic_with_its_producers_times_is_proposed_read_and_audited(platform):
    """Times are out of order, the first is years ahead, and half of the records have an undeclared member."""
    topic, chance = "old-plant", random.Random(3)
    kafka = platform.stack.addresses.kafka_bootstrap
    config = {
        "message.timestamp.type": "CreateTime",
        "retention.ms": "-1",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "true",
    }
    admin = AdminClient({"bootstrap.servers": kafka})  # held until the answer is there: it ends with its last reference
    admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(stretched(30))
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    for number in range(RECORDS):
        value = {"ts": BASE_MS + number * 100, "site": "north" if number % 3 else "south", "temp": number % 40 / 2}
        if number % 2:
            value["fw"] = f"v2.{number % 5}"
        at_ms = BASE_MS + number * 100 + chance.randrange(-60_000, 60_000) if number else FAR_MS
        producer.produce(topic, json.dumps(value).encode(), partition=number % 2, timestamp=at_ms)
    assert producer.flush(60) == 0

    def strandline(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, "--url", platform.stack.addresses.api_url])
        assert done.exit_code == 0, done.output
        return done.stdout

    proposed = json.loads(strandline("stream", "infer", "--from-topic", topic, "--json"))
    assert (proposed["records"], proposed["accepted"]) == (1_000, 1_000)
    document = proposed["document"]
    assert (document["partitions"], document["retention"]) == (2, "forever")
    assert document["schema"] == {
        "ts": {"type": "timestamp", "unit": "ms"},
        "site": "string",
        "temp": "double",
        "fw": "string?",
    }
    del document["schema"]["fw"]
    (applied,) = platform.control.apply(yaml.safe_dump(document).encode(), "test.yaml")
    assert "its producers set the log time" in applied["notes"][0]
    assert applied["notes"][1].startswith(f"topic {topic} has unclean.leader.election.enable=true")
    assert applied["notes"][2].startswith(f"topic {topic} has one replica (min.insync.replicas=1)")
    shown = json.loads(strandline("stream", "show", topic, "--json"))["undeclared"]
    assert (shown["records"], shown["fields"]) == (
        1_000,
        [{"path": "$.fw", "types": ["string"], "records": 500, "share": 0.5}],
    )
    assert "50.0%" in strandline("stream", "show", topic)
    document["schema"]["rest"] = "json"
    platform.apply(yaml.safe_dump(document) + "---" + PIPELINE.format(topic=topic))
    platform.wait_until_read(topic)
    state = platform.stop(topic, drain=True)
    assert state["counts"]["accepted"] == RECORDS
    found = sorted(
        (one["@timestamp"], one["n"], one["held"]) for one in platform.documents(f"{topic}-minutes").values()
    )
    north = sum(1 for number in range(RECORDS) if number % 3)
    assert sum(n for _, n, _ in found) == north
    assert {held for _, _, held in found} == {'{"fw":"v2.4"}'}
    slices = platform.control.get(f"/v1/jobs/{topic}/slices", limit=1000)["slices"]
    sizes = [
        sum(end - one["offsets_first"][topic].get(at, 0) for at, end in one["offsets"][topic].items()) for one in slices
    ]
    assert max(sizes) <= 200 + 2, "each slice is bounded, although the first record's time is ahead of all others"
    report = platform.audit(topic)
    assert (report["outcome"], report["differences"]) == ("clean", 0), report
