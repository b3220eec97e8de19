"""Bounds on the time that a connection to PostgreSQL can block.

If a server's host loses power, or a firewall drops the connection, no error arrives, and libpq waits without a limit. If the
server is paused, its kernel still acknowledges packets. So each case needs its own bound.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

LIBPQ_TIMEOUTS = MappingProxyType(
    {
        # Nothing was sent, and a response is expected: three probes, 5 s apart, after 10 s.
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        # Data was sent and isn't acknowledged.
        "tcp_user_timeout": 25_000,
    }
)
"""Options of libpq. A connection without a peer fails after about 25 s. See tcp(7), and "Parameter Key Words" of libpq."""


@contextlib.contextmanager
def cut_after(connection: Any, seconds: float) -> Iterator[None]:
    """Cut a psycopg connection if the block takes longer. Operations that wait for its server fail with an OperationalError. So
    a wait for a paused server ends, which no option of libpq achieves. The connection can't be used afterwards."""
    # A separate descriptor: the connection can close its own while the timer is about to cut it.
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        timer = threading.Timer(seconds, _cut, args=(duplicate,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _cut(duplicate: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the server has closed the connection
        duplicate.shutdown(socket.SHUT_RDWR)
