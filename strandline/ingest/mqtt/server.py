"""The MQTT server: sensors connect to Strandline itself, and PUBACK follows the log's confirmation.

`python -m strandline.ingest.mqtt.server` runs one. It supports MQTT 3.1.1 and 5.0, QoS 0 and 1, and publishing only.
The streams' documents contain the topics: `mqtt: {topics: ["farm/+/turbine/+"]}`. Its settings and its process are
named `mqtt_listener`.

Contract with sensors:

- PUBACK (5.0: with reason 0): the message is in the log, with its bytes. QoS 1 without PUBACK: unknown, resend it.
- PUBACK with a reason of 0x80 or more: the message is not in the log, and would be refused again.
- QoS 0: no promise. The message is persisted immediately anyway, and a known loss is counted.

The path of a message: `Connection` reads it, `MqttConnections.publish` finds its stream, and `Batches` append it to the
log and have its connection acknowledge it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import structlog

from strandline.core.errors import InvalidSettings, StackError
from strandline.core.host_names import is_loopback
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.process import connections_max, open_resources, run_gateway, serve_health_pages
from strandline.ingest.gateway.serving.tls_handshakes import ServerTls, server_tls, with_tls
from strandline.ingest.mqtt.connections import MqttConnections
from strandline.ingest.mqtt.logins import Logins, RightsFile
from strandline.ingest.mqtt.passwords import Passwords
from strandline.ingest.mqtt.server_entry import GATEWAY
from strandline.ingest.mqtt.server_settings import MqttServerSettings
from strandline.ingest.mqtt.sessions import Sessions

logger = structlog.get_logger()

_BACKLOG = 4_096


async def serve(settings: MqttServerSettings) -> None:
    """Run a server until SIGTERM or SIGINT. Then stop reading, acknowledge the confirmed messages, and return.

    Raises InvalidSettings (TLS files or passwords are missing or can't be used), StackError if a port is in use, and
    the errors of opening the ledger. Kafka may start later.
    """
    tls = server_tls(
        settings.mqtt_listener_tls_certificate,
        settings.mqtt_listener_tls_key,
        settings.mqtt_listener_tls_client_ca,
        "STRANDLINE_MQTT_LISTENER_TLS",
    )
    _check_exposure(settings)
    async with contextlib.AsyncExitStack() as stack:
        passwords = None
        if settings.mqtt_listener_passwords is not None:
            passwords = stack.enter_context(contextlib.closing(Passwords(settings.mqtt_listener_passwords)))
        rights = RightsFile(settings.mqtt_listener_rights) if settings.mqtt_listener_rights is not None else None
        if rights is not None and passwords is None and settings.auth == "none":
            raise InvalidSettings(
                "STRANDLINE_MQTT_LISTENER_RIGHTS contains rights of users, but no client logs in: set "
                "STRANDLINE_MQTT_LISTENER_PASSWORDS or STRANDLINE_AUTH, too"
            )
        resources = await stack.enter_async_context(open_resources(settings, GATEWAY))
        checks_certificates = tls is not None and tls.checks_clients
        logins = Logins(passwords, resources.authenticator, rights, checks_certificates=checks_certificates)
        await stack.enter_async_context(serve_health_pages(settings, GATEWAY, resources))
        sessions = stack.enter_context(
            contextlib.closing(Sessions(settings.data_dir / f"mqtt-sessions-{settings.mqtt_listener_port}.jsonl"))
        )
        count_max = connections_max("STRANDLINE_MQTT_LISTENER_CONNECTIONS_MAX", settings.mqtt_listener_connections_max)
        connections = MqttConnections(
            resources,
            logins,
            sessions,
            record_bytes_max=settings.record_bytes_max,
            connections_max=count_max,
            connections_per_address_max=settings.mqtt_listener_connections_per_address_max or -(-count_max // 2),
            keep_alive_max_s=settings.mqtt_listener_keep_alive_max_s,
            confirm_timeout_s=settings.confirm_timeout_s,
        )
        server = await _bind(settings, connections, tls)
        knows_streams = asyncio.Event()

        def update_streams(streams: list[StreamSpec]) -> None:
            connections.update_streams(streams)
            knows_streams.set()

        listening = asyncio.create_task(_listen(server, knows_streams))
        watching = asyncio.create_task(connections.watch())
        watching.add_done_callback(lambda _: resources.stopping.set())
        try:
            await resources.follow_streams(update_streams)
        finally:
            listening.cancel()
            watching.cancel()
            server.close()
            await connections.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await watching  # raises the error that ended it, if it wasn't cancelled


async def _listen(server: asyncio.AbstractServer, knows_streams: asyncio.Event) -> None:
    """Accept connections as soon as the streams are known: before that every topic would be refused."""
    await knows_streams.wait()
    await server.start_serving()
    logger.info("the MQTT server listens", action="gateway_started")


async def _bind(
    settings: MqttServerSettings, connections: MqttConnections, tls: ServerTls | None
) -> asyncio.AbstractServer:
    host, port = settings.mqtt_listener_host, settings.mqtt_listener_port
    try:
        server = await asyncio.get_running_loop().create_server(
            with_tls(tls, connections.connection),
            host,
            port,
            backlog=_BACKLOG,
            start_serving=False,
        )
    except OSError as error:
        raise StackError(
            f"the MQTT server can't listen on {host}:{port}: {error.strerror}; "
            f"stop what uses that port, or set STRANDLINE_MQTT_LISTENER_PORT"
        ) from error
    logger.info("the MQTT server has its port", action="port_taken", host=host, port=port, tls=tls is not None)
    return server


def _check_exposure(settings: MqttServerSettings) -> None:
    """Require TLS and passwords outside of loopback, unless the settings allow a listener without them.

    Raises InvalidSettings.
    """
    missing = [
        name
        for name, is_there in (
            ("STRANDLINE_MQTT_LISTENER_TLS_CERTIFICATE", settings.mqtt_listener_tls_certificate is not None),
            (
                "STRANDLINE_MQTT_LISTENER_PASSWORDS",
                settings.mqtt_listener_passwords is not None or settings.auth != "none",
            ),
        )
        if not is_there
    ]
    is_open = settings.mqtt_listener_allow_unauthenticated or settings.allow_unauthenticated
    if missing and not is_open and not is_loopback(settings.mqtt_listener_host):
        raise InvalidSettings(
            f"the MQTT server would accept every client that reaches {settings.mqtt_listener_host}: set "
            f"{' and '.join(missing)}, or STRANDLINE_MQTT_LISTENER_ALLOW_UNAUTHENTICATED=true if the network keeps other "
            "clients out"
        )


if __name__ == "__main__":
    sys.exit(run_gateway(MqttServerSettings, serve))
