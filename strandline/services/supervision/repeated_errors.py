"""Errors that repeat at each poll, several times per second. Each is logged once, and its end too."""

from __future__ import annotations

import structlog


class RepeatedErrors:
    """Actions that have failed and not worked since. For one thread."""

    def __init__(self, logger: structlog.stdlib.BoundLogger) -> None:
        self._logger = logger
        self._failing: dict[tuple[str, str], type[Exception]] = {}
        """(action, job) -> class of the last logged error."""

    def failed(self, message: str, error: Exception, *, action: str, job: str = "") -> None:
        """Log the error, unless the last line about this action is an error of the same class."""
        if self._failing.get((action, job)) is not type(error):
            self._failing[action, job] = type(error)
            self._logger.error(message, action=action, error=str(error), **_fact(job))

    def worked(self, message: str, *, action: str, job: str = "") -> None:
        """Log that the action works again, if it had failed."""
        if self._failing.pop((action, job), None) is not None:
            self._logger.info(message, action=action, **_fact(job))


def _fact(job: str) -> dict[str, str]:
    return {"job": job} if job else {}
