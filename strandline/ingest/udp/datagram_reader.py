"""Reads a few hundred datagrams from a socket with one call: Linux's `recvmmsg`, which Python does not offer.

That saves system calls. It also avoids contention for the interpreter lock: Python's own `recv` releases the lock and
must get it back from the threads of the Kafka client. This call never waits, so it keeps the lock.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import sys
from functools import lru_cache

DATAGRAM_BYTES_MAX = 65_536
"""No datagram is larger: 65,507 bytes over IPv4, 65,527 over IPv6."""
DATAGRAMS_MAX = 256
"""Maximum number of datagrams per call. Their buffers reserve 16 MB of addresses, but use only as much memory as the
datagrams need."""
_NAME_BYTES = 32
"""Room for a `sockaddr_in6` of 28 bytes."""


class _Vector(ctypes.Structure):
    """`struct iovec`"""

    _fields_ = (("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """`struct msghdr`"""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(_Vector)),
        ("vectors_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    """`struct mmsghdr`"""

    _fields_ = (("header", _Header), ("bytes_received", ctypes.c_uint))


_recvmmsg = ctypes.PyDLL(None, use_errno=True).recvmmsg
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)


class DatagramReader:
    """The buffers for reading. One reader serves any number of sockets in turn."""

    def __init__(self) -> None:
        self._store = mmap.mmap(-1, DATAGRAMS_MAX * DATAGRAM_BYTES_MAX)
        self._names = bytearray(DATAGRAMS_MAX * _NAME_BYTES)
        self._messages = (_Message * DATAGRAMS_MAX)()
        self._vectors = (_Vector * DATAGRAMS_MAX)()
        store = ctypes.addressof(ctypes.c_char.from_buffer(self._store))
        names = ctypes.addressof(ctypes.c_char.from_buffer(self._names))
        for number, (message, vector) in enumerate(zip(self._messages, self._vectors, strict=True)):
            vector.base = store + number * DATAGRAM_BYTES_MAX
            vector.bytes = DATAGRAM_BYTES_MAX
            message.header.name = names + number * _NAME_BYTES
            message.header.name_bytes = _NAME_BYTES
            message.header.vectors = ctypes.pointer(vector)
            message.header.vectors_count = 1
        numbers = memoryview(self._messages).cast("B").cast("I")
        step = ctypes.sizeof(_Message) // 4
        self._sizes = numbers[_Message.bytes_received.offset // 4 :: step]
        self._starts = range(0, len(self._store), DATAGRAM_BYTES_MAX)
        self._addresses_4 = memoryview(self._names).cast("I")[1 :: _NAME_BYTES // 4]

    def read(self, one: socket.socket) -> dict[str, list[bytes]]:
        """Return the received datagrams, at most DATAGRAMS_MAX: sender's host -> its datagrams in order. Never waits.

        Raises OSError.
        """
        count = _recvmmsg(one.fileno(), self._messages, DATAGRAMS_MAX, socket.MSG_DONTWAIT, None)
        if count < 0:
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):
                return {}
            raise OSError(number, os.strerror(number))
        store = self._store
        arrived: dict[int | bytes, list[bytes]] = {}
        hosts: list[int | bytes]
        if one.family == socket.AF_INET:
            hosts = list(self._addresses_4[:count])
        else:
            starts = range(8, count * _NAME_BYTES, _NAME_BYTES)
            hosts = [bytes(self._names[start : start + 16]) for start in starts]
        for host, start, size in zip(hosts, self._starts, self._sizes[:count].tolist(), strict=False):
            if host in arrived:
                arrived[host].append(store[start : start + size])
            else:
                arrived[host] = [store[start : start + size]]
        return {_host_text(host): datagrams for host, datagrams in arrived.items()}


@lru_cache(maxsize=10_000)
def _host_text(host: int | bytes) -> str:
    """Return the usual notation of an address."""
    if isinstance(host, bytes):
        return socket.inet_ntop(socket.AF_INET6, host)
    return socket.inet_ntop(socket.AF_INET, host.to_bytes(4, sys.byteorder))
