"""Records that users send to the control service: it relays them to a gateway, and never writes to Kafka itself."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.access.authenticator import Authenticator
from strandline.core.errors import Forbidden
from strandline.ingest.append.outcome import LogAway, LogBusy
from strandline.ledger.ledger import Ledger
from strandline.services.jobs import record_relay
from strandline.services.jobs.record_relay import RecordRelay
from strandline.services.rest.guards.host_guard import BODY_BYTES_MAX
from tests.support.control import STREAM, Api
from tests.support.served_gateway import served_gateway
from tests.support.tokens import tokens_of_each_kind

RECORDS = "/v1/streams/turbines/records"
LINES = b'{"turbine":"a"}\n{"turbine":"b"}'
AS_LINES = {"Content-Type": "application/x-ndjson"}
OWN = {"Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield opened
    opened.close()


def service(ledger: Ledger, url: str | None, authenticator: Authenticator | None = None) -> Api:
    api = Api(ledger, authenticator=authenticator, relay=RecordRelay(url))
    assert authenticator is not None or api.apply(STREAM).status_code == 200
    return api


@contextmanager
def scripted(answer: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a server that reads one request and sends these bytes, and the requests. None: it sends nothing."""
    listener, requests, ending = socket.create_server(("127.0.0.1", 0)), [], threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            requests.append(connection.recv(100_000))
            if answer is None:
                ending.wait()
            else:
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        ending.set()
        listener.close()


@pytest.mark.guarantee(
    "G1080",
    "The control service relays records to a gateway and returns its response. It writes no record to Kafka itself.",
    promise="acknowledged-records-are-stored",
)
def test_records_are_acknowledged_by_the_gateway_alone(ledger: Ledger) -> None:
    with served_gateway(ledger) as (url, kept):
        answer = service(ledger, url).ask("POST", RECORDS, content=LINES, headers=AS_LINES)
        assert (answer.status_code, answer.json()) == (200, {"accepted": 2})
        assert kept.values == [("turbines", b'{"turbine":"a"}'), ("turbines", b'{"turbine":"b"}')]


@pytest.mark.guarantee("G1080")
def test_refusals_of_the_gateway_are_those_of_the_service(ledger: Ledger) -> None:
    with served_gateway(ledger) as (url, kept):
        api = service(ledger, url)
        unknown = api.ask("POST", "/v1/streams/nothing/records", content=LINES, headers=AS_LINES)
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
        kind = api.ask("POST", RECORDS, content=LINES, headers={"Content-Type": "image/png"})
        assert (kind.status_code, kind.json()["code"]) == (415, "unsupported_media_type")
        for end, status in ((LogAway("Kafka is away"), 503), (LogBusy("Kafka is slow"), 429)):
            kept.end = end
            answer = api.ask("POST", RECORDS, content=LINES, headers=AS_LINES)
            assert (answer.status_code, answer.json()["detail"]) == (status, str(end))
            assert int(answer.headers["retry-after"]) > 0
        assert kept.values == []


def test_the_gateway_gets_what_belongs_to_records_and_no_cookie() -> None:
    body = b'{"accepted":1}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    with scripted(head + body) as (url, requests):
        headers = {
            "Content-Type": "application/json", "X-Device": "d7", "Idempotency-Key": "k", "Cookie": "c=1",
            "Authorization": "Bearer of-no-use",
        }  # fmt: skip
        answer = asyncio.run(RecordRelay(url).send("a b", "room=attic", b"{}", headers.items(), b"Bearer mine"))
        assert (answer.status, answer.body, answer.content_type) == (200, body, "application/json")
        sent = requests[0].lower()
        assert sent.startswith(b"post /v1/streams/a%20b/records?room=attic http/1.1\r\n")
        for line in (b"x-device: d7", b"idempotency-key: k", b"authorization: bearer mine"):
            assert line in sent
        assert b"cookie" not in sent and b"of-no-use" not in sent


