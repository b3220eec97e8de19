"""The load of the UDP measurement, as a separate process: prebuilt datagrams at an even pace, a few each millisecond.

The benchmark starts `python -m benchmarks.ingest.udp_load`, which prints one line of JSON (Sent).
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from dataclasses import asdict, dataclass
from itertools import cycle

from benchmarks.ingest.work import readings

_TICK_S = 0.001
SOURCES = 16
"""Number of sockets that send in turn, so that a gateway with several sockets can share the work."""


@dataclass(frozen=True)
class Sent:
    """Datagrams that the kernel accepted."""

    datagrams: int
    seconds: float
    cpu_s: float


def send_load(port: int, rate: float, seconds: float) -> Sent:
    """Send to `port` at `rate` datagrams per second; 0: as fast as the kernel accepts them."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(SOURCES)]
    for one in sockets:
        one.connect(("127.0.0.1", port))
    sends, payloads = cycle([one.send for one in sockets]), cycle(readings())
    sent, began_s, cpu_before_s = 0, time.perf_counter(), time.process_time()
    while (passed_s := time.perf_counter() - began_s) < seconds:
        due = int(passed_s * rate) if rate else sent + 1_000
        for _ in range(sent, due):
            next(sends)(next(payloads))
        sent = due
        if rate:
            time.sleep(_TICK_S)
    ended_s, cpu_s = time.perf_counter(), time.process_time() - cpu_before_s
    for one in sockets:
        one.close()
    return Sent(sent, ended_s - began_s, cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="datagrams per second; 0: as fast as possible")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    print(json.dumps(asdict(send_load(options.port, options.rate, options.seconds))))


if __name__ == "__main__":
    main()
