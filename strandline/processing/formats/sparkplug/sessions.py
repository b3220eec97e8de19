"""The declarations of the births in a partition, and the living nodes and devices: the state for reading Sparkplug.

The state is a fold over the records of one partition, in their order. The state before the records of a slice is recorded with
the slice (`packed`), so that a replay from there reads them as the first run did. The declarations are large and rarely change,
so the state contains their hashes, and the ledger stores them once. The values that change with each message are small: a
sequence number and the living devices take three bytes per node, and one per device.

The hashes of births are in lists. A list contains few births. If there are more, it names up to sixteen other lists, which
divide the births by the hash of their position, and so on. So another birth changes few short lists, however many births there
are. Lists are identified by their hashes too, and depend only on the births.

Invariants: the aliases of a birth are unique. A device is alive only while its node is.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec

BIRTHS_MAX = 20_000
"""Maximum number of nodes and devices of one partition. Dead ones are removed first."""
METRICS_MAX = 500_000
"""Maximum number of metrics of all of them."""

_BIRTHS_A_LIST = 32
_LEVELS_MAX = 8
"""Maximum number of levels of lists. Each level uses four bits of a position's hash."""

Key = tuple[str, str]
"""Group and edge node."""
NODE = ""
"""Key of a node's own birth among those of its devices."""
Contents = Mapping[str, str]
"""Hash -> content."""


class TooManyBirthsError(Exception):
    """The partition can't store another birth."""


@dataclass(frozen=True)
class Birth:
    """The metrics of a node or a device, as declared by its birth."""

    metrics: tuple[tuple[str, int | None, int], ...]
    """Name, alias, and number of the datatype, in the order of the birth."""

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
    """Sequence number of its last message."""
    bd_seq: int
    """Number of its birth, modulo 256. Its death has the same number."""
    is_alive: bool
    births: dict[str, Birth]
    """Birth of the node (NODE), and of its devices, alive or not."""
    alive: set[str] = field(default_factory=set)
    """Devices that are alive."""


class _Row(msgspec.Struct, array_like=True):
    """Births of one node, in a list."""

    group: str
    node: str
    births: dict[str, str]
    """Device -> hash."""


_List = list[_Row | str]
"""Births, or hashes of lists."""


