"""Settings of the TCP gateway."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from strandline.core.settings import Settings


class TcpSettings(Settings):
    """The common settings, and those of the TCP gateway."""

    port_offset: int = 0
    """Number that the UDP and TCP gateways add to every port in a stream document."""
    tcp_host: str = "127.0.0.1"
    """Address on which the TCP gateway listens. Other addresses than loopback need TLS with client certificates, or
    `ALLOW_UNAUTHENTICATED`."""
    tcp_tls_certificate: Path | None = None
    """PEM file with the certificate, and its chain, for all ports of the TCP gateway. If it is set, every connection uses TLS."""
    tcp_tls_key: Path | None = None
    """PEM file with the private key. Default: the key is in the certificate file."""
    tcp_tls_client_ca: Path | None = None
    """PEM file with CA certificates. If it is set, senders must present a certificate that one of these CAs signed."""
    tcp_connections_max: int = Field(default=10_000, ge=1)
    """Maximum number of connections, bounded by `ulimit -n`. Additional connections are refused."""
    tcp_idle_s: float = Field(default=3_600, gt=0)
    """Seconds without data after which a connection is closed."""
    tcp_health_port: int = 8087
    """Port for health, readiness, and metrics, on `HTTP_HOST`."""
