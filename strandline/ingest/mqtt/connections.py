"""The connections of the MQTT server and their common state: admission, routes to streams, limits on memory."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import structlog
from prometheus_client import Counter, Gauge

from strandline.core.errors import TransientError
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.process import GatewayResources
from strandline.ingest.mqtt.addresses import Arrivals, WrongPasswords, address_of
from strandline.ingest.mqtt.batches import Batches
from strandline.ingest.mqtt.connection import Admission, Connection, ConnectRefused, Pause, State
from strandline.ingest.mqtt.decoder import Connect, Publish, Will
from strandline.ingest.mqtt.headers import TOPIC_BYTES_MAX, packet_bytes_max, properties_fit
from strandline.ingest.mqtt.logins import Login, Logins, Owner
from strandline.ingest.mqtt.passwords import TooManyChecks
from strandline.ingest.mqtt.sessions import DisconnectedClient, Sessions, WaitingWills
from strandline.ingest.mqtt.topics import Route, TopicRoutes
from strandline.ingest.mqtt.wire import V311, PacketError, Reason

logger = structlog.get_logger()

PARTIAL_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size in bytes of the incomplete packets of all connections. Over it connections with large ones are closed.
"""
PARTIAL_BYTES_FREE = 16 * 1024
"""Size of an incomplete packet in bytes that a connection may always buffer."""
CLIENT_ID_BYTES_MAX = 256
"""Maximum length of a client identifier. Each identifier with a session is kept for as long as the session lasts."""
SAY_AGAIN_S = 10.0
"""Seconds for which a kind of refusal is logged only once. All refusals are counted."""
_NO_STREAM = "(unknown)"
"""Stream name in the metrics for messages that match no stream."""


