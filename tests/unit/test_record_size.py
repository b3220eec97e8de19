"""Whatever a gateway takes fits into one record batch, with the longest key and the longest headers of its protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from annotated_types import Le
from pydantic import ValidationError

from strandline.core.record_headers import HEADER_MESSAGE_ID
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.writer import LogWriter
from strandline.ingest.http.record_head import MESSAGE_ID_BYTES_MAX
from strandline.ingest.mqtt.decoder import Publish
from strandline.ingest.mqtt.headers import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX, headers_of, properties_fit
from strandline.ingest.mqtt.topics import TopicRoutes
from strandline.ingest.mqtt.wire import PublishProperties
from strandline.log.record_key import key_finder
from strandline.log.record_size import RECORD_BATCH_HEAD_BYTES, record_batch_bytes_max
from strandline.log.transactions import Entry
from tests.support.log_clients import FakeLog, ObedientConsumer, ObedientProducer

RECORD_BYTES_MAX = 1_024
"""The smallest that can be set: there the headers weigh most."""
HEADER_OVERHEAD_BYTES = 10
"""More than Kafka adds to one header."""
KAFKA_REQUEST_BYTES_MAX = 104_857_600
"""Default of a broker's `socket.request.max.bytes`."""
FARM = StreamSpec.from_document(
    {"stream": "farm", "format": "json", "schema": {"a": "string"}, "key": "a", "mqtt": {"topics": ["#"]}}
)


def largest_record() -> bytes:
    """Return the largest record. Its key is nearly as long as the record."""
    empty = len(json.dumps({"a": ""}, separators=(",", ":")))
    return json.dumps({"a": "x" * (RECORD_BYTES_MAX - empty)}, separators=(",", ":")).encode()


def mqtt_message(name: str, count: int) -> Publish:
    properties = PublishProperties("é" * 100, tuple((name, "é" * 10) for _ in range(count)))
    return Publish(b"t" * TOPIC_BYTES_MAX, largest_record(), 1, True, 1, properties)


def mqtt_headers(name: str) -> list[tuple[str, bytes]]:
    """Return the largest accepted number of properties of this name."""
    count = next(n for n in range(1, 10_000) if not properties_fit(mqtt_message(name, n))) - 1
    publish = mqtt_message(name, count)
    route = TopicRoutes([FARM]).find(publish.topic)
    assert route is not None and count > 2
    return headers_of(publish, route.headers, is_redelivered=True)


def headers_by_protocol() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    yield "http", [(HEADER_MESSAGE_ID, b"i" * MESSAGE_ID_BYTES_MAX + b"/100000")]
    yield "tcp and udp", []
    yield "mqtt, few long properties", mqtt_headers("é" * 2_000)
    yield "mqtt, many short properties", mqtt_headers("")


@pytest.mark.guarantee("G111")
@pytest.mark.parametrize("headers", [pytest.param(headers, id=protocol) for protocol, headers in headers_by_protocol()])
def test_the_largest_record_of_each_protocol_fits_into_a_batch(headers: list[tuple[str, bytes]]) -> None:
    value = largest_record()
    assert len(value) == RECORD_BYTES_MAX
    log, producers = FakeLog(), []

    def make_producer(config: dict[str, object]) -> ObedientProducer:
        producers.append(ObedientProducer(config, log))
        return producers[-1]

    async def send() -> None:
        async with LogWriter(
            "nowhere:9092",
            writer_id="w" * 255,
            epoch=2**63,
            record_bytes_max=RECORD_BYTES_MAX,
            confirm_timeout_s=5,
            make_producer=make_producer,
            make_consumer=lambda config: ObedientConsumer(config, log),
        ) as writer:
            appending = asyncio.ensure_future(
                writer.append(
                    "farm",
                    [(value, key_finder("a")(value))],
                    received_ms=2**63,
                    source=b"http:" + b"f" * 45,
                    content_type=b"c" * 100,
                    headers_each=[headers],
                )
            )
            await asyncio.sleep(0)
            producers[0].report(1)
            await appending

    asyncio.run(send())
    (sent,) = producers[0].sent
    entry = Entry("", sent.value(), sent.key(), sent.headers())
    size = entry.size_bytes + HEADER_OVERHEAD_BYTES * len(sent.headers()) + RECORD_BATCH_HEAD_BYTES
    assert len(sent.key()) > RECORD_BYTES_MAX - 10
    assert size <= record_batch_bytes_max(RECORD_BYTES_MAX) == producers[0].config["message.max.bytes"]


def test_properties_count_in_bytes() -> None:
    properties = PublishProperties(None, (("name", "é" * (PROPERTIES_BYTES_MAX // 2)),))
    assert not properties_fit(Publish(b"t", b"", 1, False, 1, properties))


def test_the_largest_record_that_can_be_set_fits_into_a_request_to_a_broker() -> None:
    (most,) = [one.le for one in Settings.model_fields["record_bytes_max"].metadata if isinstance(one, Le)]
    assert record_batch_bytes_max(most) < KAFKA_REQUEST_BYTES_MAX
    with pytest.raises(ValidationError, match="record_bytes_max"):
        Settings(record_bytes_max=most + 1)
