"""Reading datagrams by the hundred: each whole, in order, under its sender's address, however long it is."""

from __future__ import annotations

import os
import socket

import pytest

from strandline.ingest.udp.datagram_reader import DATAGRAMS_MAX, DatagramReader
from strandline.ingest.udp.gateway import kernel_drops, receive_buffer_errors


def pair(family: socket.AddressFamily, host: str) -> tuple[socket.socket, socket.socket]:
    receiver, sender = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
    receiver.bind((host, 0))
    receiver.setblocking(False)
    return receiver, sender


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["4", "6"])
def test_what_was_sent_is_read_whole_and_in_order(family, host):
    if family == socket.AF_INET6 and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    receiver, sender = pair(family, host)
    with receiver, sender:
        reader = DatagramReader()
        sent = [os.urandom(size) for size in (1, 0, 65_507, 121, 1_472)] + [b"%d" % n for n in range(2 * DATAGRAMS_MAX)]
        for datagram in sent:
            sender.sendto(datagram, receiver.getsockname())
        arrived: list[bytes] = []
        while found := reader.read(receiver):
            assert list(found) == [host]
            assert len(found[host]) <= DATAGRAMS_MAX
            arrived += found[host]
        assert arrived == sent


def test_senders_are_told_apart():
    receiver, sender = pair(socket.AF_INET, "127.0.0.1")
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender, other:
        other.bind(("127.0.0.2", 0))
        for n in range(3):
            sender.sendto(b"a%d" % n, receiver.getsockname())
            other.sendto(b"b%d" % n, receiver.getsockname())
        assert DatagramReader().read(receiver) == {
            "127.0.0.1": [b"a0", b"a1", b"a2"],
            "127.0.0.2": [b"b0", b"b1", b"b2"],
        }


def test_a_closed_socket_is_an_error():
    receiver, sender = pair(socket.AF_INET, "127.0.0.1")
    sender.close()
    receiver.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        DatagramReader().read(receiver)


def test_drops_of_a_socket_are_its_own():
    receiver, sender = pair(socket.AF_INET, "127.0.0.1")
    with receiver, sender:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        for _ in range(1_000):
            sender.sendto(b"x" * 100, receiver.getsockname())
        kept = sum(map(len, DatagramReader().read(receiver).values()))
        assert kernel_drops(receiver) == 1_000 - kept > 0
        assert kernel_drops(sender) == 0


def test_the_machines_counter_is_found_by_its_name():
    text = "Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\nUdp: 5 1 7 9 6 0\nUdpLite: A\nUdpLite: 1\n"
    assert receive_buffer_errors(text) == 6
