"""The HTTP gateway as a process, over a real Kafka: what is accepted is in the log, byte for byte; what is refused is not."""

import concurrent.futures
import contextlib
import gzip
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from backports import zstd
from prometheus_client.parser import text_string_to_metric_families

from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.log.topics import Topics
from strandline.services.trust import certificates_for
from tests.support.topic_reader import read_messages
from tests.support.waiting import Patience, stretched, wait_until
from tests.support.warm_processes import MODULES, WarmProcess

DEADLINE_S = 60
JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}
BODY_BYTES_MAX = 4_000_000
RECORD_BYTES_MAX = 1_000_000
DEEP = b"[" * 5_000 + b"]" * 5_000


@dataclass
class Logged:
    """A record as the log holds it."""

    partition: int
    value: bytes
    key: bytes | None
    headers: dict[str, bytes]


class Gateway:
    """A gateway process, and what a sender and a reader of the log see of it."""

    def __init__(self, kafka: str, directory: Path, **settings: object) -> None:
        self.kafka = kafka
        self.ledger_url = f"sqlite:///{directory}/ledger.sqlite"
        self.ledger = Ledger.open(self.ledger_url)
        self.log_file = directory / "gateway.log"
        with socket.create_server(("127.0.0.1", 0)) as taken_for_a_moment:
            self.port = taken_for_a_moment.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        values = {
            "kafka_bootstrap": kafka,
            "ledger_url": self.ledger_url,
            "http_port": self.port,
            "http_body_bytes_max": BODY_BYTES_MAX,
            "record_bytes_max": RECORD_BYTES_MAX,
            "confirm_timeout_s": 20,  # the machine may be busy
            **settings,
        }
        environment = os.environ | {f"STRANDLINE_{name.upper()}": str(value) for name, value in values.items()}
        self.process = WarmProcess(MODULES["http"], environment, self.log_file)
        self.client = httpx.Client(base_url=self.url, timeout=DEADLINE_S, verify=certificates_for(self.url, None))
        wait_until(self.is_healthy, describe=self.log)

    def log(self) -> str:
        """The log of the process so far."""
        return self.log_file.read_text()

    def is_healthy(self) -> bool:
        assert self.process.poll() is None, self.log_file.read_text()
        with contextlib.suppress(httpx.TransportError):
            return self.client.get("/healthz").status_code == 200
        return False

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait(stretched(DEADLINE_S))
        self.ledger.close()

    def register(self, key: str | None = None) -> str:
        """A new stream and its topic."""
        name = f"stream-{uuid.uuid4().hex[:12]}"
        document = {"stream": name, "schema": {"device": "string", "n": "long"}} | ({"key": key} if key else {})
        spec = StreamSpec.from_document(document)
        if self.kafka:
            Topics(self.kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX).ensure_stream_topic(spec)
        self.ledger.put_stream(name, spec.as_document())
        return name

    def send(self, stream: str, body: object, headers: dict[str, str] = JSON) -> httpx.Response:
        return self.client.post(f"/v1/streams/{stream}/records", content=body, headers=headers)

    def read(self, stream: str) -> list[Logged]:
        """Everything in the log, partition by partition."""
        return [
            Logged(message.partition(), message.value() or b"", message.key(), dict(message.headers() or ()))
            for message in read_messages(self.kafka, stream, within_s=DEADLINE_S)
        ]

    def metric(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.fixture(scope="module")
def gateway(kafka, tmp_path_factory):
    gateway = Gateway(kafka, tmp_path_factory.mktemp("gateway"))
    yield gateway
    gateway.close()


@pytest.fixture
def private_gateway(kafka, tmp_path):
    """One that a test may stop."""
    gateway = Gateway(kafka, tmp_path)
    yield gateway
    gateway.close()


@pytest.fixture
def roomy_gateway(kafka, tmp_path):
    """One that closes no idle connection for want of room while ten thousand others are open."""
    gateway = Gateway(kafka, tmp_path, http_connections_max=10_100)
    yield gateway
    gateway.close()


@pytest.fixture
def lonely_gateway(tmp_path):
    """One whose Kafka is away."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        bootstrap = f"127.0.0.1:{closed.getsockname()[1]}"
    gateway = Gateway(bootstrap, tmp_path, confirm_timeout_s=0.5)
    gateway.kafka = ""
    yield gateway
    gateway.close()


def raw_request(stream: str, body: bytes, content_length: int | None = None) -> bytes:
    length = len(body) if content_length is None else content_length
    head = f"POST /v1/streams/{stream}/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode() + body


@pytest.mark.guarantee(
    "G1",
    "The HTTP gateway answers 200 only after Kafka has confirmed every record of the request (`acks=all`, idempotent "
    "producer). The log contains the sender's bytes, unchanged.",
    promise="acknowledged-records-are-stored",
)
def test_an_object_is_in_the_log_with_its_bytes_and_what_the_gateway_knows(gateway):
    stream, body = gateway.register(), b' {"device" : "a",\t"n":1.50, "n": 2}\r\n'
    before_ms = time.time() * 1000
    answer = gateway.send(stream, body, {"content-type": "Application/JSON; charset=UTF-8"})
    assert (answer.status_code, answer.json()) == (200, {"accepted": 1})
    (record,) = gateway.read(stream)
    assert (record.value, record.key) == (body, None)
    assert record.headers["strandline-source"] == b"http:127.0.0.1"
    assert record.headers["content-type"] == b"application/json"
    assert record.headers["strandline-writer"].endswith(str(gateway.port).encode())
    assert before_ms - 1 <= int(record.headers["strandline-received-ms"]) <= time.time() * 1000


@pytest.mark.guarantee(
    "G3",
    "A record that can't be parsed is stored in the log, and doesn't affect its neighbours.",
    promise="records-are-stored-once-and-unchanged",
)
def test_an_array_is_as_many_records_and_a_bad_one_costs_its_neighbours_nothing(gateway):
    stream = gateway.register()
    elements = [b'{"n" : 1}', b'{"n":NaN}', b"1e999", b'"\\q\\ud800"', b'"\xff"', DEEP, b"9" * 5_000, b'{"n":1,"n":2}']
    answer = gateway.send(stream, b"[" + b" ,\n".join(elements) + b"]")
    assert answer.json() == {"accepted": len(elements)}
    assert sorted(record.value for record in gateway.read(stream)) == sorted(elements)


@pytest.mark.parametrize("content_type", ["application/x-ndjson", "application/jsonlines; charset=utf-8"])
def test_each_line_is_a_record(gateway, content_type):
    stream = gateway.register()
    answer = gateway.send(stream, b'{"n":1}\r\n\n  \nnot json\n{"n":2}', {"content-type": content_type})
    assert answer.json() == {"accepted": 3}
    assert sorted(record.value for record in gateway.read(stream)) == [b"not json", b'{"n":1}', b'{"n":2}']


def test_an_empty_array_is_accepted_and_changes_nothing(gateway):
    stream = gateway.register()
    answer = gateway.send(stream, b" [ ] ")
    assert (answer.status_code, answer.json()) == (200, {"accepted": 0})
    assert gateway.read(stream) == []


def java_murmur2(key: bytes) -> int:
    """Kafka's own hash of a key, written after its Java source."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    for at in range(0, len(key) // 4 * 4, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    tail = key[len(key) // 4 * 4 :]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_the_key_chooses_the_partition_as_kafka_does_and_keeps_the_order(gateway):
    stream = gateway.register(key="device")
    sent = [{"n": n, "device": f"device-{n % 50}"} for n in range(2_000)]
    for first in range(0, len(sent), 500):
        lines = "\n".join(map(json.dumps, sent[first : first + 500]))
        assert gateway.send(stream, lines, LINES).json() == {"accepted": 500}
    assert gateway.send(stream, b'{"n": -1}').status_code == 200
    records = gateway.read(stream)
    assert len(records) == 2_001
    seen: dict[str, list[int]] = {}
    for record in records:
        value = json.loads(record.value)
        if value["n"] >= 0:
            assert record.key == value["device"].encode()
            assert record.partition == (java_murmur2(record.key) & 0x7FFFFFFF) % 4
            seen.setdefault(value["device"], []).append(value["n"])
    assert len({record.partition for record in records}) == 4
    assert all(numbers == sorted(numbers) and len(numbers) == 40 for numbers in seen.values())


def test_records_without_a_key_spread_over_the_partitions(gateway):
    stream = gateway.register()
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: gateway.send(stream, b'{"n":%d}' % n).raise_for_status(), range(200)))
    assert len({record.partition for record in gateway.read(stream)}) == 4


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (400, b"", JSON),
        (400, b" \n", JSON),
        (400, b"", LINES),
        (400, b"hello", JSON),
        (400, b"NaN", JSON),
        (400, b'[{"n":1}', JSON),
        (400, b'[{"n":1},]', JSON),
        (400, b"[" * 1_000_000, JSON),
        (413, b'["' + b"x" * RECORD_BYTES_MAX + b'"]', JSON),
        (413, b'{"x":"' + b"x" * RECORD_BYTES_MAX + b'"}', JSON),
        (413, b"[" + b"1," * 100_000 + b"1]", JSON),
        (413, b"x" * (BODY_BYTES_MAX + 1), LINES),
        (415, b"{}", {}),
        (415, b"{}", {"content-type": "text/html"}),
        (415, b"{}", {"content-type": "application/json; charset=utf-16"}),
        (415, b"{}", JSON | {"content-encoding": "br"}),
        (415, b"{}", JSON | {"content-encoding": "gzip, gzip"}),
        (400, b"{}", JSON | {"content-encoding": "gzip"}),
        (400, b"{}", JSON | {"content-encoding": "zstd"}),
        (400, gzip.compress(b"[1,2]" * 1_000, mtime=0)[:-1], JSON | {"content-encoding": "gzip"}),
        (413, gzip.compress(b" " * (BODY_BYTES_MAX + 1), mtime=0), JSON | {"content-encoding": "gzip"}),
        (413, zstd.compress(b" " * (BODY_BYTES_MAX + 1)), JSON | {"content-encoding": "zstd"}),
        (400, b"{}", JSON | {"idempotency-key": "x" * 256}),
        (400, b"{}", JSON | {"idempotency-key": '""'}),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_refused_gets_a_problem_and_is_not_in_the_log(gateway, status, body, headers):
    stream = gateway.register()
    answer = gateway.send(stream, body, headers)
    assert answer.status_code == status, answer.text
    check_problem(answer)
    assert gateway.send(stream, b'{"n":1}').status_code == 200
    assert [record.value for record in gateway.read(stream)] == [b'{"n":1}']


