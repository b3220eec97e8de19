"""The proxy before a broker, by itself: it leaves nothing open behind it."""

from __future__ import annotations

import gc
import socket
import threading

from tests.support.faults.kafka_proxy import KafkaProxy
from tests.support.ports import free_ports
from tests.support.waiting import stretched


def test_a_proxy_that_stops_while_clients_connect_closes_every_connection() -> None:
    """A socket that is left open makes a warning when it is forgotten, and a warning fails the test."""
    for _ in range(5):
        proxy = KafkaProxy(*free_ports(2))
        proxy.start()
        connected, stopped = threading.Event(), threading.Event()

        def connect(
            port: int = proxy.port, connected: threading.Event = connected, stopped: threading.Event = stopped
        ) -> None:
            while not stopped.is_set():
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                except OSError:
                    continue  # it listens no more
                connected.set()

        client = threading.Thread(target=connect)
        client.start()
        assert connected.wait(stretched(10))
        proxy.stop()
        stopped.set()
        client.join()
        assert proxy.errors == []
    gc.collect()
