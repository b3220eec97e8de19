"""An MQTT client for the bridge: one connection to a broker, from CONNECT until it is lost. The event loop drives
paho-mqtt.

One object is one connection. A message is acknowledged through the object that delivered it, so a packet id of an old
connection can't acknowledge another message on a new one.

paho reads single bytes and sends every PUBACK separately. `_BufferedSocket` lets each system call transfer as many
bytes as possible. `_PahoClient` overrides methods that paho does not document. They are those of paho-mqtt 2.2; tests
against a real broker fail if they change.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from strandline.core.errors import TransientError
from strandline.ingest.mqtt.decoder import Publish, read_publish, read_publish_head
from strandline.ingest.mqtt.wire import PacketError

CONNECT_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 30
_READ_BYTES = 64 * 1024
_MESSAGES_PER_TURN = 1_000
"""Number of messages that are read before the rest of the process has its turn."""
_TICK_EVERY_S = 1.0
_READ_ON_S = 0.01


class BrokerUnavailable(TransientError):
    """The broker did not answer, refused the connection, or ended it."""

    code = "broker_unavailable"


@dataclass(frozen=True)
class MqttClientOptions:
    """Address of the broker, and options of the connection."""

    host: str
    port: int
    version: str
    """`5` or `3.1.1`."""
    client_id: str
    """Name of the session that the broker keeps."""
    session_expiry_s: int
    """Seconds that the broker keeps the session of a bridge that is away (MQTT 5; in 3.1.1 the broker decides)."""
    in_flight_max: int
    """Maximum number of messages that the broker may send before the first is acknowledged (MQTT 5; in 3.1.1 the broker
    decides)."""
    packet_bytes_max: int
    """The broker discards larger messages, as if they had been delivered (MQTT 5; in 3.1.1 it sends all messages)."""
    tls: ssl.SSLContext | None = None
    username: str | None = None
    password: str | None = None

    @property
    def is_5(self) -> bool:
        return self.version == "5"


class _BufferedSocket:
    """A socket with the methods that paho uses. It reads ahead and writes late."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._read = b""
        self._at = 0
        self._written = bytearray()
        self.is_drained = False
        """True if the last read found no more data."""

    def recv(self, size: int) -> bytes:
        if self._at == len(self._read):
            try:
                self._read = self._inner.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self.is_drained = True
                raise
            self._at = 0
        data = self._read[self._at : self._at + size]
        self._at += len(data)
        return data

    def send(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def flush(self) -> bool:
        """Send the written bytes. Return True if all are sent. Raises OSError."""
        while self._written:
            try:
                sent = self._inner.send(self._written)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            del self._written[:sent]
        return True

    def fileno(self) -> int:
        return int(self._inner.fileno())

    def setblocking(self, flag: bool) -> None:
        self._inner.setblocking(flag)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.flush()  # paho closes as soon as it has written its DISCONNECT
        self._inner.close()


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message from the broker."""

    publish: Publish
    is_redelivered: bool
    """DUP: the broker has sent it before."""
    malformed: str | None = None
    """Reason why it isn't valid MQTT. Then it contains only the fields that name and acknowledge it."""


class _PahoClient(paho.Client):
    """paho's client over a buffered socket, with its own decoder for PUBLISH: paho creates about a hundred objects for
    each message."""

    def __init__(self, deliver: Callable[[Message], None], tls: ssl.SSLContext | None, **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, **options)
        self._tls = tls
        self._deliver = deliver
        self._version = 5 if self._protocol == MQTTProtocolVersion.MQTTv5 else 4

    def _create_socket(self) -> Any:
        one = self._create_socket_connection()
        if self._tls is None:
            return _BufferedSocket(one)
        # paho itself leaves the socket open after a failed handshake.
        secured = self._tls.wrap_socket(one, server_hostname=self._host, do_handshake_on_connect=False)
        try:
            secured.settimeout(CONNECT_TIMEOUT_S)
            secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return _BufferedSocket(secured)

    def _handle_publish(self) -> MQTTErrorCode:
        packet = bytes(self._in_packet["packet"])
        first = self._in_packet["command"]
        malformed = None
        try:
            publish = read_publish(first, packet, 0, len(packet), self._version)
        except PacketError as error:
            malformed = str(error)
            try:
                # not acknowledged, it would be sent first on each connection
                publish = read_publish_head(first, packet)
            except PacketError:
                return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._deliver(Message(publish, bool(first & 8), malformed))
        return MQTTErrorCode.MQTT_ERR_SUCCESS


class MqttClient:
    """One connection. `open` creates it; `lost` is done when it has ended. For one event loop."""

    def __init__(self, options: MqttClientOptions, on_messages: Callable[[MqttClient, list[Message]], None]):
        self._options = options
        self._on_messages = on_messages
        self._loop = asyncio.get_running_loop()
        self._arrived: list[Message] = []
        self._connected: asyncio.Future[bool] = self._loop.create_future()
        self._subscribing: dict[int, asyncio.Future[list[ReasonCode]]] = {}
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Done when the connection has ended. Its result is the reason."""
        self._fd = -1
        self._is_paused = False
        self._is_flushing_later = False
        self._next_tick: asyncio.TimerHandle | None = None
        self._client = self._make_client()

    @classmethod
    async def open(
        cls, options: MqttClientOptions, on_messages: Callable[[MqttClient, list[Message]], None]
    ) -> MqttClient:
        """Connect, with the session that the broker kept. Messages of that session may arrive before this returns.

        `on_messages` gets the messages that arrived in one turn of the event loop. Raises BrokerUnavailable.
        """
        connection = cls(options, on_messages)
        try:
            await connection._connect()
        except BaseException:
            connection._end("the attempt to connect was abandoned")
            raise
        return connection

    @property
    def has_session(self) -> bool:
        """True if the broker still had the session. Otherwise, the messages published in the meantime are lost."""
        return self._connected.result()

    async def subscribe(self, filters: list[str]) -> dict[str, str]:
        """Subscribe with QoS 1.

        Return the filters that the broker refuses, each with its reason. Raises BrokerUnavailable.
        """
        if self._options.is_5:
            # Retained messages are sent once per session, not with each connection.
            subscriptions: Any = [(one, SubscribeOptions(qos=1, retainHandling=1)) for one in filters]
        else:
            subscriptions = [(one, 1) for one in filters]
        codes = await self._await_answer(self._client.subscribe(subscriptions), "subscribe to " + ", ".join(filters))
        return {one: str(code) for one, code in zip(filters, codes, strict=False) if code.is_failure}

    async def unsubscribe(self, filters: list[str]) -> None:
        """End the subscriptions. Raises BrokerUnavailable."""
        await self._await_answer(self._client.unsubscribe(cast(Any, filters)), "unsubscribe from " + ", ".join(filters))

    def ack(self, messages: list[Message]) -> None:
        """Acknowledge messages that this connection delivered. Does nothing if the connection is lost."""
        if self.lost.done():
            return
        for message in messages:
            self._client.ack(message.publish.packet_id, message.publish.qos)
        self._write()

    def pause(self) -> None:
        """Stop reading until `resume`."""
        if not self._is_paused and self._fd >= 0:
            self._loop.remove_reader(self._fd)
        self._is_paused = True

    def resume(self) -> None:
        """Resume reading."""
        if self._is_paused and self._fd >= 0:
            self._loop.add_reader(self._fd, self._read)
        self._is_paused = False

    def close(self) -> None:
        """Send DISCONNECT and end the connection. The broker keeps the session."""
        if not self.lost.done():
            with contextlib.suppress(ValueError):
                self._client.disconnect()
            self._write()
            self._end("closed")

    def _make_client(self) -> _PahoClient:
        options = self._options
        client = _PahoClient(
            self._arrive,
            options.tls,
            client_id=options.client_id,
            clean_session=None if options.is_5 else False,
            protocol=MQTTProtocolVersion.MQTTv5 if options.is_5 else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        client.suppress_exceptions = False
        if options.username is not None:
            client.username_pw_set(options.username, options.password)
        client.on_connect = self._note_connected
        client.on_subscribe = self._note_subscribed
        client.on_unsubscribe = self._note_unsubscribed
        client.on_disconnect = self._note_disconnected
        client.on_socket_close = self._forget_socket
        client.on_socket_register_write = self._note_write_wanted
        return client

    async def _connect(self) -> None:
        options = self._options
        extras: dict[str, Any] = {}
        if options.is_5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = options.session_expiry_s
            properties.ReceiveMaximum = options.in_flight_max
            properties.MaximumPacketSize = options.packet_bytes_max
            extras = {"clean_start": False, "properties": properties}
        where = f"the MQTT broker at {options.host}:{options.port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                # Looking up the name, connecting and the TLS handshake block.
                await asyncio.to_thread(
                    self._client.connect, options.host, options.port, keepalive=KEEP_ALIVE_S, **extras
                )
                self._fd = cast(_BufferedSocket, self._client.socket()).fileno()
                self._loop.add_reader(self._fd, self._read)
                self._write()
                self._tick()
                await asyncio.wait((self._connected, self.lost), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError as error:
            raise BrokerUnavailable(f"{where} did not answer within {CONNECT_TIMEOUT_S:g} s") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a string that can't be a host name was looked up
            remedy = "; check STRANDLINE_MQTT_CA_FILE" if isinstance(error, ssl.SSLError) else ""
            if isinstance(error, UnicodeError):
                remedy = "; check STRANDLINE_MQTT_URL"
            raise BrokerUnavailable(f"{where} can't be reached: {error}{remedy}") from error
        if not self._connected.done():
            reason = str(self.lost.result())
            is_login = any(word in reason.lower() for word in ("authori", "user name", "password"))
            remedy = "; check STRANDLINE_MQTT_USERNAME and STRANDLINE_MQTT_PASSWORD" if is_login else ""
            raise BrokerUnavailable(f"{where} refused the connection: {reason}{remedy}")

    async def _await_answer(self, sent: tuple[MQTTErrorCode, int | None], what: str) -> list[ReasonCode]:
        code, number = sent
        if code is not MQTTErrorCode.MQTT_ERR_SUCCESS or number is None:
            raise BrokerUnavailable(f"could not {what}: {paho.error_string(code)}")
        answered: asyncio.Future[list[ReasonCode]] = self._loop.create_future()
        self._subscribing[number] = answered
        self._write()
        done, _ = await asyncio.wait(
            (answered, self.lost), timeout=CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        self._subscribing.pop(number, None)
        if answered not in done:
            raise BrokerUnavailable(f"the MQTT broker did not answer the request to {what}")
        return answered.result()

    def _read(self) -> None:
        """Let paho read the received bytes, and pass its messages on."""
        client = self._client
        one = cast("_BufferedSocket | None", client.socket())
        if one is None:
            return
        one.is_drained = False
        arrived = self._arrived
        while not one.is_drained and not self.lost.done() and len(arrived) < _MESSAGES_PER_TURN:
            try:
                client.loop_read()
            except OSError as error:
                self._end(str(error))
        if len(arrived) >= _MESSAGES_PER_TURN:
            # The loop doesn't know of buffered bytes.
            self._loop.call_soon(self._read_on)
        if arrived:
            self._arrived = []
            self._on_messages(self, arrived)
        self._write()

    def _read_on(self) -> None:
        if self.lost.done():
            return
        if self._is_paused:
            self._loop.call_later(_READ_ON_S, self._read_on)
        else:
            self._read()

    def _write(self) -> None:
        """Send all bytes that paho has written."""
        one = cast("_BufferedSocket | None", self._client.socket())
        if one is None:
            return
        try:
            if self._client.want_write():
                self._client.loop_write()
            is_sent = one.flush()
        except (OSError, ValueError) as error:
            self._end(str(error))
            return
        if not is_sent and not self._is_flushing_later:
            self._is_flushing_later = True
            self._loop.add_writer(self._fd, self._write)
        elif is_sent and self._is_flushing_later:
            self._is_flushing_later = False
            self._loop.remove_writer(self._fd)

    def _tick(self) -> None:
        """Keep the connection alive, or detect that it is lost."""
        self._next_tick = self._loop.call_later(_TICK_EVERY_S, self._tick)
        self._client.loop_misc()
        self._write()

    def _end(self, reason: str) -> None:
        """End the connection, if it has not ended yet. Idempotent."""
        if self._next_tick is not None:
            self._next_tick.cancel()
        self._forget_socket()
        one = self._client.socket()
        if one is not None:
            one.close()
        if not self.lost.done():
            self.lost.set_result(reason)

    def _arrive(self, message: Message) -> None:
        self._arrived.append(message)

    def _note_connected(
        self, _client: object, _userdata: object, flags: paho.ConnectFlags, code: ReasonCode, _properties: object
    ) -> None:
        if code.is_failure:
            self._end(str(code))
        elif not self._connected.done():
            self._connected.set_result(flags.session_present)

    def _note_subscribed(
        self, _client: object, _userdata: object, number: int, codes: list[ReasonCode], _properties: object
    ) -> None:
        answered = self._subscribing.get(number)
        if answered is not None and not answered.done():
            answered.set_result(codes)

    def _note_unsubscribed(
        self, _client: object, _userdata: object, number: int, _codes: object, _properties: object
    ) -> None:
        answered = self._subscribing.get(number)
        if answered is not None and not answered.done():
            answered.set_result([])

    def _note_disconnected(
        self, _client: object, _userdata: object, _flags: object, code: ReasonCode, _properties: object
    ) -> None:
        self._end(str(code))

    def _forget_socket(self, *_: object) -> None:
        """Unregister the socket before it is closed: a moment later its number may belong to another socket."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._fd = -1

    def _note_write_wanted(self, *_: object) -> None:
        """Do nothing. With this callback set, paho leaves writing to `_write`."""
