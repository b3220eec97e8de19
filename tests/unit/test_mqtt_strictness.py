"""Things that the OASIS specifications forbid a client, and the reason with which it is refused."""

import pytest

from strandline.ingest.mqtt.decoder import PacketReader, Publish, Subscribe, Unsubscribe
from strandline.ingest.mqtt.encoder import connack, disconnect, puback, suback_refused, unsuback
from strandline.ingest.mqtt.wire import Reason
from tests.support import mqtt_client_packets as client

MALFORMED, PROTOCOL = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR


def refusal(*sent, packet_bytes_max=100_000):
    """The reason with which the last of the packets is refused; None if all are read."""
    reader = PacketReader(packet_bytes_max)
    packets, error = reader.feed(b"".join(sent))
    assert len(packets) == len(sent) - (error is not None)
    return error and error.reason


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        (PROTOCOL, lambda v: client.connect(v)),
        (PROTOCOL, lambda v: b"\x40\x02\x00\x01"),
        (PROTOCOL, lambda v: b"\x62\x02\x00\x01"),
        (PROTOCOL, lambda v: b"\xf0\x00"),
        (MALFORMED, lambda v: b"\x00\x00"),
        (MALFORMED, lambda v: b"\x20\x02\x00\x00"),
        (MALFORMED, lambda v: b"\xc1\x00"),
        (MALFORMED, lambda v: b"\xc0\x01\x00"),
        (MALFORMED, lambda v: b"\xe1\x00"),
        (MALFORMED, lambda v: b"\x80\x06\x00\x01\x00\x01a\x00"),
        (MALFORMED, lambda v: b"\x30\xff\xff\xff\xff\x01"),
        (MALFORMED, lambda v: b"\x36" + client.publish(v, "a", qos=1)[1:]),
        (MALFORMED, lambda v: b"\x38" + client.publish(v, "a", qos=0)[1:]),
        (MALFORMED, lambda v: client.publish(v, "a", packet_id=0)),
        (MALFORMED, lambda v: b"\x32\x04\x00\x01a\x00"),
        (MALFORMED, lambda v: b"\x30\x01\x00"),
        (MALFORMED, lambda v: b"\x30\x00"),
        (MALFORMED, lambda v: client.publish(v, b"\xff")),
        (MALFORMED, lambda v: client.publish(v, b"\xed\xa0\x80")),
        (MALFORMED, lambda v: client.publish(v, b"\xc0\xaf")),
        (MALFORMED, lambda v: client.publish(v, "a\0b")),
        (MALFORMED, lambda v: client.publish(v, b"a" * 300 + b"\xff")),
        (Reason.TOPIC_NAME_INVALID, lambda v: client.publish(v, "a/+")),
        (Reason.TOPIC_NAME_INVALID, lambda v: client.publish(v, "#")),
        (Reason.TOPIC_NAME_INVALID, lambda v: client.publish(v, "a" * 300 + "/#")),
        (Reason.PACKET_TOO_LARGE, lambda v: client.publish(v, "a", b"x" * 100_000)),
        (MALFORMED, lambda v: client.subscribe(v, 0, ["a"])),
        (PROTOCOL, lambda v: client.subscribe(v, 1, [])),
        (MALFORMED, lambda v: client.subscribe(v, 1, [""])),
        (MALFORMED, lambda v: client.subscribe(v, 1, ["a"], options=3)),
        (MALFORMED, lambda v: client.subscribe(v, 1, ["a"], options=0xC0)),
        (PROTOCOL, lambda v: client.unsubscribe(v, 1, [])),
        (MALFORMED, lambda v: client.unsubscribe(v, 1, ["a"])[:-1] + b"\xff"),
    ],
)
def test_refused_after_connect(version, reason, sent):
    assert refusal(client.connect(version), sent(version)) is reason


@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        (MALFORMED, b"\x32\x80\x00"),  # a length with a byte too many
        (MALFORMED, b"\x32\x87\x00\x00\x01a\x00\x01\x00x"),
        (PROTOCOL, client.publish(5, "")),
        (Reason.TOPIC_ALIAS_INVALID, client.publish(5, "", content=b"\x23\x00\x01")),
        (Reason.TOPIC_ALIAS_INVALID, client.publish(5, "a", content=b"\x23\x00\x01")),
        (PROTOCOL, client.publish(5, "a", content=b"\x0b\x01")),
        (PROTOCOL, client.publish(5, "a", content=b"\x11\x00\x00\x00\x01")),
        (PROTOCOL, client.publish(5, "a", content=b"\x01\x02")),
        (PROTOCOL, client.publish(5, "a", content=b"\x01\x01\x01\x01")),
        (PROTOCOL, client.publish(5, "a", content=b"\x03\x00\x01a\x03\x00\x01a")),
        (MALFORMED, client.publish(5, "a", content=b"\x26\x00\x01a")),
        (MALFORMED, client.publish(5, "a", content=b"\x03\x00\x01\xff")),
        (MALFORMED, client.packet(0x32, b"\x00\x01a\x00\x01")),  # no properties at all
        (MALFORMED, client.packet(0x32, b"\x00\x01a\x00\x01\x05\x01\x01")),  # properties end behind the packet
        (MALFORMED, client.packet(0x32, b"\x00\x01a\x00\x01\x80\x00")),
        (PROTOCOL, client.disconnect(5, 0, b"\x1c\x00\x01a")),
        (MALFORMED, client.packet(0xE0, b"\x00\x00\x00")),
        (MALFORMED, client.subscribe(5, 1, ["a"], options=0x30)),
    ],
)
def test_refused_in_5_only(reason, sent):
    assert refusal(client.connect(5), sent) is reason


