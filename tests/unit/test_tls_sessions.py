"""TLS sessions of clients that are no longer trusted: they can't be resumed, and open connections end."""

from __future__ import annotations

import asyncio
import datetime
import re
import socket
import ssl
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import strandline
from strandline.ingest.gateway.serving import tls_handshakes
from strandline.ingest.gateway.serving.tls_handshakes import ServerTls, TlsHandshaker
from strandline.services.certificates import make_dev_certificates
from tests.support.waiting import stretched, wait_until

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


@pytest.fixture
def made(tmp_path):
    return make_dev_certificates(tmp_path / "certs")


@pytest.fixture
def other(tmp_path):
    return make_dev_certificates(tmp_path / "other")


class Client:
    """A TLS client that keeps its last session, and resumes it."""

    def __init__(self, made, version, *, with_certificate=True):
        self.context = ssl.create_default_context(cafile=made.ca)
        self.context.minimum_version = self.context.maximum_version = version
        if with_certificate:
            self.context.load_cert_chain(made.client, made.client_key)
        self.session = None

    def connect(self, port):
        """Return True if the session was resumed. Raises OSError if the server refuses the client."""
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            with self.context.wrap_socket(plain, server_hostname="localhost", session=self.session) as connection:
                connection.sendall(b"x")
                if connection.recv(1) != b"x":  # TLS 1.3: tickets, and a refusal, arrive with the first bytes
                    raise ConnectionResetError("the server ended the connection")
                self.session = connection.session
                return connection.session_reused


async def listen(tls):
    door = TlsHandshaker(tls)
    server = await asyncio.get_running_loop().create_server(lambda: door.before(Echo), "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def expired(made):
    """Replace the certificate of the client by one that expires in three seconds."""
    key = serialization.load_pem_private_key(made.ca_key.read_bytes(), None)
    authority = x509.load_pem_x509_certificate(made.ca.read_bytes())
    own = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "short")]))
        .issuer_name(authority.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(seconds=3))
        .sign(key, hashes.SHA256())
    )
    made.client.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.client_key.write_bytes(
        own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def test_every_listener_makes_its_tls_in_the_same_module():
    """HTTP, MQTT, and TCP gateways, health pages, and the REST API: so what is tested here holds for each of them."""
    package = Path(strandline.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"Purpose\.CLIENT_AUTH|PROTOCOL_TLS_SERVER|ssl_certfile|ssl_context_factory", path.read_text())
    }
    assert found == {"ingest/gateway/serving/tls_handshakes.py"}


@pytest.mark.guarantee(
    "G783",
    "A listener that requests client certificates checks them at each connection, because no TLS session is resumed. "
    "If a client CA is removed, or a client's certificate expires, the open connections end. Session tickets of other "
    "listeners become invalid with the certificate.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_a_client_of_a_removed_ca_can_not_resume_its_session(run, made, other, version):
    async def story():
        server, port = await listen(ServerTls(made.server, made.server_key, made.ca, "X"))
        client = Client(made, version)
        try:
            await asyncio.to_thread(client.connect, port)
            made.ca.write_bytes(other.ca.read_bytes())
            with pytest.raises(OSError):
                await asyncio.to_thread(client.connect, port)
        finally:
            server.close()

    run(story())


@pytest.mark.guarantee("G783")
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_a_listener_that_requests_client_certificates_resumes_no_session(run, made, version):
    """Neither by a ticket nor by a session id: so an expired certificate is checked at each connection."""

    async def story():
        server, port = await listen(ServerTls(made.server, made.server_key, made.ca, "X"))
        client = Client(made, version)
        try:
            assert [await asyncio.to_thread(client.connect, port) for _ in range(3)] == [False] * 3
            assert client.session is None or not client.session.has_ticket
        finally:
            server.close()

    run(story())


@pytest.mark.guarantee("G783")
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_session_tickets_become_invalid_with_the_certificate(run, made, version):
    async def story():
        server, port = await listen(ServerTls(made.server, made.server_key, None, "X"))
        client = Client(made, version, with_certificate=False)
        try:
            assert [await asyncio.to_thread(client.connect, port) for _ in range(2)] == [False, True]
            make_dev_certificates(made.ca.parent)
            assert not await asyncio.to_thread(client.connect, port)
            assert await asyncio.to_thread(client.connect, port)
        finally:
            server.close()

    run(story())


@pytest.mark.guarantee("G783")
@pytest.mark.parametrize("reason", ["removed CA", "expired certificate"])
def test_an_open_connection_ends_when_its_client_is_no_longer_trusted(run, made, other, reason, monkeypatch):
    monkeypatch.setattr(tls_handshakes, "CHECK_S", 0.05)

    async def story():
        if reason == "expired certificate":
            expired(made)
        trusted = made.ca.parent / "clients.pem"
        trusted.write_bytes(made.ca.read_bytes() + other.ca.read_bytes())
        server, port = await listen(ServerTls(made.server, made.server_key, trusted, "X"))
        context = Client(made, ssl.TLSVersion.TLSv1_3).context
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            if reason == "removed CA":
                trusted.write_bytes(other.ca.read_bytes())
            async with asyncio.timeout(stretched(10)):
                with pytest.raises((OSError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
            writer.close()
        finally:
            server.close()

    run(story())


def test_an_added_ca_ends_no_connection(run, made, other, monkeypatch):
    monkeypatch.setattr(tls_handshakes, "CHECK_S", 0.05)
    checks, check = [], TlsHandshaker._check

    def counted(door):
        check(door)
        checks.append(door.tls.present())

    monkeypatch.setattr(TlsHandshaker, "_check", counted)

    async def story():
        trusted = made.ca.parent / "clients.pem"
        trusted.write_bytes(made.ca.read_bytes())
        tls = ServerTls(made.server, made.server_key, trusted, "X")
        server, port = await listen(tls)
        context = Client(made, ssl.TLSVersion.TLSv1_3).context
        first = tls.present()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            trusted.write_bytes(made.ca.read_bytes() + other.ca.read_bytes())
            await asyncio.to_thread(
                wait_until, lambda: checks, lambda found: found[-2:].count(tls.present()) == 2, "checked"
            )
            assert tls.present() is not first
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
            writer.close()
        finally:
            server.close()

    run(story())
