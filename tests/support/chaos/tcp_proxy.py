"""A TCP proxy before a server, whose connections can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.support.mqtt_proxy import end


class TcpProxy:
    """Passes everything on, from `port` to the server, which may come and go. While it is cut, it refuses connections."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._is_cut = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        """Both ends of what passes here."""
        self.refused = 0
        """Connections that were cut or refused, in all."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close every connection, and each new one as it comes, until `heal`."""
        with self._lock:
            self._is_cut = True
            open_, self._open = self._open, set()
            self.refused += len(open_) // 2
        end(*open_)

    def heal(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.server_port))
        except OSError:
            end(client)
            return
        with self._lock:
            is_refused = self._is_cut
            self.refused += is_refused
            if not is_refused:
                self._open |= {client, server}
        try:
            if not is_refused:
                self._pass(client, server)
        finally:
            with self._lock:
                self._open -= {client, server}
            end(client, server)

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        """Return when either end is gone."""
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(262_144):
            sink.sendall(data)
    # Wakes the other direction too.
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