def test_a_padded_length_is_taken_in_3_1_1():
    assert refusal(client.connect(4), b"\x32\x86\x00\x00\x01a\x00\x01x") is None


def test_an_empty_topic_is_refused_in_3_1_1():
    assert refusal(client.connect(4), client.publish(4, "")) is Reason.TOPIC_NAME_INVALID


@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        (PROTOCOL, client.publish(4, "a")),
        (PROTOCOL, b"\x11\x00"),
        (PROTOCOL, b"GET / HTTP/1.1\r\n"),
        (PROTOCOL, b"\x16\x03\x01\x02\x00\x01"),  # TLS, where none is spoken
        (Reason.PACKET_TOO_LARGE, b"\x10\xff\xff\x7f"),
        (Reason.UNSUPPORTED_PROTOCOL_VERSION, b"\x10\x0c\x00\x06MQIsdp\x03\x02\x00\x3c"),
        (Reason.UNSUPPORTED_PROTOCOL_VERSION, client.packet(0x10, b"\x00\x04MQTT\x06\x02\x00\x3c\x00\x00\x01a")),
        (MALFORMED, client.connect(4, flags=0x03)),
        (MALFORMED, client.connect(4, flags=0x18, will=("t", b"", b""))),
        (MALFORMED, client.connect(4, flags=0x08)),
        (MALFORMED, client.connect(5, flags=0x20)),
        (MALFORMED, client.connect(4, password=b"x")),
        (MALFORMED, client.connect(4, b"\xff")),
        (MALFORMED, client.connect(4, "a\0")),
        (MALFORMED, client.packet(0x10, client.connect(4)[2:] + b"x")),
        (MALFORMED, client.packet(0x10, client.connect(4)[2:-1])),
        (Reason.TOPIC_NAME_INVALID, client.connect(4, will=("a/#", b"", b""))),
        (Reason.QOS_NOT_SUPPORTED, client.connect(5, flags=0x10, will=("a", b"", b""))),
        (Reason.BAD_AUTHENTICATION_METHOD, client.connect(5, content=b"\x15\x00\x01a")),
        (PROTOCOL, client.connect(5, content=b"\x16\x00\x01a")),
        (PROTOCOL, client.connect(5, content=b"\x21\x00\x00")),
        (PROTOCOL, client.connect(5, content=b"\x27\x00\x00\x00\x00")),
        (PROTOCOL, client.connect(5, content=b"\x17\x02")),
        (PROTOCOL, client.connect(5, content=b"\x11\0\0\0\0\x11\0\0\0\0")),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_refused_at_once(reason, sent):
    assert refusal(sent) is reason


def test_a_topic_of_65_535_levels_is_a_topic():
    reader = PacketReader(100_000)
    packets, error = reader.feed(client.connect(4) + client.publish(4, "/" * 65_534))
    assert error is None
    assert packets[1] == Publish(b"/" * 65_534, b"", 1, False, 1, None)


def test_a_partial_packet_is_held_once_and_no_more():
    """A million bytes, one by one: linear in time, and no more than the packet in memory."""
    reader = PacketReader(2_000_000)
    sent = client.connect(4) + client.publish(4, "a", b"x" * 1_000_000)
    reader.feed(sent[:1_000])
    for at in range(1_000, len(sent) - 1):
        assert reader.feed(sent[at : at + 1]) == ([], None)
    (packet,), error = reader.feed(sent[-1:])
    assert error is None
    assert packet.payload == b"x" * 1_000_000
    assert reader.bytes_held == 0


def test_answers_are_as_the_texts_write_them():
    assert connack(4, Reason.SUCCESS) == b"\x20\x02\x00\x00"
    assert connack(4, Reason.SUCCESS, is_session_present=True) == b"\x20\x02\x01\x00"
    assert connack(4, Reason.BAD_USER_NAME_OR_PASSWORD) == b"\x20\x02\x00\x04"
    assert connack(4, Reason.MALFORMED_PACKET) == b""
    assert connack(0, Reason.UNSUPPORTED_PROTOCOL_VERSION) == b"\x20\x02\x00\x01"
    assert connack(5, Reason.BAD_USER_NAME_OR_PASSWORD) == b"\x20\x03\x00\x86\x00"
    assert puback(0x1234) == b"\x40\x02\x12\x34"
    assert puback(0x1234, Reason.TOPIC_NAME_INVALID) == b"\x40\x03\x12\x34\x90"
    assert suback_refused(4, Subscribe(7, 2)) == b"\x90\x04\x00\x07\x80\x80"
    assert suback_refused(5, Subscribe(7, 2)) == b"\x90\x05\x00\x07\x00\x83\x83"
    assert unsuback(4, Unsubscribe(7, 2)) == b"\xb0\x02\x00\x07"
    assert unsuback(5, Unsubscribe(7, 2)) == b"\xb0\x05\x00\x07\x00\x11\x11"
    assert disconnect(4, Reason.SERVER_BUSY, "x") == b""
    assert disconnect(5, Reason.SERVER_BUSY, "x") == b"\xe0\x06\x89\x04\x1f\x00\x01x"
    assert disconnect(5, Reason.SERVER_BUSY, "x" * 200, packet_bytes_max=20) == b"\xe0\x01\x89"
