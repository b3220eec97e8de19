"""The MQTT server for the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from strandline.access.rights import RequiredRight
from strandline.ingest.gateway.contract import Gateway, GatewayPort, SenderExample, WayToSend

if TYPE_CHECKING:
    from strandline.core.settings import Settings
    from strandline.core.streams.stream import StreamSpec


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

    def ways_to_send(self, stream: StreamSpec, url: str, example: SenderExample) -> Iterator[WayToSend]:
        """Yield a command of mosquitto_pub if the stream has topics."""
        from strandline.ingest.mqtt.publishing import ways_to_publish

        return ways_to_publish(stream, url, example, "-u NAME -P TOKEN " if example.needs_token else "")


GATEWAY = ServerEntry()
