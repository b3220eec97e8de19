"""Which stream takes what is published to an MQTT topic, under which key, and which of its fields the topic holds.

Topic filters match as in MQTT 5.0, section 4.7: `+` is one level, `#` is all further ones and their parent, and neither
stands for a first level that begins with `$`. One record goes to one stream: where several filters match, the most
specific one counts, level by level from the left: a name before `+` before `#`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strandline.core.record import HEADER_SOURCE, SOURCE_MQTT
from strandline.core.stream import StreamSpec
from strandline.log.record_key import key_finder

ROUTES_REMEMBERED_MAX = 100_000
TOPIC_BYTES_REMEMBERED_MAX = 256
"""A longer topic is looked up each time, so that clients can't fill the memory."""


@dataclass(frozen=True)
class Route:
    """The way of one topic's records."""

    stream: str
    may_spool: bool
    headers: list[tuple[str, bytes]]
    """Of each of its records: the source."""
    find_key: Callable[[bytes], bytes | None]
    """The Kafka key of a payload."""


class _Node:
    """A level of the filters that begin alike."""

    __slots__ = ("below", "spec")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.spec: StreamSpec | None = None
        """Of the filter that ends here."""


class TopicRoutes:
    """Finds the route of a topic, for the streams as they are now. A change of a stream makes a new one."""

    def __init__(self, specs: Iterable[StreamSpec]) -> None:
        self._root = _Node()
        self._levels_max = 0
        self._remembered: dict[bytes, Route] = {}
        self.ambiguous: list[tuple[str, str, str]] = []
        """A filter, the stream that has it, and another one that has it too and gets nothing by it."""
        for spec in sorted(specs, key=lambda spec: spec.stream):
            for topic_filter in spec.mqtt.topics if spec.mqtt else ():
                self._add(topic_filter, spec)

    def find(self, topic: bytes) -> Route | None:
        """The route of a topic's name in UTF-8; None when no stream takes it."""
        route = self._remembered.get(topic)
        if route is None:
            name = topic.decode()
            spec = self._match(name)
            if spec is None:
                return None
            route = _route(spec, name)
            if len(topic) <= TOPIC_BYTES_REMEMBERED_MAX:
                if len(self._remembered) >= ROUTES_REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[topic] = route
        return route

    def _add(self, topic_filter: str, spec: StreamSpec) -> None:
        node = self._root
        levels = topic_filter.split("/")
        for level in levels:
            node = node.below.setdefault(level, _Node())
        self._levels_max = max(self._levels_max, len(levels))
        if node.spec is None:
            node.spec = spec
        elif node.spec is not spec:
            self.ambiguous.append((topic_filter, node.spec.stream, spec.stream))

    def _match(self, topic: str) -> StreamSpec | None:
        # What lies deeper than any filter only matters to `#`, so 65,535 levels cost no more than a few.
        levels = topic.split("/", self._levels_max)
        waiting = [(self._root, 0)]
        while waiting:
            node, depth = waiting.pop()
            if depth == len(levels):
                found = node.spec or (node.below["#"].spec if "#" in node.below else None)
                if found is not None:
                    return found
                continue
            below = node.below
            if depth or not topic.startswith("$"):
                if "#" in below:
                    waiting.append((below["#"], len(levels)))
                if "+" in below:
                    waiting.append((below["+"], depth + 1))
            if levels[depth] in below:
                waiting.append((below[levels[depth]], depth + 1))
        return None


def _route(spec: StreamSpec, topic: str) -> Route:
    assert spec.mqtt is not None, "only a stream with an mqtt section has filters"
    return Route(
        stream=spec.stream,
        may_spool=spec.durability == "spool",
        headers=[(HEADER_SOURCE, SOURCE_MQTT + topic.encode())],
        find_key=_find_key(spec, topic),
    )


def _find_key(spec: StreamSpec, topic: str) -> Callable[[bytes], bytes | None]:
    """The key is the topic's level where the document says so, else the field of the payload."""
    assert spec.mqtt is not None
    if spec.key is None:
        return _no_key
    if spec.key not in spec.mqtt.fields:
        return key_finder(spec.key)
    level = spec.mqtt.fields[spec.key]
    levels = topic.split("/", level + 1)
    key = levels[level].encode() if level < len(levels) else None
    return lambda _: key


def _no_key(_: bytes) -> bytes | None:
    return None
