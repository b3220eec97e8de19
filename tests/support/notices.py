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


class HttpReceiver:
    """Receives webhooks on loopback. `behave` returns how each request is answered: `ok`, a status, `hang`, `slow` or `cut`."""

    def __init__(self, behave: Callable[[], str] = lambda: "ok") -> None:
        self.received: list[Received] = []
        self.behave = behave
        self.closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                how = receiver.behave()
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(time.monotonic(), headers, body, how))
                if how == "hang":
                    receiver.closing.wait()
                if how in ("hang", "cut"):
                    self.close_connection = True
                    return
                if how == "slow":
                    receiver.closing.wait(1)
                status = int(how) if how.isdigit() else 200
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def __enter__(self) -> HttpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


class SmtpReceiver:
    """A small SMTP server on loopback, with STARTTLS and a login. It keeps the mail that it gets."""

    def __init__(
        self, certificate: Path | None = None, key: Path | None = None, login: tuple[str, str] | None = None
    ) -> None:
        self.received: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.was_encrypted: list[bool] = []
        self.refuse: str | None = None
        """Answer to the mail, as `451 later`; None if it is accepted."""
        self.hangs = False
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
                        if receiver.hangs:
                            receiver.closing.wait()
                            return
                        mail = message_from_bytes(b"".join(lines), policy=policy.default)
                        if receiver.refuse is None:
                            receiver.received.append(cast(EmailMessage, mail))
                            receiver.recipients.append(to)
                            receiver.was_encrypted.append(encrypted)
                        say(receiver.refuse or "250 ok")
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
