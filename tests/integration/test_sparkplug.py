"""Messages of Sparkplug through a job, its restarts, an audit and a backfill: what births declared is in force wherever reading
begins. The recomputation knows what it meant when it wrote the messages, and shares no code with the platform."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from strandline.processing.notebook.data_source import register
from tests.support.audit_lab import AuditLab
from tests.support.sparkplug import metric, payload, topic
from tests.support.topic_reader import read_messages

pytestmark = pytest.mark.timeout(600)
EXAMPLE = Path(__file__).parents[2] / "examples" / "formats" / "sparkplug.yaml"
STREAM, JOB, ALIAS = "plant-floor", "floor-by-minute", "floor-minute"
STEP_MS = 100
NAMES = [f"m{number}" for number in range(6)]


@dataclass
class EdgeNode:
    """A node with two devices. Each birth gives the metrics other aliases."""

    name: str
    chance: random.Random
    seq: int = 0
    bd_seq: int = -1
    aliases: dict[str, dict[str, int]] = field(default_factory=dict)
    """Device (empty: the node itself) -> metric -> alias."""


@dataclass
class Floor:
    """Writes messages, and keeps what they mean."""

    chance: random.Random
    now_ms: int
    nodes: list[EdgeNode]
    values: dict[tuple[str, str | None, str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    """(node, device, metric, end of the minute)."""
    stale: int = 0
    letters: Counter[str] = field(default_factory=Counter)

    def message(self, node: EdgeNode, kind: str, device: str = "") -> tuple[bytes, bytes]:
        """One message, that follows the one before it; (topic, payload)."""
        self.now_ms += STEP_MS
        if kind == "NBIRTH":
            node.seq, node.bd_seq = 0, node.bd_seq + 1
            node.aliases.clear()
        else:
            node.seq = (node.seq + 1) % 256
        metrics: list[bytes] = []
        if kind.endswith("BIRTH"):
            numbers = self.chance.sample(range(100), len(NAMES))
            node.aliases[device] = dict(zip(NAMES, numbers, strict=True))
            for name, alias in node.aliases[device].items():
                metrics.append(metric(name, self.taken(node, device, name), "Double", alias=alias))
        elif kind.endswith("DATA"):
            for name in self.chance.sample(NAMES, 2):
                value = self.taken(node, device, name)
                metrics.append(metric(alias=node.aliases[device][name], value=value, kind="Double"))
        elif kind == "DDEATH":
            self.stale += len(node.aliases.pop(device))
        if kind == "NBIRTH":
            metrics.append(metric("bdSeq", node.bd_seq, "UInt64"))
            self.taken(node, "", "bdSeq", float(node.bd_seq))
        return topic(kind, node.name, device), payload(*metrics, seq=node.seq, time=self.now_ms)

    def taken(self, node: EdgeNode, device: str, name: str, value: float | None = None) -> float:
        value = self.chance.randrange(1_000) / 4 if value is None else value
        self.values[node.name, device or None, name, self.now_ms // 60_000 * 60_000 + 60_000].append(value)
        return value

    def births(self, node: EdgeNode) -> Iterator[tuple[bytes, bytes]]:
        yield self.message(node, "NBIRTH")
        for device in ("d1", "d2"):
            yield self.message(node, "DBIRTH", device)

    def data(self, count: int, *, births: bool) -> Iterator[tuple[EdgeNode, bytes, bytes]]:
        for _ in range(count):
            node = self.chance.choice(self.nodes)
            roll = self.chance.random()
            if births and roll < 0.01:
                for one in self.births(node):
                    yield (node, *one)
                continue
            if roll < 0.02:  # nobody has declared it
                self.letters["schema"] += 1
                node.seq = (node.seq + 1) % 256
                yield (
                    node,
                    topic("NDATA", node.name),
                    payload(metric(alias=999, value=1.0, kind="Double"), seq=node.seq),
                )
                continue
            if roll < 0.03:  # one is lost
                self.letters["schema"] += 1
                node.seq = (node.seq + 2) % 256
                lost = metric(alias=node.aliases[""]["m0"], value=1.0, kind="Double")
                yield node, topic("NDATA", node.name), payload(lost, seq=node.seq)
                continue
            device = self.chance.choice(["", *(one for one in node.aliases if one)])
            if births and device and roll < 0.04:
                yield (node, *self.message(node, "DDEATH", device))
            else:
                yield (node, *self.message(node, f"{'D' if device else 'N'}DATA", device))


@pytest.mark.long
def test_aliases_mean_what_the_birth_before_them_says_wherever_reading_begins(audit_lab: AuditLab) -> None:
    lab, chance = audit_lab, random.Random(42)
    lab.apply(EXAMPLE.read_text())
    nodes = [EdgeNode(f"n{number}", chance) for number in range(6)]
    floor = Floor(chance, (int(time.time()) - 900) * 1_000 // 60_000 * 60_000, nodes)

    def send(messages: Iterator[tuple[EdgeNode, bytes, bytes]]) -> None:
        for number, (node, source, value) in enumerate(messages):
            partition = int(node.name[1:]) % 4
            lab.producer.produce(STREAM, value, partition=partition, headers=[("strandline-source", source)])
            if number % 100 == 99:
                assert lab.producer.flush(60) == 0
        assert lab.producer.flush(60) == 0

    # Before its birth, nobody knows what a node says.
    send(iter([(nodes[0], topic("NDATA", "n0"), payload(metric("x", 1.0, "Double"), seq=3))]))
    floor.letters["schema"] += 1
    send((node, *one) for node in nodes for one in floor.births(node))
    send(floor.data(3_000, births=True))
    with lab.running(JOB, STREAM):
        pass
    # No birth comes any more: what is known of aliases was recorded.
    send(floor.data(1_200, births=False))
    # What a death leaves is stale by the time of its arrival.
    died = nodes[0]
    floor.stale += sum(len(one) for one in died.aliases.values()) + 1
    after = topic("NDATA", died.name), payload(metric("m0", 1.0, "Double"), seq=(died.seq + 1) % 256)
    floor.letters["schema"] += 1
    death = payload(metric("bdSeq", died.bd_seq, "UInt64"))
    send(iter([(died, topic("NDEATH", died.name), death), (died, *after)]))
    lab.drain(JOB)

    begins = [event.facts["slice_first"] for event in lab.ledger.events_of_kind(JOB, "run_begins")]
    assert begins[-1] > 1, "a run has begun in the middle"
    found = lab.documents(ALIAS).values()
    expected = {key: (len(some), min(some), max(some)) for key, some in floor.values.items()}
    assert {key_of(one): (one["n"], one["low"], one["high"]) for one in found if one["n"]} == expected
    assert sum(one["stale"] for one in found) == floor.stale
    letters = [dict(one.headers() or ()) for one in read_messages(lab.settings.kafka_bootstrap, f"{JOB}.dead-letter")]
    assert Counter(bytes(one["reason"]).decode() for one in letters) == floor.letters  # type: ignore[arg-type]
    report = lab.audit(JOB)
    assert (report["outcome"], report["differences"]) == ("clean", 0), report

    # A backfill reads the same slices, each from what was recorded with it.
    middle_ms = sorted(floor.values, key=lambda key: key[3])[len(floor.values) * 2 // 3][3]
    row = lab.backfill(lab.request_backfill(JOB, middle_ms))
    assert row.state == "complete", row.message
    anew = lab.documents(ALIAS).values()
    assert {key_of(one): (one["n"], one["low"], one["high"]) for one in anew if one["n"]} == expected

    # In a notebook, by the slices.
    register(lab.spark)
    asked = lab.spark.read.format("strandline").options(
        ledger=lab.settings.ledger_url, kafka=lab.settings.kafka_bootstrap
    )
    rows = (
        asked.option("job", JOB).option("slices", f"{begins[-1]}-").load().where("strandline_reason is null").collect()
    )
    assert rows and {one.metric for one in rows} <= {*NAMES, "bdSeq"}


def key_of(document: dict[str, Any]) -> tuple[str, str | None, str, int]:
    end_ms = round(datetime.fromisoformat(document["@timestamp"]).timestamp() * 1_000)
    return document["node"], document.get("device"), document["metric"], end_ms
