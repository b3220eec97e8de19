"""Send each line of the standard input to Strandline as a signed datagram. Python's standard library is enough.

    echo '{"turbine": "T07", "power": 3.1}' | STRANDLINE_TOKEN=sl_... python3 signed_udp.py turbines gateway.example.org 8082

The page of the UDP gateway (strandline/ingest/udp/page.md) has the form of a datagram, and test vectors.
"""

import argparse
import hashlib
import hmac
import os
import re
import socket
import sys
import time
from pathlib import Path

RESERVED_US = 10_000_000


def signed(payload: bytes, stream: str, token: str, counter: int) -> bytes:
    """Return the datagram with the payload for the stream, signed with the token."""
    parts = re.fullmatch(r"sl_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", token)
    if parts is None:
        raise ValueError(
            "STRANDLINE_TOKEN is no valid token; create one with: strandline token create NAME --write STREAM"
        )
    key = hashlib.sha256(parts[2].encode()).digest()
    head = b"SLS1" + bytes.fromhex(parts[1]) + counter.to_bytes(8, "big")
    tag = hmac.digest(key, head + stream.encode() + b"\0" + payload, "sha256")[:16]
    return head + tag + payload


class Counter:
    """Counts microseconds since 1970. The counter is always greater than before: also if the clock is set back, and with a file
    also if that happens between two runs."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._last = int(file.read_text()) if file is not None and file.exists() else 0
        self._reserved = self._last

    def next(self) -> int:
        self._last = max(self._last + 1, time.time_ns() // 1_000)
        if self._file is not None and self._last > self._reserved:
            self._reserved = self._last + RESERVED_US
            new = self._file.with_suffix(".new")
            new.write_text(str(self._reserved))
            os.replace(new, self._file)
        return self._last


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("stream")
    asked.add_argument("host")
    asked.add_argument("port", type=int)
    asked.add_argument("--counter-file", type=Path, help="file that stores the counter")
    given = asked.parse_args()
    token = os.environ["STRANDLINE_TOKEN"]  # not an argument, because other users of the machine can read arguments
    counter = Counter(given.counter_file)
    family, _, _, _, address = socket.getaddrinfo(given.host, given.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        for line in sys.stdin.buffer:
            if payload := line.rstrip(b"\r\n"):
                one.sendto(signed(payload, given.stream, token, counter.next()), address)


if __name__ == "__main__":
    main()
