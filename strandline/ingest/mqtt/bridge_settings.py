"""Settings of the MQTT bridge, and its login at the broker."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from strandline.core.errors import InvalidSettings
from strandline.core.settings import Settings
from strandline.core.urls import without_credentials
from strandline.ingest.mqtt.client import MqttClientOptions
from strandline.ingest.mqtt.headers import packet_bytes_max

PORTS = {"mqtt": 1883, "mqtts": 8883}


class MqttBridgeSettings(Settings):
    """The common settings, and those of the MQTT bridge."""

    mqtt_url: str = "mqtt://127.0.0.1:1883"
    """URL of the broker that the MQTT bridge reads; `mqtts://` for TLS."""
    mqtt_version: Literal["5", "3.1.1"] = "5"
    """Version of MQTT: `5` or `3.1.1`."""
    mqtt_client_id: str = ""
    """Client id that names the session at the broker. No two gateways can have the same. Default: `strandline-HOST-PORT` with the
    health port."""
    mqtt_username: str | None = None
    """User name for the broker."""
    mqtt_password: SecretStr | None = None
    """Password of the broker user."""
    mqtt_ca_file: Path | None = None
    """PEM file with the CA certificates that verify the broker. Default: the CAs of the machine."""
    mqtt_share_group: str = Field(default="", pattern=r"^[^/+#]*$")
    """Name of a group of bridges that share the messages."""
    mqtt_session_expiry_s: int = Field(default=7 * 86_400, ge=0, le=0xFFFFFFFF)
    """Seconds for which the broker keeps the session of a bridge that is away (MQTT 5)."""
    mqtt_in_flight_max: int = Field(default=5_000, ge=1, le=65_535)
    """Maximum number of messages that the broker can send before the first is acknowledged (MQTT 5)."""
    mqtt_confirm_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds without a confirmation of Kafka, after which the bridge makes the broker send again."""
    mqtt_health_port: int = 8084
    """Port for health, readiness, and metrics, on `HTTP_HOST`."""


def client_options(settings: MqttBridgeSettings) -> MqttClientOptions:
    """Return the options of the client. Raises InvalidSettings for an invalid URL."""
    url = urlsplit(settings.mqtt_url)
    if url.scheme not in PORTS or not url.hostname or url.path not in ("", "/"):
        raise InvalidSettings(
            f"STRANDLINE_MQTT_URL is {without_credentials(settings.mqtt_url)!r}; expected mqtt://HOST:PORT or mqtts://HOST:PORT"
        )
    password = settings.mqtt_password
    return MqttClientOptions(
        host=url.hostname,
        port=url.port or PORTS[url.scheme],
        version=settings.mqtt_version,
        client_id=settings.mqtt_client_id or f"strandline-{socket.gethostname()}-{settings.mqtt_health_port}",
        session_expiry_s=settings.mqtt_session_expiry_s,
        in_flight_max=settings.mqtt_in_flight_max,
        packet_bytes_max=packet_bytes_max(settings.record_bytes_max),
        tls=ssl.create_default_context(cafile=settings.mqtt_ca_file) if url.scheme == "mqtts" else None,
        username=settings.mqtt_username,
        password=password.get_secret_value() if password is not None else None,
    )
