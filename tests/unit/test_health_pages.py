"""The health pages of a gateway, over its HTTP server on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client import Counter

from strandline.core.errors import InvalidSettings, LogUnavailable, StackError
from strandline.ingest.gateway import health_pages, process
from strandline.ingest.gateway.health_pages import HealthServer, HostNames
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.process import GatewayResources, serve_health_pages
from strandline.ingest.gateway.serving import http_connection
from strandline.ingest.gateway.serving.http_request import Request
from strandline.ingest.udp.entry import GATEWAY as UDP
from strandline.ingest.udp.settings import UdpSettings
from strandline.services.certificates import make_dev_certificates
from strandline.services.trust import ClientTls
from tests.support.ports import free_port
from tests.support.waiting import stretched


class ToldLog:
    """A writer that is asked whether Kafka answers."""

    is_away = False
    port = 0
    """Port of the pages."""

    async def check(self, timeout_s: float) -> None:
        if self.is_away:
            raise LogUnavailable("Kafka is away")


async def ask(port: int, request: bytes) -> tuple[bytes, bytes]:
    """The first line and the body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), stretched(30))
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], body


Ask = Callable[..., Awaitable[tuple[bytes, bytes]]]


def look(script: Callable[[Ask, ToldLog, IngestMetrics], Awaitable[None]], *names: str) -> None:
    """Run a script that asks for pages by method, path and host."""

    async def run() -> None:
        log, metrics, port = ToldLog(), IngestMetrics("test"), free_port()
        log.port = port
        resources = GatewayResources(log, None, metrics, HostNames(names), 1_000, asyncio.Event())  # type: ignore[arg-type]

        async def page(method: str, path: str, host: str = "localhost") -> tuple[bytes, bytes]:
            return await ask(port, f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())

        async with serve_health_pages(UdpSettings(udp_health_port=port), UDP, resources):
            await script(page, log, metrics)
            with pytest.raises(StackError, match=str(port)):
                async with serve_health_pages(UdpSettings(udp_health_port=port), UDP, resources):
                    pass

    asyncio.run(run())


def test_the_pages() -> None:
    async def script(page: Ask, log: ToldLog, metrics: IngestMetrics) -> None:
        refreshed: list[int] = []
        metrics.refresh_by(lambda: refreshed.append(1))
        Counter("strandline_looks", "For the test", registry=metrics.registry).inc(7)
        refreshed.clear()
        assert await page("GET", "/healthz") == (b"HTTP/1.1 200 OK", b'{"status":"ok"}')
        assert (await page("GET", "/readyz"))[0] == b"HTTP/1.1 200 OK"
        log.is_away = True
        line, body = await page("GET", "/readyz")
        assert line == b"HTTP/1.1 503 Service Unavailable"
        assert b"Kafka is away" in body
        assert not refreshed
        assert b"strandline_looks_total 7.0" in (await page("GET", "/metrics"))[1]
        assert refreshed
        assert (await page("HEAD", "/healthz"))[1] == b""
        assert (await page("GET", "/x"))[0] == b"HTTP/1.1 404 Not Found"
        assert (await page("POST", "/metrics"))[0] == b"HTTP/1.1 405 Method Not Allowed"

    look(script)


