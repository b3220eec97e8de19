"""A proxy before Elasticsearch that loses answers to bulk requests: what was sent is written, and nobody hears so."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.mqtt_proxy import end

_BULK = b"POST /_bulk"


class IndexProxy:
    """Passes everything on, from `port` to the index, until answers are to be lost."""

    def __init__(self, index_port: int) -> None:
        self._index_port = index_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._to_lose = 0
        self.lost = 0
        """Answers to bulk requests that were lost, in all."""
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self, count: int) -> None:
        """Cut the connection instead of passing on each of the next `count` answers to a bulk request."""
        with self._lock:
            self._to_lose = count

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            index = socket.create_connection(("127.0.0.1", self._index_port))
        except OSError:
            end(client)
            return
        is_bulk = threading.Event()
        threading.Thread(target=self._to_client, args=(client, index, is_bulk), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(262_144):
                # A request begins where the answer to the one before has ended, so at the start of what is received.
                if data.startswith(_BULK):
                    is_bulk.set()
                elif data.startswith((b"POST /", b"GET /", b"PUT /", b"HEAD /")):
                    is_bulk.clear()
                index.sendall(data)
        end(client, index)

    def _to_client(self, client: socket.socket, index: socket.socket, is_bulk: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := index.recv(262_144):
                if is_bulk.is_set() and self._loses():
                    break
                client.sendall(data)
        end(client, index)

    def _loses(self) -> bool:
        with self._lock:
            if not self._to_lose:
                return False
            self._to_lose -= 1
            self.lost += 1
            return True
