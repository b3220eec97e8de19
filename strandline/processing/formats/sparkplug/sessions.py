"""What the births of a partition have declared, and what of it is alive: the state that reading Sparkplug takes.

It is a fold over the records of one partition, in their order, from nothing. What stands before the records of a slice is
recorded with the slice (`packed`), so that a replay from there reads them as the first run did. The parts that births declare
are large and change seldom, so they are told by their hash, and kept once in the ledger; what changes with each message, a
sequence number and who is alive, is three bytes a node and one a device.

Invariants: each birth's aliases are unique in it; a device is alive only while its node is.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

BIRTHS_MAX = 20_000
"""Nodes and devices of one partition. Dead ones make room."""
METRICS_MAX = 500_000
"""Metrics of all of them."""

Key = tuple[str, str]
"""Group and edge node."""
NODE = ""
"""The place of a node's own birth among those of its devices."""
Contents = Mapping[str, str]
"""Hash -> text."""


class TooManyBirthsError(Exception):
    """The partition has no room for another birth."""


@dataclass(frozen=True)
class Birth:
    """The metrics of a node or a device, as its birth has declared them."""

    metrics: tuple[tuple[str, int | None, int], ...]
    """Name, alias and number of the datatype, in the order of the birth."""

    @cached_property
    def by_alias(self) -> dict[int, tuple[str, int]]:
        return {alias: (name, datatype) for name, alias, datatype in self.metrics if alias is not None}

    @cached_property
    def by_name(self) -> dict[str, int]:
        return {name: datatype for name, _, datatype in self.metrics}

    @cached_property
    def text(self) -> str:
        return msgspec.json.encode(self.metrics).decode()

    @cached_property
    def hash(self) -> str:
        return _hash(self.text)


@dataclass
class Node:
    """An edge node with its devices."""

    seq: int
    """Of its last message."""
    bd_seq: int
    """Of its birth, modulo 256: its death says the same."""
    is_alive: bool
    births: dict[str, Birth]
    """Its own (NODE), and those of its devices, alive or not."""
    alive: set[str] = field(default_factory=set)
    """The devices that are."""


class _Index(msgspec.Struct, array_like=True):
    group: str
    node: str
    births: dict[str, str]
    """Device -> hash."""


class Sessions:
    """The nodes of one partition."""

    def __init__(self, nodes: dict[Key, Node] | None = None) -> None:
        self.nodes = nodes if nodes is not None else {}
        self._count()

    def _count(self) -> None:
        self._births = sum(len(node.births) for node in self.nodes.values())
        self._metrics = sum(len(birth.metrics) for node in self.nodes.values() for birth in node.births.values())

    def node(self, key: Key) -> Node | None:
        """The node, if it is alive."""
        found = self.nodes.get(key)
        return found if found is not None and found.is_alive else None

    def begin_node(self, key: Key, birth: Birth, seq: int, bd_seq: int) -> None:
        """A node is born: its devices are dead until they are born, too. Raises TooManyBirthsError, and changes nothing."""
        self._make_room(key, NODE, birth)
        births = self.nodes[key].births if key in self.nodes else {}
        self.nodes[key] = Node(seq, bd_seq, is_alive=True, births={**births, NODE: birth})

    def begin_device(self, key: Key, device: str, birth: Birth) -> None:
        """A device of a living node is born. Raises TooManyBirthsError, and changes nothing."""
        self._make_room(key, device, birth)
        node = self.nodes[key]
        node.births[device] = birth
        node.alive.add(device)

    def end_node(self, key: Key) -> None:
        node = self.nodes[key]
        node.is_alive = False
        node.alive.clear()

    def _make_room(self, key: Key, device: str, birth: Birth) -> None:
        """Count a birth that replaces the one before. Where there is no room, the dead are forgotten first."""
        before = self.nodes[key].births.get(device) if key in self.nodes else None
        births, metrics = int(before is None), len(birth.metrics) - (len(before.metrics) if before else 0)
        if self._births + births > BIRTHS_MAX or self._metrics + metrics > METRICS_MAX:
            self._forget_dead(key, device)
            if self._births + births > BIRTHS_MAX or self._metrics + metrics > METRICS_MAX:
                raise TooManyBirthsError(
                    f"its partition holds {self._births} births with {self._metrics} metrics, and no more than {BIRTHS_MAX} and "
                    f"{METRICS_MAX} are kept: give the stream more partitions"
                )
        self._births += births
        self._metrics += metrics

    def _forget_dead(self, but: Key, but_device: str) -> None:
        self.nodes = {key: node for key, node in self.nodes.items() if node.is_alive or key == but}
        for key, node in self.nodes.items():
            kept = {NODE, *node.alive, *([but_device] if key == but else [])}
            node.births = {device: birth for device, birth in node.births.items() if device in kept}
        self._count()

    def packed(self) -> str:
        """The state in a text: what is declared by its hash, and what changes with messages. Empty where there is nothing."""
        if not self.nodes:
            return ""
        marks = bytearray()
        for _, node in sorted(self.nodes.items()):
            marks += bytes((node.seq, node.bd_seq, node.is_alive))
            marks += bytes(device in node.alive for device in sorted(node.births))
        return f"{_hash(self._index())}:{base64.b64encode(marks).decode()}"

    def contents(self) -> dict[str, str]:
        """All that `packed` tells by its hash."""
        found = {birth.hash: birth.text for node in self.nodes.values() for birth in node.births.values()}
        index = self._index()
        return found | {_hash(index): index}

    def _index(self) -> str:
        rows = [
            _Index(*key, {device: node.births[device].hash for device in sorted(node.births)})
            for key, node in sorted(self.nodes.items())
        ]
        return msgspec.json.encode(rows).decode()


def unpack(packed: str, load: Callable[[Iterable[str]], Contents], births: dict[str, Birth]) -> Sessions:
    """The state that was packed. `load`: gives the texts of hashes. `births`: by their hashes those that are known; others are
    added."""
    if not packed:
        return Sessions()
    index_hash, _, marks_text = packed.partition(":")
    rows = msgspec.json.decode(load([index_hash])[index_hash], type=list[_Index])
    missing = {one for row in rows for one in row.births.values()} - births.keys()
    for one, text in (load(missing) if missing else {}).items():
        births[one] = Birth(msgspec.json.decode(text, type=tuple[tuple[str, int | None, int], ...]))
    marks = iter(base64.b64decode(marks_text))
    nodes: dict[Key, Node] = {}
    for row in rows:
        seq, bd_seq, is_alive = next(marks), next(marks), next(marks)
        devices = sorted(row.births)
        alive = {device for device in devices if next(marks)}
        own = {device: births[row.births[device]] for device in devices}
        nodes[row.group, row.node] = Node(seq, bd_seq, bool(is_alive), own, alive)
    return Sessions(nodes)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
