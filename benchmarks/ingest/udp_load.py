"""The load of the UDP measurement, a process of its own: `python -m benchmarks.ingest.udp_load --port N --rate N --seconds N`.

Sends prebuilt datagrams at an even pace, or without a rate as fast as one process can; prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import socket
import time

from benchmarks.ingest.work import readings

_PAUSE_S = 0.0005


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    datagrams = readings()
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.connect(("127.0.0.1", options.port))
    sent, began_s = 0, time.perf_counter()
    while (passed_s := time.perf_counter() - began_s) < options.seconds:
        due = int(passed_s * options.rate) if options.rate else sent + 1_000
        while sent < due:
            one.send(datagrams[sent % len(datagrams)])
            sent += 1
        if options.rate:
            time.sleep(_PAUSE_S)
    seconds = time.perf_counter() - began_s
    print(json.dumps({"sent": sent, "seconds": seconds, "load_cpu_s": time.process_time()}))


if __name__ == "__main__":
    main()
