"""The MQTT server as a process over a real Kafka, with paho-mqtt as the sensor, and raw sockets for what paho refuses to do."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from confluent_kafka import Consumer, TopicPartition
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from prometheus_client.parser import text_string_to_metric_families

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.mqtt.passwords import write_password
from strandline.ledger.ledger import Ledger
from strandline.log.reader import OffsetRange
from strandline.log.topics import Topics
from strandline.processing.formats.record_rows import record_format
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.source import decoding
from strandline.processing.source.decoding import decode_pieces
from strandline.processing.source.source_config import DecodingConfig, Piece, StreamDecoding
from tests.support import mqtt_client_packets as client
from tests.support import sparkplug
from tests.support.ports import free_ports
from tests.support.waiting import Patience, stretched, wait_until
from tests.support.warm_processes import MODULES, WarmProcess

RECORD_BYTES_MAX = 1_000_000
DEADLINE_S = 60.0
PROTOCOLS = pytest.mark.parametrize("protocol", [mqtt.MQTTv311, mqtt.MQTTv5], ids=["3.1.1", "5.0"])
VERSIONS = pytest.mark.parametrize("version", [4, 5])


class Listener:
    """A listener process, and what a reader of its log and pages sees."""

    def __init__(self, kafka: str, directory: Path, **settings: object) -> None:
        self.kafka = kafka
        self.directory = directory
        self.ledger_url = f"sqlite:///{directory}/ledger.sqlite"
        Ledger.migrate(self.ledger_url)
        self.ledger = Ledger.open(self.ledger_url)
        self.log_file = directory / "listener.log"
        self.port, self.health_port = free_ports(2)
        self._settings = {
            "data_dir": directory,
            "kafka_bootstrap": kafka,
            "ledger_url": self.ledger_url,
            "record_bytes_max": RECORD_BYTES_MAX,
            "streams_refresh_s": 0.2,
            "mqtt_listener_port": self.port,
            "mqtt_listener_health_port": self.health_port,
            **settings,
        }
        self.start()

    def start(self) -> None:
        environment = os.environ | {f"STRANDLINE_{name.upper()}": str(value) for name, value in self._settings.items()}
        self.process = WarmProcess(MODULES["mqtt_listener"], environment, self.log_file)
        wait_until(self._is_listening, bool, "listening", DEADLINE_S)

    def _is_listening(self) -> bool:
        assert self.process.poll() is None, self.log_file.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(stretched(DEADLINE_S))

    def close(self) -> None:
        self.kill()
        self.ledger.close()

    def register(self, topic_filter: str | None = None, **document: object) -> tuple[str, str]:
        """A new stream, taken up by the server; returns its name and the beginning of its topics."""
        name = f"stream-{uuid.uuid4().hex[:12]}"
        below = f"t/{name}"
        spec = StreamSpec.from_document(
            {
                "stream": name,
                "schema": {"device": "string", "n": "long"},
                "mqtt": {"topics": [topic_filter or f"{below}/#"]},
                **document,
            }
        )
        if self.kafka:
            Topics(self.kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX).ensure_stream_topic(spec)
        self.ledger.put_stream(name, spec.as_document())
        wait_until(lambda: name in self.log_file.read_text(), bool, "taken up", DEADLINE_S)
        return name, below

    def read(self, stream: str) -> list[tuple[bytes, bytes | None, dict[str, bytes]]]:
        """Value, key and headers of everything in the log, partition by partition."""
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": "none", "log_level": 2})
        try:
            partitions = consumer.list_topics(stream, timeout=DEADLINE_S).topics[stream].partitions
            ends = {p: consumer.get_watermark_offsets(TopicPartition(stream, p), DEADLINE_S)[1] for p in partitions}
            consumer.assign([TopicPartition(stream, p, 0) for p in partitions])
            found = []
            patience = Patience(f"at {ends}", DEADLINE_S)
            while len(found) < sum(ends.values()):
                patience.check(len(found))
                found += consumer.consume(1_000, 0.1)
            found.sort(key=lambda message: (message.partition(), message.offset()))
            return [(message.value(), message.key(), dict(message.headers())) for message in found]
        finally:
            consumer.close()

    def values(self, stream: str) -> list[bytes]:
        return [value for value, _, _ in self.read(stream)]

    def page(self, path: str) -> str:
        with socket.create_connection(("127.0.0.1", self.health_port), DEADLINE_S) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        return answer.partition(b"\r\n\r\n")[2].decode()

    def metric(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.page("/metrics"))
        samples = [sample for family in families for sample in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def do_counts_add_up(self) -> bool:
        names = ("confirmed_total", "refused_total", "spooled_total", "in_flight")
        whole = sum(self.metric(f"strandline_ingest_{name}") for name in names)
        return self.metric("strandline_ingest_received_total") == whole

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


class Raw:
    """A client that says what it likes."""

    def __init__(self, listener: Listener, version: int = 4, client_id: str = "raw", **more: object) -> None:
        self.socket = socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S)
        self.version = version
        with contextlib.ExitStack() as closing:
            closing.callback(self.socket.close)  # a server that is killed here resets the connection
            if version:
                self.socket.sendall(client.connect(version, client_id, **more))
                if self.receive()[:1] != b"\x20":
                    raise ConnectionError("no CONNACK")
            closing.pop_all()

    def receive(self) -> bytes:
        """The next packet; empty when the connection is closed."""
        head = self._exactly(2)
        return head + self._exactly(head[1]) if head else b""

    def _exactly(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            try:
                piece = self.socket.recv(count - len(received))
            except ConnectionResetError:
                return b""
            if not piece:
                return b""
            received += piece
        return received

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@contextlib.contextmanager
def sensor(listener: Listener, protocol: int, client_id: str = "", prepare=lambda _: None):
    """A connected paho client."""
    one = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id or uuid.uuid4().hex, protocol=protocol)
    prepare(one)
    connected = threading.Event()
    one.reasons = []
    one.on_connect = lambda _client, _data, _flags, reason, _properties: (one.reasons.append(reason), connected.set())
    one.connect("127.0.0.1", listener.port, keepalive=10)
    one.loop_start()
    try:
        assert connected.wait(stretched(DEADLINE_S))
        yield one
    finally:
        one.disconnect()
        one.loop_stop()


def keep_many_under_way(one: mqtt.Client) -> None:
    one.max_inflight_messages_set(500)


@pytest.fixture(scope="module")
def listener(kafka, tmp_path_factory):
    listener = Listener(kafka, tmp_path_factory.mktemp("listener"))
    yield listener
    listener.close()


@pytest.fixture
def private_listener(kafka, tmp_path):
    """One that a test may stop."""
    listener = Listener(kafka, tmp_path)
    yield listener
    listener.close()


@pytest.fixture
def lonely_listener(tmp_path):
    """One whose Kafka is away."""
    listener = Listener("", tmp_path, kafka_bootstrap=f"127.0.0.1:{free_ports(1)[0]}", confirm_timeout_s=1.0)
    yield listener
    listener.close()


@PROTOCOLS
def test_a_message_is_in_the_log_with_its_bytes_before_it_is_acknowledged(listener, protocol):
    stream, topic = listener.register()
    with sensor(listener, protocol) as one:
        for number in range(20):
            published = one.publish(f"{topic}/a", b' {"n": %d}\r\n' % number, qos=1)
            published.wait_for_publish(stretched(DEADLINE_S))
            assert published.is_published()
            if number in (0, 19):
                assert len(listener.values(stream)) == number + 1
    records = listener.read(stream)
    assert sorted(value for value, _, _ in records) == sorted(b' {"n": %d}\r\n' % number for number in range(20))
    _, key, headers = records[0]
    assert key is None
    assert headers["strandline-source"] == f"mqtt:{topic}/a".encode()
    assert headers["content-type"] == b"application/json"
    assert abs(int(headers["strandline-received-ms"]) - time.time() * 1000) < stretched(60_000)
    assert "mqtt-retained" not in headers


@PROTOCOLS
def test_qos_0_is_persisted_too_and_a_retained_flag_is_kept(listener, protocol):
    stream, topic = listener.register()
    with sensor(listener, protocol) as one:
        one.publish(topic, b"0", qos=0)
        one.publish(topic, b"", qos=1, retain=True).wait_for_publish(stretched(DEADLINE_S))
    wait_until(lambda: len(listener.values(stream)), lambda count: count == 2, "both in the log")
    assert {value: headers.get("mqtt-retained") for value, _, headers in listener.read(stream)} == {
        b"0": None,
        b"": b"1",
    }


def test_what_mqtt_5_says_beside_the_payload_is_in_headers(listener):
    stream, topic = listener.register()
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "text/plain"
    properties.UserProperty = [("message-id", "m-1"), ("unit", "m/s"), ("strandline-writer", "forged")]
    with sensor(listener, mqtt.MQTTv5) as one:
        one.publish(topic, b"x", qos=1, properties=properties).wait_for_publish(stretched(DEADLINE_S))
    ((_, _, headers),) = listener.read(stream)
    assert headers["content-type"] == b"text/plain"
    assert headers["message-id"] == b"m-1"
    assert headers["property-unit"] == b"m/s"
    assert headers["property-strandline-writer"] == b"forged"
    assert headers["strandline-writer"].startswith(b"mqtt-listener-")


@pytest.mark.guarantee("G32")
def test_a_level_of_the_topic_is_the_key_and_each_sensors_order_is_kept(listener):
    name = uuid.uuid4().hex[:8]
    stream, _ = listener.register(
        f"{name}/+/turbine/+", key="device", mqtt={"topics": [f"{name}/+/turbine/+"], "fields": {"device": 3}}
    )
    with contextlib.ExitStack() as stack:
        sensors = [stack.enter_context(sensor(listener, mqtt.MQTTv311, prepare=keep_many_under_way)) for _ in range(5)]
        published = [
            one.publish(f"{name}/lundy/turbine/T{place}", b'{"n":%d}' % number, qos=1)
            for number in range(400)
            for place, one in enumerate(sensors)
        ]
        for one in published:
            one.wait_for_publish(stretched(DEADLINE_S))
    numbers: dict[bytes, list[int]] = {}
    for value, key, _ in listener.read(stream):
        numbers.setdefault(key, []).append(json.loads(value)["n"])
    assert numbers == {f"T{place}".encode(): list(range(400)) for place in range(5)}


def test_a_job_reads_fields_from_the_topic(listener):
    """The data source passes the fields to Spark, read from the log as the server wrote it.

    The log contains the sender's bytes.
    """
    name = uuid.uuid4().hex[:8]
    fields = {"site": "string", "turbine": "long", "ts": "timestamp"}
    stream, _ = listener.register(
        schema=fields, partitions=1, mqtt={"topics": [f"{name}/+/turbine/+"], "fields": {"site": 1, "turbine": 3}}
    )
    sent = [("lundy/turbine/7", b'{"ts":1000}'), ("skye/turbine/8", b'{"ts":2000,"site":"own"}')]
    sent += [("skye/turbine/x", b'{"ts":3000}'), ("skye/turbine/9", b'{"ts":4000')]
    with sensor(listener, mqtt.MQTTv311) as one:
        for topic, value in sent:
            one.publish(f"{name}/{topic}", value, qos=1).wait_for_publish(stretched(DEADLINE_S))
    assert listener.values(stream) == [value for _, value in sent]
    levels = {"topics": ["+/+/turbine/+"], "fields": {"site": 1, "turbine": 3}}
    spec = StreamSpec.from_document({"stream": stream, "schema": fields, "mqtt": levels})
    config = DecodingConfig(
        listener.kafka,
        (StreamDecoding(stream, record_format(spec), ("site", "turbine"), EventTimeSource("ts")),),
    )
    pieces = [Piece(OffsetRange(stream, 0, 0, len(sent)), None, None)]
    try:
        (chunk,) = decode_pieces(config, pieces)
    finally:
        decoding._readers.pop(
            (listener.kafka, decoding.READER_TIMEOUT_S)
        ).close()  # a worker keeps it; here Kafka goes before the process does
    assert {name: column.to_pylist() for name, column in chunk.decoded.arrays.items()} == {
        "site": ["lundy", "own"],
        "turbine": [7, 8],
    }


def test_messages_of_sparkplug_are_in_the_log_by_their_node(listener):
    group = uuid.uuid4().hex[:8]
    filters = {"topics": [f"spBv1.0/{group}/+/+"], "fields": {"node": 3}}
    schema = {"node": "string", "metric": "string", "value": {"type": "double?", "from": "$.value_double"}}
    stream, _ = listener.register(format="sparkplug", schema=schema, key="node", mqtt=filters)
    sent = [sparkplug.payload(sparkplug.metric("m", 1.5, "Double"), seq=0, time=1_000), b""]
    with sensor(listener, mqtt.MQTTv5) as one:
        for kind, value in zip(("NBIRTH", "NDEATH"), sent, strict=True):
            one.publish(f"spBv1.0/{group}/{kind}/edge", value, qos=1).wait_for_publish(stretched(DEADLINE_S))
    found = [(value, key, headers["content-type"]) for value, key, headers in listener.read(stream)]
    assert found == [(value, b"edge", b"application/x-protobuf") for value in sent]


def test_an_unknown_topic_is_refused_as_each_version_can(listener):
    listener.register()
    before = listener.metric("strandline_ingest_refused_total", reason="unknown_topic")
    with Raw(listener, 5) as raw:
        raw.socket.sendall(client.publish(5, "nobody/takes/this", b"x", packet_id=9) + client.PINGREQ)
        assert raw.receive() == b"\x40\x03\x00\x09\x90"
        assert raw.receive() == b"\xd0\x00"
        raw.socket.sendall(client.publish(5, "nobody/takes/this", b"x", qos=0))
        assert raw.receive()[2:3] == b"\x90"
    with Raw(listener, 4) as raw:
        raw.socket.sendall(client.publish(4, "nobody/takes/this", b"x"))
        assert raw.receive() == b""
    assert listener.metric("strandline_ingest_refused_total", reason="unknown_topic") == before + 3
    assert listener.do_counts_add_up()


@PROTOCOLS
def test_subscriptions_are_refused(listener, protocol):
    with sensor(listener, protocol) as one:
        answered = threading.Event()
        found = []
        one.on_subscribe = lambda _client, _data, _mid, reasons, _properties: (found.extend(reasons), answered.set())
        one.subscribe([("a/#", 1), ("b", 0)])
        assert answered.wait(stretched(DEADLINE_S))
        assert [reason.is_failure for reason in found] == [True, True]


@pytest.mark.guarantee("G33")
@VERSIONS
@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        (0x81, lambda v, t: client.publish(v, t.encode() + b"/\xff\xfe", b"x")),
        (0x90, lambda v, t: client.publish(v, f"{t}/+", b"x")),
        (0x9B, lambda v, t: client.publish(v, t, b"x", qos=2)),
        (0x95, lambda v, t: client.publish(v, t, b"x" * (RECORD_BYTES_MAX + 1))),
        (0x95, lambda v, t: b"\x32\xff\xff\xff\x7f"),
        (0x81, lambda v, t: b"\x32\xff\xff\xff\xff\x7f"),
        (0x82, lambda v, t: client.connect(v)),
    ],
    ids=["utf-8", "wildcard", "qos 2", "large", "huge", "length", "twice"],
)
def test_what_is_refused_closes_the_connection_and_costs_nobody_else(listener, version, reason, sent):
    stream, topic = listener.register()
    with Raw(listener, version, "bad") as bad, Raw(listener, version, "good") as good:
        good.socket.sendall(client.publish(version, topic, b"1"))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # closed before it had sent all
            bad.socket.sendall(client.publish(version, topic, b"before") + sent(version, topic))
        answers = list(iter(bad.receive, b""))
        if version == 5 and answers and answers[-1][0] == 0xE0:
            assert answers[-1][2] == reason
        good.socket.sendall(client.publish(version, topic, b"2", packet_id=2))
        assert {good.receive(), good.receive()} == {b"\x40\x02\x00\x01", b"\x40\x02\x00\x02"}
    wait_until(lambda: sorted(listener.values(stream)), lambda found: found == [b"1", b"2", b"before"], "in the log")


def test_65_535_levels_are_a_topic_like_any_other(listener):
    listener.register()
    with Raw(listener, 5) as raw:
        started_s = time.monotonic()
        for number in range(50):
            raw.socket.sendall(client.publish(5, "t" + "/" * 65_534, b"x", packet_id=number + 1))
            assert raw.receive()[4:] == b"\x90"
        assert time.monotonic() - started_s < stretched(10)


def test_the_largest_record_is_taken(listener):
    stream, topic = listener.register(key="device")
    shell = b'{"device":""}'
    value = shell[:-2] + b"d" * (RECORD_BYTES_MAX - len(shell)) + shell[-2:]
    with Raw(listener, 5) as raw:
        raw.socket.sendall(
            client.publish(5, f"{topic}/{'x' * 16_000}", value, content=client.user_property("a", "b" * 16_000))
        )
        assert raw.receive() == b"\x40\x02\x00\x01"
    assert listener.values(stream) == [value]


def test_a_client_that_connects_again_takes_over(listener):
    with Raw(listener, 5, "twin") as older, Raw(listener, 5, "twin") as newer:
        assert older.receive()[2:3] == b"\x8e"
        assert older.receive() == b""
        newer.socket.sendall(client.PINGREQ)
        assert newer.receive() == b"\xd0\x00"


def test_a_session_is_found_again_after_the_connection_was_cut(listener):
    name = uuid.uuid4().hex
    with Raw(listener, 0) as raw:
        raw.socket.sendall(client.connect(4, name, flags=0))
        assert raw.receive() == b"\x20\x02\x00\x00"
    with Raw(listener, 0) as raw:
        raw.socket.sendall(client.connect(4, name, flags=0))
        assert raw.receive() == b"\x20\x02\x01\x00"
    with Raw(listener, 0) as raw:
        raw.socket.sendall(client.connect(4, name, flags=2))
        assert raw.receive() == b"\x20\x02\x00\x00"
    with Raw(listener, 0) as raw:
        raw.socket.sendall(client.connect(4, name, flags=0))
        assert raw.receive() == b"\x20\x02\x00\x00"


def test_silence_ends_the_connection(listener):
    with Raw(listener, 5, keep_alive_s=1) as raw:
        assert raw.receive()[2:3] == b"\x8d"


def test_a_will_is_persisted_when_its_client_goes_without_a_word(listener):
    stream, topic = listener.register()
    Raw(listener, 4, "mortal", will=(f"{topic}/will", b"gone", b"")).socket.close()
    wait_until(lambda: listener.values(stream), lambda found: found == [b"gone"], "persisted")


@pytest.mark.guarantee("G809")
def test_passwords(kafka, tmp_path):
    passwords = tmp_path / "passwords"
    write_password(passwords, "lundy", b"right")
    listener = Listener(kafka, tmp_path, mqtt_listener_passwords=passwords)
    try:
        for user, password, is_let_in in [
            (None, None, False),
            ("lundy", None, False),
            ("lundy", b"wrong", False),
            ("nobody", b"right", False),
            ("nobody", b"", False),
            ("lundy", b"right", True),
            ("lundy", b"right", True),
            ("lundy", b"wrong", False),
        ]:
            for version, wrong in ((4, b"\x04"), (5, b"\x86")):
                with Raw(listener, 0) as raw:
                    raw.socket.sendall(client.connect(version, user=user, password=password))
                    assert raw.receive()[3:4] == (b"\0" if is_let_in else wrong)
        write_password(passwords, "skye", b"new")

        def answer() -> bytes:
            with Raw(listener, 0) as raw:
                raw.socket.sendall(client.connect(4, "other", user="skye", password=b"new"))
                return raw.receive()[3:4]

        wait_until(answer, lambda code: code == b"\0", "the new user let in")
        with Raw(listener, 5, "mine", user="lundy", password=b"right") as mine, Raw(listener, 0) as thief:
            thief.socket.sendall(client.connect(5, "mine", user="skye", password=b"new"))
            assert b"\x85" in thief.receive()[2:5]
            mine.socket.sendall(client.PINGREQ)
            assert mine.receive() == b"\xd0\x00"
        hour = b"\x11\x00\x00\x0e\x10"
        Raw(listener, 5, "kept", flags=0, content=hour, user="lundy", password=b"right").socket.close()
        listener.kill()
        listener.start()
        for version, refused in ((4, b"\x02"), (5, b"\x85")):
            with Raw(listener, 0) as thief:
                thief.socket.sendall(client.connect(version, "kept", user="skye", password=b"new"))
                assert refused in thief.receive()[2:5]
        with Raw(listener, 0) as mine:
            mine.socket.sendall(client.connect(5, "kept", flags=0, content=hour, user="lundy", password=b"right"))
            assert mine.receive()[2:4] == b"\x01\x00", "the session is present"
        assert "right" not in listener.log_file.read_text()
    finally:
        listener.close()


def test_tls(kafka, tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    asked = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    asked += " -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*asked.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    listener = Listener(kafka, tmp_path, mqtt_listener_tls_certificate=certificate, mqtt_listener_tls_key=key)
    try:
        stream, topic = listener.register()
        with sensor(listener, mqtt.MQTTv5, prepare=lambda one: one.tls_set(str(certificate))) as one:
            published = [one.publish(topic, b"%d" % number + b"x" * 20_000, qos=1) for number in range(100)]
            for one_published in published:
                one_published.wait_for_publish(stretched(DEADLINE_S))
        assert len(listener.values(stream)) == 100
        with Raw(listener, 0) as plain:
            plain.socket.sendall(client.connect(4))
            assert b"\x20\x02" not in plain.socket.recv(100)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S) as connection:
            with old.wrap_socket(connection) as wrapped:
                assert wrapped.version() == "TLSv1.2"
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mqtt_listener_host": "0.0.0.0"}, "would accept every client"),
        ({"mqtt_listener_passwords": "/nowhere/passwords"}, "can't be read"),
        ({"mqtt_listener_tls_certificate": "/nowhere/certificate.pem"}, "can't be used"),
    ],
)
def test_what_would_not_be_safe_does_not_start(tmp_path, settings, sentence):
    environment = os.environ | {f"STRANDLINE_{name.upper()}": value for name, value in settings.items()}
    port, health_port = free_ports(2)
    environment |= {"STRANDLINE_DATA_DIR": str(tmp_path), "STRANDLINE_MQTT_LISTENER_HEALTH_PORT": str(health_port)}
    environment |= {"STRANDLINE_MQTT_LISTENER_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "-m", "strandline.ingest.mqtt.server"],
        env=environment, capture_output=True, text=True, timeout=stretched(DEADLINE_S), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.guarantee(
    "G31",
    "Without Kafka, the MQTT server acknowledges nothing and disconnects clients so that they retry. Its memory stays "
    "bounded, whatever is sent.",
    promise="acknowledged-records-are-stored",
)
@VERSIONS
def test_without_kafka_no_message_is_acknowledged_and_the_client_is_sent_away_to_come_again(lonely_listener, version):
    _, topic = lonely_listener.register()
    with Raw(lonely_listener, version) as raw:
        raw.socket.sendall(client.publish(version, topic, b"x"))
        answer = raw.receive()
        assert answer[2:3] == (b"\x89" if version == 5 else b"")
        assert answer[:1] != b"\x40"
    wait_until(lonely_listener.do_counts_add_up, bool, "counted")
    assert lonely_listener.metric("strandline_ingest_confirmed_total") == 0
    assert lonely_listener.metric("strandline_ingest_refused_total") == 1


@pytest.mark.guarantee("G31")
def test_without_kafka_memory_stays_flat_whatever_is_sent(lonely_listener):
    """Twenty clients push what they can for some seconds, far more than the bound on what may wait."""
    _, topic = lonely_listener.register()
    until_s = time.monotonic() + 6
    sent = [0] * 20

    def push(place: int) -> None:
        while time.monotonic() < until_s:  # sleeps: the load lasts so long
            with contextlib.suppress(OSError), Raw(lonely_listener, 4, f"pusher-{place}") as raw:
                raw.socket.settimeout(1.0)
                for number in range(65_535):
                    if time.monotonic() > until_s:  # sleeps: the load lasts so long
                        break
                    raw.socket.sendall(client.publish(4, topic, b"x" * 50_000, packet_id=number + 1))
                    sent[place] += 50_000

    threads = [threading.Thread(target=push, args=(place,)) for place in range(20)]
    for thread in threads:
        thread.start()
    peak_bytes = 0
    while any(thread.is_alive() for thread in threads):
        peak_bytes = max(peak_bytes, lonely_listener.rss_bytes())
        time.sleep(0.05)  # sleeps: between two measurements
    assert sum(sent) > 50_000_000
    assert peak_bytes < 400_000_000


@pytest.fixture
def many_files():
    """Allow as many open files as the system permits, for some time. Yields for how many connections this is enough."""
    before, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    yield files_max - 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, files_max))


@pytest.mark.parametrize("slow_max", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_that_never_connect_hinder_nobody(kafka, tmp_path, many_files, slow_max):
    """Slow clients hold every connection that is allowed, or send a byte now and then.

    Sensors still connect, and the memory stays bounded.
    """
    count = min(slow_max, many_files)
    listener = Listener(kafka, tmp_path, mqtt_listener_connections_max=count // 2)
    try:
        stream, topic = listener.register()
        with contextlib.ExitStack() as stack:
            slow = [
                stack.enter_context(socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S))
                for _ in range(count)
            ]
            for number, one in enumerate(slow):
                with contextlib.suppress(ConnectionError):
                    one.send(client.connect(4, flags=0)[: number % 10])
            with Raw(listener, 5) as raw:
                for number in range(20):
                    began_s = time.monotonic()
                    raw.socket.sendall(client.publish(5, topic, b"x", packet_id=number + 1))
                    assert raw.receive()[:2] == b"\x40\x02"
                    assert time.monotonic() - began_s < stretched(5)
            assert listener.rss_bytes() < 512_000_000
            wait_until(
                lambda: listener.metric("strandline_mqtt_connections"), lambda left: left == 0, "sent away", DEADLINE_S
            )
        assert len(listener.values(stream)) == 20
    finally:
        listener.close()


def test_sigterm_settles_and_tells(private_listener):
    stream, topic = private_listener.register()
    with Raw(private_listener, 5) as raw:
        raw.socket.sendall(b"".join(client.publish(5, topic, b"%d" % n, packet_id=n + 1) for n in range(500)))
        first = raw.receive()
        private_listener.process.send_signal(signal.SIGTERM)
        answers = [first, *iter(raw.receive, b"")]
        assert answers[-1][2:3] == b"\x8b"
        acknowledged = {answer for answer in answers if answer[:1] == b"\x40"}
        assert private_listener.process.wait(stretched(DEADLINE_S)) == 0
        assert len(private_listener.values(stream)) == len(acknowledged) > 0


def test_ready_only_with_kafka(listener, lonely_listener):
    assert json.loads(listener.page("/readyz"))["status"] == "ok"
    assert json.loads(listener.page("/healthz"))["status"] == "ok"
    assert json.loads(lonely_listener.page("/readyz"))["status"] == 503


def answer(listener: Listener, packet: bytes, source: str = "127.0.0.1") -> bytes:
    """Version 5's reason, or 3.1.1's return code, in the answer to a CONNECT; empty when there is none."""
    with socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S, source_address=(source, 0)) as one:
        one.sendall(packet)
        with contextlib.suppress(ConnectionResetError):
            return one.recv(4)[3:4]
        return b""


def test_an_identifier_has_256_bytes_at_most(listener):
    for version, code in ((4, b"\x02"), (5, b"\x85")):
        assert answer(listener, client.connect(version, "é" * 128)) == b"\0"
        assert answer(listener, client.connect(version, "é" * 128 + "x")) == code


@pytest.mark.guarantee(
    "G178",
    "A client that guesses passwords at the MQTT server waits longer each time. It keeps out neither an accepted "
    "sensor nor another user of the same address.",
    promise="no-client-can-exhaust-a-service",
)
def test_who_guesses_passwords_waits_and_hinders_nobody(kafka, tmp_path):
    passwords = tmp_path / "passwords"
    for user in ("lundy", "skye"):
        write_password(passwords, user, b"right")
    listener = Listener(kafka, tmp_path, mqtt_listener_passwords=passwords)
    try:
        stream, topic = listener.register()
        assert answer(listener, client.connect(5, "s", user="skye", password=b"right")) == b"\0"
        guesses = [answer(listener, client.connect(5, "g", user="skye", password=b"%d" % n)) for n in range(20)]
        assert set(guesses) == {b"\x86", b"\x9f"} and guesses[:5] == [b"\x86"] * 5 and guesses[5] == b"\x9f"
        assert answer(listener, client.connect(4, "g", user="skye", password=b"wrong")) == b"\x03"
        # Who was let in before comes in again, and so does another user, from the same address.
        for user in ("skye", "lundy"):
            with Raw(listener, 5, user=user, password=b"right") as raw:
                raw.socket.sendall(client.publish(5, topic, user.encode(), packet_id=1))
                assert raw.receive() == b"\x40\x02\x00\x01"
        assert sorted(listener.values(stream)) == [b"lundy", b"skye"]
        assert listener.metric("strandline_mqtt_connections_refused_total", reason="connection_rate_exceeded") > 1
    finally:
        listener.close()


@pytest.mark.guarantee("G177")
def test_an_address_has_its_share_of_connections(kafka, tmp_path):
    listener = Listener(kafka, tmp_path, mqtt_listener_connections_max=10)
    try:
        stream, topic = listener.register()
        wait_until(lambda: listener.metric("strandline_mqtt_connections"), lambda open: open == 0, "none open")
        with contextlib.ExitStack() as stack:
            for number in range(5):
                stack.enter_context(Raw(listener, 4, f"greedy{number}"))
            assert [answer(listener, client.connect(4, "more")) for _ in range(3)] == [b""] * 3
            with socket.create_connection(("127.0.0.1", listener.port), DEADLINE_S, ("127.0.0.2", 0)) as sensor:
                sensor.sendall(client.connect(4, "sensor") + client.publish(4, topic, b"x", packet_id=7))
                assert sensor.recv(4) == b"\x20\x02\x00\x00"
                assert sensor.recv(4) == b"\x40\x02\x00\x07"
            assert listener.metric("strandline_mqtt_connections") == 6 - 1
        assert listener.values(stream) == [b"x"]
        # Silent connections exclude no client, even from their own address.
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(Raw(listener, 0))
            assert answer(listener, client.connect(4, "neighbour")) == b"\0"
    finally:
        listener.close()
