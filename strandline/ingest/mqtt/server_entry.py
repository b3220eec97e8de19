"""The MQTT server for the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from strandline.access.rights import RequiredRight
from strandline.ingest.gateway.contract import Gateway, GatewayPort

if TYPE_CHECKING:
    from strandline.core.settings import Settings


class ServerEntry(Gateway):
    """The MQTT server, to which sensors connect."""

    name = "mqtt-listener"
    title = "the MQTT server"
    module = "strandline.ingest.mqtt.server"
    ports = (
        GatewayPort("mqtt_listener_port", 1884, "the MQTT server"),
        GatewayPort("mqtt_listener_health_port", 8086, "the MQTT server's health pages"),
    )
    scheme = "mqtt"
    hosts = ("mqtt_listener_host",)
    tls = ("mqtt_listener_tls_",)
    actions: ClassVar[Mapping[str, RequiredRight]] = {"MQTT PUBLISH": RequiredRight.WRITE}

    def settings(self) -> type[Settings]:
        from strandline.ingest.mqtt.server_settings import MqttServerSettings

        return MqttServerSettings


GATEWAY = ServerEntry()
