"""A proxy between an MQTT client and its broker that cuts connections just before a PUBACK passes."""

from __future__ import annotations

import contextlib
import random
import socket
import threading


class CuttingProxy:
    """Lets a few PUBACKs of each connection pass, swallows the next one and cuts both sides; `cuts_max` times in all."""

    def __init__(self, broker_port: int, cuts_max: int, chance: random.Random) -> None:
        self._broker_port = broker_port
        self._cuts_max = cuts_max
        self._chance = chance
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._cut = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def wait_for_cut(self, before: int, timeout_s: float) -> None:
        """Return when there were more than `before` cuts, or after a while."""
        with self._cut:
            self._cut.wait_for(lambda: self.cuts > before, timeout_s)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._broker_port))
                for work in (self._to_broker, self._to_client):
                    threading.Thread(target=work, args=(client, broker), daemon=True).start()

    def _to_client(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := broker.recv(65_536):
                client.sendall(data)
        end(client, broker)

    def _to_broker(self, client: socket.socket, broker: socket.socket) -> None:
        passing = self._chance.randrange(20)
        held = b""
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                held += data
                ready = 0
                for start, stop in packets(held):
                    if held[start] >> 4 == 4:
                        if not passing and self.cuts < self._cuts_max:
                            broker.sendall(held[:start])
                            end(client, broker)
                            with self._cut:
                                self.cuts += 1
                                self._cut.notify_all()
                            return
                        passing -= 1
                    ready = stop
                broker.sendall(held[:ready])
                held = held[ready:]
        end(client, broker)


def packets(data: bytes) -> list[tuple[int, int]]:
    """Return the start and end of each complete MQTT packet in `data`."""
    found, start = [], 0
    while start < len(data):
        size, shift, at = 0, 0, start + 1
        while at < len(data):
            size |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                break
        else:
            break
        if at + size > len(data):
            break
        found.append((start, at + size))
        start = at + size
    return found


def end(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
