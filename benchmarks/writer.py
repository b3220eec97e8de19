"""Cost of `LogWriter.append`: `python -m benchmarks.writer`.

Starts its own Kafka, and appends records of 121 bytes in one process. The figures are CPU-seconds per million records and the
duration of an append: for single records, for batches of 100, and for spoolable batches of 100. CPU time is of the whole
process, the event loop and librdkafka's threads. It includes the load generator, a loop that awaits `append`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import uvloop
from rich.console import Console

from benchmarks.servers import new_stack
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.spool import Spool
from strandline.ingest.append.writer import LogWriter
from strandline.log.topics import Topics

VALUE = (
    b'{"device":"device-0001","ts":1700000000000,"temperature":21.5,"humidity":44.0,"pressure":1013.2,"battery":3.71}'
).ljust(121)
ROUNDS = 3


async def measure(bootstrap: str, directory: Path, console: Console) -> None:
    """Print one line per round. A round's first appends are not counted."""
    spool = Spool(directory, bytes_max=1_000_000_000)
    async with LogWriter(
        bootstrap,
        writer_id="benchmark",
        epoch=int(time.time()),
        record_bytes_max=1_000_000,
        confirm_timeout_s=10.0,
        spool=spool,
    ) as writer:
        for name, topic, size, senders, appends, may_spool in (
            ("single records", "single", 1, 64, 500, False),
            ("batches of 100", "batched", 100, 16, 200, False),
            ("batches of 100 that may be spooled", "spoolable", 100, 16, 200, True),
        ):
            records = [(VALUE, None)] * size
            took_s: list[float] = []

            async def send(
                count: int, topic: str = topic, records: list[tuple[bytes, None]] = records, may_spool: bool = may_spool
            ) -> None:
                for _ in range(count):
                    began_s = time.perf_counter()
                    await writer.append(
                        topic,
                        records,
                        received_ms=time.time_ns() // 1_000_000,
                        source=b"http:127.0.0.1",
                        content_type=b"application/json",
                        may_spool=may_spool,
                    )
                    took_s.append(time.perf_counter() - began_s)  # noqa: B023  # noqa: B023  # read before the next round begins

            await send(20)
            for _ in range(ROUNDS):
                took_s.clear()
                cpu_s, began_s = time.process_time(), time.perf_counter()
                await asyncio.gather(*[send(appends) for _ in range(senders)])
                cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - began_s
                count = senders * appends * size
                took_s.sort()
                console.print(
                    f"{name}: {count / wall_s:,.0f} records/s, {1e6 * cpu_s / count:.1f} CPU-s per million, "
                    f"p50 {1e3 * took_s[len(took_s) // 2]:.1f} ms, p99 {1e3 * took_s[len(took_s) * 99 // 100]:.1f} ms",
                    highlight=False,
                    soft_wrap=True,
                )


def main() -> None:
    """Start a Kafka, measure, stop it."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="strandline-benchmark-") as directory:
        stack = new_stack(Path(directory) / "stack", console)
        try:
            bootstrap = stack.start_kafka()
            topics = Topics(bootstrap, replication=1, record_bytes_max=1_000_000)
            for topic in ("single", "batched", "spoolable"):
                topics.ensure_stream_topic(StreamSpec.from_document({"stream": topic, "schema": {"device": "string"}}))
            uvloop.run(measure(bootstrap, Path(directory), console))
        finally:
            stack.stop()


if __name__ == "__main__":
    main()