def check_problem(answer: httpx.Response) -> None:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["type"] == f"urn:strandline:problem:{problem['code']}"
    assert problem["title"]
    assert len(problem["detail"]) > 20


@pytest.mark.guarantee(
    "G15",
    "If an HTTP batch contains a record that is too large, the answer names it, and its neighbours are stored. "
    "Received = confirmed + refused.",
    promise="acknowledged-records-are-stored",
)
def test_a_refused_record_is_named_and_the_others_of_its_batch_are_persisted(gateway):
    stream = gateway.register()
    answer = gateway.send(stream, b"1\n\n" + b"x" * (RECORD_BYTES_MAX + 1) + b"\n3", LINES)
    assert answer.status_code == 200
    assert answer.json() == {
        "accepted": 2,
        "refused": [
            {
                "index": 1,
                "reason": "too_large",
                "detail": f"it has {RECORD_BYTES_MAX + 1} bytes, the limit is {RECORD_BYTES_MAX}",
            }
        ],
    }
    assert sorted(record.value for record in gateway.read(stream)) == [b"1", b"3"]
    assert gateway.metric("strandline_ingest_received_total", stream=stream) == 3
    assert gateway.metric("strandline_ingest_confirmed_total", stream=stream) == 2
    assert gateway.metric("strandline_ingest_refused_total", stream=stream, reason="too_large") == 1


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstd.compress)], ids=["gzip", "zstd"])
@pytest.mark.parametrize("count", [10, 50_000])
def test_a_packed_body_is_unpacked(gateway, coding, pack, count):
    """A small body is unpacked in the loop, a large one in a thread."""
    stream = gateway.register()
    lines = [b'{"n":%d}' % n for n in range(count)]
    answer = gateway.send(stream, pack(b"\n".join(lines)), LINES | {"content-encoding": coding})
    assert answer.json() == {"accepted": count}
    assert sorted(record.value for record in gateway.read(stream)) == sorted(lines)


