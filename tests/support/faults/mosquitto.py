"""A Mosquitto that keeps what a gateway has not taken yet: sessions without a bound on their queue, kept on disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.ports import free_ports
from tests.support.waiting import stretched, wait_until

_PLACES = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"


class Mosquitto:
    """One broker on loopback, from the start of the object to `close`. Skips the test where none is installed."""

    def __init__(self, directory: Path, settings: str = "allow_anonymous true") -> None:
        """`settings`: lines of its configuration about who may connect, and how."""
        program = shutil.which("mosquitto") or shutil.which("mosquitto", path=_PLACES)
        if program is None:
            pytest.skip("no mosquitto here; install it (Debian: apt-get install mosquitto)")
        (self.port,) = free_ports(1)
        directory.mkdir()
        config = directory / "mosquitto.conf"
        config.write_text(
            f"listener {self.port} 127.0.0.1\n{settings}\npersistence true\n"
            f"persistence_location {directory}/\nmax_queued_messages 0\nmax_inflight_messages 1000\nuser root\n"
        )
        with (directory / "mosquitto.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, "-c", str(config)], stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._listens, bool, f"listening, see {directory}/mosquitto.log")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(stretched(10))

    def _listens(self) -> bool:
        assert self._process.poll() is None, "mosquitto ended"
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True
