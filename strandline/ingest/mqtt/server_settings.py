"""Settings of the MQTT server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from strandline.core.settings import Settings


class MqttServerSettings(Settings):
    """The common settings, and those of the MQTT server."""

    mqtt_listener_host: str = "127.0.0.1"
    """Address on which the MQTT server listens. Other addresses than loopback need TLS and logins, or
    `MQTT_LISTENER_ALLOW_UNAUTHENTICATED`."""
    mqtt_listener_port: int = 1884
    """Port of the MQTT server."""
    mqtt_listener_health_port: int = 8086
    """Port for health, readiness, and metrics."""
    mqtt_listener_tls_certificate: Path | None = None
    """PEM file with the certificate, and its chain. If it is set, every connection uses TLS."""
    mqtt_listener_tls_key: Path | None = None
    """PEM file with the private key. Default: the key is in the certificate file."""
    mqtt_listener_tls_client_ca: Path | None = None
    """PEM file with CA certificates. If it is set, sensors must present a certificate that one of these CAs signed."""
    mqtt_listener_passwords: Path | None = None
    """Password file. If it isn't set, and `AUTH` is `none`, every client can connect."""
    mqtt_listener_rights: Path | None = None
    """File with the topics that each user can publish to, in the format of Mosquitto's `acl_file`."""
    mqtt_listener_allow_unauthenticated: bool = False
    """True to listen on other addresses than loopback without TLS or logins."""
    mqtt_listener_connections_max: int = Field(default=10_000, ge=1)
    """Maximum number of connections, bounded by `ulimit -n`."""
    mqtt_listener_connections_per_address_max: int | None = Field(default=None, ge=1)
    """Maximum number of connections from one address (IPv6: one /64). Raise it for a fleet behind a single address. Default: half
    of `MQTT_LISTENER_CONNECTIONS_MAX`."""
    mqtt_listener_keep_alive_max_s: int = Field(default=3_600, ge=10, le=65_535)
    """Keep-alive in seconds for a client that requests none or a longer one."""
