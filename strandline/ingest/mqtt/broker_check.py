"""Check of the MQTT broker that the bridge reads: whether the bridge can connect."""

from __future__ import annotations

import socket
import ssl
import time
import uuid
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from strandline.core.errors import InvalidSettings
from strandline.core.urls import without_credentials
from strandline.ingest.gateway.contract import GatewayFinding
from strandline.ingest.mqtt.bridge_settings import MqttBridgeSettings, client_options

_TIMEOUT_S = 8.0


def check_broker(settings: MqttBridgeSettings, timeout_s: float = _TIMEOUT_S) -> Iterator[GatewayFinding]:
    """Connect like the bridge, but with a client id of the doctor, in a session that isn't kept. Yield the finding."""
    where = without_credentials(settings.mqtt_url)
    try:
        options = client_options(settings)
    except InvalidSettings as error:
        yield GatewayFinding(str(error), "correct STRANDLINE_MQTT_URL")
        return
    except OSError as error:  # the file of CAs
        yield GatewayFinding(f"STRANDLINE_MQTT_CA_FILE can't be used: {error}", "name a PEM file of certificates")
        return
    is_5 = options.is_5
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=f"strandline-doctor-{uuid.uuid4().hex[:8]}",
        protocol=MQTTProtocolVersion.MQTTv5 if is_5 else MQTTProtocolVersion.MQTTv311,
        clean_session=None if is_5 else True,
    )
    client.connect_timeout = timeout_s
    if options.tls is not None:
        client.tls_set_context(options.tls)
    if options.username is not None:
        client.username_pw_set(options.username, options.password)
    answers: list[Any] = []
    client.on_connect = lambda _client, _data, _flags, reason, _properties: answers.append(reason)
    try:
        client.connect(options.host, options.port)
        deadline = time.monotonic() + timeout_s
        while not answers and time.monotonic() < deadline and client.loop(timeout=0.2) == paho.MQTT_ERR_SUCCESS:
            pass
    except (OSError, ssl.SSLError, socket.gaierror) as error:
        remedy = "start the broker, or correct STRANDLINE_MQTT_URL (for mqtts:// also STRANDLINE_MQTT_CA_FILE)"
        yield GatewayFinding(f"no connection to {where}: {error}", remedy)
        return
    finally:
        client.disconnect()
    if not answers:
        remedy = "check that an MQTT broker listens there, and STRANDLINE_MQTT_VERSION (5 or 3.1.1)"
        yield GatewayFinding(f"the server at {where} did not answer in MQTT {options.version}", remedy)
    elif answers[0].is_failure:
        remedy = "check STRANDLINE_MQTT_USERNAME, STRANDLINE_MQTT_PASSWORD, and STRANDLINE_MQTT_VERSION"
        yield GatewayFinding(f"the broker at {where} refused the connection: {answers[0]}", remedy)
    else:
        yield GatewayFinding(f"accepts the connection at {where}, MQTT {options.version}")
