"""Asks the ledger of a test through its `LedgerServer`. Imports next to nothing: a process that uses it starts at once."""

from __future__ import annotations

import json
import socket
from typing import Any


class Refused(Exception):
    """The ledger has fenced who asks."""


class LedgerCaller:
    """One connection. A name of `tests.support.ledger_server.Calls`, called here, is carried out there."""

    def __init__(self, port: int) -> None:
        self._lines = socket.create_connection(("127.0.0.1", port)).makefile("rw", encoding="utf-8")

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Raises Refused; ConnectionError when the call failed there in any other way."""
        self._lines.write(json.dumps([name, *arguments]) + "\n")
        self._lines.flush()
        line = self._lines.readline()
        if not line:
            raise ConnectionError(f"the ledger's server ended the connection at {name}")
        answer = json.loads(line)
        if answer["is_fenced"]:
            raise Refused
        return answer["result"]
