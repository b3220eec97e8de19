"""Routes from MQTT topics to streams, and the keys of their records.

Topic filters match as in MQTT 5.0, section 4.7. `+` is one level, and `#` is all remaining levels and their parent.
Neither matches a first level that begins with `$`. A message is appended to one stream. If several filters match, the
most specific one is used, level by level from the left: a name before `+` before `#`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strandline.core.record_headers import HEADER_SOURCE, SOURCE_MQTT
from strandline.core.streams.stream import StreamSpec
from strandline.log.record_key import key_finder

ROUTES_REMEMBERED_MAX = 100_000
TOPIC_BYTES_REMEMBERED_MAX = 256
"""Maximum length in bytes of a cached topic. A longer one is matched each time, so that clients can't fill the memory.
"""


@dataclass(frozen=True)
class Route:
    """Stream and headers of the records of one topic."""

    stream: str
    may_spool: bool
    headers: list[tuple[str, bytes]]
    """Headers of each of its records: the source."""
    find_key: Callable[[bytes], bytes | None]
    """Returns the Kafka key of a payload."""
    content_type: bytes
    """Content type of a record whose sender doesn't specify one."""
    skips_retained: bool = False
    """True if messages that a broker had retained are left out."""


class _Node:
    """A node in the tree of filters: one level."""

    __slots__ = ("below", "spec")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.spec: StreamSpec | None = None
        """The stream whose filter ends here."""


class TopicRoutes:
    """Finds the route of a topic. A changed stream needs a new object."""

    def __init__(self, specs: Iterable[StreamSpec]) -> None:
        self._root = _Node()
        self._levels_max = 0
        self._remembered: dict[bytes, Route] = {}
        self.ambiguous: list[tuple[str, str, str]] = []
        """Filters that two streams have: the filter, the stream that gets its messages, and the stream that gets none.
        """
        for spec in sorted(specs, key=lambda spec: spec.stream):
            for topic_filter in spec.mqtt.topics if spec.mqtt else ():
                self._add(topic_filter, spec)

    def find(self, topic: bytes) -> Route | None:
        """Return the route of a topic in UTF-8. None if no stream accepts it."""
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
        # Only `#` matches levels below the deepest filter, so a topic of 65,535 levels costs no more than a short one.
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
        content_type=spec.form.content_type,
        skips_retained=spec.mqtt.retained == "skip",
    )


def _find_key(spec: StreamSpec, topic: str) -> Callable[[bytes], bytes | None]:
    """Return the function for the key: a level of the topic if the document contains it in `fields`, else a field of
    the payload."""
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