@pytest.mark.long
@pytest.mark.guarantee(
    "G17",
    "Compressed bodies that expand a thousandfold, endless bodies, and a thousand slow senders leave an HTTP gateway "
    "below 512 MB, and it still serves others. `make test-all` uses ten thousand senders.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstd.compress)], ids=["gzip", "zstd"])
def test_bodies_that_unpack_to_a_thousand_times_their_size_are_refused_within_bounds(gateway, coding, pack):
    """1 GB each, eight at a time: the gateway answers others meanwhile, and does not grow by more than its bounds."""
    stream, bomb = gateway.register(), pack(b" " * 1_000_000_000)
    assert len(bomb) <= 1_000_000
    before_bytes = gateway.rss_bytes()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        bombs = [threads.submit(gateway.send, stream, bomb, LINES | {"content-encoding": coding}) for _ in range(24)]
        while not all(bomb.done() for bomb in bombs):
            assert gateway.send(stream, b'{"n":1}').status_code == 200
        assert {bomb.result().status_code for bomb in bombs} == {413}
    assert gateway.rss_bytes() - before_bytes < 60_000_000
    assert gateway.metric("strandline_http_bodies_held_bytes") == 0


def test_the_largest_record_is_taken_with_its_key(gateway):
    stream = gateway.register(key="device")
    shell = b'{"device":""}'
    device = os.urandom(RECORD_BYTES_MAX).hex()[: RECORD_BYTES_MAX - len(shell)].encode()
    body = b'{"device":"' + device + b'"}'
    assert len(body) == RECORD_BYTES_MAX
    assert gateway.send(stream, body).status_code == 200
    (record,) = gateway.read(stream)
    assert (record.value, record.key) == (body, device)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_of_100_mb_is_refused_without_being_kept(gateway, is_chunked):
    stream, piece = gateway.register(), b"x" * 1_000_000
    headers = JSON if is_chunked else JSON | {"content-length": str(100 * len(piece))}
    before_bytes = gateway.rss_bytes()
    answer = gateway.send(stream, (piece for _ in range(100)), headers)
    assert answer.status_code == 413
    check_problem(answer)
    assert gateway.rss_bytes() - before_bytes < 30_000_000
    assert gateway.metric("strandline_http_bodies_held_bytes") == 0


def test_a_sender_that_asks_first_is_refused_before_it_sends(gateway):
    request = raw_request(gateway.register(), b"", content_length=100_000_000)
    with socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S) as connection:
        connection.sendall(request.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n"))
        head = connection.recv(1_000).partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head  # else its next request would be taken for the body


def test_a_sender_that_sends_all_before_it_reads_sees_the_refusal_and_no_broken_connection(gateway):
    body = b"x" * 30_000_000
    with socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S) as connection:
        connection.sendall(raw_request(gateway.register(), body))
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("name", ["nobody-knows", "No%20Name", "%00", "a" * 300, "..%2f.."])
def test_an_unknown_stream_is_not_found(gateway, name):
    answer = gateway.send(name, b"{}")
    assert answer.status_code == 404
    check_problem(answer)


