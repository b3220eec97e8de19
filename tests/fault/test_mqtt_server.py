"""Sensors whose connections to the MQTT server are cut before PUBACK, and a server that is killed.

No acknowledged message is lost, and the log contains each as often as it was sent. The sensors know only what they sent
and what was acknowledged, and resend the rest. A plain consumer reads the log.
"""

from __future__ import annotations

import collections
import contextlib
import random
import threading
import time

import pytest

from tests.integration.test_mqtt_server import Listener, Raw
from tests.support import mqtt_client_packets as client
from tests.support.waiting import Patience, stretched, wait_until

CUTS = 200
KILLS = 5
SENSORS = 4
BATCH = 20
DEADLINE_S = 60.0
RECONNECT_S = 0.02


@pytest.fixture
def listener(kafka, tmp_path):
    listener = Listener(kafka, tmp_path)
    yield listener
    listener.close()


class Sensor:
    """Sends numbered messages a batch at a time, again and again until each is acknowledged; with a session that stays."""

    def __init__(self, listener: Listener, topic: str, name: str, version: int) -> None:
        self.listener, self.topic, self.name, self.version = listener, topic, name, version
        self.sent: collections.Counter[bytes] = collections.Counter()
        self.acknowledged: set[bytes] = set()
        self.cuts = 0

    def send_batch(self, number: int, chance: random.Random | None) -> None:
        """With a `chance` the connection is cut, once, somewhere between the first byte and the last PUBACK."""
        missing = {n + 1: f"{self.name}/{number}/{n}".encode() for n in range(BATCH)}
        patience = Patience("acknowledged", DEADLINE_S, poll_s=RECONNECT_S, describe=self.listener.log_file.read_text)
        while missing:
            patience.check(len(missing))
            with (
                contextlib.suppress(OSError),
                Raw(self.listener, self.version, self.name, flags=0x00, content=b"\x11\x00\x00\x0e\x10") as raw,
            ):
                self._send_once(raw, missing, chance)
                chance = None
            if missing:
                patience.pause()  # sensors in a tight loop would take the processor that the server needs to start

    def _send_once(self, raw: Raw, missing: dict[int, bytes], chance: random.Random | None) -> None:
        packets = []
        for packet_id, value in missing.items():
            self.sent[value] += 1
            packets.append(client.publish(self.version, self.topic, value, packet_id=packet_id))
        whole = b"".join(packets)
        if chance is not None:
            self.cuts += 1
            raw.socket.sendall(whole[: chance.choice((len(whole), chance.randrange(1, len(whole))))])
            time.sleep(chance.choice((0, 0, chance.uniform(0, 0.02))))  # sleeps: at any point of the message's way
            raw.socket.settimeout(0.05)  # what was cut off is never acknowledged
            for _ in range(chance.choice((0, 0, 1, 5))):
                self._hear(raw, missing)
            return
        raw.socket.sendall(whole)
        while missing:
            self._hear(raw, missing)

    def _hear(self, raw: Raw, missing: dict[int, bytes]) -> None:
        answer = raw.receive()
        if answer[:2] != b"\x40\x02":
            raise ConnectionError(answer)
        self.acknowledged.add(missing.pop(int.from_bytes(answer[2:4], "big")))


def check_history(sensors: list[Sensor], logged: list[bytes]) -> list[str]:
    """Return what is wrong: a message that was sent once must not be there twice, and all acknowledged ones must exist."""
    times = collections.Counter(logged)
    sent = sum((sensor.sent for sensor in sensors), collections.Counter())
    acknowledged = set().union(*(sensor.acknowledged for sensor in sensors))
    wrong = [f"acknowledged and lost: {value!r}" for value in acknowledged if not times[value]]
    wrong += [
        f"{count} times in the log, sent {sent[value]} times: {value!r}"
        for value, count in times.items()
        if count > sent[value]
    ]
    return wrong


def test_the_check_has_teeth():
    sensor = Sensor.__new__(Sensor)
    sensor.sent, sensor.acknowledged = collections.Counter({b"a": 1, b"b": 2}), {b"a", b"b"}
    assert check_history([sensor], [b"a", b"b", b"b"]) == []
    assert check_history([sensor], [b"b"]) == ["acknowledged and lost: b'a'"]
    assert len(check_history([sensor], [b"a", b"a", b"b", b"x"])) == 2


@pytest.mark.guarantee("G30")
@pytest.mark.long
def test_connections_cut_before_puback(listener):
    """200 cuts at random points: every message arrives in the end, none is acknowledged and lost, none is ours twice."""
    stream, topic = listener.register()
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    sensors = [Sensor(listener, topic, f"sensor-{n}", 4 + n % 2) for n in range(SENSORS)]
    run_all(
        sensors, lambda sensor, n: sensor.send_batch(n, random.Random(f"{seed} {sensor.name} {n}")), CUTS // SENSORS
    )
    assert sum(sensor.cuts for sensor in sensors) >= CUTS
    assert sum(len(sensor.acknowledged) for sensor in sensors) == CUTS * BATCH
    logged = listener.values(stream)
    assert check_history(sensors, logged) == []
    resent = sum((sensor.sent for sensor in sensors), collections.Counter()).total() - CUTS * BATCH
    print(f"{CUTS} cuts, {CUTS * BATCH} messages, {resent} sent again by the sensors, {len(logged)} in the log")
    assert len(logged) > CUTS * BATCH, "no cut fell between the log and the PUBACK: the test has shown nothing"


@pytest.mark.guarantee(
    "G30",
    "The MQTT server sends PUBACK only for records in the log. Connections cut before PUBACK and `kill -9` lose no "
    "acknowledged record, and the server stores nothing twice.",
    promise="acknowledged-records-are-stored",
)
def test_a_listener_that_is_killed(listener):
    """kill -9 under load: as above, and after each start messages are acknowledged again. Prints how soon."""
    stream, topic = listener.register()
    sensors = [Sensor(listener, topic, f"sensor-{n}", 4 + n % 2) for n in range(SENSORS)]
    is_over = threading.Event()

    def send_until_over(sensor: Sensor, _: int) -> None:
        number = 0
        while not is_over.is_set():
            sensor.send_batch(number, None)
            number += 1

    def acknowledged() -> int:
        return sum(len(sensor.acknowledged) for sensor in sensors)

    sending = threading.Thread(target=run_all, args=(sensors, send_until_over, 1))
    sending.start()
    try:
        for _ in range(KILLS):
            heard, listening_s = acknowledged(), time.monotonic()
            what = f"{BATCH} more acknowledged; see {listener.log_file}"
            wait_until(acknowledged, lambda count, heard=heard: count > heard + BATCH, what, DEADLINE_S, 0.01)
            print(f"{BATCH} messages acknowledged {time.monotonic() - listening_s:.2f} s after the server listened")
            time.sleep(random.uniform(0, 0.5))  # sleeps: a kill at any instant
            listener.kill()
            listener.start()
    finally:
        is_over.set()
        sending.join(stretched(DEADLINE_S))
    assert check_history(sensors, listener.values(stream)) == []


def run_all(sensors: list[Sensor], send, times: int) -> None:
    """Each sensor in a thread of its own; the first failure is raised."""
    failures: list[BaseException] = []

    def run(sensor: Sensor) -> None:
        try:
            for number in range(times):
                send(sensor, number)
        except BaseException as error:  # noqa: BLE001  # raised below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(sensor,)) for sensor in sensors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
