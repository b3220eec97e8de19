"""The TCP gateway as a process, over a real Kafka: each record that it answers with `ok` is in the log, byte for byte."""

from __future__ import annotations

import signal
import socket
import struct

import pytest

from tests.support.gateways import DEADLINE_S, RECORD_BYTES_MAX, GatewayProcess
from tests.support.ports import free_port
from tests.support.waiting import stretched, wait_until


@pytest.fixture(scope="module")
def gateway(kafka, tmp_path_factory):
    gateway = GatewayProcess("tcp", kafka, tmp_path_factory.mktemp("tcp"), tcp_connections_max=50)
    yield gateway
    gateway.close()


@pytest.fixture
def private_gateway(kafka, tmp_path):
    gateway = GatewayProcess("tcp", kafka, tmp_path)
    yield gateway
    gateway.close()


class Sender:
    """One connection, and its answers."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self.received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def end(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def read_until(self, end: bytes) -> list[bytes]:
        while not self.received.endswith(end):
            piece = self.socket.recv(65_536)
            assert piece, self.received
            self.received += piece
        return self.received.splitlines()

    def read_to_end(self) -> list[bytes]:
        while piece := self.socket.recv(65_536):
            self.received += piece
        self.socket.close()
        return self.received.splitlines()


def register(gateway: GatewayProcess, *, ack: bool = True) -> tuple[str, int]:
    port = free_port()
    return gateway.register(key="device", tcp={"port": port, "ack": ack}), port


def values(gateway: GatewayProcess, stream: str) -> list[bytes]:
    return sorted(record.value for record in gateway.read(stream))


@pytest.mark.guarantee(
    "G22",
    "The TCP gateway answers `ok N` only when every record up to the Nth is in the log or was refused by its number.",
    promise="acknowledged-records-are-stored",
)
def test_lines_are_records_and_ok_says_how_many_are_in_the_log(gateway):
    stream, port = register(gateway)
    sender = Sender(port)
    sender.send(b'{"device":"a","n":1}\r\n\nnot json\n{"dev')
    assert sender.read_until(b"ok 2\n")[-1] == b"ok 2"
    assert values(gateway, stream) == [b"not json", b'{"device":"a","n":1}']
    sender.send(b'ice":"b"}\n')
    sender.read_until(b"ok 3\n")
    sender.end()
    assert sender.read_to_end()[-1] == b"ok 3"
    (record,) = [record for record in gateway.read(stream) if record.key == b"b"]
    assert record.value == b'{"device":"b"}'
    assert record.headers["strandline-source"] == b"tcp:127.0.0.1"


def test_a_last_line_without_its_end_is_a_record_when_the_sender_ends_in_order(gateway):
    stream, port = register(gateway)
    sender = Sender(port)
    sender.send(b"1\n2")
    sender.end()
    assert sender.read_to_end()[-1] == b"ok 2"
    assert values(gateway, stream) == [b"1", b"2"]


def test_a_line_that_is_cut_off_is_no_record_and_is_counted(gateway):
    stream, port = register(gateway)
    sender = Sender(port)
    sender.send(b"1\n2")
    sender.read_until(b"ok 1\n")
    sender.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sender.socket.close()  # with a reset
    wait_until(lambda: gateway.metric("strandline_ingest_dropped_total", stream=stream, reason="cut") == 1)
    assert values(gateway, stream) == [b"1"]


def test_without_ack_nothing_is_said_and_all_is_in_the_log(gateway):
    stream, port = register(gateway, ack=False)
    sender = Sender(port)
    sender.send(b"1\n2\n")
    sender.end()
    assert sender.read_to_end() == []
    wait_until(lambda: gateway.counts(stream)["confirmed"] == 2)
    assert values(gateway, stream) == [b"1", b"2"]


@pytest.mark.guarantee("G22")
def test_a_line_over_the_limit_is_refused_by_its_number_and_costs_its_neighbours_nothing(gateway):
    stream, port = register(gateway)
    largest = b"x" * RECORD_BYTES_MAX
    sender = Sender(port)
    sender.send(b"1\n" + b"x" * (RECORD_BYTES_MAX + 1) + b"\n" + largest + b"\r\n" + b"y" * 1_000_000 + b"\n5\n")
    sender.end()
    lines = sender.read_to_end()
    assert lines[-1] == b"ok 5"
    assert [line.split()[:3] for line in lines if line.startswith(b"refused")] == [
        [b"refused", b"2", b"too_large"], [b"refused", b"4", b"too_large"],
    ]  # fmt: skip
    assert values(gateway, stream) == [b"1", b"5", largest]
    counts = gateway.counts(stream)
    assert (counts["received"], counts["confirmed"], counts["refused"]) == (5, 3, 2)


@pytest.mark.long
def test_a_flood_is_read_as_fast_as_it_is_confirmed(gateway):
    stream, port = register(gateway)
    count = 200_000
    sender = Sender(port)
    sender.send(b"".join(b'{"device":"d%d","n":%d}\n' % (n % 7, n) for n in range(count)))
    sender.end()
    numbers = [int(line.split()[1]) for line in sender.read_to_end()]
    assert numbers[-1] == count
    assert numbers == sorted(numbers)
    records = gateway.read(stream)
    assert len({record.value for record in records}) == len(records) == count
    by_device: dict[bytes | None, list[int]] = {}
    for record in records:
        by_device.setdefault(record.key, []).append(int(record.value.rpartition(b":")[2][:-1]))
    assert all(numbers == sorted(numbers) for numbers in by_device.values()), "a device's records keep their order"


def test_too_many_connections_are_told_so(gateway):
    _, port = register(gateway)
    senders = [Sender(port) for _ in range(50)]
    try:
        one_more = Sender(port)
        assert one_more.read_to_end()[0].startswith(b"error too_many ")
    finally:
        for sender in senders:
            sender.socket.close()


def test_a_sender_is_told_when_the_log_does_not_confirm(kafka, tmp_path):
    """The topic is missing: what was sent is not in the log, and the connection ends with the reason."""
    gateway = GatewayProcess("tcp", kafka, tmp_path, confirm_timeout_s=1)
    try:
        port = free_port()
        gateway.ledger.put_stream(
            "no-topic", {"stream": "no-topic", "schema": {"n": "long"}, "tcp": {"port": port, "ack": True}}
        )
        wait_until(lambda: gateway.metric("strandline_ingest_open", stream="no-topic") == 1)
        sender = Sender(port)
        sender.send(b"1\n2\n")
        (line,) = sender.read_to_end()
        assert line.startswith(b"error log_")
        wait_until(lambda: not gateway.counts("no-topic")["in_flight"])
        counts = gateway.counts("no-topic")
        assert counts["received"] == counts["refused"] == 2
    finally:
        gateway.close()


def test_stopping_settles_what_has_arrived_and_ends_with_0(private_gateway):
    gateway = private_gateway
    stream, port = register(gateway)
    sender = Sender(port)
    sender.send(b"".join(b"%d\n" % n for n in range(20_000)))
    sender.read_until(b"\n")
    gateway.process.send_signal(signal.SIGTERM)
    last = int(sender.read_to_end()[-1].split()[1])
    assert gateway.process.wait(stretched(DEADLINE_S)) == 0, gateway.log_file.read_text()
    logged = sorted(int(value) for value in values(gateway, stream))
    assert logged[:last] == list(range(last))
    assert len(logged) == len(set(logged))
    assert "Traceback" not in gateway.log_file.read_text()
