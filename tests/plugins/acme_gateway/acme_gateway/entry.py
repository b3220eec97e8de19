"""The gateway for Strandline's registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.ingest.gateway.contract import Gateway, GatewayFinding, GatewayPort, StackServers

if TYPE_CHECKING:
    from acme_gateway.settings import AcmeSection, AcmeSettings
    from strandline.core.streams.stream import StreamSpec


class AcmeGateway(Gateway):
    """Takes lines, and answers `ok N` after the Nth is in the log."""

    name = "acme"
    title = "the ACME gateway"
    module = "acme_gateway.gateway"
    ports = (GatewayPort("acme_health_port", 8095, "the ACME gateway's health pages"),)
    hosts = ("acme_host",)
    stop_timeout_s = 25.0
    subject = "ACME"

    def settings(self) -> type[AcmeSettings]:
        from acme_gateway.settings import AcmeSettings

        return AcmeSettings

    def document(self) -> type[AcmeSection]:
        from acme_gateway.settings import AcmeSection

        return AcmeSection

    def problems(self, section: AcmeSection, stream: StreamSpec) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if section.facility is not None and section.facility not in stream.fields:
            yield ("facility",), f"'{section.facility}' is not a field of the schema; declare it"

    def has_checks(self, servers: StackServers | None) -> bool:
        return True

    def examine(self, servers: StackServers | None) -> Iterator[GatewayFinding]:
        settings = self.settings().read()
        if settings.acme_host.startswith("0."):
            yield GatewayFinding("senders from everywhere can connect", "set STRANDLINE_ACME_HOST to one address")
        else:
            yield GatewayFinding(f"senders connect to {settings.acme_host}")


GATEWAY = AcmeGateway()
