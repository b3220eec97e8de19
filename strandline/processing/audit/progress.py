"""The progress of an audit, as JSON lines on stdout for the control service."""

from __future__ import annotations

import json
import os
from typing import Any, TextIO

_messages: TextIO | None = None
"""Where they go; None: to stdout as it is."""


def keep_stdout() -> None:
    """From here on only messages go to stdout, in a line each. What anything else prints there, such as a function of a user's
    package, goes to stderr: among messages it would be taken for one, or tear one in two. Call once, at the start of a process.
    """
    global _messages
    _messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def tell(what: str, content: Any) -> None:
    """Write one line: `{what: content}`."""
    print(json.dumps({what: content}), file=_messages, flush=True)


class Progress:
    """One step of an audit; written at its start and whenever a part is done."""

    def __init__(self, step: str, total: int = 0) -> None:
        """`total`: its parts; 0 while that is unknown."""
        self._step, self._done, self._total = step, 0, total
        self._tell()

    def advance(self) -> None:
        """One more part is done."""
        self._done += 1
        self._tell()

    def _tell(self) -> None:
        tell("progress", {"step": self._step, "done": self._done, "total": self._total})