def test_a_stream_can_be_sent_to_as_soon_as_it_is_registered(gateway):
    name = f"late-{uuid.uuid4().hex[:12]}"
    spec = StreamSpec.from_document({"stream": name, "schema": {"n": "long"}})
    Topics(gateway.kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX).ensure_stream_topic(spec)
    gateway.ledger.put_stream(name, spec.as_document())
    assert gateway.send(name, b"{}").status_code == 200


def test_a_stream_that_was_asked_for_too_early_is_found_soon(gateway):
    name = f"late-{uuid.uuid4().hex[:12]}"
    assert gateway.send(name, b"{}").status_code == 404
    spec = StreamSpec.from_document({"stream": name, "schema": {"n": "long"}})
    Topics(gateway.kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX).ensure_stream_topic(spec)
    gateway.ledger.put_stream(name, spec.as_document())
    wait_until(lambda: gateway.send(name, b"{}").status_code == 200, describe=gateway.log)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/streams/x/records", 404, None),
        ("PUT", "/v1/streams/x/records", 405, "POST"),
        ("DELETE", "/healthz", 405, "GET, HEAD"),
        ("POST", "/v1/streams//records", 404, None),
        ("POST", "/v1/streams/x/y/records", 404, None),
        ("POST", "/v1/streams/x/records/", 404, None),
        ("GET", "/", 404, None),
    ],
)
def test_other_paths_and_methods_get_a_problem(gateway, method, path, status, allow):
    answer = gateway.client.request(method, path)
    assert answer.status_code == status
    assert answer.headers.get("allow") == allow
    check_problem(answer)


