"""Notices in tests: channel tools, and receivers."""

from __future__ import annotations

import base64
import json
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from pydantic import SecretStr

from strandline.ingest.poll.addresses import AllowedHosts
from strandline.ingest.poll.secrets import NamedSecrets
from strandline.notices.channels.tools import ChannelTools


def a_channel_tools(
    hosts: Sequence[str] = ("127.0.0.1", "localhost"),
    secrets: Mapping[str, str] | None = None,
    secret_hosts: Mapping[str, Sequence[str]] | None = None,
    timeout_s: float = 5.0,
    tls: ssl.SSLContext | None = None,
) -> ChannelTools:
    """Return tools that may send to these hosts. Without `tls`, they trust no certificate: to load the authorities of the machine
    takes longer than most tests."""
    values = {name: SecretStr(value) for name, value in (secrets or {}).items()}
    named = NamedSecrets(None, values, secret_hosts or {}, "STRANDLINE_NOTICE")
    allowed = AllowedHosts(hosts, "STRANDLINE_NOTICE_HOSTS")
    return ChannelTools(allowed, named, tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), timeout_s)


@dataclass
class Received:
    """One request or mail, as a receiver got it."""

    at_s: float
    """Monotonic."""
    headers: dict[str, str]
    body: bytes
    answered: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


HANG_S = 60.0
"""Time in seconds after which a receiver that hangs closes the connection. The senders give up earlier."""


class HttpReceiver:
    """Receives webhooks on loopback. `behave` returns how each request is answered: `ok`, a status, `hang`, `slow`, `cut`, or
    `garbage`."""

    def __init__(
        self, behave: Callable[[], str] = lambda: "ok", on_received: Callable[[Received], None] = lambda one: None
    ) -> None:
        """Args: on_received: Called for each request before it is answered, in any thread."""
        self.received: list[Received] = []
        self.behave = behave
        self.slow_s = 1.0
        self.closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                how = receiver.behave()
                headers = {name.lower(): value for name, value in self.headers.items()}
                received = Received(time.monotonic(), headers, body, how)
                receiver.received.append(received)
                on_received(received)
                if how == "hang":
                    receiver.closing.wait(HANG_S)  # sleeps: the receiver hangs for this time
                if how == "garbage":
                    self.wfile.write(b"\x00%%% 250 fine\r\n\r\n")
                if how in ("hang", "cut", "garbage"):
                    self.close_connection = True
                    return
                if how == "slow":
                    receiver.closing.wait(receiver.slow_s)
                status = int(how) if how.isdigit() else 200
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self._handler = Handler
        self._listen(0)

    def _listen(self, port: int) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def open_port(self) -> None:
        """Accept connections again after `close_port`."""
        self._listen(self.port)
        self._serve()

    def close_port(self) -> None:
        """Refuse connections."""
        self._server.shutdown()
        self._server.server_close()

    def _serve(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> HttpReceiver:
        self._serve()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.close_port()


class SmtpReceiver:
    """A small SMTP server on loopback, with STARTTLS and a login. It keeps the mail that it gets."""

    def __init__(
        self,
        certificate: Path | None = None,
        key: Path | None = None,
        login: tuple[str, str] | None = None,
        behave: Callable[[], str] = lambda: "ok",
        on_received: Callable[[Received], None] = lambda one: None,
    ) -> None:
        """Args: behave: Returns how each mail is answered: `ok`, a response, as `451 later`, or `hang`."""
        self.received: list[EmailMessage] = []
        """The mails that were accepted."""
        self.requests: list[Received] = []
        """All mails, also those that were not accepted."""
        self.recipients: list[list[str]] = []
        self.was_encrypted: list[bool] = []
        self.behave = behave
        self.closing = threading.Event()
        receiver = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                try:
                    self.talk()
                finally:
                    for one in self.encrypted:
                        one.close()

            def setup(self) -> None:
                super().setup()
                self.encrypted: list[Any] = []

            def talk(self) -> None:
                reader, encrypted, logged_in, to = self.rfile, False, login is None, []
                connection: socket.socket = self.connection

                def say(line: str) -> None:
                    connection.sendall(f"{line}\r\n".encode())

                say("220 receiver")
                while line := reader.readline().decode():
                    verb = line.split()[0].upper() if line.split() else ""
                    if verb == "EHLO":
                        features = ["receiver"] + ["STARTTLS"] * (certificate is not None and not encrypted)
                        features += ["AUTH PLAIN"] * (login is not None and (encrypted or certificate is None))
                        for feature in features[:-1]:
                            say(f"250-{feature}")
                        say(f"250 {features[-1]}")
                    elif verb == "STARTTLS" and certificate is not None:
                        say("220 go on")
                        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                        context.load_cert_chain(certificate, key)
                        connection = context.wrap_socket(connection, server_side=True)
                        reader, encrypted = connection.makefile("rb"), True
                        self.encrypted += [reader, connection]
                    elif verb == "AUTH":
                        given = base64.b64decode(line.split()[2]).decode().split("\0")[1:]
                        logged_in = tuple(given) == login
                        say("235 welcome" if logged_in else f"535 {given[-1]} is wrong")
                    elif verb == "MAIL":
                        say("250 ok" if logged_in else "530 log in first")
                    elif verb == "RCPT":
                        to.append(line.split(":", 1)[1].strip().strip("<>"))
                        say("250 ok")
                    elif verb == "DATA":
                        say("354 send it")
                        lines = []
                        while (part := reader.readline()) not in (b".\r\n", b""):
                            lines.append(part.removeprefix(b"."))
                        how, body = receiver.behave(), b"".join(lines)
                        mail = message_from_bytes(body, policy=policy.default)
                        headers = {name.lower(): str(value) for name, value in mail.items()}
                        request = Received(time.monotonic(), headers, body, how)
                        receiver.requests.append(request)
                        on_received(request)
                        if how == "hang":
                            receiver.closing.wait(HANG_S)  # sleeps: the receiver hangs for this time
                            return
                        if how == "ok":
                            receiver.received.append(cast(EmailMessage, mail))
                            receiver.recipients.append(to)
                            receiver.was_encrypted.append(encrypted)
                        say("250 ok" if how == "ok" else how)
                        to = []
                    elif verb == "QUIT":
                        say("221 bye")
                        return
                    else:
                        say("250 ok" if verb == "RSET" else "502 unknown")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> SmtpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
