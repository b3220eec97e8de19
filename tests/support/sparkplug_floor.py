"""Edge nodes of Sparkplug that write messages, and what the messages mean: a model that shares no code with the platform."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.audit_lab import AuditLab
from tests.support.sparkplug import metric, payload, topic

EXAMPLE = Path(__file__).parents[2] / "examples" / "formats" / "sparkplug.yaml"
STREAM, JOB, ALIAS = "plant-floor", "floor-by-minute", "floor-minute"
STEP_MS = 100
NAMES = [f"m{number}" for number in range(6)]
Key = tuple[str, str | None, str, int]
"""Node, device, metric, end of the minute."""


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
            if roll < 0.02:  # undeclared
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

    def expected(self) -> dict[Key, tuple[int, float, float]]:
        """Number, minimum and maximum of the values, by window."""
        return {key: (len(some), min(some), max(some)) for key, some in self.values.items()}


def send(lab: AuditLab, messages: Iterable[tuple[EdgeNode, bytes, bytes]]) -> None:
    """Write them to the stream, all of a node to one partition."""
    for number, (node, source, value) in enumerate(messages):
        headers: list[tuple[str, str | bytes | None]] = [("strandline-source", source)]
        lab.producer.produce(STREAM, value, partition=int(node.name[1:]) % 4, headers=headers)
        if number % 100 == 99:
            assert lab.producer.flush(60) == 0
    assert lab.producer.flush(60) == 0


def found(lab: AuditLab) -> dict[Key, tuple[int, float, float]]:
    """Return the job's result of each window that has values. See `Floor.expected`."""
    documents = lab.documents(ALIAS).values()
    return {key_of(one): (one["n"], one["low"], one["high"]) for one in documents if one["n"]}


def key_of(document: dict[str, Any]) -> tuple[str, str | None, str, int]:
    end_ms = round(datetime.fromisoformat(document["@timestamp"]).timestamp() * 1_000)
    return document["node"], document.get("device"), document["metric"], end_ms
