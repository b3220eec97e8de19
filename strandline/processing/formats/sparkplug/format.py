"""Sparkplug B messages. Each metric is a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.core.documents import Path
from strandline.processing.formats.format import Format, SessionReader, SessionState

if TYPE_CHECKING:
    from strandline.core.streams.format import StreamDocument
    from strandline.processing.formats.record_fields import JsonText, RecordField
    from strandline.processing.formats.source_fields import Members

_NODE_LEVEL = 3
"""Level of the edge node in a topic, `spBv1.0/GROUP/TYPE/NODE`, counted from 0."""


class SparkplugFormat(Format):
    name = "sparkplug"
    module = "google.protobuf"
    content_type = b"application/x-protobuf"
    sender = "MQTT"
    keeps_sessions = True

    def problems(self, stream: StreamDocument) -> Iterator[tuple[Path, str]]:
        levels = dict(stream.mqtt.fields) if stream.mqtt else {}
        if stream.partitions > 1 and (stream.key is None or levels.get(stream.key) != _NODE_LEVEL):
            yield (
                ("key",),
                f"the messages of an edge node must be in one partition; use the field of topic level {_NODE_LEVEL} "
                f"('key: node', 'mqtt: {{fields: {{node: {_NODE_LEVEL}}}}}'), or 'partitions: 1'",
            )

    def problems_of_lookup(self, stream: StreamDocument, *, deletes: bool) -> Iterator[str]:
        yield f"stream '{stream.stream}' is Sparkplug, whose records depend on earlier ones; follow a stream that a job emits"

    def session_reader(
        self,
        fields: Sequence[RecordField],
        texts: Callable[[Sequence[JsonText], Sequence[bytes | None]], Sequence[JsonText]],
        members_of: Callable[[bytes | None], Members],
    ) -> SessionReader:
        from strandline.processing.formats.sparkplug.reader import NodeMessages

        return NodeMessages(fields, texts, members_of)

    def unpack_sessions(
        self,
        packed: Sequence[str],
        load: Callable[[Iterable[str]], Mapping[str, str]],
        known: dict[str, Any],
    ) -> SessionState:
        from strandline.processing.formats.sparkplug.sessions import METRICS_MAX, Sessions, unpack

        if sum(len(birth.metrics) for birth in known.values()) > METRICS_MAX:
            known.clear()
        found = [unpack(one, load, known) for one in packed]
        return (
            found[0] if len(found) == 1 else Sessions({key: node for one in found for key, node in one.nodes.items()})
        )


FORMAT = SparkplugFormat()
