"""The polling gateway for the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.ingest.gateway.contract import Gateway, GatewayPort

if TYPE_CHECKING:
    from strandline.core.settings import Settings


class PollEntry(Gateway):
    """Polls URLs, so no sender connects to it."""

    name = "poll"
    title = "the polling gateway"
    module = "strandline.ingest.poll.gateway"
    ports = (GatewayPort("poll_health_port", 8088, "the polling gateway's health pages"),)

    def settings(self) -> type[Settings]:
        from strandline.ingest.poll.settings import PollSettings

        return PollSettings


GATEWAY = PollEntry()
