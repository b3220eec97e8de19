"""Transports of the fleet's reports: HTTP, MQTT through a broker, UDP. Each is used by one thread."""

from __future__ import annotations

import math
import socket
import threading
import time
from typing import Protocol
from urllib.parse import urlsplit

import httpx
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from strandline.core.errors import PermanentError
from strandline.example.fleet import Report
from strandline.services.client import authorization

RETRY_S = 1.0
RETRY_S_MAX = 10.0
ANSWER_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
"""Maximum time in seconds for the broker to acknowledge the reports sent before the fleet was stopped."""
_WAIT_S = 0.2


class Carrier(Protocol):
    """Sends groups of reports: `hand_over` begins, `wait` ends."""

    protocol: str
    """Name of the protocol, for people."""
    is_acknowledging: bool
    """True if the protocol acknowledges reports."""
    repeats: int
    """Number of reports that were sent again, because no acknowledgement arrived."""

    def hand_over(self, reports: list[Report]) -> None:
        """Send the reports, or begin to send them."""

    def wait(self, stopping: threading.Event) -> bool:
        """Return True if the reports are acknowledged, or sent if the protocol has no acknowledgements; False if stopped
        before. Raises PermanentError if they will never be acknowledged."""

    def close(self) -> None: ...


class HttpCarrier:
    """Posts to the HTTP gateway. Invariant: a request is repeated with the same lines until the gateway has acknowledged it. A
    repeat after a lost response can write its records to the log twice. In return, none is lost, and `repeats` counts them."""

    protocol = "HTTP"
    is_acknowledging = True

    def __init__(
        self, url: str, stream: str, *, token: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._path = f"/v1/streams/{stream}/records"
        # Requests to loopback must not go through a proxy of the environment.
        self._http = httpx.Client(
            base_url=url,
            timeout=ANSWER_TIMEOUT_S,
            trust_env=False,
            transport=transport,
            headers=authorization(token),
        )
        self._body = b""
        self._count = 0
        self.repeats = 0

    def hand_over(self, reports: list[Report]) -> None:
        self._body = b"\n".join(report.line for report in reports)
        self._count = len(reports)

    def wait(self, stopping: threading.Event) -> bool:
        while True:
            wait_s = self._attempt()
            if wait_s is None:
                return True
            if stopping.wait(wait_s):
                return False
            self.repeats += 1

    def close(self) -> None:
        self._http.close()

    def _attempt(self) -> float | None:
        """Send the request once. Return None if all reports were acknowledged, otherwise the pause before the next attempt."""
        try:
            answer = self._http.post(self._path, content=self._body, headers={"Content-Type": "application/x-ndjson"})
        except httpx.TransportError:
            return RETRY_S
        if answer.status_code == 200:
            accepted = answer.json()["accepted"]
            if accepted != self._count:
                raise PermanentError(
                    f"the gateway acknowledged {accepted} of {self._count} reports, but must acknowledge all or none"
                )
            return None
        if answer.status_code in (429, 503):
            return _retry_after_s(answer)
        raise PermanentError(
            f"the gateway refused the fleet's reports with {answer.status_code}: {answer.text[:300]}; see its log"
        )


class MqttCarrier:
    """Publishes with QoS 1 to the broker, each report to the topic of its turbine. The broker acknowledges a message, and keeps
    it until the gateway has written it to the log."""

    protocol = "MQTT"
    is_acknowledging = True

    def __init__(self, url: str, login: tuple[str, str] | None = None) -> None:
        """Args: login: User and password at the broker. None if it requires no login."""
        place = urlsplit(url)
        self._reports: list[Report] = []
        """Reports that are not published yet."""
        self._published = 0
        self._acknowledged = 0
        self._moved = threading.Condition()
        self.repeats = 0
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id="example-fleet", clean_session=False)
        self._client.max_queued_messages_set(0)
        self._client.max_inflight_messages_set(100)
        if login is not None:
            self._client.username_pw_set(*login)
        self._client.on_connect = self._note_connected
        self._client.on_publish = self._note_acknowledged
        self._client.on_disconnect = self._note_disconnected
        self._client.connect_async(place.hostname or "127.0.0.1", place.port or 1883)
        self._client.loop_start()

    def hand_over(self, reports: list[Report]) -> None:
        self._reports = reports

    def wait(self, stopping: threading.Event) -> bool:
        """Publish when the client is connected: paho loses a message that another thread publishes while it connects."""
        with self._moved:
            while not self._client.is_connected():
                if stopping.is_set():
                    return False
                self._moved.wait(_WAIT_S)
            self._published += len(self._reports)
        for report in self._reports:
            self._client.publish(f"farm/{report.site}/turbine/{report.turbine}", report.line, qos=1)
        # The broker probably has them: giving up immediately would leave out records that are in the log.
        give_up_s = math.inf
        with self._moved:
            while self._acknowledged < self._published and time.monotonic() < give_up_s:
                if stopping.is_set() and give_up_s == math.inf:
                    give_up_s = time.monotonic() + STOP_TIMEOUT_S
                self._moved.wait(_WAIT_S)
            return self._acknowledged >= self._published

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _note_connected(self, *_: object) -> None:
        with self._moved:
            self._moved.notify()

    def _note_acknowledged(self, *_: object) -> None:
        with self._moved:
            self._acknowledged += 1
            if self._acknowledged == self._published:
                self._moved.notify()

    def _note_disconnected(self, *_: object) -> None:
        """Count repeats: at its next connection, paho resends unacknowledged messages."""
        with self._moved:
            self.repeats += self._published - self._acknowledged


class UdpCarrier:
    """Sends each report as one datagram, without acknowledgements."""

    protocol = "UDP"
    is_acknowledging = False
    repeats = 0

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def hand_over(self, reports: list[Report]) -> None:
        for report in reports:
            self._socket.sendto(report.line, self._to)

    def wait(self, stopping: threading.Event) -> bool:
        return True

    def close(self) -> None:
        self._socket.close()


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return min(RETRY_S_MAX, max(0.1, float(answer.headers.get("Retry-After", RETRY_S))))
    except ValueError:
        return RETRY_S
