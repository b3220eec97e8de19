"""Messages of Sparkplug B. Each metric is a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from strandline.core.documents import Path
from strandline.processing.formats.format import Format, SessionReader

if TYPE_CHECKING:
    from strandline.core.streams.format import StreamDocument
    from strandline.processing.formats.record_fields import JsonText, RecordField
    from strandline.processing.formats.source_fields import Members

_NODE_LEVEL = 3
"""Level of the edge node in a topic, `spBv1.0/GROUP/TYPE/NODE`, counted from 0."""


class SparkplugFormat(Format):
    name = "sparkplug"
    content_type = b"application/x-protobuf"
    sender = "MQTT"
    keeps_sessions = True

    def problems(self, stream: StreamDocument) -> Iterator[tuple[Path, str]]:
        levels = dict(stream.mqtt.fields) if stream.mqtt else {}
        if stream.partitions > 1 and (stream.key is None or levels.get(stream.key) != _NODE_LEVEL):
            yield (
                ("key",),
                f"the messages of an edge node must come to one partition: take the field of the topic's level {_NODE_LEVEL} "
                f"('key: node', 'mqtt: {{fields: {{node: {_NODE_LEVEL}}}}}'), or 'partitions: 1'",
            )

    def problems_of_lookup(self, stream: StreamDocument, *, deletes: bool) -> Iterator[str]:
        yield f"stream '{stream.stream}' is of Sparkplug, whose records depend on those before; follow what a job emits"

    def session_reader(
        self,
        fields: Sequence[RecordField],
        texts: Callable[[Sequence[JsonText], Sequence[bytes | None]], Sequence[JsonText]],
        members_of: Callable[[bytes | None], Members],
    ) -> SessionReader:
        from strandline.processing.formats.sparkplug.reader import NodeMessages

        return NodeMessages(fields, texts, members_of)


FORMAT = SparkplugFormat()
