"""Channel `mail`: SMTP with STARTTLS, or TLS from the start."""

from __future__ import annotations

import asyncio
import contextlib
import re
import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from email.utils import formatdate
from typing import Literal

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.documents import Path
from strandline.core.host_names import is_loopback
from strandline.core.streams.entrances import SecretSpec
from strandline.ingest.poll.addresses import resolve
from strandline.notices.channels.tools import ChannelTools, NotConfirmed, Outgoing

_ADDRESS = re.compile(r"[^\s<>@,;\"\x00-\x1f\x7f]{1,64}@[A-Za-z0-9.\-\[\]:]{1,255}")
_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_SUBJECT_MAX = 200


class MailSpec(DocumentModel):
    """A mail server, and the recipients of mails."""

    to: list[str] = Field(min_length=1, max_length=50)
    """Addresses of the recipients."""
    sender: str = Field(alias="from")
    """Address of the sender."""
    server: str = Field(min_length=1, max_length=255)
    """Host name of the mail server. STRANDLINE_NOTICE_HOSTS must contain it."""
    port: int | None = Field(default=None, ge=1, le=65_535)
    """Default: 587 with `starttls`, 465 with `tls`, 25 with `none`."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """Encryption of the connection. `none` only for a server on this machine."""
    user: str | None = None
    """User name of the login."""
    password: SecretSpec | None = None
    """Password of the login, `{secret: NAME}`."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        for number, address in enumerate(self.to):
            if not _ADDRESS.fullmatch(address):
                yield ("to", number), f"{address!r} is not a mail address, for example ops@example.org"
        if not _ADDRESS.fullmatch(self.sender):
            yield ("from",), f"{self.sender!r} is not a mail address, for example strandline@example.org"
        if self.security == "none" and not is_loopback(self.server):
            yield ("security",), "none is allowed only for a mail server on this machine; use starttls or tls"
        if (self.user is None) != (self.password is None):
            yield ("user",), "a login needs both 'user' and 'password'"


class Fields(DocumentModel):
    mail: MailSpec | None = None
    """A mail, sent by SMTP."""


def send(options: MailSpec, message: Outgoing, tools: ChannelTools) -> None:
    """Send a mail. Raises StrandlineError unless the server accepts it for every address."""
    host, port = options.server, options.port or _PORTS[options.security]
    password = None
    if options.password is not None:
        password = tools.secrets.value_for(options.password.secret, f"smtp://{host}:{port}")
    address = tools.allowed.address_for(host, asyncio.run(_resolved(host, port, tools.timeout_s)))
    try:
        with _Connection(address, port, host, tools, security=options.security) as server:
            if options.user is not None and password is not None:
                server.login(options.user, password)
            refused = server.send_message(_mail(options, message), options.sender, options.to)
            with contextlib.suppress(OSError, smtplib.SMTPException):  # the server has accepted the mail
                server.quit()
    except smtplib.SMTPResponseException as error:
        # Its text can repeat what was sent, so it isn't displayed.
        raise NotConfirmed(f"mail server {host}: it responded with {error.smtp_code}") from None
    except smtplib.SMTPRecipientsRefused as error:
        raise NotConfirmed(f"mail server {host}: it refused the addresses {', '.join(error.recipients)}") from None
    except ssl.SSLError as error:
        raise NotConfirmed(f"mail server {host}: the TLS connection failed: {error.reason or 'unknown'}") from None
    except (OSError, smtplib.SMTPException) as error:
        raise NotConfirmed(f"mail server {host}: {_reason(error)}") from None
    if refused:
        raise NotConfirmed(f"mail server {host}: it refused the addresses {', '.join(refused)}")


async def _resolved(host: str, port: int, timeout_s: float) -> list[str]:
    try:
        async with asyncio.timeout(timeout_s):
            return await resolve(host, port)
    except TimeoutError:
        raise NotConfirmed(f"mail server {host}: its name was not resolved within {timeout_s:g} s") from None


class _Connection:
    """A connection to a checked address, encrypted for the name of the server."""

    def __init__(self, address: str, port: int, host: str, tools: ChannelTools, *, security: str) -> None:
        self._address, self._port, self._host = address, port, host
        self._tools = tools
        self._security = security

    def __enter__(self) -> smtplib.SMTP:
        self._server = _server(self._security)(self._host, self._address, self._tools.timeout_s, self._tools.tls)
        # The timeout of a socket applies to each operation, so a slow server could delay the attempt for a long time.
        self._watch = threading.Timer(self._tools.timeout_s, self._server.cut)
        self._watch.daemon = True
        self._watch.start()
        try:
            self._server.connect(self._host, self._port)
            if self._security == "starttls":
                self._server.starttls(context=self._tools.tls)
        except BaseException:
            self.__exit__()
            raise
        return self._server

    def __exit__(self, *_: object) -> None:
        self._watch.cancel()
        self._server.close()


class _Smtp(smtplib.SMTP):
    """Connects to the checked address, because the name could resolve to another address later. `_host` stays the name, for
    TLS."""

    def __init__(self, host: str, address: str, timeout_s: float, tls: ssl.SSLContext) -> None:
        super().__init__(timeout=timeout_s, local_hostname="strandline")
        self._host = host
        self._address = address
        self._tls = tls

    def cut(self) -> None:
        """End the connection. Can be called from any thread."""
        if isinstance(sock := self.sock, socket.socket):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return socket.create_connection((self._address, port), timeout)


class _SmtpOverTls(_Smtp):
    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._tls.wrap_socket(super()._get_socket(host, port, timeout), server_hostname=self._host)


def _server(security: str) -> type[_Smtp]:
    return _SmtpOverTls if security == "tls" else _Smtp


def _mail(options: MailSpec, message: Outgoing) -> EmailMessage:
    mail = EmailMessage()
    title = " ".join(str(message.content["title"]).split())
    mail["Subject"] = f"[strandline] {title[:_SUBJECT_MAX]}"
    mail["From"] = options.sender
    mail["To"] = ", ".join(options.to)
    mail["Date"] = formatdate(message.made_ms / 1_000)
    mail["Message-ID"] = f"<{message.id.replace('@', '.')}@{options.sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(f"{message.content['title']}\n\n{message.content['text']}\n")
    return mail


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not respond in time"
    return (error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__) or "failed"
