"""Records of the ingest benchmark: 121 bytes each, which differ from each other like readings."""

from __future__ import annotations

import random

RECORD_BYTES = 121
LINES_A_REQUEST = 100
_VARIANTS = 1_000
"""Number of different records, so that they compress like real readings."""

STREAM, KEYED_STREAM, DATAGRAM_STREAM = "readings", "readings-by-device", "readings-by-datagram"
UDP_PORT = 8082
"""Port before the stack's port offset."""
STREAM_TEXT = """\
stream: {name}
partitions: 4
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double, wind: double, power: double, note: string}}
{more}"""


def stream_texts() -> list[str]:
    """Return the documents of the streams of the feeds."""
    differences = {
        STREAM: f'mqtt: {{topics: ["{mqtt_topic(STREAM)}/#"]}}\n',
        KEYED_STREAM: f'key: device\nmqtt: {{topics: ["{mqtt_topic(KEYED_STREAM)}/#"]}}\n',
        DATAGRAM_STREAM: f"udp: {{port: {UDP_PORT}}}\n",
    }
    return [STREAM_TEXT.format(name=name, more=more) for name, more in differences.items()]


def mqtt_topic(stream: str) -> str:
    """Return the MQTT topic of the stream; topics below it also belong to the stream."""
    return f"bench/{stream}"


def readings() -> list[bytes]:
    """Return the same records at each call, each a JSON object of RECORD_BYTES bytes."""
    chance = random.Random(1)
    return [_reading(chance) for _ in range(_VARIANTS)]


def _reading(chance: random.Random) -> bytes:
    start = (
        f'{{"device":"device-{chance.randrange(1_000):04d}","ts":{1_700_000_000_000 + chance.randrange(10**9)},'
        f'"temp":{chance.uniform(10, 30):.2f},"wind":{chance.uniform(10, 20):.3f},"power":{chance.uniform(100, 999):.2f},'
    )
    note = "".join(chance.choices("abcdefghij", k=RECORD_BYTES - len(start) - len('"note":""}')))
    return f'{start}"note":"{note}"}}'.encode()


def single_requests(stream: str) -> list[bytes]:
    """Return HTTP requests of one record, all of the same length."""
    return [_request(stream, b"application/json", reading) for reading in readings()]


def line_requests(stream: str) -> list[bytes]:
    """Return HTTP requests of LINES_A_REQUEST records, one per line, all of the same length."""
    lines, chance = readings(), random.Random(2)
    return [
        _request(stream, b"application/x-ndjson", b"\n".join(chance.choices(lines, k=LINES_A_REQUEST)))
        for _ in range(_VARIANTS // 10)
    ]


def _request(stream: str, content_type: bytes, body: bytes) -> bytes:
    head = b"POST /v1/streams/%s/records HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
    return head % (stream.encode(), content_type, len(body)) + body
