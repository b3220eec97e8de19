"""The MQTT bridge for the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from strandline.ingest.gateway.contract import (
    Gateway,
    GatewayFinding,
    GatewayPort,
    SenderExample,
    StackServers,
    WayToSend,
)

if TYPE_CHECKING:
    from strandline.core.streams.stream import StreamSpec
    from strandline.ingest.mqtt.bridge_settings import MqttBridgeSettings

_VERSION_OF_OWN_BROKER = "3.1.1"
"""Version of MQTT that amqtt speaks, the broker of an embedded stack."""


class BridgeEntry(Gateway):
    """Accepts messages that are published to an MQTT broker."""

    name = "mqtt"
    title = "the MQTT bridge"
    module = "strandline.ingest.mqtt.bridge"
    ports = (GatewayPort("mqtt_health_port", 8084, "the MQTT gateway's health pages"),)
    stop_timeout_s = 30.0
    subject = "MQTT broker"

    def settings(self) -> type[MqttBridgeSettings]:
        from strandline.ingest.mqtt.bridge_settings import MqttBridgeSettings

        return MqttBridgeSettings

    def environment(self, servers: StackServers) -> Mapping[str, str]:
        version = {"STRANDLINE_MQTT_VERSION": _VERSION_OF_OWN_BROKER} if servers.has_own_broker else {}
        return {"STRANDLINE_MQTT_URL": servers.mqtt_url, **version}

    def has_checks(self, servers: StackServers | None) -> bool:
        """Return True if a broker is configured, or if the stack is embedded."""
        return servers is not None or "mqtt_url" in self.settings().read().model_fields_set

    def examine(self, servers: StackServers | None) -> Iterator[GatewayFinding]:
        """Yield a finding whether the bridge can connect to the broker."""
        from strandline.ingest.mqtt.broker_check import check_broker

        settings = self.settings().read()
        if servers is not None:
            version = {"mqtt_version": _VERSION_OF_OWN_BROKER} if servers.has_own_broker else {}
            settings = settings.model_copy(update={"mqtt_url": servers.mqtt_url, **version})
        return check_broker(settings)

    def sender_url(self, servers: StackServers, ports: Mapping[str, int]) -> str:
        """Return the URL of the broker: the bridge itself accepts no connections."""
        return servers.mqtt_url

    def ways_to_send(self, stream: StreamSpec, url: str, example: SenderExample) -> Iterator[WayToSend]:
        """Yield a command of mosquitto_pub if the stream has topics."""
        from strandline.ingest.mqtt.publishing import ways_to_publish

        return ways_to_publish(stream, url, example)


GATEWAY = BridgeEntry()