class MqttConnections:
    """All connections of the process. For one event loop. The caller closes writer, sessions, and logins."""

    def __init__(
        self,
        resources: GatewayResources,
        logins: Logins,
        sessions: Sessions,
        *,
        record_bytes_max: int,
        connections_max: int,
        connections_per_address_max: int,
        keep_alive_max_s: int,
        confirm_timeout_s: float,
    ) -> None:
        self.packet_bytes_max = packet_bytes_max(record_bytes_max)
        self._record_bytes_max = record_bytes_max
        self._connections_max = connections_max
        self._connections_per_address_max = connections_per_address_max
        self.keep_alive_max_s = keep_alive_max_s
        self._logins = logins
        self._sessions = sessions
        self._wills = WaitingWills(self._publish_will)
        self._metrics = resources.metrics
        self._batches = Batches(
            resources.writer, resources.metrics, self._set_reading, busy_patience_s=confirm_timeout_s
        )
        self._loop = asyncio.get_running_loop()
        self._routes = TopicRoutes([])
        self._specs: list[StreamSpec] = []
        self._connections: set[Connection] = set()
        self._arrived: dict[Connection, None] = {}
        """Connections without a complete CONNECT, the oldest first."""
        self._arrivals: Arrivals[Connection] = Arrivals()
        self._wrong_passwords = WrongPasswords(self._loop.time)
        self._clients: dict[str, Connection] = {}
        """Client identifier -> its open connection."""
        self._held: dict[Connection, int] = {}
        """Connection -> bytes of its incomplete packet."""
        self._bytes_held = 0
        self._is_reading = True
        self._said_s: dict[str, float] = {}
        registry = resources.metrics.registry
        self._refusals = Counter(
            "strandline_mqtt_connections_refused",
            "Connections that were not accepted, or were closed for what the client did",
            ["reason"],
            registry=registry,
        )
        Gauge("strandline_mqtt_connections", "Sensors connected", registry=registry).set_function(
            lambda: len(self._connections)
        )
        Gauge(
            "strandline_ingest_in_flight_bytes", "Messages not confirmed yet, with their overhead", registry=registry
        ).set_function(lambda: self._batches.bytes_waiting)

    def connection(self) -> Connection:
        """Create the protocol of a new connection."""
        return Connection(self, self._loop)

    def update_streams(self, specs: list[StreamSpec]) -> None:
        """Route messages by these documents from now on."""
        specs = [spec for spec in specs if spec.mqtt is not None]
        if specs == self._specs:
            return
        self._specs, self._routes = specs, TopicRoutes(specs)
        for topic_filter, taken_by, other in self._routes.ambiguous:
            logger.warning(
                "two streams have the same topic filter; only the first one gets its messages",
                action="mqtt_ambiguous", topic_filter=topic_filter, stream=taken_by, without=other,
            )  # fmt: skip
        logger.info("the streams have changed", action="mqtt_streams", streams=[spec.stream for spec in specs])

    async def watch(self) -> None:
        """Check connections and files once a second, until cancelled.

        Closes connections that are too slow or silent, or whose login is no longer valid. Reads changed files of
        passwords and rights.
        """
        while True:
            await asyncio.sleep(1.0)
            now_s = self._loop.time()
            for connection in list(self._connections):
                connection.check_time(now_s)
                if not self._logins.is_valid(connection.login):
                    connection.close(Reason.NOT_AUTHORIZED, "the login is no longer valid, or can't be checked")
            await asyncio.to_thread(self._logins.reload)

    async def stop(self) -> None:
        """Stop reading, acknowledge the confirmed messages, close all connections, and publish the remaining wills."""
        self._set_reading(False)
        await self._batches.settle()
        for connection in list(self._connections):
            connection.close(Reason.SERVER_SHUTTING_DOWN, "the gateway stops; connect again")
        self._wills.publish_all()
        await self._batches.settle()

    # Called by connections: connection.ConnectionOwner.

    def accept(self, connection: Connection) -> bool:
        address = address_of(connection.peer)
        if self._arrivals.count(address) >= self._connections_per_address_max:
            self._refusals.labels("connections_per_address_max").inc()
            self._note(
                "connections_per_address_max",
                f"{self._connections_per_address_max} connections of this address are open, the limit; raise "
                "STRANDLINE_MQTT_LISTENER_CONNECTIONS_PER_ADDRESS_MAX if many sensors share it",
                connection,
            )
            silent = self._arrivals.oldest_silent(address)
            if silent is None:
                return False
            silent.close(Reason.SERVER_BUSY, "too many connections of this address are open")
        if len(self._connections) >= self._connections_max:
            self._refusals.labels("connections_max").inc()
            self._note("connections_max", f"{self._connections_max} connections are open, the limit", connection)
            if not self._arrived:
                return False
            # Connections without CONNECT must not block sensors.
            next(iter(self._arrived)).close(Reason.SERVER_BUSY, "too many connections are open")
        self._connections.add(connection)
        self._arrived[connection] = None
        self._arrivals.add(address, connection)
        return True

    async def admit(self, connection: Connection, connect: Connect) -> Admission:
        """Accept or refuse a CONNECT.

        1. Check the password or the token, and whether its user may have this identifier.
        2. Choose an identifier for a client without one.
        3. Refuse an identifier that belongs to another login, before the state of its owner changes. Close an older
           connection of the same client.
        4. Find the session to resume, and store the session before CONNACK promises it.
        5. Drop the will that waits while the session lasts. If the session no longer exists, publish the will.
        """
        self._arrived.pop(connection, None)
        self._arrivals.has_spoken(address_of(connection.peer), connection)
        if len(connect.client_id.encode()) > CLIENT_ID_BYTES_MAX:
            raise ConnectRefused(
                Reason.CLIENT_IDENTIFIER_NOT_VALID,
                f"the client identifier is longer than {CLIENT_ID_BYTES_MAX} bytes; use a shorter one for this client",
            )
        login = await self._log_in(connection, connect)
        if not connect.client_id and connect.version == V311 and not connect.clean_start:
            raise ConnectRefused(Reason.CLIENT_IDENTIFIER_NOT_VALID, "a session that stays needs a client identifier")
        client_id = connect.client_id or f"strandline-{secrets.token_hex(12)}"
        if login is not None and not login.may_connect(client_id):
            raise ConnectRefused(
                Reason.CLIENT_IDENTIFIER_NOT_VALID, f"user {login.user!r} may not connect as {client_id[:100]!r}"
            )
        owner = self._logins.owner(login, connection.certificate)
        older = self._clients.get(client_id)
        self._require_own(client_id, owner, older)
        if older is not None:
            older.close(Reason.SESSION_TAKEN_OVER, "the same client has connected again")
        self._clients[client_id] = connection
        connection.client_id, connection.owner, connection.login = client_id, owner, login
        if not self._is_reading:  # uvloop starts reading, whatever was set before
            connection.pause(Pause.BACKLOG)
        try:
            is_present, expiry_s = await self._sessions.begin(client_id, connect, owner)
        except OSError as error:
            logger.error("a session could not be stored", action="mqtt_session_lost", reason=str(error))
            raise ConnectRefused(
                Reason.SERVER_UNAVAILABLE, "sessions can't be stored now; connect again later"
            ) from error
        if is_present:
            self._wills.drop((owner, client_id))
        else:
            self._wills.publish((owner, client_id))
        if self._clients.get(client_id) is not connection:
            raise ConnectRefused(Reason.SERVER_BUSY, "the same client has connected again")
        return Admission(is_present, expiry_s)

    def publish(self, connection: Connection, publish: Publish) -> Reason:
        if len(publish.payload) > self._record_bytes_max:
            raise PacketError(
                Reason.PACKET_TOO_LARGE,
                f"a message of {len(publish.payload)} bytes, the limit is {self._record_bytes_max}",
            )
        route = self._route(connection, publish)
        if isinstance(route, Reason):
            return route
        self._batches.add(connection, publish, route)
        return Reason.SUCCESS

    def hold(self, connection: Connection, bytes_held: int) -> bool:
        self._bytes_held += bytes_held - self._held.pop(connection, 0)
        if bytes_held:
            self._held[connection] = bytes_held
        return bytes_held <= PARTIAL_BYTES_FREE or self._bytes_held <= PARTIAL_BYTES_MAX

    def refuse_packet(self, connection: Connection, error: PacketError | ConnectRefused) -> None:
        if error.reason is Reason.PACKET_TOO_LARGE and connection.state is State.OPEN:
            self._refuse_message("too_large")
        self._refusals.labels(error.reason.name.lower()).inc()
        self._note(error.reason.name.lower(), str(error), connection)

    def leave(self, connection: Connection, will: Will | None) -> None:
        self._connections.discard(connection)
        self._arrived.pop(connection, None)
        self._arrivals.remove(address_of(connection.peer), connection)
        session_s = 0
        if connection.client_id and self._clients.get(connection.client_id) is connection:
            del self._clients[connection.client_id]
            session_s = self._sessions.end(connection.client_id, connection.session_expiry_s, connection.owner)
        if will is None:
            return
        departed = DisconnectedClient(connection.client_id, connection.owner, connection.login, connection.peer)
        message = Publish(will.topic, will.payload, 0, will.retain, 0, will.properties)
        if (delay_s := min(will.delay_s, session_s)) > 0:
            self._wills.add(departed, message, delay_s)
        else:
            self._publish_will(departed, message)

    # Steps of the methods above.

    async def _log_in(self, connection: Connection, connect: Connect) -> Login | None:
        """Return the login of a CONNECT. None if the listener requires no login.

        Raises ConnectRefused for a wrong password, during the pause after several wrong ones of this user at this
        address, and if the password can't be checked now. A password that was right before is always accepted without
        this.
        """
        user, password = connect.user or "", connect.password or b""
        if not self._logins.asks:
            return None
        known = self._logins.known(user, password)
        if known is not None:
            return known
        address = address_of(connection.peer)
        if (wait_s := self._wrong_passwords.wait_s(address, user)) > 0:
            raise ConnectRefused(
                Reason.CONNECTION_RATE_EXCEEDED, f"too many wrong passwords; connect again after {wait_s:.0f} s"
            )
        try:
            login = await self._logins.check(user, password)
        except TooManyChecks as error:
            raise ConnectRefused(Reason.SERVER_BUSY, str(error)) from error
        except TransientError as error:
            raise ConnectRefused(Reason.SERVER_UNAVAILABLE, str(error)) from error
        if login is None:
            self._wrong_passwords.add(address, user)
            raise ConnectRefused(Reason.BAD_USER_NAME_OR_PASSWORD, "the user name or the password is wrong")
        self._wrong_passwords.forget(address, user)
        return login

    def _require_own(self, client_id: str, owner: Owner | None, older: Connection | None) -> None:
        """Raise ConnectRefused if the identifier belongs to another owner.

        It belongs to the owner of `older`, its open connection, or else of its session, unless that owner can't connect
        again. Without logins, identifiers have no owners.
        """
        if owner is None:
            return
        if older is not None:
            is_own = older.owner == owner
        else:
            holder = self._sessions.owner(client_id)
            is_own = holder is None or holder == owner or not self._logins.can_return(holder)
        if not is_own:
            raise ConnectRefused(
                Reason.CLIENT_IDENTIFIER_NOT_VALID,
                f"the client identifier {client_id[:100]!r} belongs to another login; use another identifier for this client, "
                "or the login that the identifier was used with before",
            )

    def _route(self, client: Connection | DisconnectedClient, publish: Publish) -> Route | Reason:
        """Return the route of the message, or the reason why no stream accepts it.

        Raises PacketError if it is too large.
        """
        if len(publish.payload) > self._record_bytes_max:
            raise PacketError(
                Reason.PACKET_TOO_LARGE,
                f"a message of {len(publish.payload)} bytes, the limit is {self._record_bytes_max}",
            )
        if not properties_fit(publish):
            self._refuse_message("too_large")
            return Reason.QUOTA_EXCEEDED
        route = self._routes.find(publish.topic) if len(publish.topic) <= TOPIC_BYTES_MAX else None
        if route is None:
            self._refuse_message("unknown_topic")
            self._note("unknown_topic", f"topic {publish.topic[:200]!r} matches no stream", client)
            return Reason.TOPIC_NAME_INVALID
        login = client.login
        if login is not None and not login.may_publish(client.client_id, publish.topic, route.stream):
            self._refuse_message("forbidden")
            self._note(
                "forbidden",
                f"user {login.user!r} may not publish to {publish.topic[:200]!r} of stream {route.stream}",
                client,
            )
            return Reason.NOT_AUTHORIZED
        return route

    def _publish_will(self, departed: DisconnectedClient, will: Publish) -> None:
        """Queue a will, if its login is still valid."""
        if not self._logins.is_valid(departed.login):
            self._refuse_message("forbidden")
            self._note(
                "forbidden",
                "its will is not published: its login is no longer valid, or can't be checked",
                departed,
            )
            return
        with contextlib.suppress(PacketError):
            route = self._route(departed, will)
            if isinstance(route, Route):
                self._batches.add(None, will, route)

    def _set_reading(self, is_reading: bool) -> None:
        self._is_reading = is_reading
        for connection in list(self._connections):  # a resumed connection may close itself by a waiting DISCONNECT
            # the waiting messages have used up the budget again: the other connections stay paused
            if self._is_reading != is_reading:
                return
            if is_reading:
                connection.resume(Pause.BACKLOG)
            else:
                connection.pause(Pause.BACKLOG)

    def _refuse_message(self, reason: str) -> None:
        metrics = self._metrics.of(_NO_STREAM)
        metrics.received.inc()
        metrics.refuse(reason, 1)

    def _note(self, reason: str, text: str, client: Connection | DisconnectedClient) -> None:
        """Log the reason why a client was refused, unless the same reason was logged just now."""
        now_s = self._loop.time()
        if now_s - self._said_s.get(reason, -SAY_AGAIN_S) >= SAY_AGAIN_S:
            self._said_s[reason] = now_s
            logger.warning(
                "a client was refused", action="mqtt_refused", reason=text, peer=client.peer,
                client=client.client_id[:100],
            )  # fmt: skip
