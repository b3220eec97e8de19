"""The progress of an audit, as JSON lines on stdout for the control service."""

from __future__ import annotations

import json
from typing import Any


def tell(what: str, content: Any) -> None:
    """Write one line: `{what: content}`."""
    print(json.dumps({what: content}), flush=True)


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
