"""The UDP gateway for the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from strandline.access.rights import RequiredRight
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


class UdpEntry(Gateway):
    """Accepts datagrams. Only signed datagrams need a right."""

    name = "udp"
    title = "the UDP gateway"
    module = "strandline.ingest.udp.gateway"
    ports = (GatewayPort("udp_health_port", 8085, "the UDP gateway's health pages"),)
    hosts = ("udp_host",)
    actions: ClassVar[Mapping[str, RequiredRight]] = {"UDP DATAGRAM": RequiredRight.WRITE}

    def settings(self) -> type[Settings]:
        from strandline.ingest.udp.settings import UdpSettings

        return UdpSettings

    def sender_url(self, servers: StackServers, ports: Mapping[str, int]) -> str:
        """Return the URL without a port: senders connect to the ports of the streams."""
        return "udp://127.0.0.1"

    def ways_to_send(self, stream: StreamSpec, url: str, example: SenderExample) -> Iterator[WayToSend]:
        """Yield a command of netcat if the stream has a port."""
        if stream.udp is None:
            return
        address, host, port = stream_address(url, stream.udp.port, example)
        if stream.udp.hmac is not None:
            yield WayToSend(address, note="Only signed datagrams are accepted.")
            return
        yield WayToSend(address, command=f"printf %s {quote(example.record)} | nc -u -w1 {host} {port}")


GATEWAY = UdpEntry()
