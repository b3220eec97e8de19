"""The MQTT bridge as a process, between a real Mosquitto and a real Kafka: what is acknowledged to the broker is in the log."""

from __future__ import annotations

import random
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.gateways import DEADLINE_S, RECORD_BYTES_MAX, GatewayProcess, Mosquitto
from tests.support.mqtt_proxy import CuttingProxy
from tests.support.waiting import stretched, wait_until


@contextmanager
def publisher(broker: Mosquitto, version: str = "5") -> Iterator[paho.Client]:
    """A sensor that is connected."""
    protocol = MQTTProtocolVersion.MQTTv5 if version == "5" else MQTTProtocolVersion.MQTTv311
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=protocol)
    client.max_inflight_messages_set(1_000)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


@contextmanager
def running(kafka: str, directory: Any, broker_port: int, **settings: object) -> Iterator[GatewayProcess]:
    values = {"mqtt_url": f"mqtt://127.0.0.1:{broker_port}", "mqtt_client_id": f"test-{uuid.uuid4().hex}", **settings}
    gateway = GatewayProcess("mqtt", kafka, directory, **values)
    try:
        yield gateway
    finally:
        gateway.close()


def farm() -> str:
    """Topics of a test's own."""
    return f"farm-{uuid.uuid4().hex[:8]}"


def publish(client: paho.Client, topic: str, *payloads: bytes, **options: Any) -> None:
    """With QoS 1, and wait until the broker has all of them."""
    sent = [client.publish(topic, payload, qos=1, **options) for payload in payloads]
    for info in sent:
        info.wait_for_publish(stretched(DEADLINE_S))
        assert info.is_published()


def wait_until_confirmed(gateway: GatewayProcess, stream: str, records: int) -> None:
    wait_until(
        lambda: gateway.counts(stream)["confirmed"] >= records,
        describe=lambda: (gateway.counts(stream), gateway.log_file.read_text()),
    )


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_message_is_a_record_with_its_bytes_its_topic_and_its_key(kafka, tmp_path, mosquitto, version):
    top = farm()
    with running(kafka, tmp_path, mosquitto.port, mqtt_version=version) as gateway, publisher(mosquitto) as sensor:
        mqtt = {"topics": [f"{top}/+/turbine/+"], "fields": {"device": 3}}
        stream = gateway.register(key="device", mqtt=mqtt)
        payloads = [b'{"n":1}', b"\xff not json", b"", b'{"n":2}']
        publish(sensor, f"{top}/dune/turbine/T1", *payloads)
        publish(sensor, f"{top}/dune/other/T1", b"nobody's")
        wait_until_confirmed(gateway, stream, 4)
        records = gateway.read(stream)
        assert [record.value for record in records] == payloads, "one key, one partition, their order"
        assert {record.key for record in records} == {b"T1"}
        assert {r.headers["strandline-source"] for r in records} == {f"mqtt:{top}/dune/turbine/T1".encode()}
        assert not any("mqtt-retained" in record.headers for record in records)


def test_user_properties_the_message_id_and_the_retained_flag_are_kept(kafka, tmp_path, mosquitto):
    top = farm()
    with running(kafka, tmp_path, mosquitto.port) as gateway, publisher(mosquitto) as sensor:
        publish(sensor, f"{top}/a", b"kept", retain=True)
        stream = gateway.register(mqtt={"topics": [f"{top}/#"]})
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [("message-id", "m-1"), ("site", "dune")]
        publish(sensor, f"{top}/b", b"live", properties=properties)
        wait_until_confirmed(gateway, stream, 2)
        headers = {record.value: record.headers for record in gateway.read(stream)}
        assert headers[b"kept"]["mqtt-retained"] == b"1"
        assert "mqtt-retained" not in headers[b"live"]
        assert headers[b"live"]["message-id"] == b"m-1"
        assert headers[b"live"]["property-site"] == b"dune"


def test_the_broker_keeps_what_comes_while_the_gateway_is_away(kafka, tmp_path, mosquitto):
    top = farm()
    with running(kafka, tmp_path, mosquitto.port) as gateway, publisher(mosquitto) as sensor:
        stream = gateway.register(mqtt={"topics": [f"{top}/+"]})
        publish(sensor, f"{top}/a", b"0")
        wait_until_confirmed(gateway, stream, 1)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(stretched(DEADLINE_S)) == 0, gateway.log_file.read_text()
        publish(sensor, f"{top}/a", *(b"%d" % n for n in range(1, 3_001)))
        gateway.start()
        wait_until_confirmed(gateway, stream, 3_000)
        assert sorted(int(record.value) for record in gateway.read(stream)) == list(range(3_001))
        assert gateway.metric("strandline_mqtt_redelivered_total") == 0