def test_health_readiness_and_metrics(gateway):
    stream = gateway.register()
    labels = {"protocol": "http", "stream": stream}
    refused = gateway.metric("strandline_http_requests_total", status="400")
    timed = gateway.metric("strandline_ingest_ack_latency_seconds_count")
    gateway.send(stream, b"[1,2,3]")
    gateway.send(stream, b"x")
    assert gateway.metric("strandline_ingest_received_total", **labels) == 3
    assert gateway.metric("strandline_ingest_confirmed_total", **labels) == 3
    assert gateway.metric("strandline_ingest_in_flight", **labels) == 0
    assert gateway.metric("strandline_http_requests_total", status="400") == refused + 1
    assert gateway.metric("strandline_ingest_ack_latency_seconds_count") == timed + 1
    assert gateway.metric("strandline_ingest_in_flight_bytes") == 0
    for path in ("/healthz", "/readyz"):
        assert gateway.client.get(path).json() == {"status": "ok"}


def test_a_sender_that_leaves_before_its_body_is_whole_leaves_nothing(gateway):
    stream = gateway.register()
    before = gateway.metric("strandline_http_requests_total", status="disconnected")
    for sent in (0, 1, 100, 70_000):
        with socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S) as connection:
            connection.sendall(raw_request(stream, b"[" + b"1," * (sent // 2), content_length=90_000))
    wait_until(
        lambda: gateway.metric("strandline_http_requests_total", status="disconnected") == before + 4,
        describe=gateway.log_file.read_text,
    )
    assert gateway.metric("strandline_http_bodies_held_bytes") == 0
    assert gateway.read(stream) == []


@pytest.mark.parametrize("is_reset", [False, True], ids=["close", "reset"])
def test_a_sender_that_does_not_wait_for_the_answer_changes_nothing(gateway, is_reset):
    """A race decides if the request is accepted. An accepted request is processed once, and counted."""
    stream, count = gateway.register(), 100
    for n in range(count):
        with socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S) as connection:
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(raw_request(stream, b'{"n":%d}' % n))
    assert gateway.send(stream, b'{"n":-1}').status_code == 200
    wait_until(lambda: gateway.metric("strandline_ingest_in_flight_bytes") == 0, describe=gateway.log)
    values = [json.loads(record.value)["n"] for record in gateway.read(stream)]
    wait_until(
        lambda: gateway.metric("strandline_ingest_confirmed_total", stream=stream) == len(values),
        describe=gateway.log_file.read_text,
    )
    assert -1 in values
    assert len(values) == len(set(values))
    log = gateway.log_file.read_text()
    assert "Traceback" not in log
    assert "exception" not in log.lower()


def test_pipelined_requests_are_answered_in_order(gateway):
    stream = gateway.register()
    requests = [raw_request(stream, body) for body in (b"[1]", b"[1,2]", b"x", b"[1,2,3]")]
    with socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S) as connection:
        connection.sendall(b"".join(requests))
        received = b""
        while b'{"accepted":3}' not in received:
            piece = connection.recv(65_536)
            assert piece, received
            received += piece
    places = [received.index(part) for part in (b'"accepted":1', b'"accepted":2', b" 400 ", b'"accepted":3')]
    assert places == sorted(places)


@pytest.mark.guarantee(
    "G2",
    "If Kafka can't confirm in time, the HTTP gateway answers 503 with `Retry-After`, never 200.",
    promise="acknowledged-records-are-stored",
)
def test_without_kafka_a_sender_is_told_to_come_again(lonely_gateway):
    stream = lonely_gateway.register()
    started_s = time.monotonic()
    answer = lonely_gateway.send(stream, b'{"n":1}')
    assert time.monotonic() - started_s < stretched(5)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    check_problem(answer)
    assert answer.json()["code"] == "log_unavailable"
    assert "may or may not be in the log" in answer.json()["detail"]
    assert lonely_gateway.metric("strandline_ingest_refused_total", reason="log_unavailable") == 1
    ready = lonely_gateway.client.get("/readyz")
    assert ready.status_code == 503
    check_problem(ready)
    assert lonely_gateway.client.get("/healthz").status_code == 200


def test_stopping_answers_what_is_under_way_and_ends_with_0(private_gateway):
    gateway = private_gateway
    stream = gateway.register()
    accepted: list[int] = []

    def send_until_stopped(sender: int) -> None:
        with httpx.Client(base_url=gateway.url, timeout=DEADLINE_S) as client:
            for number in range(1_000_000):
                n = sender * 1_000_000 + number
                try:
                    answer = client.post(f"/v1/streams/{stream}/records", content=b'{"n":%d}' % n, headers=JSON)
                except httpx.TransportError:
                    return
                assert answer.status_code == 200, answer.text
                accepted.append(n)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        senders = [threads.submit(send_until_stopped, sender) for sender in range(8)]
        wait_until(lambda: len(accepted) > 500, describe=gateway.log)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(stretched(DEADLINE_S)) == 0, gateway.log_file.read_text()
        for sender in senders:
            sender.result(stretched(DEADLINE_S))
    logged = [json.loads(record.value)["n"] for record in gateway.read(stream)]
    assert set(accepted) <= set(logged)
    assert len(logged) == len(set(logged))
    log = gateway.log_file.read_text()
    assert "gateway_stopped" in log
    assert "Traceback" not in log


def test_an_idle_gateway_stops_at_once_on_either_signal(kafka, tmp_path):
    for number in (signal.SIGINT, signal.SIGTERM):
        gateway = Gateway(kafka, tmp_path)
        started_s = time.monotonic()
        gateway.process.send_signal(number)
        assert gateway.process.wait(stretched(DEADLINE_S)) == 0
        assert time.monotonic() - started_s < stretched(5)
        gateway.close()


def test_a_taken_port_is_one_clear_sentence(gateway):
    environment = os.environ | {"STRANDLINE_HTTP_PORT": str(gateway.port), "STRANDLINE_LEDGER_URL": gateway.ledger_url}
    ended = subprocess.run(
        [sys.executable, "-m", "strandline.ingest.http.gateway"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=stretched(DEADLINE_S),
        check=False,
    )
    assert ended.returncode == 1
    assert str(gateway.port) in ended.stderr
    assert "STRANDLINE_HTTP_PORT" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.fixture
def many_files():
    """Allow this process as many open files as the system permits. Yields how many connections a test can hold."""
    before, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    yield files_max - 500
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, files_max))


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize(
    ("senders_max", "part"),
    [(1_000, "head"), *(pytest.param(10_000, part, marks=pytest.mark.long) for part in ("nothing", "head", "body"))],
)
def test_thousands_of_slow_senders_hinder_nobody(roomy_gateway, many_files, senders_max, part):
    """Each sends a byte now and then, and never a whole request; others are served, and the memory stays bounded."""
    gateway, count = roomy_gateway, min(senders_max, many_files)
    stream = gateway.register()
    request = raw_request(stream, b"[" + b"1" * 998 + b"]")
    start = {"nothing": b"", "head": request[:30], "body": request[:-900]}[part]
    with contextlib.ExitStack() as stack:
        senders = [
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S)) for _ in range(count)
        ]
        for sender in senders:
            sender.sendall(start)
        slowest_s = 0.0
        for round_ in range(5):
            for sender in senders[round_::5]:
                with contextlib.suppress(ConnectionError):
                    sender.send(b"x" if part == "head" else b"1" if part == "body" else b"")
            began_s = time.monotonic()
            assert gateway.send(stream, b'{"n":1}').status_code == 200
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert gateway.metric("strandline_http_connections") > count * 0.9
        assert gateway.rss_bytes() < 512_000_000
        assert slowest_s < stretched(5)
        if part != "body":  # that takes three times as long, and ends the same way (tests/unit/test_http_connection.py)
            wait_until(lambda: gateway.metric("strandline_http_connections") < 10, describe=gateway.log)
    print(f"{gateway.rss_bytes() / 1e6:.0f} MB with {count} connections, slowest answer to others {slowest_s:.3f} s")
    assert gateway.send(stream, b'{"n":1}').status_code == 200
    assert [record.value for record in gateway.read(stream)] == [b'{"n":1}'] * 6


