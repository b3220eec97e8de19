"""The connection of one MQTT client: the packets that it may send, their order, and the answers.

    arrived --CONNECT--> admitting --accepted--> open --DISCONNECT, an error, silence, the end--> closed
                             \\--refused-----------------------------------------------------------/

Invariants:

- PUBACK for an accepted message is sent only by `acknowledge`, which `Batches` calls when the log has confirmed.
- When a PUBACK is withheld (the log did not confirm the message), the client isn't read any more: later messages may
  not overtake it. The connection is closed after a while, because a client resends only after it has connected again.
- Reading is paused as long as there is any reason to pause. Packets that were read already wait, too. A paused client
  does not violate its keep-alive.
"""

from __future__ import annotations

import asyncio
import random
from enum import Enum, IntFlag
from typing import Protocol, cast

from strandline.core.errors import StrandlineError
from strandline.ingest.mqtt.decoder import (
    Connect,
    Disconnect,
    Packet,
    PacketReader,
    PingRequest,
    Publish,
    Subscribe,
    Unsubscribe,
    Will,
)
from strandline.ingest.mqtt.encoder import (
    PINGRESP,
    connack,
    connack_properties,
    disconnect,
    puback,
    reason_string,
    suback_refused,
    unsuback,
)
from strandline.ingest.mqtt.logins import Login, Owner, certificate_name
from strandline.ingest.mqtt.wire import V5, PacketError, Reason

RECEIVE_MAXIMUM = 1_000
"""Maximum number of QoS 1 messages of one client that wait for PUBACK. MQTT 3.1.1 can't announce it: over it the client
isn't read."""
CONNECT_TIMEOUT_S = 10.0
"""Seconds from the connection to the end of CONNECT."""
PACKET_TIMEOUT_S = 120.0
"""Seconds from the first byte of a packet to its last."""
WRITE_TIMEOUT_S = 30.0
"""Seconds that a client may leave its answers unread before its connection is aborted."""
CLOSE_TIMEOUT_S = 10.0
"""Seconds that a closing connection may leave its last answers unread."""
KEEP_ALIVE_FACTOR = 1.5
"""[MQTT-3.1.2-22]"""
WITHHELD_S = (2.0, 5.0)
"""Seconds from a withheld PUBACK to the end of the connection; random, so that the clients don't all return at the same
time."""
_NORMAL_DISCONNECTION = 0x00
"""Reason of a DISCONNECT that cancels the will; with any other reason the will stays [MQTT-3.1.2-10]."""


class State(Enum):
    """State of a connection. See the drawing above."""

    ARRIVED = "arrived"
    ADMITTING = "admitting"
    OPEN = "open"
    CLOSED = "closed"


class Pause(IntFlag):
    """Reasons not to read a connection."""

    ADMITTING = 1
    IN_FLIGHT = 2
    """Too many of its messages wait for PUBACK."""
    BACKLOG = 4
    """Too many messages of all connections wait, or the log is busy."""
    WRITING = 8
    """The client does not read its answers."""
    WITHHELD = 16


class ConnectRefused(StrandlineError):
    """A CONNECT that is not accepted."""

    code = "mqtt_refused"

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Admission:
    """Content of the CONNACK for an accepted client."""

    __slots__ = ("is_session_present", "session_expiry_s")

    def __init__(self, is_session_present: bool, session_expiry_s: int) -> None:
        self.is_session_present = is_session_present
        self.session_expiry_s = session_expiry_s


class ConnectionOwner(Protocol):
    """Methods of the server's set of connections that a connection uses."""

    packet_bytes_max: int
    keep_alive_max_s: int

    def accept(self, connection: Connection) -> bool:
        """Add a new connection. Return False if there are too many."""

    async def admit(self, connection: Connection, connect: Connect) -> Admission:
        """Accept or refuse CONNECT, and set the connection's client identifier and user. Raises ConnectRefused."""

    def publish(self, connection: Connection, publish: Publish) -> Reason:
        """Queue a message, which will get `acknowledge` or `withhold`. Any reason but success: it was refused.

        Raises PacketError if the connection must end.
        """

    def hold(self, connection: Connection, bytes_held: int) -> bool:
        """Note the size of the connection's incomplete packet. Return False if the budget is used up."""

    def refuse_packet(self, connection: Connection, error: PacketError | ConnectRefused) -> None:
        """Count and log a refused packet."""

    def leave(self, connection: Connection, will: Will | None) -> None:
        """Remove a closed connection, and publish its will if its login is still valid."""


