"""TLS before a protocol: certificates that change, clients that must have one, handshakes that never end."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import threading
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
import uvloop

from strandline.core.errors import InvalidSettings, StackError
from strandline.ingest.gateway.serving import tls_handshakes
from strandline.ingest.gateway.serving.tls_handshakes import ServerTls, TlsHandshaker, server_tls
from strandline.services.certificates import make_dev_certificates
from strandline.services.client import ControlClient, ControlUnavailable
from strandline.services.control import ControlSettings, _protocols
from strandline.services.trust import ClientTls
from tests.support.waiting import stretched, wait_until


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class BufferedEcho(asyncio.BufferedProtocol):
    def connection_made(self, transport):
        self.transport, self.buffer = transport, bytearray(3)

    def get_buffer(self, sizehint):
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes):
        self.transport.write(bytes(self.buffer[:nbytes]))


def trusting(made, *, with_certificate=False):
    context = ssl.create_default_context(cafile=made.ca)
    if with_certificate:
        context.load_cert_chain(made.client, made.client_key)
    return context


@asynccontextmanager
async def serve(tls, make=Echo, handshakes_max=tls_handshakes.HANDSHAKES_MAX):
    handshaker = TlsHandshaker(tls, handshakes_max=handshakes_max)
    server = await asyncio.get_running_loop().create_server(lambda: handshaker.before(make), "127.0.0.1", 0)
    try:
        yield handshaker, server.sockets[0].getsockname()[1]
    finally:
        server.close()  # also when the test fails: uvloop does not close its loop under an open server


async def echoed(port, context, text=b"twelve bytes"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(text)
        return await reader.readexactly(len(text)), writer.get_extra_info("peercert")["serialNumber"]
    finally:
        writer.close()


@pytest.fixture(
    params=[asyncio.Runner, lambda: asyncio.Runner(loop_factory=uvloop.new_event_loop)], ids=["asyncio", "uvloop"]
)
def run(request):
    with request.param() as runner:
        yield runner.run


@pytest.fixture
def made(tmp_path):
    return make_dev_certificates(tmp_path / "certs")


@pytest.mark.parametrize("make", [Echo, BufferedEcho])
def test_a_protocol_begins_when_the_handshake_is_over(run, made, make):
    async def story():
        async with serve(ServerTls(made.server, made.server_key, None, "X"), make) as (_, port):
            assert (await echoed(port, trusting(made)))[0] == b"twelve bytes"

    run(story())


@pytest.mark.guarantee(
    "G344",
    "A changed certificate is used by the next connection. If it can't be used, the previous one stays effective. A "
    "handshake that never ends uses its slot for at most 10 s and keeps no other client out.",
    promise="secrets-and-connections-are-protected",
)
def test_a_new_certificate_is_taken_by_the_next_connection_and_a_broken_one_is_not(run, made):
    async def story():
        async with serve(ServerTls(made.server, made.server_key, None, "X")) as (_, port):
            _, first = await echoed(port, trusting(made))
            make_dev_certificates(made.ca.parent)
            _, second = await echoed(port, trusting(made))
            assert second != first
            made.server.write_text("half a certif")
            assert (await echoed(port, trusting(made)))[1] == second

    run(story())


class Clock:
    def __init__(self):
        self.now_s = 1_000.0

    def __call__(self):
        return self.now_s


def test_a_certificate_that_could_not_be_read_is_tried_again_within_seconds_and_told_once(made, monkeypatch, caplog):
    """The key is readable a moment later, and neither file has changed since: as after a chmod."""
    clock, loads = Clock(), []
    tls = ServerTls(made.server, made.server_key, None, "X", clock)
    first = tls.present()
    make_dev_certificates(made.ca.parent)

    def refuse(*_):
        loads.append(clock.now_s)
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as unreadable:
        unreadable.setattr(ssl.SSLContext, "load_cert_chain", refuse)
        for _ in range(3):
            assert [tls.present() for _ in range(10)] == [first] * 10
            clock.now_s += 1.0
    assert loads == [1_000.0, 1_001.0, 1_002.0], "not at each handshake"
    assert caplog.text.count("certificate_unusable") == 1
    second = tls.present()
    assert second is not first
    assert tls.present() is second

    made.server.write_text("half a certif")
    assert tls.present() is second
    make_dev_certificates(made.ca.parent)
    assert tls.present() is not second, "files that have changed again are taken at once"


def test_with_an_authority_for_clients_only_those_with_a_certificate_pass(run, made):
    async def story():
        async with serve(ServerTls(made.server, made.server_key, made.ca, "X")) as (_, port):
            assert (await echoed(port, trusting(made, with_certificate=True)))[0] == b"twelve bytes"
            with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                await echoed(port, trusting(made))
            make_dev_certificates(made.ca.parent)  # also with a certificate that was read again
            with pytest.raises((ssl.SSLError, OSError, asyncio.IncompleteReadError)):
                await echoed(port, trusting(made))

    run(story())


@pytest.mark.guarantee("G344")
def test_a_handshake_that_never_ends_holds_its_place_for_a_time_only(run, made, monkeypatch):
    monkeypatch.setattr(tls_handshakes, "HANDSHAKE_TIMEOUT_S", 0.2)

    async def story():
        async with serve(ServerTls(made.server, made.server_key, None, "X")) as (handshaker, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            assert not handshaker.under_way
            writer.close()

    run(story())


@pytest.mark.guarantee("G344")
def test_those_that_say_nothing_keep_nobody_out(run, made):
    async def story():
        async with serve(ServerTls(made.server, made.server_key, None, "X"), handshakes_max=3) as (handshaker, port):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
            assert (await echoed(port, trusting(made)))[0] == b"twelve bytes"
            assert len(handshaker.under_way) <= 3
            for _, writer in silent:
                writer.close()

    run(story())


def test_what_is_no_tls_is_cut(run, made):
    async def story():
        async with serve(ServerTls(made.server, made.server_key, None, "X")) as (handshaker, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\n\r\n")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(100)
            assert not handshaker.under_way
            writer.close()

    run(story())


def test_files_that_can_not_be_used_are_named_with_their_settings(made, tmp_path):
    with pytest.raises(InvalidSettings, match="STRANDLINE_HTTP_TLS_CERTIFICATE and STRANDLINE_HTTP_TLS_KEY"):
        server_tls(made.server, made.client_key, None, "STRANDLINE_HTTP_TLS")
    with pytest.raises(InvalidSettings, match="STRANDLINE_HTTP_TLS_CERTIFICATE is not; set it"):
        server_tls(None, made.client_key, None, "STRANDLINE_HTTP_TLS")
    assert server_tls(None, None, None, "STRANDLINE_HTTP_TLS") is None


def test_keys_are_for_their_owner_alone_and_an_authority_stays(made):
    for key in (made.ca_key, made.server_key, made.client_key):
        assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
    authority, server = made.ca.read_bytes(), made.server.read_bytes()
    again = make_dev_certificates(made.ca.parent, ("gateway.example.org",))
    assert again.ca.read_bytes() == authority and again.server.read_bytes() != server
    made.ca_key.unlink()
    with pytest.raises(StackError, match="pass another directory with --directory"):
        make_dev_certificates(made.ca.parent)


def test_the_rest_api_answers_behind_its_door(made):
    """uvicorn as the control service runs it; an app that says by which scheme it was asked."""

    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": scope["scheme"].encode()})

    settings = ControlSettings(control_tls_certificate=made.server, control_tls_key=made.server_key)
    config = uvicorn.Config(app, http=_protocols(settings), loop="uvloop", log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started, bool, "started")
            url = f"https://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=url, verify=ClientTls(made.ca).context(), trust_env=False) as client:
                assert [client.get("/").text for _ in range(3)] == ["https"] * 3
            with ControlClient(url) as stranger, pytest.raises(ControlUnavailable, match="strandline --ca FILE"):
                stranger.job("any")
        finally:
            server.should_exit = True
            thread.join(stretched(30))
