"""Servers that only a gateway uses, and other checks of a gateway, made by the gateway itself."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.ingest.gateway.contract import Gateway, StackServers
from strandline.services.doctor.finding import Finding, ok, wrong


def check_gateway(gateway: Gateway, servers: StackServers | None) -> Iterator[Finding]:
    """Yield the findings of the gateway's own check. Raises InvalidSettings if its settings are invalid."""
    subject = gateway.subject or gateway.title
    for message, remedy in gateway.examine(servers):
        yield wrong(subject, message, remedy) if remedy else ok(subject, message)
