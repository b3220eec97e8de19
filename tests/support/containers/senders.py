"""Sends records by every protocol, as programs on the machine of the containers do, and keeps what was acknowledged."""

from __future__ import annotations

import json
import socket

import httpx

from tests.support.containers.deployment import Deployment

STREAM = "spooled"
UDP_PORT = 9082
DOCUMENT = f"""
stream: {STREAM}
partitions: 2
schema: {{n: long, by: string}}
durability: spool
udp: {{port: {UDP_PORT}}}
tcp: {{port: 8083, ack: true}}
mqtt: {{topics: ["{STREAM}/#"]}}
"""
TIMEOUT_S = 120


class Senders:
    """Every record has a number of its own and says how it came."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._number = 0
        self.acknowledged: dict[str, list[str]] = {"http": [], "tcp": [], "listener": [], "bridge": []}
        self.sent_by_udp: list[str] = []

    def send(self, count: int) -> None:
        """Send this many records by each protocol. Return when each is acknowledged, if the protocol acknowledges."""
        for protocol, send in (
            ("http", self._by_http),
            ("tcp", self._by_tcp),
            ("listener", self._by_listener),
            ("bridge", self._by_bridge),
        ):
            records = self._records(protocol, count)
            send(records)
            self.acknowledged[protocol] += records
        records = self._records("udp", count)
        self._by_udp(records)
        self.sent_by_udp += records

    def _records(self, protocol: str, count: int) -> list[str]:
        self._number += count
        return [json.dumps({"n": n, "by": protocol}) for n in range(self._number - count, self._number)]

    def _by_http(self, records: list[str]) -> None:
        with self._deployment.machine.network():
            answer = httpx.post(
                f"http://127.0.0.1:8081/v1/streams/{STREAM}/records",
                content="\n".join(records),
                headers={"Content-Type": "application/x-ndjson"},
                timeout=TIMEOUT_S,
                trust_env=False,
            )
        assert (answer.status_code, answer.json()) == (200, {"accepted": len(records)}), answer.text

    def _by_tcp(self, records: list[str]) -> None:
        with self._deployment.machine.network(), socket.create_connection(("127.0.0.1", 8083), TIMEOUT_S) as sender:
            sender.sendall("".join(f"{record}\n" for record in records).encode())
            sender.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: sender.recv(65_536), b"")).decode()
        assert said.splitlines()[-1] == f"ok {len(records)}", said

    def _by_udp(self, records: list[str]) -> None:
        place = (self._deployment.networks.address("gateway-udp", "edge"), UDP_PORT)
        with self._deployment.machine.network(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for record in records:
                sender.sendto(record.encode(), place)

    def _by_listener(self, records: list[str]) -> None:
        self._publish("gateway-mqtt-listener", 1884, records)

    def _by_bridge(self, records: list[str]) -> None:
        """Through the broker, which acknowledges before the bridge sees them."""
        self._publish("mosquitto", 1883, records)

    def _publish(self, host: str, port: int, records: list[str]) -> None:
        where = f"--host {host} --port {port} --topic {STREAM}/one --qos 1 --stdin-line --id sender"
        broker = self._deployment.containers["mosquitto"]
        broker.execute("mosquitto_pub", *where.split(), given="".join(f"{record}\n" for record in records))
