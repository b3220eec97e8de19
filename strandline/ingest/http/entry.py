"""The HTTP gateway for the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from strandline.access.rights import RequiredRight
from strandline.ingest.gateway.contract import Gateway, GatewayPort, SenderExample, WayToSend

if TYPE_CHECKING:
    from strandline.core.settings import Settings
    from strandline.core.streams.stream import StreamSpec


class HttpEntry(Gateway):
    """Accepts records in the bodies of requests. Its health endpoints are on the same port."""

    name = "http"
    title = "the HTTP gateway"
    module = "strandline.ingest.http.gateway"
    ports = (GatewayPort("http_port", 8081, "the HTTP gateway"),)
    scheme = "http"
    hosts = ("http_host",)
    tls = ("http_tls_",)
    actions: ClassVar[Mapping[str, RequiredRight]] = {
        "POST /v1/streams/{stream}/records": RequiredRight.WRITE,
        "POST /api/v2/write": RequiredRight.WRITE,
        "POST /write": RequiredRight.WRITE,
        "POST /v1/streams/{stream}/otlp/v1/metrics": RequiredRight.WRITE,
        "POST /v1/streams/{stream}/prometheus/write": RequiredRight.WRITE,
    }

    def settings(self) -> type[Settings]:
        from strandline.core.settings import Settings

        return Settings

    def ways_to_send(self, stream: StreamSpec, url: str, example: SenderExample) -> Iterator[WayToSend]:
        """Yield a command of curl."""
        address = f"{url.rstrip('/')}/v1/streams/{stream.stream}/records"
        login = "-H 'Authorization: Bearer TOKEN' " if example.needs_token else ""
        head = f"-H 'Content-Type: {example.content_type}'"
        yield WayToSend(address, command=f"curl {head} {login}--data-binary {quote(example.record)} {address}")


GATEWAY = HttpEntry()
