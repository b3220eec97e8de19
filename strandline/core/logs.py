"""Logging. A line is an event: a message and fields. Text by default, JSON by a setting."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO, cast

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
                message = f"{self._lost} log lines could not be written: {self._why}"
                message = json.dumps({"event": message, "level": "warning"}) if self._as_json else message
                self._stream.write(f"{message}\n")
                self._stream.flush()
                self._lost = 0
            self._stream.write(line)
            self._stream.flush()
        except OSError as error:
            self._lost += 1
            self._why = str(error)

    def flush(self) -> None:
        """Do nothing: lines aren't buffered."""


class JobLogs:
    """Renderer of structlog that writes the lines of each job to a file of its own: `runner-JOB.log`."""

    def __init__(self, renderer: structlog.typing.Processor, directory: Path) -> None:
        self._renderer, self._directory = renderer, directory

    def __call__(
        self, logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
    ) -> str | bytes | bytearray | tuple[Any, ...] | Mapping[str, Any]:
        """Return a line that belongs to no job. Raises DropEvent after a line is written to the file of its job."""
        job = event.get("job")
        line = self._renderer(logger, method, event)
        if not isinstance(job, str):
            return line
        try:
            with (self._directory / f"runner-{job}.log").open("a", encoding="utf-8") as file:
                file.write(f"{line!s}\n")
        except OSError:
            return line
        raise structlog.DropEvent


def configure_logs(*, as_json: bool, logs_of_jobs: Path | None = None) -> None:
    """Send the lines of structlog to stderr. Call it once, at the start of a process. With `logs_of_jobs`, the lines of a job go
    to a file in this directory."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    )
    if logs_of_jobs is not None:
        renderer = JobLogs(renderer, logs_of_jobs)
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
