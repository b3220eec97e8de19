"""Settings of the UDP gateway."""

from __future__ import annotations

from pydantic import Field

from strandline.core.settings import Settings


class UdpSettings(Settings):
    """The common settings, and those of the UDP gateway."""

    port_offset: int = 0
    """Number that the UDP and TCP gateways add to every port in a stream document."""
    udp_host: str = "127.0.0.1"
    """Listen address of the UDP gateway. Other addresses than loopback need `UDP_SIGNED_ONLY` or `ALLOW_UNAUTHENTICATED`."""
    udp_receive_buffer_bytes: int = Field(default=32 * 1024 * 1024, ge=1)
    """Size of the receive buffer of each socket in bytes. Without CAP_NET_ADMIN, it is bounded by `net.core.rmem_max`."""
    udp_sockets: int = Field(default=1, ge=1, le=64)
    """Number of sockets for each port."""
    udp_share_port: bool = False
    """True to let other gateway processes listen on the same ports."""
    udp_signed_only: bool = False
    """True to accept only signed datagrams: a stream whose `udp` has no `hmac` gets no port. Then the gateway can listen on other
    addresses than loopback."""
    udp_confirm_timeout_s: float = Field(default=5.0, gt=0)
    """Seconds without a confirmation of Kafka, after which records go to the spool."""
    udp_health_port: int = 8085
    """Port for health, readiness, and metrics, on `HTTP_HOST`."""