SLOW_SENDERS = 4
LARGEST_BODY_BYTES = 16 * 1024 * 1024


def send_slowly(port: int, stream: str, is_over: threading.Event, holding: threading.Semaphore) -> None:
    """Send all of a large body except its last byte, and wait. Start again when the gateway closes the connection."""
    large = raw_request(stream, b"[" + b"1" * (LARGEST_BODY_BYTES - 2) + b"]")
    while not is_over.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sender:
            sender.sendall(large[:-1])
            holding.release()
            sender.settimeout(0.1)
            while not is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    sender.recv(1_000)
                    break
        is_over.wait(1)


@pytest.mark.guarantee("G161")
@pytest.mark.long
def test_four_slow_bodies_of_16_mb_keep_nobody_waiting(kafka, tmp_path):
    """Well-behaved requests at the same time are answered with 200 each time, soon, and are in the log."""
    gateway, posts = Gateway(kafka, tmp_path, http_body_bytes_max=LARGEST_BODY_BYTES), 300
    is_over, holding = threading.Event(), threading.Semaphore(0)
    try:
        stream = gateway.register()
        arguments = (gateway.port, stream, is_over, holding)
        senders = [threading.Thread(target=send_slowly, args=arguments) for _ in range(SLOW_SENDERS)]
        for sender in senders:
            sender.start()
        for _ in senders:
            assert holding.acquire(timeout=stretched(DEADLINE_S))
        took_s, statuses = [], []
        for number in range(posts):
            began_s = time.monotonic()
            statuses.append(gateway.send(stream, b'{"n":%d}' % number).status_code)
            took_s.append(time.monotonic() - began_s)
        p99_s, rss_bytes = sorted(took_s)[posts * 99 // 100], gateway.rss_bytes()
        print(
            f"{statuses.count(429)} of {posts} answers were 429; p99 {p99_s * 1000:.1f} ms, median "
            f"{sorted(took_s)[posts // 2] * 1000:.1f} ms, {rss_bytes / 1e6:.0f} MB"
        )
        is_over.set()
        for sender in senders:
            sender.join(stretched(DEADLINE_S))
        assert statuses == [200] * posts
        assert sorted(record.value for record in gateway.read(stream)) == sorted(b'{"n":%d}' % n for n in range(posts))
        assert rss_bytes < 512_000_000
        assert p99_s < stretched(5)  # 0.1 s is the aim on a machine that does nothing else
    finally:
        is_over.set()
        gateway.close()


def test_over_its_bound_a_gateway_closes_connections_that_wait_and_serves_new_ones(kafka, tmp_path):
    gateway = Gateway(kafka, tmp_path, http_connections_max=20)
    try:
        stream = gateway.register()
        gateway.client.close()  # its connection would be one of those that wait
        with contextlib.ExitStack() as stack:
            senders = []
            for n in range(100):
                sender = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S))
                sender.sendall(raw_request(stream, b"%d" % n)[:10])
                senders.append(sender)
            body = b'{"n":1}'
            senders[-1].sendall(raw_request(stream, body)[10:].replace(b"length: 2", b"length: 7"))
            assert senders[-1].recv(1_000).startswith(b"HTTP/1.1 200 ")
            assert senders[0].recv(1_000) == b""
        gateway.client = httpx.Client(base_url=gateway.url, timeout=DEADLINE_S)
        assert gateway.metric("strandline_http_connections_evicted") >= 80
    finally:
        gateway.close()


