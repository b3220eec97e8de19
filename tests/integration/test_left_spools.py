"""A gateway is recreated under another host name: what the one before acknowledged is written to the log."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.log.topics import Topics
from tests.support.gateways import DEADLINE_S, RECORD_BYTES_MAX, GatewayProcess
from tests.support.ports import free_port
from tests.support.waiting import wait_until

RECORDS = 300


def send(port: int, first: int) -> None:
    """Send some lines, and require that the gateway acknowledges them."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sender:
        sender.sendall(b"".join(b'{"n":%d}\n' % n for n in range(first, first + RECORDS)))
        sender.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda: sender.recv(65_536), b"")) == b"ok %d\n" % RECORDS


@pytest.mark.guarantee(
    "G153",
    "A gateway that returns under another host name, for example as a recreated container, stores the spooled records "
    "of its predecessor before new records. A spool whose directory was renamed or copied is refused with the remedy.",
    promise="acknowledged-records-are-stored",
)
@pytest.mark.guarantee(
    "G191",
    "Records acknowledged by a gateway of `docker-compose.yml` survive its container. Whichever service is restarted "
    "or recreated, each acknowledged record reaches the log once (through a broker: at least once). The results of a "
    "running job are right and exist once.",
    promise="a-stack-keeps-its-data",
)
def test_what_a_gateway_of_another_host_name_spooled_gets_into_the_log_before_what_is_new(
    kafka: str, tmp_path: Path
) -> None:
    gateway = GatewayProcess("tcp", f"127.0.0.1:{free_port()}", tmp_path, confirm_timeout_s=0.5)  # its Kafka is away
    try:
        port, name = free_port(), f"stream-{uuid.uuid4().hex[:12]}"
        document = {
            "stream": name,
            "schema": {"n": "long"},
            "partitions": 1,
            "durability": "spool",
            "tcp": {"port": port, "ack": True},
        }
        spec = StreamSpec.from_document(document)
        Topics(kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX).ensure_stream_topic(spec)
        gateway.ledger.put_stream(name, spec.as_document())

        def is_open() -> bool:
            return gateway.metric("strandline_ingest_open", stream=name) == 1

        wait_until(is_open, describe=gateway.log_file.read_text)
        send(port, 0)
        assert gateway.metric("strandline_ingest_spool_records") == RECORDS
        gateway.kill()

        # The volume is kept, and the host's name is another one.
        gateway.host_name = "made-anew"
        gateway.environment["STRANDLINE_KAFKA_BOOTSTRAP"] = gateway.kafka = kafka
        gateway.start()
        wait_until(is_open, describe=gateway.log_file.read_text)
        send(port, RECORDS)
        wait_until(lambda: not gateway.metric("strandline_ingest_spool_records"), describe=gateway.log_file.read_text)

        assert [record.value for record in gateway.read(name)] == [b'{"n":%d}' % n for n in range(2 * RECORDS)]
        assert "action=left_spool_found" in gateway.log_file.read_text()
    finally:
        gateway.close()
