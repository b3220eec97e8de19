"""TLS before a protocol: handshakes have a deadline and a maximum number, and changed certificates are used.

A connection is passed to the protocol when its handshake is complete; the protocol's own limits begin then. Over the
maximum, a new handshake replaces the oldest one: so silent connections can't block other clients.

A session is resumed only under the certificate that it began with, and never at a listener that requests client
certificates: there each connection has its certificate checked. An open connection ends within CHECK_S after its
client's certificate expires, or after a CA was removed from the file of CAs.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import structlog

from strandline.core.errors import InvalidSettings
from strandline.core.settings import stamp_of

logger = structlog.get_logger()

HANDSHAKE_TIMEOUT_S = 10.0
"""Seconds from the connection to the end of its handshake."""
HANDSHAKES_MAX = 500
"""Maximum number of concurrent handshakes of one listener."""

RETRY_S = 1.0
"""Seconds until new files that couldn't be used are tried again, if they don't change before."""

CHECK_S = 1.0
"""Seconds between two checks of the clients that are connected with a certificate."""
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]*CERTIFICATE)-----.*?-----END \1-----", re.DOTALL)

Stamps = list[tuple[str, int, int]]
Protocols = Callable[[], asyncio.BaseProtocol]


class ServerTls:
    """The certificate of one server.

    A handshake that begins after the files have changed uses the new ones. New files that can't be used are reported, and the
    files before stay effective until the new ones change again or can be read, as after a chmod. Reading them is tried again at
    most once in RETRY_S.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path | None,
        client_ca: Path | None,
        setting: str,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the certificate. Raises InvalidSettings if a file can't be used.

        Args: client_ca: If set, only clients with a certificate that it signed are accepted. setting: Prefix of the
        settings' names, for example STRANDLINE_HTTP_TLS.
        """
        self._files = [path for path in (certificate, key, client_ca) if path is not None]
        self._certificate, self._key, self._client_ca, self._setting = certificate, key, client_ca, setting
        self._clock_s = clock_s
        self._stamps = self._stamps_now()
        self._stamps_refused: Stamps = []
        self._retry_s = 0.0
        """Time at which refused files are tried again."""
        self._reason = ""
        """Logged reason why the new files can't be used."""
        self.client_cas: WeakKeyDictionary[ssl.SSLContext, frozenset[bytes]] = WeakKeyDictionary()
        """Context -> client CAs that it trusts, in PEM."""
        self._context = self._load()
        self._listening = self._bare()

    @property
    def checks_clients(self) -> bool:
        """True if the listener requests client certificates."""
        return self._client_ca is not None

    @property
    def context(self) -> ssl.SSLContext:
        """Context to begin a handshake with.

        OpenSSL keeps ticket keys and sessions in this context, so it is replaced together with the certificate. If
        clients have certificates, it is replaced for each handshake, so no session outlives its connection: Python
        can't turn off the cache of session ids.
        """
        present = self.present()
        if self.checks_clients:
            return self._bare()
        if self._listening_for is not present:
            self._listening = self._bare()
        return self._listening

    def _bare(self) -> ssl.SSLContext:
        """Return a context without a certificate: each handshake uses the current one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options, context.minimum_version = self._context.options, self._context.minimum_version
        context.verify_mode = self._context.verify_mode
        context.num_tickets = self._context.num_tickets
        context.sni_callback = self._take_present  # called at each handshake, named or not
        self._listening_for = self._context
        return context

    def _take_present(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self.present()

    def present(self) -> ssl.SSLContext:
        """Return the context for a handshake that begins now."""
        stamps = self._stamps_now()
        is_refused = stamps == self._stamps_refused and self._clock_s() < self._retry_s
        if stamps != self._stamps and not is_refused:
            self._take(stamps)
        return self._context

    def _take(self, stamps: Stamps) -> None:
        """Load the files that have these stamps. If they can't be used, the context stays. A reason is logged once."""
        try:
            self._context = self._load()
        except InvalidSettings as error:
            self._stamps_refused, self._retry_s = stamps, self._clock_s() + RETRY_S
            if str(error) != self._reason:
                self._reason = str(error)
                logger.warning(f"{error}; the previous certificate stays effective", action="certificate_unusable")
        else:
            self._stamps, self._reason = stamps, ""
            logger.info("the certificate has changed", action="certificate_changed", file=str(self._certificate))

    def _stamps_now(self) -> Stamps:
        return [stamp_of(path) for path in self._files]

    def _load(self) -> ssl.SSLContext:
        try:
            cas = self._client_ca.read_bytes() if self._client_ca is not None else b""
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._client_ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            # An encrypted key is refused: otherwise the process would ask for its password at the terminal.
            context.load_cert_chain(self._certificate, self._key, "")
        except (OSError, ssl.SSLError) as error:
            raise InvalidSettings(
                f"the certificate {self._certificate} can't be used: {error}; set {self._setting}_CERTIFICATE and "
                f"{self._setting}_KEY to PEM files that fit"
            ) from error
        if self.checks_clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        self.client_cas[context] = frozenset(found[0] for found in _PEM.finditer(cas))
        return context


