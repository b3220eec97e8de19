"""Senders over TCP: one record a line, and `ok N` when everything up to the Nth of the connection is confirmed."""

from __future__ import annotations

import asyncio

from tests.support.faults.load import LEFT, Batch, Left, Load, send_or_leave

_RECONNECT_S = 0.05


class TcpLoad(Load):
    """Sends a batch of lines and waits until all of them are confirmed."""

    async def send_all(self, client: str) -> None:
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        number = sent = 0
        again: Batch = []
        while not self.is_stopping or again:
            if streams is None:
                try:
                    streams, sent = await asyncio.open_connection("127.0.0.1", self.port()), 0
                except OSError:
                    if self.is_stopping:
                        return
                    await asyncio.sleep(_RECONNECT_S)  # sleeps: the pace of this sender
                    continue
            if not again:
                number += 1
            batch = again or self.next_batch(client, number)
            request = self.history.invoke(client, batch)
            why = "no ok in time"
            try:
                async with asyncio.timeout(self.answer_timeout_s):
                    sent += len(batch)
                    why = await self._send(*streams, batch, sent)
            except TimeoutError:
                pass
            except Left:
                why = LEFT
            except (OSError, EOFError):
                why = "connection lost"
            if why:
                self.history.info(request, why)
                streams[1].transport.abort()
                streams = None
            else:
                self.history.ok(request)
            again = batch if why and self.resends else []
            if streams is None:
                await asyncio.sleep(_RECONNECT_S)  # sleeps: the pace of this sender
            else:
                await self.pause(client)
        if streams is not None:
            streams[1].transport.abort()

    async def _send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, batch: Batch, count: int) -> str:
        """Return nothing when `ok COUNT` has come, or why it won't. Raises Left, OSError and EOFError."""
        data = b"".join(value + b"\n" for _, value in batch)
        leaves_after = self.leaves_after(len(data))
        if leaves_after is not None:  # a line without its end would be a record too, and none of ours
            leaves_after = data.rfind(b"\n", 0, leaves_after) + 1
        await send_or_leave(writer, data, leaves_after)
        while True:
            line = (await reader.readuntil(b"\n")).decode().strip()
            word, *rest = line.split(" ", 2)
            if word == "ok" and int(rest[0]) == count:
                return ""
            if word not in ("ok", "refused"):
                return " ".join(line.split(" ")[:2])
            assert word != "refused", f"a good record was refused: {line}"
