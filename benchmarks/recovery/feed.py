"""The load: `python -m benchmarks.recovery.feed`. Writes to Kafka directly at a fixed pace until SIGTERM.

It repeatedly writes to `--progress` the number of live records that it has passed to the client; at its end, the number in the
log.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from confluent_kafka import KafkaError, Message, Producer

from benchmarks.recovery.work import DEVICES, PRELOAD_DEVICES, RATE, Sent, preloaded_ms
from strandline.core.errors import LogUnavailable

_TICK_S = 0.01
_ROUND_RECORDS = 500
"""Number of preloaded records that are confirmed before the next are sent: 1.5 s of event time, less than the delay."""


class Feed:
    """The load's process, seen by the benchmark."""

    def __init__(self, bootstrap: str, stream: str, preload: int, directory: Path) -> None:
        self._progress = directory / f"{stream}.progress"
        self._preload = preload
        root = Path(__file__).parents[2]
        arguments = ["--bootstrap", bootstrap, "--stream", stream, "--preload", str(preload)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.recovery.feed", *arguments, "--progress", str(self._progress)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path[1:]])},
            cwd=root,
        )

    def sent(self) -> Sent:
        """Return the records that it has passed to the client. Raises RuntimeError if it has failed."""
        if self._process.poll():
            raise RuntimeError(f"the load ended with {self._process.returncode}")
        text = self._progress.read_text() if self._progress.exists() else ""
        return Sent(self._preload, json.loads(text) if text else 0)

    def end(self) -> Sent:
        """Stop it, and return the records in the log."""
        self._process.terminate()
        if self._process.wait(60) != 0:
            raise RuntimeError(f"the load ended with {self._process.returncode}")
        return self.sent()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--preload", type=int, required=True)
    parser.add_argument("--progress", type=Path, required=True)
    options = parser.parse_args()
    is_over = False
    failures: list[KafkaError] = []

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True

    def confirmed(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)

    def send(device: int, event_ms: int) -> None:
        name = f"device-{device:04d}"
        value = f'{{"device":"{name}","ts":{event_ms},"temp":{event_ms % 977 / 10}}}'
        producer.produce(options.stream, value.encode(), key=name.encode(), on_delivery=confirmed)

    def tell(count: int) -> None:
        new = options.progress.with_suffix(".new")
        new.write_text(json.dumps(count))
        new.replace(options.progress)

    signal.signal(signal.SIGTERM, end)
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 3,
        }
    )
    for number in range(options.preload):
        send(number % PRELOAD_DEVICES, preloaded_ms(number, options.preload))
        if number % _ROUND_RECORDS == _ROUND_RECORDS - 1:
            producer.flush()
    producer.flush()
    from_ms, began_s, count = Sent(options.preload, 0).live_from_ms, time.monotonic(), 0
    while not is_over:
        due = int((time.monotonic() - began_s) * RATE)
        for number in range(count, due):
            send(number % DEVICES, from_ms + number * 1_000 // RATE)
        count = due
        producer.poll(0)
        tell(count)
        time.sleep(_TICK_S)  # pace of the load
    if producer.flush(30) or failures:
        raise LogUnavailable(f"can't write the load: {failures[:1] or 'no confirmation'}")
    tell(count)


if __name__ == "__main__":
    main()
