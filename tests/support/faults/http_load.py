"""Senders over HTTP: keep-alive connections, NDJSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable

from tests.support.faults.load import LEFT, Batch, Left, Load, send_or_leave

_RECONNECT_S = 0.05
_REFUSED_PAUSE_S = 0.2
"""After an answer that is not a yes. Shorter than Retry-After asks for, so that an outage is felt by every client."""


class HttpLoad(Load):
    """Posts batches and reads each answer before the next."""

    async def send_all(self, client: str) -> None:
        connection: _Connection | None = None
        number, again = 0, None
        while not self.is_stopping or again:
            if connection is None:
                connection = await _connect(self.port())
                if connection is None:  # nothing was sent, so there is nothing to write down
                    if self.is_stopping:
                        return
                    await asyncio.sleep(_RECONNECT_S)  # sleeps: the pace of this sender
                    continue
            if again is None:
                number += 1
            batch = again or self.next_batch(client, number)
            request = self.history.invoke(client, batch)
            op, why = "info", "no answer in time"
            try:
                async with asyncio.timeout(self.answer_timeout_s):
                    op, why = await connection.post(self.stream, batch, self.leaves_after)
            except TimeoutError:
                connection.close()
                connection = None
            except Left:
                why, connection = LEFT, None
            except (OSError, asyncio.IncompleteReadError):
                why = "connection lost"
                connection.close()
                connection = None
            again = None
            if op == "ok":
                self.history.ok(request)
            else:
                (self.history.fail if op == "fail" else self.history.info)(request, why)
                again = batch if self.resends and not (self.is_stopping and op == "fail") else None
                if connection is not None:
                    await asyncio.sleep(_REFUSED_PAUSE_S)  # sleeps: the pace of this sender
            await self.pause(client)
        if connection is not None:
            connection.close()


async def _connect(port: int) -> _Connection | None:
    try:
        return _Connection(*await asyncio.open_connection("127.0.0.1", port))
    except OSError:
        return None


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def close(self) -> None:
        self._writer.transport.abort()

    async def post(self, stream: str, batch: Batch, leaves_after: Callable[[int], int | None]) -> tuple[str, str]:
        """Send the batch; return the outcome for the history, and why. Raises Left, OSError and IncompleteReadError."""
        body = b"\n".join(value for _, value in batch)
        head = (
            f"POST /v1/streams/{stream}/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        data = head.encode() + body
        with contextlib.suppress(OSError):  # an early answer is still there to be read
            await send_or_leave(self._writer, data, leaves_after(len(data)))
        status_line, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        answer = json.loads(await self._reader.readexactly(int(headers["content-length"])))
        status = int(status_line.split()[1])
        if status == 200:
            assert answer == {"accepted": len(batch)}, f"{answer} for {len(batch)} records"
            return "ok", ""
        why = f"{status} {answer.get('code')}"
        if status == 503 and int(headers.get("retry-after", 0)) < 1:
            why += " without Retry-After"
        # As the gateway promises: these leave it open, any other refusal says that nothing was persisted.
        is_open = status == 500 or (status == 503 and answer.get("code") == "log_unavailable")
        return ("info" if is_open else "fail"), why
