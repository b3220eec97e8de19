"""Logging. A line is an event: a message and fields. Text by default, JSON by a setting."""

from __future__ import annotations

import json
import logging
import sys
from typing import TextIO, cast

import structlog


class LossyStream:
    """Stream that writes lines to `stream` and never fails. A line that can't be written, for example to a full disk, is lost.
    After lost lines, the next line reports their number."""

    def __init__(self, stream: TextIO, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json
        self._lost = 0
        self._why = ""

    def write(self, line: str) -> None:
        """Write one or several lines, with their ends."""
        try:
            if self._lost:
                told = f"{self._lost} log lines could not be written: {self._why}"
                told = json.dumps({"event": told, "level": "warning"}) if self._as_json else told
                self._stream.write(f"{told}\n")
                self._stream.flush()
                self._lost = 0
            self._stream.write(line)
            self._stream.flush()
        except OSError as error:
            self._lost += 1
            self._why = str(error)

    def flush(self) -> None:
        """Do nothing: lines aren't buffered."""


def configure_logs(*, as_json: bool) -> None:
    """Send the lines of structlog to stderr. Call it once, at the start of a process."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, LossyStream(sys.stderr, as_json))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
