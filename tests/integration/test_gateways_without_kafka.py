"""The gateways of UDP, TCP and MQTT while Kafka is away: what may be spooled is, nothing else is acknowledged."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from strandline.core.streams.stream import StreamSpec
from tests.support.gateways import DEADLINE_S, GatewayProcess
from tests.support.ports import free_port
from tests.support.waiting import stretched, wait_until


@contextmanager
def lonely(protocol: str, directory: Path, **settings: object) -> Iterator[GatewayProcess]:
    """A gateway whose Kafka is away."""
    gateway = GatewayProcess(protocol, f"127.0.0.1:{free_port()}", directory, **settings)
    try:
        yield gateway
    finally:
        gateway.close()


def register(gateway: GatewayProcess, **document: object) -> str:
    """Register a stream without its topic, because no topic can be made."""
    name = f"stream-{uuid.uuid4().hex[:12]}"
    spec = StreamSpec.from_document({"stream": name, "schema": {"n": "long"}, **document})
    gateway.ledger.put_stream(name, spec.as_document())
    return name


def wait_until_open(gateway: GatewayProcess, stream: str) -> None:
    wait_until(
        lambda: gateway.metric("strandline_ingest_open", stream=stream) == 1, describe=gateway.log_file.read_text
    )


def test_datagrams_are_spooled_and_counted(tmp_path):
    with lonely("udp", tmp_path, udp_confirm_timeout_s=0.5) as gateway:
        port = free_port()
        stream = register(gateway, udp={"port": port})
        wait_until_open(gateway, stream)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for n in range(1_000):
                sender.sendto(b'{"n":%d}' % n, ("127.0.0.1", port))
        wait_until(lambda: gateway.counts(stream)["spooled"] == 1_000, describe=lambda: gateway.counts(stream))
        counts = gateway.counts(stream)
        assert (counts["received"], counts["confirmed"], counts["refused"], counts["in_flight"]) == (1_000, 0, 0, 0)
        assert gateway.metric("strandline_ingest_spool_records") == 1_000
        assert gateway.client.get("/readyz").status_code == 503
        assert gateway.client.get("/healthz").status_code == 200


def test_a_full_spool_refuses_and_every_loss_is_counted(tmp_path):
    with lonely("udp", tmp_path, udp_confirm_timeout_s=0.5, spool_bytes_max=1_048_576) as gateway:
        port = free_port()
        stream = register(gateway, udp={"port": port})
        wait_until_open(gateway, stream)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for n in range(1, 31):
                sender.sendto(b"%060000d" % n, ("127.0.0.1", port))
                wait_until(lambda n=n: sum(gateway.counts(stream)[name] for name in ("spooled", "refused")) == n)
        counts = gateway.counts(stream)
        assert counts["spooled"] > 0
        assert counts["refused"] > 0
        assert "records_lost" in gateway.log_file.read_text()


def test_a_sender_over_tcp_is_told_unless_the_stream_may_be_spooled(tmp_path):
    with lonely("tcp", tmp_path, confirm_timeout_s=0.5) as gateway:
        ports = {"log": free_port(), "spool": free_port()}
        for durability, port in ports.items():
            wait_until_open(gateway, register(gateway, durability=durability, tcp={"port": port, "ack": True}))
        answers = {}
        for durability, port in ports.items():
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sender:
                sender.sendall(b"1\n2\n")
                sender.shutdown(socket.SHUT_WR)
                answers[durability] = b"".join(iter(lambda: sender.recv(65_536), b""))
        assert answers["spool"] == b"ok 2\n"
        assert answers["log"].startswith(b"error log_")


def test_nothing_is_taken_from_the_broker(tmp_path, mosquitto):
    with lonely("mqtt", tmp_path, mqtt_url=mosquitto.url, mqtt_confirm_timeout_s=0.5) as gateway:
        stream = register(gateway, mqtt={"topics": ["farm/+"]})
        wait_until(lambda: "action=broker_lost" in gateway.log_file.read_text(), describe=gateway.log_file.read_text)
        sensor = paho.Client(CallbackAPIVersion.VERSION2)
        sensor.connect("127.0.0.1", mosquitto.port)
        sensor.loop_start()
        sensor.publish("farm/a", b"1", qos=1).wait_for_publish(stretched(DEADLINE_S))
        sensor.disconnect()
        sensor.loop_stop()
        assert gateway.metric("strandline_mqtt_connected") == 0
        assert gateway.counts(stream)["received"] == 0
        started_s = time.monotonic()
        gateway.process.terminate()
        assert gateway.process.wait(stretched(DEADLINE_S)) == 0
        assert time.monotonic() - started_s < stretched(10)
