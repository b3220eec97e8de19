"""Sends numbered records at a steady pace, in the order of their event time, while a test does something else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.support.platform import Platform
from tests.support.waiting import stretched

BATCH_RECORDS = 40


class SteadySender(threading.Thread):
    """Sends one request after the other, until it is stopped."""

    def __init__(self, platform: Platform, stream: str, line_of: Callable[[int], bytes]) -> None:
        """`line_of` makes the record of a number, counted from 0."""
        super().__init__(daemon=True)
        self.platform, self.stream, self.line_of = platform, stream, line_of
        self.sent, self.is_stopping = 0, False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_stopping:
                lines = [self.line_of(number) for number in range(self.sent, self.sent + BATCH_RECORDS)]
                assert self.platform.send(self.stream, lines) == BATCH_RECORDS
                self.sent += BATCH_RECORDS
                time.sleep(0.05)  # sleeps: the pace of this sender, which a job can keep up with
        except BaseException as error:  # noqa: BLE001  # re-raised in the test, which then fails
            self.error = error

    def end(self) -> None:
        self.is_stopping = True
        self.join(stretched(60))
        if self.error is not None:
            raise self.error
