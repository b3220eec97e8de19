"""The UDP gateway for the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from strandline.access.rights import RequiredRight
from strandline.ingest.gateway.contract import Gateway, GatewayPort

if TYPE_CHECKING:
    from strandline.core.settings import Settings


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


GATEWAY = UdpEntry()
