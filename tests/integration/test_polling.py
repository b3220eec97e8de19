"""The polling gateway before a real Kafka: a device that only answers, a restart, and an outage of Kafka."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.gateways import GatewayProcess
from tests.support.waiting import stretched, wait_until

SCHEMA = {"device": "string", "n": "long"}


class Device:
    """Answers `{"n": NUMBER}`, with an ETag, to those who know its secret."""

    def __init__(self) -> None:
        self.number = 1
        self.asked: list[tuple[int, str | None]] = []
        """Status and `If-None-Match` of each request."""
        device = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = b'{"n": %d}' % device.number
                etag, known = f'"{device.number}"', self.headers.get("If-None-Match")
                status = 401 if self.headers.get("Authorization") != "Bearer canary" else 304 if known == etag else 200
                device.asked.append((status, known))
                self.send_response(status)
                self.send_header("ETag", etag)
                self.send_header("Content-Length", str(len(body) if status == 200 else 0))
                self.end_headers()
                if status == 200:
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/status"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def device() -> Iterator[Device]:
    one = Device()
    yield one
    one.close()


@pytest.mark.guarantee(
    "G303",
    "The answer of a polled device is stored like a record of any gateway, from the spool while Kafka is down. If it "
    "can't be stored, the device is polled again completely. A device with ETags sends each state once to each "
    "stream, also over a restart.",
    promise="acknowledged-records-are-stored",
)
def test_answers_of_a_device_are_in_the_log_once_over_a_restart(kafka: str, tmp_path: Path, device: Device) -> None:
    settings = {
        "poll_hosts": '["127.0.0.1"]',
        "poll_secrets": json.dumps({"METER": "Bearer canary"}),
        "poll_secret_hosts": json.dumps({"METER": ["127.0.0.1"]}),
    }
    gateway = GatewayProcess("poll", kafka, tmp_path, **settings)
    try:
        one = {"url": device.url, "every": "100ms", "headers": {"Authorization": {"secret": "METER"}}}
        barred = {"url": device.url.replace("127.0.0.1", "127.0.0.2"), "every": "100ms"}
        stream = gateway.register(schema=SCHEMA, key="device", poll=[{**one, "fields": {"device": "a7"}}, barred])

        def persisted() -> int:
            return gateway.counts(stream)["confirmed"]

        wait_until(lambda: persisted() == 1 and (304, '"1"') in device.asked, describe=gateway.log_file.read_text)
        device.number = 2
        wait_until(lambda: persisted() == 2, describe=gateway.log_file.read_text)
        outcomes = {"answered": 2.0, "not_modified": None, "host_not_allowed": None}
        for outcome, count in outcomes.items():
            found = gateway.metric("strandline_poll_requests_total", stream=stream, outcome=outcome)
            assert found == count if count is not None else found >= 1
        assert gateway.metric("strandline_poll_failing", stream=stream) == 1
        gateway.process.terminate()
        assert gateway.process.wait(stretched(60)) == 0
        before = len(device.asked)
        gateway.start()
        wait_until(lambda: len(device.asked) > before, describe=gateway.log_file.read_text)
        assert device.asked[before] == (304, '"2"')
        device.number = 3
        wait_until(lambda: persisted() == 1, describe=gateway.log_file.read_text)
        records = sorted(gateway.read(stream), key=lambda record: record.value)
        assert [record.value for record in records] == [b'{"n": %d}' % n for n in (1, 2, 3)]
        assert {record.key for record in records} == {b"a7"}
        headers = records[0].headers
        assert headers["strandline-source"] == f"poll:{device.url}".encode()
        assert headers["strandline-query"] == b"?device=a7"
        assert headers["message-id"].endswith(b' "1"')
        assert "canary" not in gateway.log_file.read_text() + repr(records)
    finally:
        gateway.close()


def test_without_kafka_answers_wait_in_the_spool(tmp_path: Path, device: Device) -> None:
    settings = {
        "poll_hosts": '["127.0.0.1"]',
        "poll_secrets": '{"M": "Bearer canary"}',
        "poll_secret_hosts": '{"M": ["127.0.0.1"]}',
        "poll_confirm_timeout_s": 1,
    }
    gateway = GatewayProcess("poll", "127.0.0.1:1", tmp_path, **settings)
    try:
        poll = {"url": device.url, "every": "100ms", "headers": {"Authorization": {"secret": "M"}}}
        gateway.ledger.put_stream("away", {"stream": "away", "schema": SCHEMA, "poll": [poll]})
        wait_until(lambda: gateway.counts("away")["spooled"] == 1, describe=gateway.log_file.read_text)
        wait_until(lambda: (304, '"1"') in device.asked, describe=gateway.log_file.read_text)
        assert gateway.metric("strandline_ingest_spool_records") == 1
    finally:
        gateway.close()
