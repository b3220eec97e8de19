"""Limits of the HTTP clients: a server that never ends its head, its body, or its trailers."""

from __future__ import annotations

import re
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed

import strandline
from strandline.access import oidc, oidc_renewal
from strandline.access.authenticator import TokensUnavailable
from strandline.access.oidc_client import OidcClient
from strandline.access.oidc_renewal import renew_tokens
from strandline.core.errors import RegistryUnavailable
from strandline.core.network.http_limits import Deadline, ResponseTooLarge, bounded_stream, read_body
from strandline.log.login import oauth_tokens
from strandline.log.login.oauth_tokens import OauthClient, ask_for_token
from strandline.processing.formats.with_schema import schema_registry
from strandline.processing.formats.with_schema.schema_registry import SchemaRegistry
from strandline.results.charts import kibana_client
from strandline.results.charts.kibana_client import KibanaRefused, KibanaUnavailable, import_objects
from tests.support.waiting import stretched

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
SLOW = {
    "no response": (b"", b""),
    "slow head": (HEAD, b"x"),
    "slow body": (HEAD + b"content-length: 1000000\r\n\r\n", b"x"),
    "slow trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"x"),
}
FAST = {
    "large body": (HEAD + b"content-length: 100000000\r\n\r\n", b"x" * 65_536),
    "large trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n" * 10_000),
    "large extension": (CHUNKED + b"1;x=", b"y" * 65_536),
    "large head": (HEAD, b"a: b\r\n" * 10_000),
    "interim responses": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 1_000),
}


class EndlessServer:
    """Sends `first` and then `piece` again and again, every 20 ms if it has one byte."""

    def __init__(self, first: bytes, piece: bytes) -> None:
        self._first, self._piece = first, piece
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = 0
        self._is_closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.recv(65_536)
            try:
                connection.sendall(self._first)
                while not self._is_closed.wait(0.02 if len(self._piece) < 2 else 0):
                    connection.sendall(self._piece)
                    self.sent += len(self._piece)
            except OSError:
                return

    def close(self) -> None:
        self._is_closed.set()
        self._listener.close()


@pytest.fixture
def endless(request):
    server = EndlessServer(*request.param)
    yield server
    server.close()


@pytest.mark.guarantee("G784")
@pytest.mark.parametrize("endless", SLOW.values(), ids=SLOW, indirect=True)
def test_a_slow_response_ends_at_the_deadline(endless):
    began_s = time.monotonic()
    with (
        httpx.Client(timeout=10) as client,
        pytest.raises(httpx.ReadTimeout, match="no complete response within 0"),
    ):
        with bounded_stream(client, "GET", endless.url, 0.3) as response:
            read_body(response, 10_000)
    assert time.monotonic() - began_s < stretched(5)


@pytest.mark.guarantee("G784")
@pytest.mark.parametrize("endless", FAST.values(), ids=FAST, indirect=True)
def test_a_large_response_ends_at_its_limit(endless):
    with httpx.Client(timeout=10) as client, pytest.raises((ResponseTooLarge, httpx.HTTPError)):
        with bounded_stream(client, "GET", endless.url, 2) as response:
            read_body(response, 10_000)


@pytest.mark.parametrize("endless", [SLOW["slow trailers"]], ids=["slow trailers"], indirect=True)
def test_a_slow_oidc_provider_is_not_waited_for_longer(endless, monkeypatch):
    monkeypatch.setattr(oidc, "_FETCH_TIMEOUT_S", 0.3)
    with pytest.raises(httpx.ReadTimeout):
        oidc.fetch_json(endless.url)


@pytest.mark.parametrize("endless", [SLOW["slow head"]], ids=["slow head"], indirect=True)
def test_a_slow_schema_registry_is_unavailable(endless, monkeypatch):
    monkeypatch.setattr(schema_registry, "TIMEOUT_S", 0.3)
    with pytest.raises(RegistryUnavailable, match="no complete response within 0"):
        SchemaRegistry(endless.url).schema("avro", 1)


def test_a_deadline_that_is_not_reached_changes_nothing():
    with Deadline(60) as deadline:
        pass
    assert not deadline.is_over
    assert not deadline._timer.is_alive() or deadline._timer.finished.is_set()


@pytest.mark.guarantee("G790")
@pytest.mark.parametrize("endless", [SLOW["slow body"], FAST["large body"]], ids=["slow", "large"], indirect=True)
def test_the_other_http_clients_have_both_limits(endless, monkeypatch):
    """The token endpoints for Kafka and for renewals of sign-ins, and Kibana: all of them use the same function."""
    began_s = time.monotonic()
    for module in (oauth_tokens, kibana_client, oidc_renewal):
        monkeypatch.setattr(module, "_TIMEOUT_S", 0.3)
    with pytest.raises((KafkaConnectionError, SaslAuthenticationFailed)):
        ask_for_token(OauthClient(endless.url, "strandline", "secret"))
    with pytest.raises((KibanaUnavailable, KibanaRefused)):
        import_objects(endless.url, [])
    provider, about = endless.url, {"issuer": endless.url, "token_endpoint": endless.url}
    with pytest.raises(TokensUnavailable):
        renew_tokens(OidcClient(provider, "console", "openid", ""), "token", "http://127.0.0.1", lambda _: about)
    assert time.monotonic() - began_s < stretched(20)


CLIENTS = {
    "access/oidc.py",
    "access/oidc_renewal.py",
    "frontends/client/client.py",
    "ingest/poll/fetching.py",
    "log/login/oauth_tokens.py",
    "processing/formats/with_schema/schema_registry.py",
    "results/charts/kibana_client.py",
    "services/client.py",
    "services/embedded/elasticsearch_server.py",
    "services/embedded/stack.py",
    "services/jobs/record_relay.py",
    "services/supervision/external_services.py",
}
"""Modules that send HTTP requests. The front end, `services/client.py`, and `services/embedded` query servers of the stack."""
LISTENERS = {
    "ingest/gateway/process.py",
    "ingest/gateway/serving/http_server.py",
    "ingest/mqtt/server.py",
    "ingest/tcp/gateway.py",
    "ingest/udp/gateway.py",
    "services/control.py",
    "services/embedded/preflight.py",
}


@pytest.mark.guarantee(
    "G790",
    "Each listener and each HTTP client has a limit of memory and of time, with a test, in the table of "
    "docs/limits.md. A new one fails a test until it is added.",
    promise="no-client-can-exhaust-a-service",
)
def test_each_listener_and_each_http_client_is_known():
    """A new one needs limits, and a row in the table of docs/limits.md. Then add it here."""
    package = Path(strandline.__file__).parent
    texts = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    texts = {name: text for name, text in texts.items() if not name.startswith(("example/", "core/network/"))}

    def matching(pattern: str) -> set[str]:
        return {name for name, text in texts.items() if re.search(pattern, text)}

    assert matching(r"httpx\.(Client\(|AsyncClient|get\(|post\(|stream\()|urlopen|open_connection\(") == CLIENTS
    assert matching(r"create_server\(|create_datagram_endpoint|\.bind\(\(|uvicorn\.Server") == LISTENERS