class Connection(asyncio.Protocol):
    """One client. Runs in the event loop."""

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._reader = PacketReader(owner.packet_bytes_max)
        self._transport: asyncio.Transport
        self._pauses = Pause(0)
        self._waiting: list[Packet] = []
        """Packets that arrived while the connection was paused: at most those of one read."""
        self._admitting: asyncio.Task[None] | None = None
        self._packet_began_s = 0.0
        self._unread_since_s = 0.0
        self._arrived_s = self._heard_s = loop.time()
        self._keep_alive_s = 0
        self._packet_bytes_max: int | None = None
        self._will: Will | None = None
        self._unacknowledged = 0
        self.state = State.ARRIVED
        self.client_id = ""
        self.session_expiry_s: int | None = None
        """Seconds that the session outlives the connection. None before CONNACK."""
        self.owner: Owner | None = None
        """Owner of its client identifier. None if the listener requires no login."""
        self.certificate: str | None = None
        """Name of the client certificate. None if the listener requests none."""
        self.login: Login | None = None
        """Login with its rights. None if the listener requires no login."""
        self.peer = ""

    @property
    def _is_closed(self) -> bool:
        return self.state is State.CLOSED

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the interface, but not the type
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else "unknown"
        self.certificate = certificate_name(transport.get_extra_info("peercert"))
        if not self._owner.accept(self):
            self.state = State.CLOSED
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.state is State.CLOSED:
            return
        self._heard_s = self._loop.time()
        held_before = self._reader.bytes_held
        packets, error = self._reader.feed(data)
        if packets:
            self._handle_all(packets)
        if self._is_closed:  # one of the packets closed it: the bytes after it are ignored
            return
        if error is not None:
            self._fail(error)
            return
        held = self._reader.bytes_held
        if not held:
            self._packet_began_s = 0.0
        elif packets or not held_before:
            self._packet_began_s = self._heard_s
        if held != held_before and not self._owner.hold(self, held):
            self._fail(PacketError(Reason.QUOTA_EXCEEDED, "too many large packets are arriving; send it again later"))

    def pause_writing(self) -> None:
        self._unread_since_s = self._loop.time()
        self.pause(Pause.WRITING)

    def resume_writing(self) -> None:
        self.resume(Pause.WRITING)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._admitting is not None:
            self._admitting.cancel()
        self._close()

    # Called by the owner.

    def acknowledge(self, packet_ids: list[int]) -> None:
        """Send PUBACK: the log has these messages. A client that has disconnected will resend them."""
        self._unacknowledged -= len(packet_ids)
        if self.state is State.OPEN:
            self._transport.write(b"".join([b"\x40\x02%c%c" % (number >> 8, number & 0xFF) for number in packet_ids]))
            if self._pauses & Pause.IN_FLIGHT and self._unacknowledged <= RECEIVE_MAXIMUM // 2:
                self.resume(Pause.IN_FLIGHT)

    def withhold(self) -> None:
        """Send no PUBACK, so that the client resends the messages: the log may or may not have them."""
        if self.state is State.OPEN and not self._pauses & Pause.WITHHELD:
            self.pause(Pause.WITHHELD)
            self._loop.call_later(
                random.uniform(*WITHHELD_S),  # noqa: S311  # spreads the load, guards nothing
                self.close,
                Reason.SERVER_BUSY,
                "the log does not confirm; connect again and resend the messages without PUBACK",
            )

    def close(self, reason: Reason, text: str) -> None:
        """Close the connection. An MQTT 5 client gets the reason."""
        if self.state is State.OPEN:
            self._transport.write(disconnect(self._reader.version, reason, text, self._packet_bytes_max))
        self._close()

    def pause(self, why: Pause) -> None:
        if not self._pauses and self.state is not State.CLOSED:
            self._transport.pause_reading()
        self._pauses |= why

    def resume(self, why: Pause) -> None:
        """Remove a reason to pause. If none is left, handle the waiting packets, then read again."""
        if not self._pauses & why:
            return
        self._pauses &= ~why
        if self._pauses:
            return
        waiting, self._waiting = self._waiting, []
        self._handle_all(waiting)
        if not self._pauses and self.state is not State.CLOSED:
            self._heard_s = self._loop.time()
            self._transport.resume_reading()

    def check_time(self, now_s: float) -> None:
        """Close a client that is too slow or silent. Called about once a second."""
        if self.state is State.ARRIVED:
            if now_s - self._arrived_s > CONNECT_TIMEOUT_S:
                self._close()
        elif self._pauses & Pause.WRITING and now_s - self._unread_since_s > WRITE_TIMEOUT_S:
            self._close()
        elif self._pauses:
            return
        elif self._keep_alive_s and now_s - self._heard_s > KEEP_ALIVE_FACTOR * self._keep_alive_s:
            self.close(Reason.KEEP_ALIVE_TIMEOUT, f"no data for {KEEP_ALIVE_FACTOR} times the keep-alive")
        elif self._packet_began_s and now_s - self._packet_began_s > PACKET_TIMEOUT_S:
            self.close(Reason.PACKET_TOO_LARGE, f"a packet was not complete after {PACKET_TIMEOUT_S:g} s")

    # Handling packets.

    def _handle_all(self, packets: list[Packet]) -> None:
        for number, packet in enumerate(packets):
            if self.state is State.CLOSED:
                return
            if self._pauses:
                self._waiting += packets[number:]
                return
            try:
                self._handle(packet)
            except PacketError as error:
                self._fail(error)

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._publish(packet)
            case PingRequest():
                self._transport.write(PINGRESP)
            case Connect():
                self.state = State.ADMITTING
                self.pause(Pause.ADMITTING)
                self._admitting = self._loop.create_task(self._admit(packet))
            case Disconnect():
                if packet.reason == _NORMAL_DISCONNECTION:
                    self._will = None
                if packet.session_expiry_s is not None:
                    self.session_expiry_s = packet.session_expiry_s
                self._close()
            case Subscribe():
                self._transport.write(suback_refused(self._reader.version, packet))
            case Unsubscribe():
                self._transport.write(unsuback(self._reader.version, packet))

    def _publish(self, publish: Publish) -> None:
        if publish.qos == 2:
            raise PacketError(Reason.QOS_NOT_SUPPORTED, "QoS 2 is not accepted here; publish with QoS 1")
        if publish.qos:
            if self._unacknowledged >= RECEIVE_MAXIMUM:
                if self._reader.version == V5:
                    raise PacketError(
                        Reason.RECEIVE_MAXIMUM_EXCEEDED, f"more than {RECEIVE_MAXIMUM} messages wait for PUBACK"
                    )
                self.pause(Pause.IN_FLIGHT)
            self._unacknowledged += 1
        refusal = self._owner.publish(self, publish)
        if refusal is not Reason.SUCCESS:
            if self._reader.version != V5 or not publish.qos:
                raise PacketError(refusal, "the message was refused")  # this client can't be informed in another way
            self._unacknowledged -= 1
            self._transport.write(puback(publish.packet_id, refusal))

    async def _admit(self, connect: Connect) -> None:
        """Answer CONNECT, then handle the packets that arrived after it."""
        try:
            admission = await self._owner.admit(self, connect)
        except ConnectRefused as refused:
            self._fail(refused)
            return
        finally:
            self._admitting = None
        self.state = State.OPEN
        self._will = connect.will
        longest_s = self._owner.keep_alive_max_s  # an MQTT 3.1.1 client can't be informed
        self._keep_alive_s = keep_alive_s = min(connect.keep_alive_s or longest_s, longest_s)
        self._packet_bytes_max = connect.packet_bytes_max
        self.session_expiry_s = expiry_s = admission.session_expiry_s
        properties = connack_properties(
            receive_maximum=RECEIVE_MAXIMUM,
            packet_bytes_max=self._owner.packet_bytes_max,
            session_expiry_s=None if expiry_s == connect.session_expiry_s else expiry_s,
            client_id=None if connect.client_id else self.client_id,
            keep_alive_s=None if keep_alive_s == connect.keep_alive_s else keep_alive_s,
        )
        present = admission.is_session_present
        self._transport.write(
            connack(connect.version, Reason.SUCCESS, is_session_present=present, properties=properties)
        )
        self.resume(Pause.ADMITTING)

    # Closing.

    def _fail(self, error: PacketError | ConnectRefused) -> None:
        """Close the connection after the client broke a rule. Send the reason first, if its version of MQTT can."""
        self._owner.refuse_packet(self, error)
        if self.state in (State.ARRIVED, State.ADMITTING):
            self._transport.write(connack(self._reader.version, error.reason, properties=reason_string(str(error))))
            self._close()
        else:
            self.close(error.reason, str(error))

    def _close(self) -> None:
        if self.state is State.CLOSED:
            return
        was_open = self.state is State.OPEN
        self.state = State.CLOSED
        self._waiting.clear()
        self._owner.hold(self, 0)
        self._owner.leave(self, self._will if was_open else None)
        # Otherwise the answers to a client that does not read them would stay in memory forever.
        if self._pauses & Pause.WRITING:
            self._transport.abort()
        else:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
