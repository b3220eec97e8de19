"""Reading MQTT: what was sent is what is read, in whatever pieces it arrives, and no bytes at all can break the reader."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.ingest.mqtt.decoder import (
    Connect,
    Disconnect,
    PacketReader,
    PingRequest,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)
from strandline.ingest.mqtt.wire import PacketError, PublishProperties
from tests.support import mqtt_client_packets as client

PACKET_BYTES_MAX = 300_000

versions = st.sampled_from((4, 5))
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)
topics = st.text(st.characters(exclude_characters="\0+#", exclude_categories=("Cs",)), min_size=1, max_size=300)
packet_ids = st.integers(1, 65_535)
payloads = st.binary(max_size=300)
users = st.lists(st.tuples(texts, texts), max_size=3)
unkept = st.sampled_from((b"", b"\x01\x01", b"\x02\0\0\0\x05", b"\x08\0\x01r", b"\x09\0\x02\xff\0"))


def message_properties(version, draw):
    """Bytes, and what is to be read of them."""
    if version == 4:
        return b"", None
    user, content_type = draw(users), draw(st.none() | texts)
    content = draw(unkept) + b"".join(client.user_property(*one) for one in user)
    if content_type is not None:
        content = b"\x03" + client.text(content_type) + content
    kept = PublishProperties(content_type, tuple(user)) if user or content_type is not None else None
    return content, kept


@st.composite
def conversations(draw):
    """Draw what a client sends from CONNECT on: the bytes, and the packets."""
    version = draw(versions)
    sent, packets = [], []
    bytes_one, packet = draw(connects(version))
    sent.append(bytes_one)
    packets.append(packet)
    for kind in draw(st.lists(st.sampled_from("ppppsuid"), max_size=8)):
        match kind:
            case "p":
                content, kept = message_properties(version, draw)
                topic, payload, qos, retain = (
                    draw(topics),
                    draw(payloads),
                    draw(st.sampled_from((0, 1, 2))),
                    draw(st.booleans()),
                )
                packet_id = draw(packet_ids) if qos else 0
                dup = bool(qos) and draw(st.booleans())
                sent.append(
                    client.publish(
                        version, topic, payload, qos=qos, packet_id=packet_id, retain=retain, dup=dup, content=content
                    )
                )
                packets.append(Publish(topic.encode(), payload, qos, retain, packet_id, kept))
            case "s":
                packet_id, filters = draw(packet_ids), draw(st.lists(topics, min_size=1, max_size=4))
                sent.append(client.subscribe(version, packet_id, filters, draw(st.sampled_from((0, 1, 2)))))
                packets.append(Subscribe(packet_id, len(filters)))
            case "u":
                packet_id, filters = draw(packet_ids), draw(st.lists(topics, min_size=1, max_size=4))
                sent.append(client.unsubscribe(version, packet_id, filters))
                packets.append(Unsubscribe(packet_id, len(filters)))
            case "i":
                sent.append(client.PINGREQ)
                packets.append(PingRequest())
            case "d":
                expiry_s = draw(st.none() | st.integers(0, 2**32 - 1)) if version == 5 else None
                reason = draw(st.sampled_from((0, 4))) if version == 5 else 0
                content = None if expiry_s is None else b"\x11" + expiry_s.to_bytes(4, "big")
                sent.append(client.disconnect(version, reason, content))
                packets.append(Disconnect(reason, expiry_s))
    return sent, packets


@st.composite
def connects(draw, version):
    client_id, clean, keep_alive_s = draw(texts), draw(st.booleans()), draw(st.integers(0, 65_535))
    user = draw(st.none() | texts)
    password = draw(st.none() | payloads) if user is not None or version == 5 else None
    will, will_bytes, flags = None, None, 0x02 if clean else 0
    if draw(st.booleans()):
        content, kept = message_properties(version, draw)
        delay_s = draw(st.integers(0, 2**32 - 1)) if version == 5 and draw(st.booleans()) else 0
        if delay_s:
            content += b"\x18" + delay_s.to_bytes(4, "big")
        topic, payload, retain = draw(topics), draw(payloads), draw(st.booleans())
        will, will_bytes = Will(topic.encode(), payload, retain, kept, delay_s), (topic, payload, content)
        flags |= draw(st.sampled_from((0, 0x08))) | retain << 5
    expiry_s = draw(st.integers(0, 2**32 - 1)) if version == 5 else 0 if clean else 0xFFFFFFFF
    packet_bytes_max = draw(st.none() | st.integers(1, 2**32 - 1)) if version == 5 else None
    content = b"\x11" + expiry_s.to_bytes(4, "big")
    if packet_bytes_max is not None:
        content += b"\x27" + packet_bytes_max.to_bytes(4, "big")
    content += draw(st.sampled_from((b"", b"\x21\0\x05", b"\x22\0\0", b"\x17\0\x19\x01", b"\x26\0\0\0\0")))
    sent = client.connect(
        version,
        client_id,
        flags=flags,
        keep_alive_s=keep_alive_s,
        content=content,
        will=will_bytes,
        user=user,
        password=password,
    )
    packet = Connect(version, client_id, clean, keep_alive_s, user, password, will, expiry_s, packet_bytes_max)
    return sent, packet


def cut(data, places):
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[first:end] for first, end in itertools.pairwise(marks)]


def read(pieces, packet_bytes_max=PACKET_BYTES_MAX):
    """All packets, and the error that ended it."""
    reader = PacketReader(packet_bytes_max)
    found = []
    for piece in pieces:
        packets, error = reader.feed(piece)
        found += packets
        if error is not None:
            return found, (error.reason, str(error))
    return found, None


@given(conversations(), st.lists(st.integers(0, 10_000), max_size=10))
def test_what_was_sent_is_read_however_it_is_cut(conversation, places):
    sent, packets = conversation
    assert read(cut(b"".join(sent), places)) == (packets, None)


@given(conversations())
def test_byte_by_byte(conversation):
    sent, packets = conversation
    whole = b"".join(sent)
    assert read([whole[at : at + 1] for at in range(len(whole))]) == (packets, None)


@given(conversations(), st.data())
def test_broken_bytes_break_nothing_and_the_cut_makes_no_difference(conversation, data):
    """Errors found early (by the first bytes) may be found before earlier packets are read in one go, never after."""
    sent, _ = conversation
    whole = bytearray(b"".join(sent))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        match data.draw(st.sampled_from(["set", "insert", "delete"])):
            case "set":
                whole[place] = data.draw(st.integers(0, 255))
            case "insert":
                whole[place:place] = data.draw(st.binary(max_size=5))
            case "delete":
                del whole[place : place + data.draw(st.integers(1, 5))]
        if not whole:
            return
    at_once = read([bytes(whole)])
    assert read([whole[at : at + 1] for at in range(len(whole))]) == at_once
    assert read(cut(bytes(whole), data.draw(st.lists(st.integers(0, 10_000), max_size=10)))) == at_once


@pytest.mark.guarantee(
    "G33",
    "No bytes of an MQTT client end the server or affect another client.",
    promise="no-client-can-exhaust-a-service",
)
@given(st.binary(max_size=400), versions)
@example(b"\x30\xff\xff\xff\xff\x01", 5)
@example(b"\x32\x02\x00\x05", 4)
def test_any_bytes_after_connect(data, version):
    before = client.connect(version)
    found, error = read([before + data])
    assert isinstance(found[0], Connect)
    again, error_again = read([before, *(data[at : at + 1] for at in range(len(data)))])
    assert (again, error_again) == (found, error)


@given(st.binary(max_size=200))
def test_any_bytes_from_the_start(data):
    found, error = read([data[at : at + 1] for at in range(len(data))])
    assert (found, error) == read([data] if data else [])


@given(st.integers(0, 2**28 - 1), versions)
def test_a_packet_over_the_limit_is_refused_by_its_size_alone(length, version):
    reader = PacketReader(1_000)
    reader.feed(client.connect(version))
    packets, error = reader.feed(b"\x30" + client.varint(length))
    assert packets == []
    total = 1 + len(client.varint(length)) + length
    if total > 1_000:
        assert isinstance(error, PacketError)
    elif length:
        assert error is None
