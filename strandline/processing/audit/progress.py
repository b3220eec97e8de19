"""The progress of an audit, as JSON lines on stdout for the control service."""

from __future__ import annotations

import json
import os
from typing import Any, TextIO

_messages: TextIO | None = None
"""Output of the messages. None for stdout, as it is."""


def keep_stdout() -> None:
    """Write only messages to stdout from now on, one per line. Call once, at the start of a process.

    All other output, for example of a function of a package, goes to stderr. Otherwise it could be read as a message, or divide
    one.
    """
    global _messages
    _messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def write_message(what: str, content: Any) -> None:
    """Write one line: `{what: content}`."""
    print(json.dumps({what: content}), file=_messages, flush=True)


class Progress:
    """One step of an audit. Written at its start, and when a part is done."""

    def __init__(self, step: str, total: int = 0) -> None:
        """`total`: number of parts; 0 while it is unknown."""
        self._step, self._done, self._total = step, 0, total
        self._write()

    def advance(self) -> None:
        """Count one more part as done."""
        self._done += 1
        self._write()

    def _write(self) -> None:
        write_message("progress", {"step": self._step, "done": self._done, "total": self._total})
