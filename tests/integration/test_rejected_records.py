"""Records that can't be used, through the whole platform: each is a dead letter once, with its bytes, reason and place."""

from __future__ import annotations

import base64
import json
import random
import time
from hashlib import sha256

import pytest
from confluent_kafka import Producer

from strandline.log.admin import KafkaAdmin
from strandline.log.record_size import record_batch_bytes_max
from tests.support.waiting import wait_until

NAME = "refusals"
STREAM = f"""
stream: {NAME}
partitions: 2
format: json
schema:
  device: string
  ts: {{type: timestamp, unit: ms}}
  power: {{type: double, min: 0}}
  rated: {{type: double, required: false}}
key: device
"""
PIPELINE = """
pipeline: {job}
input: {{stream: refusals}}
event_time: {{field: ts, delay: 10s, max_ahead: 5m, watermark: newest, idle_timeout: null}}
{extra}
steps:
  - derive: {{load: power / rated}}
  - where: power < 1000
  - window: {{name: minute, tumbling: 1m, by: [device], aggregate: {{n: count(*), load: max(load)}}}}
    emit: [{{elasticsearch: {job}-minute}}]
"""
NOW_MS = time.time_ns() // 1_000_000
BASE_MS = (NOW_MS - 3_600_000) // 60_000 * 60_000


def record(at_ms: int, power: float = 10, rated: float | None = 20, device: str = "d1") -> bytes:
    return json.dumps({"device": device, "ts": at_ms, "power": power, "rated": rated}).encode()


GOOD = [record(BASE_MS), record(BASE_MS + 1_000, rated=None), record(BASE_MS + 59_999, power=5, device="d2")]
LARGEST = 1_000_000
"""The largest record that HTTP ingest takes."""
BAD = {
    "decode": [
        b"{not json",
        b'{"device": "d1", "ts": 1, "ts": 2, "power": 1}',
        b"x" * 999_993,
        base64.b64encode(random.Random(1).randbytes(LARGEST))[:LARGEST],
    ],
    "schema": [record(BASE_MS, power=-1), b'{"device": "d1", "power": 1}', record(-5)],
    "expression": [record(BASE_MS + 2_000, rated=0)],
    "future_event": [record(NOW_MS + 86_400_000)],
}
LATE = record(BASE_MS + 30_000, power=7)
LATE_LARGEST = record(BASE_MS + 30_000, device="d" * (LARGEST - len(record(BASE_MS + 30_000, device=""))))
"""The largest record, with the longest key."""
LARGER = bytes(5 * LARGEST)
"""No gateway takes it."""


def write_directly(platform, stream: str, value: bytes) -> None:
    """Write directly, with another producer and a higher limit of the topic."""
    bootstrap, limit = platform.stack.addresses.kafka_bootstrap, str(2 * len(value))
    assert len(value) > record_batch_bytes_max(LARGEST)
    KafkaAdmin(bootstrap, timeout_s=30, changes_topics=True).change_config(stream, {"max.message.bytes": limit})
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": limit})
    producer.produce(stream, value)
    assert producer.flush(60) == 0


def submit(platform, job: str, extra: str = "") -> None:
    platform.apply(PIPELINE.format(job=job, extra=extra))


def require_in_index(platform, job: str, dead: list[tuple[bytes | None, dict[str, bytes]]]) -> None:
    """The control service copies each dead letter into the job's index."""
    index, fields = f"{job}.dead-letters", ("reason", "message", "stream", "partition", "offset")

    def told() -> list[list[str]]:
        platform.index.post(f"/{index}/_refresh")
        hits = platform.index.post(f"/{index}/_search", json={"size": 1_000}).json().get("hits", {}).get("hits", [])
        return sorted([str(hit["_source"][name]) for name in fields] for hit in hits)

    expected = sorted([headers[name].decode() for name in fields] for _, headers in dead)
    wait_until(told, lambda found: found == expected, "all dead letters in the index", timeout_s=120, poll_s=0.5)


