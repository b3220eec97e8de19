"""MQTT broker of the embedded stack, as a process: `python -m strandline.services.embedded.mqtt_broker PORT [PASSWORD_FILE]`.

The broker listens on loopback only. With PASSWORD_FILE it accepts only clients that log in as STACK_USER with that password;
without it, any client can connect. Its sessions are in memory: use another broker if sessions must survive a restart.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import amqtt.broker
from amqtt.broker import Broker
from amqtt.errors import MQTTError
from amqtt.mqtt.connack import BAD_USERNAME_PASSWORD, ConnackPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler

from strandline.services.embedded.addresses import STACK_USER

if TYPE_CHECKING:
    from amqtt.adapters import WriterAdapter
    from amqtt.session import Session

CONNECTIONS_MAX = 10_000


def handler_with_login(password: bytes) -> type[BrokerProtocolHandler]:
    """Return the protocol handler of a broker that accepts only STACK_USER with this password.

    The handler checks the login directly after CONNECT. A plugin of amqtt would check it too late: before the plugins, amqtt
    has deleted the session with the client identifier of the CONNECT, or replaced its will.
    """

    class LoginHandler(BrokerProtocolHandler):  # type: ignore[misc]  # amqtt has no types
        """Refuses a CONNECT without the login, before the broker looks for a session."""

        @classmethod
        async def init_from_connect(
            cls, reader: Any, writer: WriterAdapter, plugins_manager: Any, loop: asyncio.AbstractEventLoop | None = None
        ) -> tuple[BrokerProtocolHandler, Session]:
            handler, session = await super().init_from_connect(reader, writer, plugins_manager, loop)
            if is_login(session.username, session.password, password):
                return handler, session
            await ConnackPacket.build(0, BAD_USERNAME_PASSWORD).to_stream(writer)
            await writer.close()
            raise MQTTError(
                f"client {session.client_id!r} did not log in as {STACK_USER} with the password of this stack "
                "(DIR/passwords/mqtt)"
            )

    return LoginHandler


def is_login(user: str | None, given: str | None, password: bytes) -> bool:
    """Return True if this is the login of the stack. Takes the same time for every password of one length."""
    is_user = hmac.compare_digest((user or "").encode(), STACK_USER.encode())
    return hmac.compare_digest((given or "").encode(), password) and is_user


async def serve(port: int, password: bytes | None = None) -> None:
    """Serve until SIGTERM. With None as password, any client can connect."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    listener = {"type": "tcp", "bind": f"127.0.0.1:{port}", "max_connections": CONNECTIONS_MAX}
    # The plugin of amqtt checks nothing: the handler has checked the login before.
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    if password is not None:
        amqtt.broker.BrokerProtocolHandler = handler_with_login(password)
    broker = Broker({"listeners": {"default": listener}, "plugins": plugins})
    await broker.start()
    await stopping.wait()
    await broker.shutdown()


def _read_password(arguments: list[str]) -> bytes | None:
    if not arguments:
        return None
    password = Path(arguments[0]).read_bytes().strip()
    if not password:
        raise SystemExit(f"{arguments[0]} is empty; delete it, then run strandline down and strandline up")
    return password


if __name__ == "__main__":
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    asyncio.run(serve(int(sys.argv[1]), _read_password(sys.argv[2:])))