class Sessions:
    """The nodes of one partition."""

    def __init__(self, nodes: dict[Key, Node] | None = None) -> None:
        self.nodes = nodes if nodes is not None else {}
        self._count()

    def _count(self) -> None:
        self._births = sum(len(node.births) for node in self.nodes.values())
        self._metrics = sum(len(birth.metrics) for node in self.nodes.values() for birth in node.births.values())

    def node(self, key: Key) -> Node | None:
        """Return the node if it is alive. None otherwise."""
        found = self.nodes.get(key)
        return found if found is not None and found.is_alive else None

    def begin_node(self, key: Key, birth: Birth, seq: int, bd_seq: int) -> None:
        """Record the birth of a node. Its devices are dead until they are born. Raises TooManyBirthsError, and then changes
        nothing."""
        self._reclaim_bytes(key, NODE, birth)
        births = self.nodes[key].births if key in self.nodes else {}
        self.nodes[key] = Node(seq, bd_seq, is_alive=True, births={**births, NODE: birth})

    def begin_device(self, key: Key, device: str, birth: Birth) -> None:
        """Record the birth of a device of a living node. Raises TooManyBirthsError, and then changes nothing."""
        self._reclaim_bytes(key, device, birth)
        node = self.nodes[key]
        node.births[device] = birth
        node.alive.add(device)

    def end_node(self, key: Key) -> None:
        node = self.nodes[key]
        node.is_alive = False
        node.alive.clear()

    def _reclaim_bytes(self, key: Key, device: str, birth: Birth) -> None:
        """Count a birth that replaces the one before it. If a limit is exceeded, forget dead nodes and devices first."""
        before = self.nodes[key].births.get(device) if key in self.nodes else None
        births, metrics = int(before is None), len(birth.metrics) - (len(before.metrics) if before else 0)
        if self._births + births > BIRTHS_MAX or self._metrics + metrics > METRICS_MAX:
            self._forget_dead(key, device)
            if self._births + births > BIRTHS_MAX or self._metrics + metrics > METRICS_MAX:
                raise TooManyBirthsError(
                    f"its partition has {self._births} births with {self._metrics} metrics, and the limits are {BIRTHS_MAX} and "
                    f"{METRICS_MAX}; give the stream more partitions"
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
        """Return the state as a string: hashes of the declarations, and the values that change with messages. Empty without
        nodes."""
        if not self.nodes:
            return ""
        marks = bytearray()
        for _, node in sorted(self.nodes.items()):
            marks += bytes((node.seq, node.bd_seq, node.is_alive))
            marks += bytes(device in node.alive for device in sorted(node.births))
        return f"{_listed(self._entries(), 0, {})}:{base64.b64encode(marks).decode()}"

    def contents(self) -> dict[str, str]:
        """Return the contents of all hashes in `packed`."""
        found = {birth.hash: birth.text for node in self.nodes.values() for birth in node.births.values()}
        _listed(self._entries(), 0, found)
        return found

    def _entries(self) -> list[_BirthEntry]:
        return [
            _BirthEntry(zlib.crc32("\0".join((*key, device)).encode()), key, device, node.births[device].hash)
            for key, node in sorted(self.nodes.items())
            for device in sorted(node.births)
        ]


class _BirthEntry(NamedTuple):
    """The position of a birth in the lists."""

    number: int
    key: Key
    device: str
    hash: str


def _listed(births: Sequence[_BirthEntry], level: int, texts: dict[str, str]) -> str:
    """Add the lists that contain these births to `texts`. Return the hash of the top list."""
    if len(births) <= _BIRTHS_A_LIST or level == _LEVELS_MAX:
        rows: dict[Key, _Row] = {}
        for one in births:
            rows.setdefault(one.key, _Row(*one.key, {})).births[one.device] = one.hash
        text = msgspec.json.encode(list(rows.values())).decode()
    else:
        parts: list[list[_BirthEntry]] = [[] for _ in range(16)]
        for one in births:
            parts[one.number >> 4 * level & 15].append(one)
        text = msgspec.json.encode([_listed(part, level + 1, texts) for part in parts if part]).decode()
    texts[found := _hash(text)] = text
    return found


def unpack(packed: str, load: Callable[[Iterable[str]], Contents], births: dict[str, Birth]) -> Sessions:
    """Return a packed state. `load`: returns the contents of hashes. `births`: known births by their hashes; others are added."""
    if not packed:
        return Sessions()
    list_hash, _, marks_text = packed.partition(":")
    hashes: dict[Key, dict[str, str]] = {}
    lists = [list_hash]
    while lists:
        found = [one for text in load(lists).values() for one in msgspec.json.decode(text, type=_List)]
        lists = [one for one in found if isinstance(one, str)]
        for row in found:
            if isinstance(row, _Row):
                hashes.setdefault((row.group, row.node), {}).update(row.births)
    missing = {one for of_node in hashes.values() for one in of_node.values()} - births.keys()
    for one, text in (load(missing) if missing else {}).items():
        births[one] = Birth(msgspec.json.decode(text, type=tuple[tuple[str, int | None, int], ...]))
    marks = iter(base64.b64decode(marks_text))
    nodes: dict[Key, Node] = {}
    for key, of_node in sorted(hashes.items()):
        seq, bd_seq, is_alive = next(marks), next(marks), next(marks)
        devices = sorted(of_node)
        alive = {device for device in devices if next(marks)}
        own = {device: births[of_node[device]] for device in devices}
        nodes[key] = Node(seq, bd_seq, bool(is_alive), own, alive)
    return Sessions(nodes)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