def server_tls(certificate: Path | None, key: Path | None, client_ca: Path | None, setting: str) -> ServerTls | None:
    """Return the certificate, or None if none is set.

    Raises InvalidSettings if other settings need one that is missing.
    """
    if certificate is not None:
        return ServerTls(certificate, key, client_ca, setting)
    if key is not None or client_ca is not None:
        raise InvalidSettings(
            f"{setting}_KEY or {setting}_CLIENT_CA is set, but {setting}_CERTIFICATE is not; set it, too"
        )
    return None


class TlsHandshaker:
    """Creates protocols that begin with a TLS handshake. For one event loop."""

    def __init__(self, tls: ServerTls, *, handshakes_max: int = HANDSHAKES_MAX) -> None:
        self.tls = tls
        self.handshakes_max = handshakes_max
        self.under_way: dict[Handshake, None] = {}
        self._checked: list[_CheckedClient] = []
        """Clients that are connected with a certificate, if the listener requests one."""
        self._timer: asyncio.TimerHandle | None = None

    def before(self, make: Protocols) -> asyncio.Protocol:
        """Return the protocol for an accepted connection. `make` creates the protocol after the handshake."""
        return Handshake(self, make)

    def keep_checked(self, transport: asyncio.Transport) -> None:
        """End this connection when the certificate of its client is no longer valid."""
        until_s = ssl.cert_time_to_seconds(transport.get_extra_info("peercert")["notAfter"])
        cas = self.tls.client_cas[transport.get_extra_info("ssl_object").context]
        self._checked.append(_CheckedClient(transport, cas, until_s))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        cas, now_s = self.tls.client_cas[self.tls.present()], time.time()
        ended = 0
        for client in self._checked:
            if not client.transport.is_closing() and (now_s > client.until_s or not client.cas <= cas):
                client.transport.abort()
                ended += 1
        if ended:
            logger.warning(
                "connections were ended: the certificate of the client has expired, or a client CA was removed",
                action="clients_ended", connections=ended,
            )  # fmt: skip
        self._checked = [client for client in self._checked if not client.transport.is_closing()]
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check) if self._checked else None


class _CheckedClient(NamedTuple):
    transport: asyncio.Transport
    cas: frozenset[bytes]
    """Client CAs that the connection was checked with."""
    until_s: float
    """Expiry of the client's certificate, in seconds since 1970."""


def with_tls(tls: ServerTls | None, make: Protocols) -> Protocols:
    """Return the factory of a server's protocols: `make`, preceded by a TLS handshake if there is a certificate."""
    if tls is None:
        return make
    handshaker = TlsHandshaker(tls)
    return lambda: handshaker.before(make)


class Handshake(asyncio.Protocol):
    """A connection until its handshake is complete.

    The event loop creates it for a plain connection. Its socket is then passed to the loop again, for the handshake. On
    a connection that is already open, uvloop can't be relied on to begin TLS, because it may have read the first bytes.
    """

    def __init__(self, handshaker: TlsHandshaker, make: Protocols) -> None:
        self._handshaker = handshaker
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        own = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        own.setblocking(False)
        cast(asyncio.Transport, transport).abort()  # before it reads; the connection continues in `own`
        under_way = self._handshaker.under_way
        under_way[self] = None
        if len(under_way) > self._handshaker.handshakes_max:
            next(iter(under_way)).drop()
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(own))

    def drop(self) -> None:
        """End a running handshake."""
        self._handshaker.under_way.pop(self, None)
        self._task.cancel()

    async def _shake_hands(self, own: socket.socket) -> None:
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                self._make, own, ssl=self._handshaker.tls.context, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
            if self._handshaker.tls.checks_clients:
                self._handshaker.keep_checked(transport)
        except (OSError, EOFError, asyncio.CancelledError):  # not TLS, no client certificate, too slow, or disconnected
            own.close()
        finally:
            self._handshaker.under_way.pop(self, None)
