"""The MQTT broker of the embedded stack, as a process: `python -m strandline.services.embedded.mqtt_broker PORT`.

It listens on loopback only, and anyone may connect. Its sessions are in memory: use another broker where they must survive.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from amqtt.broker import Broker

CONNECTIONS_MAX = 10_000


async def serve(port: int) -> None:
    """Serve until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    listener = {"type": "tcp", "bind": f"127.0.0.1:{port}", "max_connections": CONNECTIONS_MAX}
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    broker = Broker({"listeners": {"default": listener}, "plugins": plugins})
    await broker.start()
    await stopping.wait()
    await broker.shutdown()


if __name__ == "__main__":
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    asyncio.run(serve(int(sys.argv[1])))