@pytest.mark.guarantee("G111")
def test_what_is_too_large_is_refused_once_and_does_not_come_again(kafka, tmp_path, mosquitto):
    top = farm()
    with running(kafka, tmp_path, mosquitto.port) as gateway, publisher(mosquitto) as sensor:
        stream = gateway.register(mqtt={"topics": [f"{top}/+"]})
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [("p", "x" * 60_000)] * 6  # more than a record has room for
        publish(sensor, f"{top}/a", b"x", properties=properties)
        publish(sensor, f"{top}/a", b"x" * (RECORD_BYTES_MAX + 1), b"y" * RECORD_BYTES_MAX)
        wait_until_confirmed(gateway, stream, 1)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(stretched(DEADLINE_S)) == 0
        gateway.start()
        publish(sensor, f"{top}/a", b"z")
        wait_until_confirmed(gateway, stream, 1)
        assert gateway.counts(stream)["received"] == 1, "it came again"
        assert sorted(record.value[:1] for record in gateway.read(stream)) == [b"y", b"z"]


@pytest.mark.guarantee(
    "G179",
    "The MQTT bridge sends its maximum packet size to a broker of MQTT 5. A larger message affects no other message.",
    promise="no-client-can-exhaust-a-service",
)
def test_what_no_packet_may_hold_the_broker_discards_and_the_others_come(kafka, tmp_path, mosquitto):
    """An MQTT 5 broker receives the limit of packets.

    It discards larger packets itself: they aren't sent, nor sent again.
    """
    top = farm()
    with running(kafka, tmp_path, mosquitto.port) as gateway, publisher(mosquitto) as sensor:
        stream = gateway.register(mqtt={"topics": [f"{top}/+"]})
        publish(sensor, f"{top}/a", b"1", b"x" * 2 * RECORD_BYTES_MAX, b"y" * RECORD_BYTES_MAX, b"2")
        wait_until_confirmed(gateway, stream, 3)
        assert sorted(record.value[:1] for record in gateway.read(stream)) == [b"1", b"2", b"y"]
        assert gateway.counts(stream)["received"] == 3
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(stretched(DEADLINE_S)) == 0
        gateway.start()
        publish(sensor, f"{top}/a", b"3")
        wait_until_confirmed(gateway, stream, 1)
        assert gateway.counts(stream)["received"] == 1


def test_filters_that_change_are_followed_and_overlapping_ones_deliver_once(kafka, tmp_path, mosquitto):
    top = farm()
    with running(kafka, tmp_path, mosquitto.port) as gateway, publisher(mosquitto) as sensor:
        wide = gateway.register(mqtt={"topics": [f"{top}/#"]})
        narrow = gateway.register(mqtt={"topics": [f"{top}/power/+"]})
        publish(sensor, f"{top}/power/1", b"narrow")
        publish(sensor, f"{top}/wind/1", b"wide")
        wait_until_confirmed(gateway, wide, 1)
        wait_until_confirmed(gateway, narrow, 1)
        gateway.register(name=narrow, is_open=False, mqtt={"topics": [f"{top}-new/+"]})
        wait_until(lambda: f"{top}-new/+" in gateway.log_file.read_text(), describe=gateway.log_file.read_text)
        publish(sensor, f"{top}-new/1", b"new")
        publish(sensor, f"{top}/power/1", b"now wide")
        wait_until_confirmed(gateway, narrow, 2)
        wait_until_confirmed(gateway, wide, 2)
        assert sorted(record.value for record in gateway.read(narrow)) == [b"narrow", b"new"]
        assert sorted(record.value for record in gateway.read(wide)) == [b"now wide", b"wide"]


def test_gateways_of_a_group_share_the_messages(kafka, tmp_path, mosquitto):
    top, count = farm(), 1_000
    directories = [tmp_path / "one", tmp_path / "two"]
    for directory in directories:
        directory.mkdir()
    with (
        running(kafka, directories[0], mosquitto.port, mqtt_share_group="g") as one,
        running(kafka, directories[1], mosquitto.port, mqtt_share_group="g") as two,
        publisher(mosquitto) as sensor,
    ):
        stream = one.register(mqtt={"topics": [f"{top}/+"]})
        two.register(name=stream, mqtt={"topics": [f"{top}/+"]})
        publish(sensor, f"{top}/a", *(b"%d" % n for n in range(count)))
        wait_until(lambda: one.counts(stream)["confirmed"] + two.counts(stream)["confirmed"] == count)
        assert one.counts(stream)["confirmed"] > 0
        assert two.counts(stream)["confirmed"] > 0
        assert sorted(int(record.value) for record in one.read(stream)) == list(range(count))