@pytest.mark.guarantee(
    "G1081",
    "If no gateway is known or can be reached, nothing is sent, and the response names the setting. If a gateway breaks off or "
    "is silent, the response says that the outcome is unknown, without Retry-After.",
    promise="failures-are-reported-with-their-remedy",
)
def test_without_a_gateway_the_answer_names_the_remedy(ledger: Ledger) -> None:
    answer = service(ledger, None).ask("POST", RECORDS, content=LINES, headers=AS_LINES)
    assert (answer.status_code, answer.json()["code"]) == (409, "invalid_settings")
    assert "set STRANDLINE_INGEST_URL" in answer.json()["detail"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answer = service(ledger, f"http://user:secret@127.0.0.1:{port}").ask("POST", RECORDS, content=LINES)
    assert (answer.status_code, answer.json()["code"]) == (503, "gateway_unavailable")
    assert answer.headers["retry-after"] == "5"
    assert "nothing was sent" in answer.json()["detail"] and "secret" not in answer.text


@pytest.mark.guarantee("G1081")
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 302 Found\r\nlocation: http://elsewhere.example/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n" + b"x" * 2_000_000,
        None,
    ],
    ids=["closed", "broken off", "redirect", "empty", "endless", "silent"],
)
def test_an_unknown_outcome_is_called_unknown(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, answer: bytes | None
) -> None:
    if answer is None:
        monkeypatch.setattr(record_relay, "RELAY_TIMEOUT_S", 0.3)
    with scripted(answer) as (url, requests):
        found = service(ledger, url).ask("POST", RECORDS, content=LINES, headers=AS_LINES)
        assert (found.status_code, found.json()["code"]) == (504, "outcome_unknown"), found.text
        assert "may be in the log" in found.json()["detail"]
        assert "retry-after" not in found.headers
        assert len(requests) == 1, "it is never repeated"


def test_more_requests_than_the_limit_are_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_relay, "RELAYS_MAX", 0)
    answer = service(ledger, "http://127.0.0.1:1").ask("POST", RECORDS, content=LINES)
    assert (answer.status_code, answer.json()["code"]) == (429, "relay_busy")
    assert answer.headers["retry-after"] == "5"


def test_a_body_over_the_limit_is_refused_with_its_remedy(ledger: Ledger) -> None:
    answer = service(ledger, "http://127.0.0.1:1").ask("POST", RECORDS, content=b"x" * (BODY_BYTES_MAX + 1))
    assert answer.status_code == 413
    assert "send the records in several requests" in answer.json()["detail"]


@pytest.mark.guarantee(
    "G1082",
    "Sending records through the control service needs the right to write to the stream, which the gateway checks again with "
    "the token of the signed-in user.",
    promise="each-operation-requires-its-right",
)
def test_the_token_of_the_session_is_checked_by_the_gateway(ledger: Ledger) -> None:
    tokens = tokens_of_each_kind(ledger, "turbines")
    service(ledger, None)
    authenticator = Authenticator(ledger, look_s=1, kept_s=10)
    try:
        with served_gateway(ledger, tokens=True) as (url, kept):
            api = service(ledger, url, authenticator)
            for kind, status in (("admin", 200), ("writer", 200), ("writer-elsewhere", 403), ("operator", 403)):
                signed_in = api.ask("POST", "/v1/session", json={"token": tokens[kind]}, headers=OWN)
                shown = signed_in.json()
                may_write = "*" in shown["writes"] or "turbines" in shown["writes"]
                cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
                answer = api.ask("POST", RECORDS, content=LINES, headers=AS_LINES | OWN | cookie)
                assert (answer.status_code, may_write) == (status, status == 200), (kind, answer.text)
            assert len(kept.values) == 4
            # The gateway refuses a token that the control service would accept.
            viewer = b"Bearer " + tokens["viewer"].encode()
            refused = asyncio.run(RecordRelay(url).send("turbines", "", LINES, AS_LINES.items(), viewer))
            assert (refused.status, json.loads(refused.body)["code"]) == (403, Forbidden.code)
    finally:
        authenticator.close()
