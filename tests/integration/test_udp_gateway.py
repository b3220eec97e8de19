"""The UDP gateway as a process, over a real Kafka: what was read from the socket is in the log, what was not is counted."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.access.tokens import make_token
from strandline.ingest.udp.gateway import receive_buffer_errors
from tests.support.gateways import RECORD_BYTES_MAX, GatewayProcess
from tests.support.ports import free_port
from tests.support.tokens import secret_of
from tests.support.waiting import stretched, wait_until


@pytest.fixture(scope="module")
def gateway(kafka, tmp_path_factory):
    gateway = GatewayProcess("udp", kafka, tmp_path_factory.mktemp("udp"))
    yield gateway
    gateway.close()


def register(gateway: GatewayProcess, **udp: object) -> tuple[str, int]:
    port = free_port()
    return gateway.register(key="device", udp={"port": port, **udp}), port


def send(port: int, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for datagram in datagrams:
            one.sendto(datagram, ("127.0.0.1", port))


def wait_until_counted(gateway: GatewayProcess, stream: str, records: int) -> dict[str, int]:
    """Return the counters when `records` records have arrived, and none is in flight or on disk.

    They always add up then.
    """
    wait_until(
        lambda: (
            (c := gateway.counts(stream))["received"] + c["dropped"] >= records
            and not c["in_flight"]
            and not gateway.metric("strandline_ingest_spool_records")
        ),
        describe=lambda: (gateway.counts(stream), gateway.log_file.read_text()),
    )
    counts = gateway.counts(stream)
    assert counts["received"] == counts["confirmed"] + counts["refused"] + counts["spooled"]
    return counts


def test_a_datagram_is_a_record_with_its_bytes_whatever_they_are(gateway):
    stream, port = register(gateway)
    datagrams = [b'{"device":"a","n":1}\n', b"\xff\x00 not json", b"x" * 60_000, b'{"device":"a","n":2}']
    send(port, *datagrams)
    wait_until_counted(gateway, stream, 4)
    records = gateway.read(stream)
    assert sorted(record.value for record in records) == sorted(datagrams)
    by_key = [record.value for record in records if record.key == b"a"]
    assert by_key == [datagrams[0], datagrams[3]], "one device's records keep their order"
    assert {record.headers["strandline-source"] for record in records} == {b"udp:127.0.0.1"}


def test_lines_of_a_datagram_are_records(gateway):
    stream, port = register(gateway, framing="lines")
    send(port, b'{"n":1}\r\n\n  \n{"n":2}', b"\n\n", b'{"n":3}\n')
    wait_until_counted(gateway, stream, 3)
    assert sorted(record.value for record in gateway.read(stream)) == [b'{"n":1}', b'{"n":2}', b'{"n":3}']


def test_a_datagram_without_content_is_refused_and_counted(gateway):
    stream, port = register(gateway)
    send(port, b"", b"{}")
    counts = wait_until_counted(gateway, stream, 2)
    assert (counts["received"], counts["confirmed"] + counts["spooled"], counts["refused"]) == (2, 1, 1)
    assert gateway.metric("strandline_ingest_refused_total", stream=stream, reason="empty") == 1


def test_a_stream_that_changes_is_taken_up_without_a_restart(gateway):
    stream, port = register(gateway)
    other_port = free_port()
    gateway.register(name=stream, is_open=False, udp={"port": other_port})
    wait_until(lambda: f"port={other_port} " in gateway.log_file.read_text(), describe=gateway.log_file.read_text)
    send(other_port, b"{}")
    wait_until_counted(gateway, stream, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:  # the former port is free again
        wait_until(lambda: can_bind(one, port), describe=gateway.log_file.read_text)


def can_bind(one: socket.socket, port: int) -> bool:
    try:
        one.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_a_taken_port_is_said_and_tried_again(gateway):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        stream = gateway.register(is_open=False, udp={"port": port})
        wait_until(lambda: "port_refused" in gateway.log_file.read_text(), describe=gateway.log_file.read_text)
    wait_until(
        lambda: gateway.metric("strandline_ingest_open", stream=stream) == 1, describe=gateway.log_file.read_text
    )
    send(port, b"{}")
    wait_until_counted(gateway, stream, 1)


@pytest.mark.guarantee(
    "G21",
    "Each UDP datagram that was read is in the log or counted as refused, and the drops of the kernel are counted "
    "exactly. UDP senders get no acknowledgement.",
    promise="acknowledged-records-are-stored",
)
def test_what_the_kernel_drops_is_counted_to_the_exact_number(kafka, tmp_path):
    """A receive buffer of 4 kB and a burst: sent = in the log + dropped, and the machine's own counter agrees."""
    gateway = GatewayProcess("udp", kafka, tmp_path, udp_receive_buffer_bytes=4_096)
    try:
        stream, port = register(gateway)
        before = rcvbuf_errors()
        sent = 20_000
        gateway.process.send_signal(signal.SIGSTOP)  # else a quick gateway might keep up
        send(port, *(b'{"n":%d}' % n for n in range(sent // 2)))
        gateway.process.send_signal(signal.SIGCONT)
        send(port, *(b'{"n":%d}' % n for n in range(sent // 2, sent)))
        counts = wait_until_counted(gateway, stream, sent)
        dropped = int(gateway.metric("strandline_ingest_dropped_total", stream=stream, reason="kernel"))
        assert dropped >= sent // 2 - 100
        assert counts["confirmed"] + counts["spooled"] + dropped == sent
        assert rcvbuf_errors() - before == dropped, "something else on this machine dropped datagrams"
        assert gateway.metric("strandline_udp_receive_buffer_errors_total") == rcvbuf_errors()
        values = [record.value for record in gateway.read(stream)]
        assert len(values) == len(set(values)) == sent - dropped
    finally:
        gateway.close()


@pytest.mark.guarantee("G420")
def test_a_recorded_datagram_is_refused_after_the_gateway_was_killed(kafka, tmp_path):
    """The documented example sends signed lines. Then all is sent again with forgeries, before and after a kill."""
    gateway = GatewayProcess("udp", kafka, tmp_path, tokens_refresh_s=0.2, udp_signed_only=True, udp_host="0.0.0.0")
    try:
        open_to_all = gateway.register(is_open=False, udp={"port": free_port()})
        stream, port = register(gateway, hmac={})
        made = make_token(
            gateway.ledger, "sensor", role=None, writes=[stream], lasts_ms=None, now_ms=0, by="the test"
        )  # fmt: skip
        lines = [b'{"device":"a","n":%d}' % n for n in range(100)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tap:
            tap.bind(("127.0.0.1", 0))
            tap.settimeout(30)
            subprocess.run(
                [sys.executable, "examples/signed_udp.py", stream, "127.0.0.1", str(tap.getsockname()[1])],
                env={"STRANDLINE_TOKEN": made.text}, input=b"\n".join(lines), timeout=stretched(60), check=True,
            )  # fmt: skip
            recorded = [tap.recv(65_536) for _ in lines]
        wait_until(lambda: signs(gateway, stream, port, recorded[0]), describe=gateway.log_file.read_text)
        unknown = int(gateway.metric("strandline_ingest_refused_total", stream=stream, reason="unknown_key"))
        send(port, *recorded[1:], *recorded, b"{}", recorded[0][:-1] + b"?")
        counts = wait_until_counted(gateway, stream, unknown + 202)
        assert counts["confirmed"] == 100
        gateway.kill()
        gateway.start()
        wait_until(
            lambda: gateway.metric("strandline_ingest_open", stream=stream) == 1, describe=gateway.log_file.read_text
        )
        send(port, *recorded[-60:])
        wait_until_counted(gateway, stream, 60)
        assert gateway.metric("strandline_ingest_refused_total", stream=stream, reason="replayed") == 60
        records = gateway.read(stream)
        assert sorted(record.value for record in records) == sorted(lines), "each once"
        assert {record.headers["strandline-principal"] for record in records} == {b"sensor"}
        assert gateway.metric("strandline_ingest_open", stream=open_to_all) == 0
        log = gateway.log_file.read_text()
        assert f"stream={open_to_all}" in log and secret_of(made.text) not in log
    finally:
        gateway.close()


def signs(gateway: GatewayProcess, stream: str, port: int, datagram: bytes) -> bool:
    """Send it until the gateway knows the token: whether it was taken."""
    before = gateway.counts(stream)["received"]
    send(port, datagram)
    wait_until(lambda: gateway.counts(stream)["received"] > before, describe=gateway.log_file.read_text)
    return gateway.counts(stream)["refused"] < gateway.counts(stream)["received"]


def rcvbuf_errors() -> int:
    return receive_buffer_errors(Path("/proc/net/snmp").read_text())


def test_stopping_persists_what_has_arrived_and_ends_with_0(kafka, tmp_path):
    gateway = GatewayProcess("udp", kafka, tmp_path)
    try:
        stream, port = register(gateway)
        sent = [b'{"n":%d}' % n for n in range(5_000)]
        gateway.process.send_signal(signal.SIGSTOP)
        send(port, *sent)
        gateway.process.send_signal(signal.SIGTERM)
        gateway.process.send_signal(signal.SIGCONT)
        assert gateway.process.wait(stretched(30)) == 0, gateway.log_file.read_text()
        assert sorted(record.value for record in gateway.read(stream)) == sorted(sent)
        assert "Traceback" not in gateway.log_file.read_text()
    finally:
        gateway.close()


def test_a_taken_port_of_the_pages_is_one_clear_sentence(gateway, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "strandline.ingest.udp.gateway"],
        env=gateway.environment | {"STRANDLINE_DATA_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=stretched(60), check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert str(gateway.health_port) in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_records_over_the_limit_are_refused(kafka, tmp_path):
    assert RECORD_BYTES_MAX > 65_536, "a datagram can't be over the limit of the other tests"
    gateway = GatewayProcess("udp", kafka, tmp_path, record_bytes_max=1_024)
    try:
        stream, port = register(gateway)
        send(port, b"x" * 1_024, b"x" * 1_025)
        counts = wait_until_counted(gateway, stream, 2)
        assert (counts["confirmed"] + counts["spooled"], counts["refused"]) == (1, 1)
    finally:
        gateway.close()
