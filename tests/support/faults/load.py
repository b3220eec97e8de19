"""Senders that record their actions. There is one class per protocol; common code is here.

A sender never resends a record: it continues with new ones, so that duplicates in the topic were written by the
gateway. With `resends` it repeats records with an unknown outcome, under the same ids, until they are acknowledged.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from tests.support.faults.checker import id_of
from tests.support.faults.history import History

Batch = list[tuple[str, bytes]]
"""Record id and value."""

RECORD_BYTES = 121
LEFT = "left before the answer"
"""Why the outcome of a request is unknown, in the history."""
_STOP_TIMEOUT_S = 60.0
_runs = itertools.count(1)


class Load(ABC):
    """Clients that send from `start` to `stop`, each one batch after the other, in one thread of their own."""

    can_leave: ClassVar[bool] = True
    """True if there is a connection that a client can cut."""
    hears: ClassVar[bool] = True
    """True if answers say that records are in the log."""
    id_of: ClassVar[Callable[[bytes], str | None]] = staticmethod(id_of)
    """Returns the id of a record from its bytes. None if it has none."""

    def __init__(
        self,
        history: History,
        port: Callable[[], int],
        stream: str,
        *,
        clients: int = 8,
        batch_records_max: int = 10,
        record_bytes: int = RECORD_BYTES,
        pause_s: float = 0.0,
        resends: bool = False,
        leave_chance: float = 0.0,
        answer_timeout_s: float = 40.0,
        seed: int = 0,
    ) -> None:
        """Args:
        - port: Called for every connection.
        - pause_s: Seconds between two requests of one client.
        - leave_chance: Probability that a client cuts its connection after it has sent a batch or a part of it, before
          it has an answer.
        """
        self.history = history
        self.port = port
        self.stream = stream
        self.pause_s = pause_s
        self.resends = resends
        self.answer_timeout_s = answer_timeout_s
        self.is_stopping = False
        self.error: BaseException | None = None
        self._leave_chance = leave_chance
        self._clients = clients
        self._batch_records_max = batch_records_max
        self._record_bytes = record_bytes
        self._random = random.Random(seed)
        self._noise = base64.b64encode(self._random.randbytes(2 * record_bytes + 4_096))  # nothing to compress
        self._run_name = f"r{next(_runs)}"
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when every client has its last answer or has stopped waiting. Raises errors of a sender itself."""
        self.is_stopping = True
        self._thread.join(self.answer_timeout_s + _STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), "the senders hang"
        if self.error is not None:
            raise self.error

    @abstractmethod
    async def send_all(self, client: str) -> None:
        """One client's life: batch after batch until `is_stopping`, a new connection whenever the old one is gone."""

    def next_batch(self, client: str, number: int) -> Batch:
        """New records, of which the client is the key; `number` is its own count of batches."""
        batch = []
        for n in range(self._random.randint(1, self._batch_records_max)):
            record_id = f"{client}-{number}-{n}"
            value = b'{"id":"%s","client":"%s","n":%d,"pad":""}' % (record_id.encode(), client.encode(), number)
            start = self._random.randrange(4_096)
            pad = self._noise[start : start + max(0, self._record_bytes - len(value))]
            batch.append((record_id, value[:-2] + pad + b'"}'))
        return batch

    async def pause(self, client: str) -> None:
        """Wait before the client's next request."""
        if self.pause_s:
            await asyncio.sleep(self.pause_s)  # sleeps: the pace of this sender

    def leaves_after(self, bytes_all: int) -> int | None:
        """Return the number of bytes of a batch after which the client disconnects. None if it stays."""
        if self._random.random() >= self._leave_chance:
            return None
        return self._random.choice((bytes_all, bytes_all, self._random.randrange(bytes_all)))

    def _run(self) -> None:
        async def run() -> None:
            async with asyncio.TaskGroup() as clients:
                for number in range(self._clients):
                    clients.create_task(self.send_all(f"{self._run_name}-{number}"))

        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001  # passed to the thread that stops the load
            self.error = error


class Left(Exception):
    """The client has cut its connection."""


async def send_or_leave(writer: asyncio.StreamWriter, data: bytes, leaves_after: int | None) -> None:
    """Send the bytes. Raises Left when the client leaves, which it does as soon as its bytes are on their way."""
    if leaves_after is None:
        writer.write(data)
        await writer.drain()
        return
    writer.write(data[:leaves_after])
    await asyncio.sleep(0)
    writer.close()
    raise Left
