"""The MQTT broker of the embedded stack, as a process, with clients of paho."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from strandline.services.embedded.addresses import STACK_USER
from strandline.services.embedded.stack import _speaks_mqtt
from tests.support.gateways import free_port
from tests.support.waiting import stretched, wait_until

PASSWORD = "a-password-of-the-stack-0123456789"


@contextmanager
def broker(*password_file: Path) -> Iterator[int]:
    """Run a broker. Its port."""
    port = free_port()
    command = [sys.executable, "-m", "strandline.services.embedded.mqtt_broker", str(port), *map(str, password_file)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: accepts_connections(port), bool, "the broker listens", 60)
        yield port
    finally:
        process.terminate()
        process.wait(stretched(30))


def accepts_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a broker that asks for PASSWORD."""
    file = tmp_path_factory.mktemp("broker") / "mqtt"
    file.write_text(f"{PASSWORD}\n")
    with broker(file) as port:
        yield port


class Client:
    """A client of paho: the reason code of each CONNACK, the messages, and the disconnections."""

    def __init__(self, port: int, name: str, login: tuple[str, str | None] | None, *, clean: bool = True) -> None:
        self.answered, self.received = threading.Event(), threading.Event()
        self.refused: bool | None = None
        self.has_session: bool | None = None
        self.disconnections = 0
        self.messages: list[bytes] = []
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=name, clean_session=clean, reconnect_on_failure=False
        )
        if login is not None:
            self.paho.username_pw_set(*login)
        self.paho.on_connect = self._connected
        self.paho.on_disconnect = self._disconnected
        self.paho.on_message = self._message
        self.paho.connect("127.0.0.1", port)
        self.paho.loop_start()
        assert self.answered.wait(stretched(30)), "the broker answers each CONNECT"

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()

    def _connected(
        self, _client: object, _data: object, flags: paho.ConnectFlags, reason: paho.ReasonCode, *_: object
    ) -> None:
        self.refused, self.has_session = reason.is_failure, flags.session_present
        self.answered.set()

    def _disconnected(self, *_: object) -> None:
        self.disconnections += 1

    def _message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.messages.append(message.payload)
        self.received.set()


@pytest.mark.guarantee("G792")
@pytest.mark.parametrize(
    "login",
    [None, (STACK_USER, None), (STACK_USER, ""), (STACK_USER, "wrong"), ("other", PASSWORD), ("", PASSWORD)],
    ids=str,
)
def test_a_client_without_the_login_is_refused(closed: int, login: tuple[str, str | None] | None) -> None:
    client = Client(closed, "device", login)
    assert client.refused is True
    client.close()


def test_a_client_with_the_login_publishes_and_subscribes(closed: int) -> None:
    assert (_speaks_mqtt(closed, PASSWORD), _speaks_mqtt(closed, None)) == (True, False), "as `up` asks it"
    reader, writer = (Client(closed, name, (STACK_USER, PASSWORD)) for name in ("reader", "writer"))
    assert (reader.refused, writer.refused) == (False, False)
    subscribed = threading.Event()
    reader.paho.on_subscribe = lambda *_: subscribed.set()
    reader.paho.subscribe("farm/#", 1)
    assert subscribed.wait(stretched(30))
    writer.paho.publish("farm/one", b"23.5", 1).wait_for_publish(stretched(30))
    assert reader.received.wait(stretched(30)) and reader.messages == [b"23.5"]
    reader.close()
    writer.close()


@pytest.mark.guarantee("G792")
def test_a_refused_client_takes_no_session_and_no_connection_of_its_client_identifier(closed: int) -> None:
    """Otherwise any client could cut off the bridge, and delete its session."""
    bridge = Client(closed, "bridge", (STACK_USER, PASSWORD), clean=False)
    subscribed = threading.Event()
    bridge.paho.on_subscribe = lambda *_: subscribed.set()
    bridge.paho.subscribe("farm/#", 1)
    assert subscribed.wait(stretched(30))
    assert Client(closed, "bridge", None).refused is True
    writer = Client(closed, "writer", (STACK_USER, PASSWORD))
    writer.paho.publish("farm/one", b"first", 1).wait_for_publish(stretched(30))
    assert bridge.received.wait(stretched(30)) and bridge.disconnections == 0
    bridge.close()
    assert Client(closed, "bridge", None).refused is True
    assert Client(closed, "bridge", (STACK_USER, "wrong"), clean=False).refused is True
    again = Client(closed, "bridge", (STACK_USER, PASSWORD), clean=False)
    assert again.has_session is True
    again.close()
    writer.close()


def test_a_broker_without_a_password_accepts_every_client() -> None:
    with broker() as port:
        assert _speaks_mqtt(port, None)
        for login in (None, ("anyone", "anything")):
            client = Client(port, "device", login)
            assert client.refused is False
            client.close()
