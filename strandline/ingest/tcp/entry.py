"""The TCP gateway for the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import TYPE_CHECKING

from strandline.ingest.gateway.contract import (
    Gateway,
    GatewayPort,
    SenderExample,
    StackServers,
    WayToSend,
    stream_address,
)

if TYPE_CHECKING:
    from strandline.core.settings import Settings
    from strandline.core.streams.stream import StreamSpec


class TcpEntry(Gateway):
    """Accepts lines. It authenticates no principals."""

    name = "tcp"
    title = "the TCP gateway"
    module = "strandline.ingest.tcp.gateway"
    ports = (GatewayPort("tcp_health_port", 8087, "the TCP gateway's health pages"),)
    hosts = ("tcp_host",)
    tls = ("tcp_tls_",)

    def settings(self) -> type[Settings]:
        from strandline.ingest.tcp.settings import TcpSettings

        return TcpSettings

    def sender_url(self, servers: StackServers, ports: Mapping[str, int]) -> str:
        """Return the URL without a port: senders connect to the ports of the streams."""
        return "tcp://127.0.0.1"

    def ways_to_send(self, stream: StreamSpec, url: str, example: SenderExample) -> Iterator[WayToSend]:
        """Yield a command of netcat if the stream has a port."""
        if stream.tcp is None:
            return
        address, host, port = stream_address(url, stream.tcp.port, example)
        yield WayToSend(address, command=f"printf '%s\\n' {quote(example.record)} | nc -w1 {host} {port}")


GATEWAY = TcpEntry()