@pytest.mark.guarantee("G17")
def test_a_body_without_end_is_refused(gateway):
    """A chunked body that never ends: the sender gets to see the refusal while it is still sending."""
    stream = gateway.register()
    head = raw_request(stream, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    chunk = b"10000\r\n" + b"[" * 65_536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), DEADLINE_S) as connection:
        connection.sendall(head)
        connection.setblocking(False)
        answer, rest, sent_bytes = b"", b"", 0
        patience = Patience("answered", DEADLINE_S)
        while not answer:
            patience.check(sent_bytes)
            rest = rest or chunk
            with contextlib.suppress(BlockingIOError):
                sent = connection.send(rest)
                rest, sent_bytes = rest[sent:], sent_bytes + sent
            with contextlib.suppress(BlockingIOError):
                answer = connection.recv(1_000)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert sent_bytes >= BODY_BYTES_MAX
    assert gateway.metric("strandline_http_bodies_held_bytes") == 0


@pytest.mark.guarantee(
    "G16",
    "An `Idempotency-Key` is stored as the message id of each record of its request.",
    promise="records-are-stored-once-and-unchanged",
)
@pytest.mark.parametrize("coding", [None, "gzip"])
def test_an_idempotency_key_is_the_message_id_of_each_record(gateway, coding):
    stream = gateway.register()
    headers = {"idempotency-key": '"batch-7"'} | ({"content-encoding": "gzip"} if coding else {})
    bodies = [(b'{"n":0}', JSON), (b'[{"n":1}]', JSON), (b'{"n":2}\n"%s"\n{"n":3}' % (b"x" * RECORD_BYTES_MAX), LINES)]
    for body, content_type in bodies:
        assert gateway.send(stream, gzip.compress(body) if coding else body, content_type | headers).status_code == 200
    assert gateway.send(stream, b'{"n":4}').status_code == 200
    found = {record.value: record.headers.get("message-id") for record in gateway.read(stream)}
    assert found == {
        b'{"n":0}': b"batch-7",
        b'{"n":1}': b"batch-7/0",
        b'{"n":2}': b"batch-7/0",
        b'{"n":3}': b"batch-7/2",
        b'{"n":4}': None,
    }