@pytest.mark.guarantee(
    "G20",
    "The MQTT bridge acknowledges a message to the broker, on the connection that delivered it, only when its record "
    "is in the log. Cut connections lose nothing, and a record is repeated only if the broker marked the message as "
    "resent.",
    promise="acknowledged-records-are-stored",
)
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("version", "cuts_max"),
    [("5", 15), *(pytest.param(*one, marks=pytest.mark.long) for one in (("5", 200), ("3.1.1", 50)))],
)
def test_cut_before_puback_again_and_again_nothing_is_lost_and_nothing_is_ours_twice(
    kafka, tmp_path, mosquitto, version, cuts_max
):
    """Each message is in the log; a second record of it only where the broker said that it sends it again."""
    seed = random.randrange(2**32)
    print("seed", seed)
    top = farm()
    proxy = CuttingProxy(mosquitto.port, cuts_max, random.Random(seed))
    with running(kafka, tmp_path, proxy.port, mqtt_version=version) as gateway, publisher(mosquitto) as sensor:
        stream = gateway.register(is_open=False, mqtt={"topics": [f"{top}/+"]})
        wait_until(lambda: "action=subscribed" in gateway.log_file.read_text(), describe=gateway.log_file.read_text)
        sent = 0
        while proxy.cuts < cuts_max:
            before = proxy.cuts
            publish(sensor, f"{top}/{sent % 7}", *(b"%d" % n for n in range(sent, sent + 10)))
            sent += 10
            # So that the broker doesn't hold thousands, which would all be sent again with each cut.
            proxy.wait_for_cut(before, timeout_s=1)
        wait_until(lambda: gateway.counts(stream)["confirmed"] >= sent)
        wait_until(
            lambda: len({record.value for record in gateway.read(stream)}) == sent,
            describe=lambda: (gateway.counts(stream), gateway.log_file.read_text()[-5_000:]),
        )
        records = gateway.read(stream)
        first = Counter(record.value for record in records if "mqtt-redelivered" not in record.headers)
        assert max(first.values()) == 1, "written twice by us"
        assert proxy.cuts >= cuts_max
        counts = gateway.counts(stream)
        assert counts["received"] == counts["confirmed"] + counts["refused"] + counts["spooled"] + counts["in_flight"]
        print(f"{sent} messages, {proxy.cuts} cuts, {len(records) - sent} records again")
    proxy.close()


@pytest.mark.guarantee("G20")
def test_killed_under_load_nothing_is_lost(kafka, tmp_path, mosquitto):
    top, kills = farm(), 3
    with running(kafka, tmp_path, mosquitto.port) as gateway, publisher(mosquitto) as sensor:
        stream = gateway.register(mqtt={"topics": [f"{top}/+"]})
        sent = 0
        for _ in range(kills):
            publish(sensor, f"{top}/a", *(b"%d" % n for n in range(sent, sent + 1_000)))
            sent += 1_000
            gateway.kill()
            publish(sensor, f"{top}/a", *(b"%d" % n for n in range(sent, sent + 500)))
            sent += 500
            gateway.start()
        wait_until(
            lambda: {int(record.value) for record in gateway.read(stream)} == set(range(sent)),
            describe=lambda: gateway.log_file.read_text()[-5_000:],
        )
        first = Counter(r.value for r in gateway.read(stream) if "mqtt-redelivered" not in r.headers)
        assert max(first.values()) == 1


def test_without_kafka_nothing_is_acknowledged_and_all_comes_when_the_topic_does(kafka, tmp_path, mosquitto):
    """The topic is missing, so no append succeeds: the broker keeps every message and sends it again later."""
    top = farm()
    name = f"late-{uuid.uuid4().hex[:8]}"
    with (
        running(kafka, tmp_path, mosquitto.port, mqtt_confirm_timeout_s=1) as gateway,
        publisher(mosquitto) as sensor,
    ):
        document = {"stream": name, "schema": {"device": "string", "n": "long"}, "mqtt": {"topics": [f"{top}/+"]}}
        gateway.ledger.put_stream(name, document)
        wait_until(
            lambda: gateway.metric("strandline_ingest_open", stream=name) == 1, describe=gateway.log_file.read_text
        )
        publish(sensor, f"{top}/a", *(b"%d" % n for n in range(100)))
        wait_until(lambda: gateway.counts(name)["refused"] >= 100, describe=gateway.log_file.read_text)
        assert gateway.counts(name)["confirmed"] == 0
        gateway.register(name=name, is_open=False, mqtt={"topics": [f"{top}/+"]})
        wait_until_confirmed(gateway, name, 100)
        assert {int(record.value) for record in gateway.read(name)} == set(range(100))