def test_where_there_are_logins_a_stranger_does_not_learn_why_a_gateway_is_not_ready(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def is_away() -> None:
        raise LogUnavailable("Kafka at kafka.inside:9092 is away")

    async def readyz(pages: HealthServer) -> bytes:
        request = Request(b"http:10.0.0.1", pages.budget)
        request.method, request.url = b"GET", b"/readyz"
        answer = await pages.answer(request)
        assert answer.status == 503
        return answer.body

    async def run() -> None:
        registry = IngestMetrics("test").registry
        assert b"kafka.inside" in await readyz(HealthServer(registry, is_away, HostNames()))
        assert [record.getMessage().count("kafka.inside") for record in caplog.records] == [1]
        caplog.clear()
        pages = HealthServer(registry, is_away, HostNames(), authenticator=object())  # type: ignore[arg-type]
        for _ in range(3):
            body = await readyz(pages)
            assert b"kafka.inside" not in body
            assert b"the gateway's log has the reason" in body
        assert [record.getMessage().count("kafka.inside") for record in caplog.records] == [1]

    asyncio.run(run())


@pytest.mark.guarantee("G163")
@pytest.mark.parametrize("host", ["rebound.example", "rebound.example:8085"])
def test_healthz_and_readyz_answer_under_any_name_and_metrics_under_those_of_the_gateway(host: str) -> None:
    async def script(page: Ask, log: ToldLog, metrics: IngestMetrics) -> None:
        assert (await page("GET", "/healthz", host))[0] == b"HTTP/1.1 200 OK"
        assert (await page("GET", "/readyz", host))[0] == b"HTTP/1.1 200 OK"
        line, body = await page("GET", "/metrics", host)
        assert line == b"HTTP/1.1 421 Misdirected Request"
        assert b"STRANDLINE_GATEWAY_NAMES" in body
        for name in ("metrics.example", "METRICS.example:8085", "localhost:8085", "[::1]:8085", "10.42.0.7:8085", ""):
            assert (await page("GET", "/metrics", name))[0] == b"HTTP/1.1 200 OK", name

    look(script, "metrics.example")


def test_what_is_not_http_is_answered_with_400(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "LINGER_S", 0.0)

    async def script(page: Ask, log: ToldLog, metrics: IngestMetrics) -> None:
        line, body = await page("x" * 20_000, "/")
        assert (line, b"not HTTP/1.1" in body) == (b"HTTP/1.1 400 Bad Request", True)

    look(script)


@pytest.mark.guarantee(
    "G424",
    "The health endpoints of every gateway use TLS if the settings require it.",
    promise="secrets-and-connections-are-protected",
)
def test_the_pages_may_stand_behind_tls(tmp_path: Path) -> None:
    """A client with a certificate of the authority sees the pages. One without, or without TLS, does not."""
    made = make_dev_certificates(tmp_path)
    port = free_port()
    settings = UdpSettings(
        udp_health_port=port,
        health_tls_certificate=made.server,
        health_tls_key=made.server_key,
        health_tls_client_ca=made.ca,
    )

    async def run() -> None:
        resources = GatewayResources(ToldLog(), None, IngestMetrics("test"), HostNames(), 1_000, asyncio.Event())  # type: ignore[arg-type]
        with_certificate = ClientTls(made.ca, made.client, made.client_key).context()
        async with serve_health_pages(settings, UDP, resources):
            async with httpx.AsyncClient(verify=with_certificate, trust_env=False) as client:
                assert (await client.get(f"https://127.0.0.1:{port}/metrics")).status_code == 200
            for trust, url in ((ClientTls(made.ca).context(), "https"), (with_certificate, "http")):
                async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
                    with pytest.raises(httpx.TransportError):
                        await client.get(f"{url}://127.0.0.1:{port}/healthz")

    asyncio.run(run())


def test_a_key_of_the_pages_without_a_certificate_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        resources = GatewayResources(ToldLog(), None, IngestMetrics("test"), HostNames(), 1_000, asyncio.Event())  # type: ignore[arg-type]
        async with serve_health_pages(UdpSettings(health_tls_key=tmp_path / "key.pem"), UDP, resources):
            pass

    with pytest.raises(InvalidSettings, match="STRANDLINE_HEALTH_TLS_CERTIFICATE is not; set it"):
        asyncio.run(run())


def test_silent_connections_and_unfinished_heads_keep_no_page_from_being_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over the maximum of connections, the one that has waited longest is closed. All heads share one limit of bytes."""
    monkeypatch.setattr(process, "HEALTH_CONNECTIONS_MAX", 5)
    monkeypatch.setattr(health_pages, "HEADS_BYTES_MAX", 50_000)

    async def script(page: Ask, log: ToldLog, metrics: IngestMetrics) -> None:
        port = log.port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        assert (await page("GET", "/healthz"))[0] == b"HTTP/1.1 200 OK"
        for reader, _ in silent[:6]:
            async with asyncio.timeout(stretched(30)):
                assert await reader.read() == b""
        heads = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for _, writer in heads:
            writer.write(b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 20_000)
        async with asyncio.timeout(stretched(30)):
            answers = [asyncio.create_task(reader.readline()) for reader, _ in heads]
            await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        refused = [answer.result() for answer in answers if answer.done()]
        assert refused
        assert {line[:12] for line in refused} == {b"HTTP/1.1 429"}
        for answer in answers:
            answer.cancel()
        for _, writer in (*silent, *heads):
            writer.close()
        assert (await page("GET", "/healthz"))[0] == b"HTTP/1.1 200 OK"

    look(script)
