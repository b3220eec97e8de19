"""Commands that publish records of a stream by MQTT, for the console. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from strandline.ingest.gateway.contract import SenderExample, WayToSend

if TYPE_CHECKING:
    from strandline.core.streams.stream import StreamSpec

_PORT = 1883


def ways_to_publish(stream: StreamSpec, url: str, example: SenderExample, login: str = "") -> Iterator[WayToSend]:
    """Yield a command of mosquitto_pub if the stream has topics. `login`: options of the command."""
    if stream.mqtt is None:
        return
    parts = urlsplit(url)
    topic = stream.mqtt.topics[0]
    is_filter = "+" in topic or "#" in topic
    tls = "--tls-use-os-certs " if parts.scheme == "mqtts" else ""
    target = f"-h {parts.hostname or '127.0.0.1'} -p {parts.port or _PORT} {tls}{login}-q 1"
    yield WayToSend(
        url,
        tuple(stream.mqtt.topics),
        f"mosquitto_pub {target} -t {quote(topic)} -m {quote(example.record)}",
        "Replace + by one level of the topic, and # by one or more levels." if is_filter else "",
    )
