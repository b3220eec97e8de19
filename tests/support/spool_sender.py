"""A process that appends numbers to a stream that may be spooled, and says which ones were accepted, until it is killed.

`python -m tests.support.spool_sender BOOTSTRAP TOPIC DATA_DIR FIRST PAUSE_S`; with a PAUSE_S below zero it sends nothing,
drains the spool and ends.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import structlog

from strandline.core.errors import LogUnavailable
from strandline.ingest.append.spool import Spool
from strandline.ingest.append.writer import LogWriter
from strandline.ingest.append.writer_identity import WriterIdentity

KEYS = 7


async def send(bootstrap: str, topic: str, data_dir: Path, first: int, pause_s: float) -> None:
    identity = WriterIdentity.take(data_dir, f"sender-{topic}")
    spool = Spool(identity.directory, bytes_max=100_000_000)
    async with LogWriter(
        bootstrap,
        writer_id=identity.writer_id,
        epoch=identity.epoch,
        record_bytes_max=1_000_000,
        confirm_timeout_s=1.5,
        spool=spool,
    ) as writer:

        async def append(number: int) -> None:
            records = [(b"%d" % (number + i), b"key-%d" % ((number + i) % KEYS)) for i in range(5)]
            try:
                accepted = await writer.append(
                    topic, records, received_ms=1, source=b"test", content_type=b"text/plain", may_spool=True
                )
            except LogUnavailable as error:
                print("refused", number, error, flush=True)
            else:
                print("accepted", number, accepted.value, flush=True)

        print("ready", flush=True)
        if pause_s < 0:
            while spool.records:  # noqa: ASYNC110  # the spool has no bell
                await asyncio.sleep(0.02)  # sleeps: the test that reads "drained" has the limit
            print("drained", flush=True)
            return
        tasks: set[asyncio.Task[None]] = set()
        while True:
            task = asyncio.create_task(append(first))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            first += 5
            await asyncio.sleep(pause_s)  # sleeps: the pace of this sender


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(send(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
