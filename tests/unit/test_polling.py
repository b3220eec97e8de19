"""The parts of the polling gateway: when it asks, which hosts, the records of an answer, and the secrets."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import ssl
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import InvalidDocument, InvalidSettings
from strandline.core.streams.entrances import PollSpec
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.outcome import Accepted, SpoolFull
from strandline.ingest.gateway.framing import TooLarge
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.poll import fetching as fetching_module
from strandline.ingest.poll import gateway as gateway_module
from strandline.ingest.poll.addresses import AllowedHosts, NotAllowed, resolve
from strandline.ingest.poll.fetching import ByteBudget, FetchFailed, HttpFetcher, HttpResponse, _Reading
from strandline.ingest.poll.gateway import PollGateway, Secrets
from strandline.ingest.poll.polled_url import PolledUrl, PollingTools, _retry_after_s
from strandline.ingest.poll.schedule import pause_s, phase_s, wait_s
from strandline.ingest.poll.settings import PollSettings
from strandline.ingest.poll.validators import Validators, name_of
from tests.support.waiting import stretched, wait_until_async
from tests.unit.test_http_answers import ToldWriter

STREAM = {"stream": "meters", "schema": {"meter": "string?", "kwh": "double"}}
BODY_BYTES_MAX = 1_000


@given(st.floats(0, 2e9), st.integers(100, 86_400_000), st.text())
def test_a_url_has_its_place_in_the_period(now_s: float, every_ms: int, url: str) -> None:
    every_s = every_ms / 1000
    phase = phase_s(url, every_s)
    assert 0 <= phase <= every_s
    assert 0 < wait_s(now_s, every_s, phase) <= every_s


@given(st.integers(1, 10_000), st.floats(0.1, 86_400), st.floats(0, 1), st.none() | st.floats(0, 1e9))
def test_a_pause_grows_and_has_its_bounds(failures: int, every_s: float, chance: float, asked: float | None) -> None:
    pause = pause_s(failures, every_s, chance, asked)
    assert 0.5 <= pause <= max(60, every_s, 3_600 if asked else 0)
    assert asked is None or pause >= min(asked, 3_600)
    assert pause_s(1, every_s, 1.0) <= pause_s(failures, every_s, 1.0)


@pytest.mark.guarantee(
    "G304",
    "The polling gateway connects only to addresses that its settings allow, whatever a document contains, a name "
    "resolves to, or a redirect leads to. No secret is in a document, a log line, or a record.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize(
    ("entries", "host", "addresses", "found"),
    [
        ([], "meter.example", ["192.0.2.1"], None),
        (["meter.example"], "meter.example", ["192.0.2.1"], "192.0.2.1"),
        (["meter.example"], "METER.example.", ["10.0.0.1"], "10.0.0.1"),
        (["meter.example"], "x.meter.example", ["10.0.0.1"], None),
        (["*.meter.example"], "x.y.meter.example", ["10.0.0.1"], "10.0.0.1"),
        (["*.meter.example"], "meter.example", ["10.0.0.1"], None),
        (["*.example"], "notexample", ["10.0.0.1"], None),
        (
            ["meter.example"],
            "meter.example",
            ["127.0.0.1", "169.254.169.254", "::1", "0.0.0.0", "::ffff:127.0.0.1"],
            None,
        ),
        (["meter.example"], "meter.example", ["127.0.0.1", "10.0.0.1"], "10.0.0.1"),
        (["meter.example", "127.0.0.0/8"], "meter.example", ["127.0.0.1"], "127.0.0.1"),
        (["localhost"], "localhost", ["::1"], "::1"),
        (["10.0.0.0/8"], "10.1.2.3", ["10.1.2.3"], "10.1.2.3"),
        (["10.0.0.0/8"], "any.example", ["11.0.0.1", "10.1.2.3"], "10.1.2.3"),
        (["10.0.0.0/8"], "any.example", ["::ffff:10.0.0.1"], "::ffff:10.0.0.1"),
        (["fd00::/8"], "any.example", ["fd00::1"], "fd00::1"),
    ],
)
def test_only_what_is_allowed_is_asked(entries: list[str], host: str, addresses: list[str], found: str | None) -> None:
    allowed = AllowedHosts(entries)
    if found is None:
        with pytest.raises(NotAllowed, match="STRANDLINE_POLL_HOSTS"):
            allowed.address_for(host, addresses)
    else:
        assert allowed.address_for(host, addresses) == found


SPECIAL = [
    "fd00:ec2::254",  # metadata service of AWS
    "fd20:ce::254",  # of Google Cloud
    "100.100.100.200",  # of Alibaba Cloud
    "168.63.129.16",  # of Azure
    "192.0.0.192",  # of Oracle Cloud
    "169.254.169.254",  # of most others
    "fe80::1%eth0",  # link-local
    "fec0::1",  # site-local
    "2002:7f00:1::",  # 6to4, of 127.0.0.1
    "2002:a9fe:a9fe::",  # 6to4, of 169.254.169.254
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",  # Teredo
    "64:ff9b::a9fe:a9fe",  # NAT64, of 169.254.169.254
    "64:ff9b:1::1",  # NAT64 of a site
    "::ffff:168.63.129.16",  # mapped
    "::ffff:0:127.0.0.1",  # translated
    "::127.0.0.1",  # compatible
    "0.1.2.3",
    "100.64.0.1",  # shared by the customers of a carrier
    "192.88.99.1",  # 6to4 relay
    "198.18.0.1",  # benchmarks
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "ff02::1",
    "::",
    "5f00::1",  # segment routing
    "100::1",  # discarded
]


@pytest.mark.guarantee(
    "G785",
    "A name in the list of polled hosts leads to no metadata service of a cloud and to no other special address, "
    "listed exactly or by a wildcard. The gateway connects to the address that it checked.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize("address", SPECIAL)
@pytest.mark.parametrize("entry", ["x.plant.example", "*.plant.example"])
def test_a_name_leads_to_no_metadata_service_and_no_embedded_address(entry: str, address: str) -> None:
    with pytest.raises(NotAllowed, match="STRANDLINE_POLL_HOSTS"):
        AllowedHosts([entry]).address_for("x.plant.example", [address])
    listed = address.partition("%")[0].removeprefix("::ffff:") if "." in address else address.partition("%")[0]
    listed = "::ffff:0:127.0.0.1" if listed == "0:127.0.0.1" else listed
    assert AllowedHosts([entry, listed]).address_for("x.plant.example", [address]) == address


@pytest.mark.parametrize("address", ["10.1.2.3", "172.16.0.1", "192.168.1.1", "203.0.113.7", "8.8.8.8", "2606:4700::1"])
def test_a_name_leads_to_public_and_private_addresses(address: str) -> None:
    assert AllowedHosts(["*.plant.example"]).address_for("x.plant.example", [address]) == address


def test_localhost_leads_to_this_machine_only() -> None:
    with pytest.raises(NotAllowed):
        AllowedHosts(["localhost"]).address_for("localhost", ["169.254.169.254"])


@pytest.mark.guarantee("G785")
def test_the_address_that_was_checked_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name leads to another address at each look-up, as with DNS rebinding."""
    answers = [["192.0.2.1"], ["127.0.0.1"]]
    connected: list[object] = []

    async def resolve_next(host: str, port: int) -> list[str]:
        return answers.pop(0)

    async def connect(host: object, port: int, **_: object) -> None:
        connected.append(host)
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(fetching_module, "resolve", resolve_next)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    fetcher = HttpFetcher(AllowedHosts(["*.plant.example"]), ByteBudget(1), 1, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    for code, seen in (("unreachable", ["192.0.2.1"]), ("host_not_allowed", ["192.0.2.1"])):
        with pytest.raises((FetchFailed, NotAllowed)) as error:
            asyncio.run(fetcher.ask("http://x.plant.example/", (), 5))
        assert (error.value.code, connected) == (code, seen)


@pytest.mark.parametrize("entry", ["http://a", "a:80", "", "*.", "a b", "10.0.0.0/99"])
def test_an_entry_that_names_no_host_is_refused_at_the_start(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_POLL_HOSTS", json.dumps([entry]))
    with pytest.raises(InvalidSettings, match="STRANDLINE_POLL_HOSTS is wrong"):
        PollSettings.read()


@pytest.mark.parametrize("spelling", ["127.1", "0x7f000001", "2130706433", "localhost"])
def test_other_spellings_of_an_address_are_what_they_resolve_to(spelling: str) -> None:
    with pytest.raises(NotAllowed):
        AllowedHosts(["*.example", "10.0.0.0/8"]).address_for(spelling, asyncio.run(resolve(spelling, 80)))


@pytest.mark.parametrize(
    ("poll", "part"),
    [
        ({"url": "ftp://a/b"}, "is not a URL of http or https"),
        ({"url": "http:///b"}, "is not a URL of http or https"),
        ({"url": "http://a:99999/"}, "is not a URL"),
        ({"url": "http://u:p@a/"}, "contains a user or a password"),
        ({"url": "http://a/b c"}, "must be percent-encoded"),
        ({"url": "http://a/\r\nx: y"}, "must be percent-encoded"),
        ({"url": "http://a/#f"}, "must be percent-encoded"),
        ({"url": "http://a/", "every": "10ms"}, "expected 100ms to 1d"),
        ({"url": "http://a/", "timeout": "1h"}, "expected up to 5m"),
        ({"url": "http://a/", "headers": {"Host": "b"}}, "is set by the gateway itself"),
        ({"url": "http://a/", "headers": {"Authorization": "Bearer x"}}, "is a secret"),
        ({"url": "http://a/", "headers": {"X-A": {"secret": "S"}}}, "secrets are sent only by https"),
        ({"url": "http://127.0.0.1.example/", "headers": {"X-A": {"secret": "S"}}}, "secrets are sent only by https"),
        ({"url": "http://a/", "headers": {"x": "a\r\ny: z"}}, "no header can have"),
        ({"url": "http://a/", "headers": {"x y": "a"}}, "not the name of an HTTP header"),
        ({"url": "http://a/", "fields": {"metre": "a"}}, "did you mean 'meter'"),
        (
            {"url": "http://a/", "explode": "$.items"},
            r"explode: belongs to the stream, next to 'poll': explode: \$\.items",
        ),
        ([{"url": "http://a/"}, {"url": "http://a/", "explode": "$.a"}], "belongs to the stream, next to 'poll'"),
        ([{"url": "http://a/"}, {"url": "http://a/"}], "occurs twice"),
        ([], "at least one entry"),
    ],
)
def test_documents_that_cannot_be_are_refused(poll: Any, part: str) -> None:
    with pytest.raises(InvalidDocument, match=part):
        StreamSpec.from_document(STREAM | {"poll": poll})


def test_a_document_is_read_back_as_it_was() -> None:
    poll = {
        "url": "https://a/",
        "every": "90s",
        "headers": {"Authorization": {"secret": "S"}},
        "fields": {"meter": "m"},
    }
    spec = StreamSpec.from_document(STREAM | {"poll": poll, "key": "meter"})
    assert StreamSpec.from_document(spec.as_document()) == spec
    assert spec.poll is not None
    assert (spec.poll[0].every, spec.poll[0].timeout) == (90_000, 10_000)


@pytest.mark.guarantee("G304")
def test_secrets_are_read_from_files_or_settings_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "A").write_text("Bearer one\n")
    (tmp_path / "B").write_text("two\r\nx: y")
    monkeypatch.setenv("STRANDLINE_POLL_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("STRANDLINE_POLL_SECRETS", '{"C": "three"}')
    read = PollSettings.read()
    secrets = Secrets(read)
    assert (secrets.value("A"), secrets.value("C")) == ("Bearer one", "three")
    assert "three" not in repr(read)
    for name in ("B", "missing"):
        with pytest.raises(InvalidSettings) as caught:
            secrets.value(name)
        assert "two" not in str(caught.value)
    with pytest.raises(InvalidSettings, match="STRANDLINE_POLL_SECRETS_DIR"):
        Secrets(read.model_copy(update={"poll_secrets_dir": None})).value("A")
    monkeypatch.delenv("STRANDLINE_POLL_SECRETS")
    (tmp_path / "all.json").write_text('{"C": "four"}')
    monkeypatch.setenv("STRANDLINE_POLL_SECRETS_FILE", str(tmp_path / "all.json"))
    assert Secrets(PollSettings.read()).value("C") == "four"


@pytest.mark.guarantee(
    "G786",
    "A poll secret is sent only to the hosts that the operator has bound it to. It is never sent by plain HTTP, "
    "except to the gateway's own machine.",
    promise="secrets-and-connections-are-protected",
)
@pytest.mark.parametrize(
    ("hosts", "url", "is_sent"),
    [
        ({}, "https://meters.example/a", False),
        ({"T": ["meters.example"]}, "https://meters.example/a", False),
        ({"S": ["meters.example"]}, "https://meters.example/a", True),
        ({"S": ["meters.example"]}, "https://METERS.example./a", True),
        ({"S": ["meters.example"]}, "https://evil.example/a", False),
        ({"S": ["meters.example"]}, "https://x.meters.example/a", False),
        ({"S": ["*.plant.example"]}, "https://m7.plant.example:8443/a", True),
        ({"S": ["*.plant.example"]}, "https://evilplant.example/a", False),
        ({"S": ["10.1.0.0/16"]}, "https://10.1.0.7/a", True),
        ({"S": ["10.1.0.0/16"]}, "https://10.2.0.7/a", False),
        ({"S": ["10.1.0.0/16"]}, "https://name-of-10.1.0.7.example/a", False),
        ({"S": ["meters.example"]}, "http://meters.example/a", False),
        ({"S": ["10.1.0.0/16"]}, "http://10.1.0.7/a", False),
        ({"S": ["127.0.0.1", "localhost"]}, "http://127.0.0.1:8000/a", True),
        ({"S": ["127.0.0.1", "localhost"]}, "http://localhost/a", True),
    ],
)
def test_a_secret_is_sent_to_its_hosts_only_and_not_by_plain_http(
    hosts: dict[str, list[str]], url: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_POLL_SECRET_HOSTS", json.dumps(hosts))
    monkeypatch.setenv("STRANDLINE_POLL_SECRETS", '{"S": "Bearer canary"}')
    secrets = Secrets(PollSettings.read())
    if is_sent:
        assert secrets.value_for("S", url) == "Bearer canary"
        return
    with pytest.raises(InvalidSettings, match="secret S: ") as caught:
        secrets.value_for("S", url)
    assert "canary" not in str(caught.value)
    assert ("STRANDLINE_POLL_SECRET_HOSTS" in str(caught.value)) is url.startswith("https")


@pytest.mark.guarantee("G786")
def test_the_gateway_sends_no_secret_to_another_host(tmp_path: Path) -> None:
    """Any client that can register a stream chooses the URL and the name of the secret."""
    settings = PollSettings(
        poll_hosts=("*.example",), poll_secrets={"S": "Bearer canary"}, poll_secret_hosts={"S": ("meters.example",)}
    )
    resources = SimpleNamespace(directory=tmp_path, metrics=IngestMetrics("poll"))
    gateway = PollGateway(settings, resources)  # type: ignore[arg-type]
    assert gateway._tools.secret("S", "https://meters.example/a") == "Bearer canary"
    with pytest.raises(InvalidSettings, match="it must not be sent to evil"):
        gateway._tools.secret("S", "https://evil.example/a")


def test_the_hosts_of_a_secret_are_checked_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_POLL_SECRET_HOSTS", '{"S": ["https://meters.example"]}')
    with pytest.raises(InvalidSettings, match="STRANDLINE_POLL_SECRET_HOSTS"):
        PollSettings.read()


def test_validators_outlive_the_process_and_nothing_else_does(tmp_path: Path) -> None:
    path = tmp_path / "validators.json"
    one = Validators(path)
    a, b, c = (name_of("s", PollSpec(url=url)) for url in ("http://a/?token=x", "http://b/", "http://c/"))
    one.note(a, {"etag": '"1"', "last-modified": "Tue, 24 Nov 2026 10:00:00 GMT"})
    one.note(b, {"etag": "2\r\nx: y"})
    asyncio.run(one.save())
    assert "token" not in path.read_text()
    two = Validators(path)
    assert two.request_headers(a) == [
        ("If-None-Match", '"1"'),
        ("If-Modified-Since", "Tue, 24 Nov 2026 10:00:00 GMT"),
    ]
    assert two.request_headers(b) == two.request_headers(c) == []
    two.keep_only([b])
    asyncio.run(two.save())
    assert Validators(path).request_headers(a) == []
    path.write_text("[broken")
    assert Validators(path).request_headers(a) == []


Device = Callable[[bytes], bytes | Awaitable[bytes]]


async def ask(answers: list[bytes], url_path: str = "/status?q=1", **asking: Any) -> tuple[list[Any], list[bytes]]:
    """Return the outcome of each answer of a device, byte for byte, and the requests that it received."""
    requests: list[bytes] = []
    left = list(answers)
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        answer = left.pop(0)
        if answer == b"wait":
            await reader.read()
        with contextlib.suppress(ConnectionError):
            writer.write(answer)
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    room = ByteBudget(asking.pop("room", 10_000))
    fetcher = HttpFetcher(AllowedHosts(["127.0.0.1"]), room, BODY_BYTES_MAX, ssl.create_default_context())
    found: list[Any] = []
    async with server:
        for _ in answers:
            try:
                found.append(
                    await fetcher.ask(
                        f"http://127.0.0.1:{port}{url_path}", asking.get("headers", []), asking.get("timeout_s", 20)
                    )
                )
            except (FetchFailed, TooLarge, NotAllowed) as error:
                found.append(error.code)
            assert room.held == 0
            await closed.wait()
            closed.clear()
    return found, requests


def response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    head = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (response(b"x", "ETag: a"), HttpResponse(200, {"content-length": "1", "etag": "a"}, b"x")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
        (response(b"x" * BODY_BYTES_MAX), b"x" * BODY_BYTES_MAX),
        (response(b"x" * (BODY_BYTES_MAX + 1)), "too_large"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nx", "cut_short"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", "cut_short"),
        (b"HTTP/1.1 200 OK\r\nContent", "cut_short"),
        (b"", "cut_short"),
        (b"SSH-2.0-x\r\n", "not_http"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 40_000, "not_http"),
    ],
)
def test_what_a_device_may_answer(answer: bytes, found: Any) -> None:
    (reply,), _ = asyncio.run(ask([answer]))
    assert (reply.body if isinstance(found, bytes) else reply) == found


class Pieces:
    """A connection whose bytes come in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._left = list(pieces)

    async def read(self, _: int) -> bytes:
        return self._left.pop(0) if self._left else b""


@pytest.mark.parametrize("is_one_piece", [False, True])
@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nETag: early\r\nLink: x\r\n\r\n"]
)
def test_an_interim_answer_is_not_the_answer(interim: bytes, is_one_piece: bool) -> None:
    async def read(*pieces: bytes) -> HttpResponse:
        fetcher = HttpFetcher(AllowedHosts([]), room := ByteBudget(1_000), BODY_BYTES_MAX, ssl.create_default_context())
        return await fetcher._read(Pieces(*pieces), _Reading(room, BODY_BYTES_MAX))  # type: ignore[arg-type]

    pieces = [interim * 2, response(b"x", "ETag: a")]
    found = asyncio.run(read(*([b"".join(pieces)] if is_one_piece else pieces)))
    assert found == HttpResponse(200, {"content-length": "1", "etag": "a"}, b"x")
    with pytest.raises(FetchFailed, match="ended before") as error:
        asyncio.run(read(interim))
    assert error.value.code == "cut_short"
    with pytest.raises(FetchFailed, match="the head or the trailers of the answer have more than"):
        asyncio.run(read(*[interim * 100] * 1_000))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.guarantee(
    "G784",
    "Each response of a polled device, a schema registry, an OIDC or OAuth provider, or Kibana has limits of memory "
    "and time. The limits include its head, its trailers, and the extensions of its chunks.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize(
    ("first", "piece"),
    [
        (CHUNKED + b"0\r\n", b"x: y\r\n" * 1_000),
        (CHUNKED + b"1\r\na\r\n0\r\nx: ", b"y" * 6_000),
        (CHUNKED + b"1;x=", b"y" * 6_000),
        (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 6_000),
        (b"HTTP/1.1 102 Processing\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 200),
    ],
    ids=["trailers", "one trailer", "chunk extension", "header", "interim responses"],
)
def test_an_endless_head_or_trailer_ends_the_request_before_it_takes_memory(first: bytes, piece: bytes) -> None:
    class Endless(Pieces):
        count = 0

        async def read(self, _: int) -> bytes:
            self.count += 1
            return b"" if self.count > 500 else first if self.count == 1 else piece

    fetcher = HttpFetcher(AllowedHosts([]), room := ByteBudget(1_000), BODY_BYTES_MAX, ssl.create_default_context())
    device = Endless()
    with pytest.raises(FetchFailed, match="more than 32768 bytes") as error:
        asyncio.run(fetcher._read(device, _Reading(room, BODY_BYTES_MAX)))  # type: ignore[arg-type]
    assert error.value.code == "not_http"
    assert device.count < 25


@pytest.mark.guarantee("G784")
def test_trailers_are_no_headers_and_the_number_of_headers_is_bounded() -> None:
    (reply, code), _ = asyncio.run(
        ask(
            [
                CHUNKED + b"1\r\na\r\n0\r\nETag: late\r\n\r\n",
                b"HTTP/1.1 200 OK\r\n" + b"".join(b"x%d: y\r\n" % number for number in range(300)) + b"\r\n",
            ]
        )
    )
    assert reply == HttpResponse(200, {"transfer-encoding": "chunked"}, b"a")
    assert code == "not_http"


def test_the_request_is_as_the_document_says() -> None:
    _, (request,) = asyncio.run(ask([response(b"")], headers=[("X-A", "b")]))
    lines = request.split(b"\r\n")
    assert lines[0] == b"GET /status?q=1 HTTP/1.1"
    assert lines[1].startswith(b"Host: 127.0.0.1:")
    assert lines[2:] == [b"Connection: close", b"X-A: b", b"", b""]


def test_a_device_that_never_answers_and_a_full_room_end_the_request() -> None:
    assert asyncio.run(ask([b"wait"], timeout_s=0.05))[0] == ["timeout"]
    assert asyncio.run(ask([response(b"x" * 100)], room=50))[0] == ["too_busy"]


@given(st.lists(st.binary(max_size=300), max_size=5), st.booleans())
def test_no_answer_breaks_the_asker(parts: list[bytes], is_http: bool) -> None:
    async def read() -> HttpResponse:
        reader = asyncio.StreamReader()
        for part in [b"HTTP/1.1 200 OK\r\n"] * is_http + parts:
            reader.feed_data(part)
        reader.feed_eof()
        room = ByteBudget(1_000)
        fetcher = HttpFetcher(AllowedHosts([]), room, BODY_BYTES_MAX, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return await fetcher._read(reader, _Reading(room, BODY_BYTES_MAX))

    with contextlib.suppress(FetchFailed, TooLarge):
        assert asyncio.run(read()).status


def test_an_answer_in_tiny_chunks_takes_no_more_than_it_counts() -> None:
    reading = _Reading(room := ByteBudget(1_000_000), 1_000_000)
    tracemalloc.start()
    try:
        for number in range(50_000):
            reading.on_body(number.to_bytes(2, "big"))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert room.held == 100_000
    assert held < 1.5 * room.held


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "120"}, 120),
        ({"retry-after": "Wed, 21 Oct 2026 07:30:00 GMT", "date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 90),
        ({"retry-after": "Wed, 21 Oct 2026 07:30:00 GMT"}, 60),
        ({"retry-after": "Wed, 21 Oct 2026 07:30:00 -0000", "date": "just now"}, 60),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"}, None),
    ],
)
def test_a_device_says_when_it_may_be_asked_again(headers: dict[str, str], expected: float | None) -> None:
    now_s = datetime(2026, 10, 21, 7, 29, tzinfo=UTC).timestamp()
    assert _retry_after_s(HttpResponse(503, headers), now_s) == expected


@given(st.text() | st.text("0123456789 :-+,/GMTWedOct"))
def test_no_text_breaks_the_reading_of_when(text: str) -> None:
    found = _retry_after_s(HttpResponse(503, {"retry-after": text}), 0.0)
    assert found is None or found >= 0


class ToldAsker:
    """A source with scripted answers, which records its requests."""

    body_bytes_max = BODY_BYTES_MAX

    def __init__(self, *replies: HttpResponse | Exception) -> None:
        self._replies = list(replies)
        self.asked: list[dict[str, str]] = []

    async def ask(self, url: str, headers: list[tuple[str, str]], timeout_s: float) -> HttpResponse:
        self.asked.append(dict(headers))
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def poll(
    tmp_path: Path,
    replies: list[HttpResponse | Exception],
    ends: list[Exception | Accepted] | None = None,
    document: dict[str, Any] | None = None,
    secret: Callable[[str, str], str] = lambda name, url: f"Bearer {name}",
    **of_poll: Any,
) -> tuple[list[str], ToldAsker, list[Any], list[float | None], int]:
    """Outcomes, what was asked, what was appended, the pauses asked for, and the failures in a row at the end."""
    fetcher, outcomes, writer = ToldAsker(*replies), [], ToldWriter()
    validators = Validators(tmp_path / "validators.json")
    url = {"url": "https://10.0.0.1/a?token=canary", "headers": {"Authorization": {"secret": "S"}}, **of_poll}
    spec = StreamSpec.from_document((document or STREAM) | {"poll": url})

    async def run() -> tuple[list[float | None], int]:
        appender = StreamAppender(
            spec,
            writer,  # type: ignore[arg-type]
            IngestMetrics("poll"),
            may_spool=True,
            record_bytes_max=500,
            clock_ms=lambda: 0,
        )
        tools = PollingTools(
            fetcher,  # type: ignore[arg-type]
            validators,
            secret,
            asyncio.Semaphore(1),
            lambda _stream, outcome: outcomes.append(outcome),
        )
        assert spec.poll is not None
        polled = PolledUrl(spec.poll[0], appender, tools)
        await polled.stop()
        pauses = []
        for at in range(len(replies)):
            writer._end = (ends or [Accepted.LOG] * len(replies))[at]
            pauses.append(await polled.poll_once())
        return pauses, polled.failures

    pauses, failures = asyncio.run(run())
    asyncio.run(validators.save())
    return outcomes, fetcher, writer.appended, pauses, failures


def test_an_answer_is_a_record_with_its_bytes_and_only_once_while_it_stays_the_same(tmp_path: Path) -> None:
    answer = HttpResponse(200, {"etag": '"1"'}, b'{"kwh": 1}\n')
    outcomes, fetcher, appended, _, failures = poll(
        tmp_path,
        [answer, HttpResponse(304), HttpResponse(204)],
        document=STREAM | {"key": "meter"},
        fields={"meter": "m 7"},
    )
    assert (outcomes, failures) == (["answered", "not_modified", "empty"], 0)
    assert [headers.get("If-None-Match") for headers in fetcher.asked] == [None, '"1"', '"1"']
    assert fetcher.asked[0]["Authorization"] == "Bearer S"
    ((record, about),) = appended
    assert record == (b'{"kwh": 1}\n', b"m 7")
    assert about["source"] == b"poll:https://10.0.0.1/a"
    assert about["headers"] == (("strandline-query", b"?meter=m+7"),)
    assert about["headers_each"][0][0][1].endswith(b' "1"')
    assert about["may_spool"] is True
    assert "canary" not in repr(about)


@pytest.mark.guarantee("G303")
@pytest.mark.parametrize(
    "other",
    [
        {"document": STREAM | {"stream": "other"}},
        {"headers": {"X-Site": "7"}},
        {"headers": {"Authorization": {"secret": "T"}}},
    ],
    ids=["stream", "header", "secret"],
)
def test_who_asks_the_same_url_for_another_stream_or_otherwise_is_sent_its_state_too(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    answer = HttpResponse(200, {"etag": '"1"'}, b'{"kwh": 1}')
    asked = [poll(tmp_path, [answer], **how)[1].asked[0].get("If-None-Match") for how in ({}, other, {}, other)]
    assert asked == [None, None, '"1"', '"1"']


@pytest.mark.guarantee("G786")
def test_a_request_to_another_host_is_not_made_with_the_secret(tmp_path: Path) -> None:
    """Each secret is asked for with the URL of its own request."""
    settings = PollSettings(poll_secrets={"S": "Bearer canary"}, poll_secret_hosts={"S": ("meters.example",)})
    secret = Secrets(settings).value_for
    outcomes, fetcher, _, _, _ = poll(tmp_path, [HttpResponse(204)], secret=secret, url="https://evil.example/a")
    assert (outcomes, fetcher.asked) == (["invalid_settings"], [])
    outcomes, fetcher, _, _, _ = poll(tmp_path, [HttpResponse(204)], secret=secret, url="https://meters.example/a")
    assert (outcomes, fetcher.asked[0]["Authorization"]) == (["empty"], "Bearer canary")


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PollGateway:
    monkeypatch.setattr(gateway_module, "SAVE_EVERY_S", 0.001)
    resources = SimpleNamespace(directory=tmp_path, metrics=IngestMetrics("poll"))
    return PollGateway(PollSettings(), resources)  # type: ignore[arg-type]


def kept(tmp_path: Path, name: str) -> bool:
    return bool(Validators(tmp_path / "validators.json").request_headers(name))


def test_etags_that_could_not_be_written_are_written_when_the_disk_has_room(
    gateway: PollGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after an unexpected error, and each reason is reported once."""
    full = OSError(28, "No space left on device")
    errors = [full, full, full, RuntimeError("a mistake"), full]

    def refuse_first(_: int) -> None:
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(os, "fsync", refuse_first)

    async def story() -> None:
        gateway._validators.note("a", {"etag": "1"})
        saving = asyncio.create_task(gateway.save_validators())
        await wait_until_async(lambda: saving.done() or kept(tmp_path, "a"))
        assert not saving.done()
        saving.cancel()
        await gateway.close()

    asyncio.run(story())
    assert caplog.text.count("validators_not_kept") == 3
    assert "RuntimeError" in caplog.text


def test_what_is_noted_while_etags_are_written_is_written_next(
    gateway: PollGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def dump_slowly(known: dict[str, Any], file: TextIO) -> None:
        rows = {}
        for name, headers in known.items():
            rows[name] = headers
            begun.set()
            assert go_on.wait(stretched(20))
        file.write(json.dumps(rows))

    monkeypatch.setattr(json, "dump", dump_slowly)

    async def story() -> None:
        gateway._validators.note("a", {"etag": "1"})
        gateway._validators.note("b", {"etag": "1"})
        saving = asyncio.create_task(gateway.save_validators())
        await wait_until_async(begun.is_set)
        gateway._validators.note("c", {"etag": "1"})
        go_on.set()
        await wait_until_async(lambda: saving.done() or kept(tmp_path, "c"))
        assert not saving.done()
        gateway._validators.note("d", {"etag": "1"})
        saving.cancel()
        await gateway.close()

    asyncio.run(story())
    assert all(kept(tmp_path, name) for name in "abcd")


@pytest.mark.guarantee("G303")
def test_what_was_not_persisted_is_asked_for_again(tmp_path: Path) -> None:
    answer = HttpResponse(200, {"etag": '"1"'}, b'{"kwh": 1}')
    outcomes, fetcher, _, _, failures = poll(tmp_path, [answer, answer], [SpoolFull("full"), Accepted.SPOOL])
    assert (outcomes, failures) == (["not_persisted", "answered"], 0)
    assert [headers.get("If-None-Match") for headers in fetcher.asked] == [None, None]


@pytest.mark.guarantee("G304")
def test_what_is_no_good_answer_is_counted_and_not_a_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replies = [
        HttpResponse(302, {"location": "http://169.254.169.254/"}, b"moved"),
        HttpResponse(404),
        HttpResponse(503, {"retry-after": "7"}),
        FetchFailed("timeout", "no whole answer"),
        NotAllowed("no"),
        HttpResponse(200, {"content-encoding": "br"}, b"x"),
        HttpResponse(200, {"content-encoding": "gzip"}, b"x"),
        HttpResponse(200, {}, b"x" * 501),
        HttpResponse(200, {"content-encoding": "gzip"}, gzip.compress(b"x" * 100_000)),
    ]
    outcomes, _, appended, pauses, failures = poll(tmp_path, replies)
    assert outcomes == [
        "status_3xx", "status_4xx", "status_5xx", "timeout", "host_not_allowed", "not_http", "not_http", "too_large", "too_large",
    ]  # fmt: skip
    assert (appended, failures) == ([], len(replies))
    assert pauses[2] == 7
    told = caplog.text
    assert "redirects are not followed" in told
    assert "canary" not in told
    assert "Bearer" not in told


@pytest.mark.parametrize(
    ("framing", "body", "records"),
    [
        ("body", b"[1]", [b"[1]"]),
        ("json", b'[{"kwh":1} , {"kwh":2}]', [b'{"kwh":1}', b'{"kwh":2}']),
        ("lines", b'{"kwh":1}\r\n\n{"kwh":2}', [b'{"kwh":1}', b'{"kwh":2}']),
        ("json", b"[broken", [b"[broken"]),
        ("json", b"<html>", [b"<html>"]),
    ],
)
def test_an_answer_is_framed_as_the_document_says_and_kept_when_it_can_not_be(
    tmp_path: Path, framing: str, body: bytes, records: list[bytes]
) -> None:
    coded = HttpResponse(200, {"content-encoding": "gzip"}, gzip.compress(body))
    outcomes, _, appended, _, _ = poll(tmp_path, [HttpResponse(200, {}, body), coded], framing=framing)
    assert outcomes == ["answered"] * 2
    assert [record[0] for record, _ in appended] == records * 2
