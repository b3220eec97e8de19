"""The TCP gateway for the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.ingest.gateway.contract import Gateway, GatewayPort

if TYPE_CHECKING:
    from strandline.core.settings import Settings


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


GATEWAY = TcpEntry()