@pytest.mark.guarantee("G301")
def test_cloud_events_are_in_the_log_as_cloud_events_binding_for_kafka_has_them(gateway):
    stream = gateway.register()
    binary = {"ce-specversion": "1.0", "ce-type": "t", "ce-id": "1", "ce-source": "/s%20x", "content-type": "text/xml"}
    batch = [json.dumps({"specversion": "1.0", "type": "t", "source": "/s", "id": str(n)}).encode() for n in (2, 3)]
    assert gateway.send(stream, b"<much/>", binary).json() == {"accepted": 1}
    body = gzip.compress(b"[ " + b" , ".join(batch) + b" ]")
    headers = {"content-type": "application/cloudevents-batch+json", "content-encoding": "gzip"}
    assert gateway.send(stream, body, headers).json() == {"accepted": 2}
    found = {one.headers["message-id"]: one for one in gateway.read(stream)}
    assert {name: one.value for name, one in found.items()} == {
        b"/s x 1": b"<much/>", b"/s 2": batch[0], b"/s 3": batch[1],
    }  # fmt: skip
    assert found[b"/s x 1"].headers.items() >= {
        "ce_specversion": b"1.0", "ce_type": b"t", "ce_id": b"1", "ce_source": b"/s x", "content-type": b"text/xml",
    }.items()  # fmt: skip
    assert found[b"/s 2"].headers["content-type"] == b"application/cloudevents+json"
