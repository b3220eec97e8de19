"""One connection to a real Mosquitto: TLS and a password, messages of any size, and an end that is noticed."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import ssl
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from strandline.ingest.mqtt.client import BrokerUnavailable, Message, MqttClient, MqttClientOptions
from tests.support.gateways import DEADLINE_S, MOSQUITTO, Mosquitto
from tests.support.ports import free_port
from tests.support.waiting import stretched

SIZES = (0, 1, 121, 16_000, 70_000, 1_000_000)


@dataclasses.dataclass
class Secured:
    """A Mosquitto that requires a password, with a TLS port and a plain one."""

    broker: Mosquitto
    tls_port: int
    certificate: Path


@pytest.fixture
def secured(tmp_path):
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    certificate, key, passwords = tmp_path / "certificate.pem", tmp_path / "key.pem", tmp_path / "passwords"
    run = {"check": True, "capture_output": True, "timeout": DEADLINE_S}
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*request, "-keyout", key, "-out", certificate, *subject], **run)
    subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, "gateway", "right"], **run)
    for file in (key, passwords):
        file.chmod(0o644)  # Mosquitto leaves root behind before it reads them
    tmp_path.chmod(0o755)
    temporary = Path(tempfile.gettempdir())
    for directory in tmp_path.parents:
        if directory.is_relative_to(temporary) and directory != temporary:
            directory.chmod(0o755)
    tls_port = free_port()
    more = f"password_file {passwords}\nlistener {tls_port} 127.0.0.1\ncertfile {certificate}\nkeyfile {key}\n"
    broker = Mosquitto(tmp_path, more=more, allow_anonymous=False)
    yield Secured(broker, tls_port, certificate)
    broker.close()


def options(secured: Secured, **changes: object) -> MqttClientOptions:
    plain = MqttClientOptions(
        host="localhost", port=secured.broker.port, version="5", client_id="test", session_expiry_s=60,
        in_flight_max=100, packet_bytes_max=4_000_000, username="gateway", password="right",
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def publish(secured: Secured, payloads: list[bytes]) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set("gateway", "right")
    client.connect("127.0.0.1", secured.broker.port)
    client.loop_start()
    for payload in payloads:
        client.publish("a/b", payload, qos=1).wait_for_publish(stretched(DEADLINE_S))
    client.disconnect()
    client.loop_stop()


async def receive(
    given: MqttClientOptions, count: int, filters: list[str], once_subscribed: Callable[[], None]
) -> list[Message]:
    """Subscribe, call `once_subscribed`, and acknowledge messages until there are `count`."""
    messages: list[Message] = []
    enough = asyncio.Event()

    def take(connection: MqttClient, arrived: list[Message]) -> None:
        messages.extend(arrived)
        connection.ack(arrived)
        if len(messages) >= count:
            enough.set()

    connection = await MqttClient.open(given, take)
    try:
        if filters:
            await connection.subscribe(filters)
        await asyncio.to_thread(once_subscribed)
        await asyncio.wait_for(enough.wait(), stretched(DEADLINE_S))
    finally:
        connection.close()
    assert connection.lost.done()
    connection.ack(messages)  # changes nothing any more
    return messages


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_messages_of_any_size_come_over_tls_and_once(secured, version):
    tls = ssl.create_default_context(cafile=str(secured.certificate))
    given = options(secured, port=secured.tls_port, tls=tls, version=version)
    payloads = [os.urandom(size) for size in SIZES]
    messages = asyncio.run(receive(given, len(SIZES), ["a/+"], lambda: publish(secured, payloads)))
    assert [message.publish.payload for message in messages] == payloads
    assert not any(message.is_redelivered for message in messages)
    # The broker forgets what was acknowledged, and keeps what arrives while the gateway is away.
    publish(secured, [b"later"])
    (message,) = asyncio.run(receive(given, 1, [], lambda: None))
    assert message.publish.payload == b"later"


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_wrong_password_is_a_refusal_with_its_reason(secured, version):
    with pytest.raises(BrokerUnavailable, match="refused the connection: Not authorized"):
        asyncio.run(receive(options(secured, password="wrong", version=version), 1, [], lambda: None))


def test_a_certificate_that_nobody_vouches_for_is_not_taken(secured):
    given = options(secured, port=secured.tls_port, tls=ssl.create_default_context())
    with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
        asyncio.run(receive(given, 1, [], lambda: None))


def test_a_broker_that_is_not_there_is_said(secured):
    with pytest.raises(BrokerUnavailable, match="can't be reached"):
        asyncio.run(receive(options(secured, port=free_port()), 1, [], lambda: None))


def test_a_broker_that_ends_is_noticed(secured):
    async def watch() -> str:
        connection = await MqttClient.open(options(secured), lambda _connection, _messages: None)
        assert not connection.has_session
        secured.broker.process.terminate()
        return await asyncio.wait_for(connection.lost, stretched(DEADLINE_S))

    assert asyncio.run(watch())
