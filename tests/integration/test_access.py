"""Tokens over real processes: made on the command line, used by HTTP and MQTT, revoked, and found in no log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_http_gateway import Gateway
from tests.integration.test_mqtt_server import Listener, Raw
from tests.support import mqtt_client_packets as client
from tests.support.tokens import secret_of
from tests.support.waiting import stretched, wait_until

STRANDLINE = Path(sys.executable).with_name("strandline")
DEADLINE_S = 60.0


def token_verb(ledger_url: str, *arguments: str) -> str:
    """Return what `strandline token ... --ledger` prints."""
    done = subprocess.run(
        [STRANDLINE, "token", *arguments, "--ledger"],
        env=os.environ | {"STRANDLINE_LEDGER_URL": ledger_url},
        capture_output=True, text=True, timeout=stretched(DEADLINE_S), check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.long
@pytest.mark.guarantee(
    "G325",
    "A user of the MQTT server publishes only where its token or the rights file allows, under its own client "
    "identifiers. If its token is revoked, its connection is closed within seconds, and its will isn't published.",
    promise="each-operation-requires-its-right",
)
def test_a_token_opens_the_doors_that_it_names_until_it_is_revoked(kafka: str, tmp_path: Path) -> None:
    gateway = Gateway(kafka, tmp_path, auth="tokens", tokens_refresh_s=0.2, data_dir=tmp_path / "http")
    listener = Listener(kafka, tmp_path, auth="tokens", tokens_refresh_s=0.2)
    try:
        stream, topic = listener.register()
        other = gateway.register()
        sensor = token_verb(gateway.ledger_url, "create", "sensor", "--write", stream)
        viewer = token_verb(gateway.ledger_url, "create", "dashboard", "--role", "viewer", "--expires", "1h")
        json = {"Content-Type": "application/json"}

        def post(to: str, token: str | None) -> int:
            headers = json | ({} if token is None else {"Authorization": f"Bearer {token}"})
            return gateway.send(to, b'{"n":1}', headers).status_code

        # Each right, at the HTTP gateway.
        assert [post(stream, token) for token in (sensor, viewer, None, sensor[:-2] + "xx")] == [200, 403, 401, 401]
        assert post(other, sensor) == 403
        for token, status in ((viewer, 200), (sensor, 403), (None, 401)):
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            assert gateway.client.get("/metrics", headers=headers).status_code == status
        assert gateway.client.get("/healthz").status_code == gateway.client.get("/readyz").status_code == 200

        # The same token is the password of the user who is named like it.
        for user, password in (("sensor", b"wrong"), ("dashboard", sensor.encode()), (None, None)):
            with Raw(listener, 0) as raw:
                raw.socket.sendall(client.connect(4, user=user, password=password))
                assert raw.receive()[3:4] == b"\x04"
        with Raw(listener, 5, "s", user="sensor", password=sensor.encode()) as raw:
            raw.socket.sendall(client.publish(5, topic, b'{"n":2}', packet_id=1))
            assert raw.receive()[:4] == b"\x40\x02\x00\x01", "PUBACK"
            with Raw(listener, 5, "v", user="dashboard", password=viewer.encode()) as reading:
                reading.socket.sendall(client.publish(5, topic, b'{"n":3}', packet_id=1))
                assert reading.receive()[4:5] == b"\x87", "it may not write"

            # Revoked: the next request is refused within seconds, and the open connection is closed.
            assert token_verb(gateway.ledger_url, "revoke", "sensor") == "token sensor is revoked"
            told = raw.receive()
            assert (told[0], told[2]) == (0xE0, 0x87), "DISCONNECT, not authorized"
            wait_until(lambda: post(stream, sensor), lambda status: status == 401, "refused", DEADLINE_S)
        with Raw(listener, 0) as again:
            again.socket.sendall(client.connect(5, user="sensor", password=sensor.encode()))
            assert again.receive()[3:4] in (b"\x86", b"\x9f")
        assert sorted(listener.values(stream))[-1] == b'{"n":2}' and b'{"n":3}' not in listener.values(stream)

        # A token is in no log, not in the ledger, and in no process's arguments.
        listed = token_verb(gateway.ledger_url, "list", "--json")
        assert '"dashboard"' in listed
        secrets = [secret_of(token) for token in (sensor, viewer)]
        ledger = (tmp_path / "ledger.sqlite").read_bytes().decode("latin-1")
        processes = [Path(f"/proc/{one.process.pid}/cmdline").read_text() for one in (gateway, listener)]
        for text in (gateway.log_file.read_text(), listener.log_file.read_text(), ledger, listed, *processes):
            assert not [secret for secret in secrets if secret in text]
    finally:
        gateway.close()
        listener.close()
