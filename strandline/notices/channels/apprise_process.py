"""Child process that sends one message with the library Apprise: `python -m strandline.notices.channels.apprise_process`.

It reads a JSON object from its standard input, and writes `{"error": null}` or the reason, which contains no part of the URL.

Each connection of a plugin goes through Python's sockets. So a name resolves only to an address that is allowed, a connection
to another address is refused, and no plugin starts a program.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from strandline.core.errors import StrandlineError
from strandline.ingest.poll.addresses import AllowedHosts, NotAllowed

_REFUSED = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn")
_CONNECTING = ("socket.connect", "socket.sendto", "socket.sendmsg")
_REASON_MAX = 300


class Guard:
    """Refuses connections to hosts that aren't allowed, in this process, until it ends."""

    def __init__(self, allowed: AllowedHosts, secret_hosts: AllowedHosts) -> None:
        self._allowed, self._secret_hosts = allowed, secret_hosts
        self._resolve: Callable[..., list[Any]] = socket.getaddrinfo
        self._addresses: set[str] = set()
        """Addresses of allowed hosts."""
        self.refusals: list[str] = []

    def install(self) -> None:
        socket.getaddrinfo = self.getaddrinfo
        sys.addaudithook(self._audit)

    def getaddrinfo(self, host: Any, *arguments: Any, **options: Any) -> list[Any]:
        """Return only the addresses of an allowed host to which connections are allowed. Raises OSError."""
        name = host.decode() if isinstance(host, bytes) else str(host or "localhost")
        if not self._secret_hosts.names(name):
            raise self._refuse(f"the secret must not be sent to {name}; add the host to STRANDLINE_NOTICE_SECRET_HOSTS")
        found = self._resolve(host, *arguments, **options)
        try:
            address = self._allowed.address_for(name, list(dict.fromkeys(str(one[4][0]) for one in found)))
        except NotAllowed as error:
            raise self._refuse(str(error)) from None
        self._addresses.add(address)
        return [one for one in found if one[4][0] == address]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _REFUSED:
            raise self._refuse("plugins that start a program are refused; use another service")
        if event in _CONNECTING and isinstance(arguments[-1], tuple) and arguments[-1][0] not in self._addresses:
            raise self._refuse(f"{arguments[-1][0]} is not an address of an allowed host")

    def _refuse(self, reason: str) -> OSError:
        self.refusals.append(reason)
        return OSError(reason)


class _Warnings(logging.Handler):
    """Collects the warnings of the library."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(" ".join(record.getMessage().split()))


def without_secrets(reasons: Sequence[str], url: str) -> str:
    """Return the reasons that contain no part of the URL, in one line."""
    parts = [part.lower() for part in re.split(r"[^A-Za-z0-9_.\-]+", url.partition("://")[2]) if len(part) >= 3]
    shown = [reason for reason in reasons if not any(part in reason.lower() for part in parts)]
    return "; ".join(dict.fromkeys(shown))[:_REASON_MAX] or "the service did not accept the message"


def send(request: dict[str, Any]) -> str | None:
    """Send the message of a request. Return the reason why it wasn't accepted. None if it was."""
    guard = Guard(AllowedHosts(request["allowed"], "STRANDLINE_NOTICE_HOSTS"), AllowedHosts(request["secret_hosts"]))
    import apprise  # an extra

    warnings = _Warnings()
    logger = logging.getLogger("apprise")
    logger.handlers, logger.propagate = [warnings], False
    target = apprise.Apprise.instantiate(request["url"], suppress_exceptions=True)
    if target is None:
        return "the secret is not a URL that Apprise knows; see the list of services in the documentation of Apprise"
    guard.install()
    if target.notify(body=request["body"], title=request["title"], body_format=apprise.NotifyFormat.TEXT):
        return None
    return guard.refusals[0] if guard.refusals else without_secrets(warnings.messages, request["url"])


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    try:
        error = send(request)
    except StrandlineError as refused:
        error = str(refused)
    except Exception as refused:  # noqa: BLE001  # edge of a process: its message can contain the URL
        error = f"the library failed with {type(refused).__name__}"
    print(json.dumps({"error": error}))


if __name__ == "__main__":
    main()
