"""Ports of tests: no two test processes get the same one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.services.embedded.addresses import Ports
from tests.support import ports as claimed
from tests.support.ports import free_port, free_port_offset

TAKES = """
import json, sys
from tests.support.ports import free_port_offset, free_ports
print(json.dumps([free_ports(int(sys.argv[1])), [free_port_offset() for _ in range(10)]]), flush=True)
sys.stdin.read()
"""


@pytest.mark.long
def test_processes_that_ask_at_the_same_time_get_different_ports() -> None:
    command = [sys.executable, "-c", TAKES, "200"]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    ports: list[int] = []
    for one in running:
        assert one.stdout is not None
        single, offsets = json.loads(one.stdout.readline())
        ports += single
        ports += [port for offset in offsets for port in Ports.moved(offset).all().values()]
    for one in running:
        one.communicate()
    assert len(ports) == len(set(ports)) == 4 * (200 + 10 * len(Ports().all()))


def test_a_port_is_below_those_that_the_kernel_gives_to_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    highest = max(Ports.moved(claimed._OFFSETS[-1]).all().values())
    assert highest < claimed._FIRST < claimed._AFTER <= first


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_in_use_is_not_given_out(kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(claimed, "_ATTEMPTS_MAX", 10)
    monkeypatch.setattr(claimed.random, "randrange", lambda first, after: port)
    with pytest.raises(RuntimeError, match="no free port"):
        free_port()
    is_free = claimed._is_free
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind(("127.0.0.1", port))
        if kind == socket.SOCK_STREAM:
            one.listen()
        assert not is_free(port)
    assert is_free(port)


def test_a_stack_gets_ports_of_its_own() -> None:
    assert len({free_port_offset() for _ in range(5)}) == 5