@pytest.mark.guarantee("G7")
@pytest.mark.guarantee("G196")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_refusal_is_a_dead_letter_and_spoils_nothing(platform):
    """Good and bad interleaved, then a late one: the good ones' results are right, each bad one is buried once, also after a
    restart, and the account closes."""
    platform.apply(STREAM)
    submit(platform, "buries", "dead_letters: {index: true}")
    submit(platform, "drops", "late: drop")
    bad = [line for lines in BAD.values() for line in lines]
    mixed = [line for pair in zip(bad, GOOD * 4, strict=False) for line in pair][: 2 * len(bad)]
    assert platform.send(NAME, mixed) == len(mixed)
    write_directly(platform, NAME, LARGER)
    for job in ("buries", "drops"):
        platform.wait_until_read(job)
    platform.send(NAME, [record(BASE_MS + 200_000, device="d3")])
    # The first minute is closed once its results are out; only then is a record for it late for certain.
    for job in ("buries", "drops"):
        platform.wait_for(job, lambda state: state["counts"]["results"].get("minute"), "emitting")
    assert platform.send(NAME, [LATE]) == platform.send(NAME, [LATE_LARGEST]) == 1
    platform.wait_until_read("buries")
    platform.stop("buries")
    platform.start("buries")
    states = {job: platform.stop(job, drain=True) for job in ("buries", "drops")}

    dead = platform.topic("buries.dead-letter")
    require_in_index(platform, "buries", dead)
    expected = sorted(
        [(reason, line) for reason, lines in BAD.items() for line in lines] + [("late", LATE), ("late", LATE_LARGEST)]
    )
    whole = [(value, headers) for value, headers in dead if "payload-bytes" not in headers]
    assert sorted((headers["reason"].decode(), value) for value, headers in whole) == expected
    ((nothing, larger),) = [(value, headers) for value, headers in dead if "payload-bytes" in headers]
    assert (nothing, larger["payload-bytes"], larger["payload-sha256"]) == (
        None,
        b"%d" % len(LARGER),
        sha256(LARGER).hexdigest().encode(),
    )
    assert larger["reason"] == b"decode"
    assert {(h["stream"], h["partition"], h["offset"]) for _, h in dead} == {
        (NAME.encode(), h["partition"], h["offset"]) for _, h in dead
    }
    assert len({(h["partition"], h["offset"]) for _, h in dead}) == len(expected) + 1
    steps = {headers["step"].decode() for _, headers in dead if headers["reason"] == b"expression"}
    assert steps == {"steps[0].derive.load"}
    assert sorted(["decode", *(reason for reason, _ in expected if reason != "late")]) == sorted(
        headers["reason"].decode() for _, headers in platform.topic("drops.dead-letter")
    )
    for job, state in states.items():
        counts = state["counts"]
        rejected = {reason: len(lines) for reason, lines in BAD.items()} | {"late": 2}
        assert counts["rejected"] == rejected | {"decode": rejected["decode"] + 1}
        assert counts["records"] == len(mixed) + 4
        assert counts["accepted"] == counts["records"] - sum(counts["rejected"].values())
        good = mixed[1::2]
        minute = {
            document["device"]: (document["n"], document["load"])
            for document in platform.documents(f"{job}-minute").values()
            if document["window"]["start"].startswith(time.strftime("%Y-%m-%dT%H:%M", time.gmtime(BASE_MS / 1000)))
        }
        assert minute == {
            "d1": (sum(b'"d1"' in line for line in good), 0.5),
            "d2": (sum(b'"d2"' in line for line in good), 0.25),
        }


@pytest.mark.guarantee("G8")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_on_error_crash_stops_at_the_first_bad_record_and_emits_nothing_of_its_slice(platform):
    """The job fails with the record's coordinates; the slice is still to be done."""
    platform.apply(STREAM.replace(NAME, "strict"))
    platform.send("strict", GOOD)
    text = PIPELINE.format(job="crashes", extra="on_error: crash").replace("stream: refusals", "stream: strict")
    platform.apply(text)
    platform.wait_until_read("crashes")
    platform.stop("crashes")  # so that the next slice holds all of these, however slowly they are sent
    platform.send("strict", [record(BASE_MS + 300_000), b"broken", record(BASE_MS + 301_000)])
    platform.control.order("crashes", "start")
    state = wait_until(
        lambda: platform.control.job("crashes"), lambda state: state["state"] == "failed", "failed", 120, poll_s=0.1
    )
    assert "stream strict, partition" in state["message"]
    assert "decode" in state["message"]
    assert state["counts"]["records"] == len(GOOD)
    assert platform.topic("crashes.dead-letter") == []
