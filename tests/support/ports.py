"""Ports for servers of tests: free, and given to one test process of this machine at a time.

A port that is only found to be free can be taken before its server listens, in two ways:

- The kernel gives it to a connection. So ports come from below the range that the kernel uses (`ip_local_port_range`).
- Another run of the tests chooses it. So a process holds a claim on each port until it ends: an abstract Unix socket, which the
  kernel releases with the process.
"""

from __future__ import annotations

import atexit
import random
import socket
from collections.abc import Iterable
from contextlib import ExitStack

from strandline.services.embedded.addresses import Ports

_FIRST, _AFTER = 23_000, 32_768
"""Ports of single servers. The ports of stacks are below."""
_OFFSETS = range(2_000, 13_500, 20)
_ATTEMPTS_MAX = 10_000
_CLAIMS = ExitStack()
"""The claims of this process, which last until it ends: a server may listen until then."""
atexit.register(_CLAIMS.close)


def free_port() -> int:
    """Return a port, free for TCP and UDP, that no other test process gets."""
    for _ in range(_ATTEMPTS_MAX):
        if _claim([port := random.randrange(_FIRST, _AFTER)]):
            return port
    raise RuntimeError(
        f"no free port from {_FIRST} to {_AFTER - 1}; stop the servers that earlier test runs left behind"
    )


def free_ports(count: int) -> list[int]:
    """Return several ports. See `free_port`."""
    return [free_port() for _ in range(count)]


def free_port_offset() -> int:
    """Return a `--port-offset` at which all ports of a stack are free, and that no other test process gets."""
    for offset in random.sample(_OFFSETS, len(_OFFSETS)):
        if _claim(Ports.moved(offset).all().values()):
            return offset
    raise RuntimeError("no free ports for a stack; stop the stacks that earlier test runs left behind")


def _claim(ports: Iterable[int]) -> bool:
    """Claim the ports together. Return False, without a claim, if another process has a claim on one of them or uses it."""
    with ExitStack() as claims:
        for port in ports:
            claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                claim.bind(f"\0strandline-test-port-{port}")
            except OSError:
                return False
            if not _is_free(port):
                return False
        _CLAIMS.enter_context(claims.pop_all())
    return True


def _is_free(port: int) -> bool:
    """True if a server can listen on the port of loopback, with TCP and with UDP."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            if kind == socket.SOCK_STREAM:
                # Servers do the same: connections of an earlier server that still linger are no obstacle.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
