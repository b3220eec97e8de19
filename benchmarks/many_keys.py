"""Cost of a job with very many open keys: `python -m benchmarks.many_keys --data-dir DIR [--keys 10000000]`, after
`strandline up --data-dir DIR --no-passwords --detach`.

The job has one tumbling window of an hour, by device, with a count and a mean. First each device has one record, which is written
to the log directly. When the job has processed all of them, records of random devices follow at a fixed rate, and the slices of
the job are measured. Then its runner is killed once for each `--recovery`, and the time to the next committed slice is measured.
No window closes meanwhile, so all keys stay open. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import numpy as np
from confluent_kafka import KafkaError, Message, Producer

from benchmarks.process_tree import cpu_by_role, memory_mb_by_role
from benchmarks.runners import runner_pid
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger

PARTITIONS, WINDOW_MS, LIMIT_S = 4, 3_600_000, 1_800.0
_LOOK_S = 0.1


def document(job: str, recovery: str) -> str:
    """Return the documents of the job and its stream."""
    return f"""
stream: {job}
partitions: {PARTITIONS}
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
retention: 7d
---
pipeline: {job}
input: {{stream: {job}}}
event_time: {{field: ts, delay: 10s, idle_timeout: null}}
recovery: {recovery}
placement: own
checkpoint: {{every: 1s}}
steps:
  - window: {{name: hour, tumbling: 1h, by: [device], aggregate: {{n: count(*), mean: avg(temp)}}}}
    emit: [{{elasticsearch: {job}-hour}}]
"""


class Sender:
    """Writes records to the log."""

    def __init__(self, bootstrap: str, topic: str, at_ms: int) -> None:
        """`at_ms`: event time of the records."""
        self._topic, self._at_ms, self._failures = topic, at_ms, list[KafkaError]()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "compression.type": "lz4", "log_level": 3}
        )

    def send(self, devices: Iterable[int]) -> None:
        """Write one record for each of these devices. Raises SystemExit if the log refuses one."""
        for number, device in enumerate(devices):
            name = f"device-{device:08d}"
            value = f'{{"device":"{name}","ts":{self._at_ms},"temp":{device % 50}}}'.encode()
            try:
                self._producer.produce(self._topic, value, name, device % PARTITIONS, on_delivery=self._confirmed)
            except BufferError:
                self._confirm()
                self._producer.produce(self._topic, value, name, device % PARTITIONS, on_delivery=self._confirmed)
            if number % 10_000 == 0:
                self._producer.poll(0)
        self._confirm()

    def _confirm(self) -> None:
        if self._producer.flush(60) or self._failures:
            raise SystemExit(f"the log doesn't take the records: {self._failures[:1] or 'no confirmation'}")

    def _confirmed(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failures.append(error)


class Bench:
    """One job of this benchmark."""

    def __init__(self, options: argparse.Namespace, settings: Settings) -> None:
        self.data_dir, self.job, self.options = options.data_dir, options.job, options
        self.control = httpx.Client(base_url=options.url, timeout=120, trust_env=False)
        self.ledger = Ledger.open(settings.ledger_url)

    def apply(self, recovery: str) -> None:
        """Apply the documents with this way to recover."""
        headers = {"content-type": "application/yaml"}
        body = document(self.job, recovery).encode()
        answer = self.control.post("/v1/documents", content=body, headers=headers)
        if answer.is_error:
            raise SystemExit(answer.text)

    def checkpoints(self, after: int) -> list[dict[str, Any]]:
        """Return the checkpoints of the slices after this one, oldest first."""
        query = {"limit": 500}
        found = self.control.get(f"/v1/jobs/{self.job}/checkpoints", params=query).raise_for_status().json()
        return sorted((one for one in found["checkpoints"] if one["slice"] > after), key=lambda one: one["slice"])

    def last_slice(self) -> int:
        """Return the number of the last committed slice. 0 if there is none."""
        found = self.checkpoints(0)
        return int(found[-1]["slice"]) if found else 0

    def pid(self) -> int:
        """Return the process that runs the job."""
        named = json.loads((self.data_dir / "pids.json").read_text())
        found = runner_pid({name: int(pid) for name, pid in named.items()}, self.ledger, self.job)
        if found is None:
            raise SystemExit(f"job {self.job} has no runner; see its log in {self.data_dir / 'logs'}")
        return found

    def wait(self, what: str, is_done: Callable[[], bool]) -> float:
        """Return the seconds until this is so."""
        began_s = time.monotonic()
        while not is_done():
            if time.monotonic() - began_s > LIMIT_S:
                raise SystemExit(f"after {LIMIT_S:g} s: not {what}")
            time.sleep(_LOOK_S)
        return time.monotonic() - began_s

    def wait_for_slice(self, what: str, after: int) -> float:
        """Return the seconds until a slice after this one is committed."""
        return self.wait(what, lambda: bool(self.checkpoints(after)))

    def wait_for_version(self, sender: Sender, after: int) -> None:
        """Wait until a slice of a later version than this one is committed. Slices need records."""

        def is_done() -> bool:
            sender.send(range(10))
            return bool(self.checkpoints(0)[-1]["version"] > after)

        self.wait("a slice of the new version", is_done)

    def records_committed(self) -> int:
        """Return the records of all committed slices."""
        return sum(int(one["records"]) for one in self.checkpoints(0))

    def live(self, sender: Sender, seconds: float) -> dict[str, Any]:
        """Send at the fixed rate, and measure the slices of this time."""
        before, pid = self.last_slice(), self.pid()
        cpu_s, began_s = sum(cpu_by_role(pid).values()), time.monotonic()
        drawn = np.random.default_rng(seed=int(began_s))
        peak_mb = 0.0
        for second in range(int(seconds)):
            time.sleep(max(0.0, began_s + second - time.monotonic()))
            sender.send(drawn.integers(0, self.options.keys, self.options.rate).tolist())
            peak_mb = max(peak_mb, sum(memory_mb_by_role(pid).values()))
        took_s = time.monotonic() - began_s
        cpu_s = sum(cpu_by_role(pid).values()) - cpu_s
        if self.pid() != pid:
            raise SystemExit(f"the runner of job {self.job} was replaced; see its log in {self.data_dir / 'logs'}")
        found = self.checkpoints(before)
        times_ms = [one["committed_ms"] for one in found]
        gaps = sorted((b - a) / 1_000 for a, b in itertools.pairwise(times_ms))
        delays = sorted((one["committed_ms"] - one["latest_log_ms"]) / 1_000 for one in found if one["latest_log_ms"])
        return {
            "records_per_s": round(self.options.rate * int(seconds) / took_s),
            "slices": len(found),
            "records": sum(int(one["records"]) for one in found),
            "cores": round(cpu_s / took_s, 3),
            "cpu_ms_per_slice": round(cpu_s * 1_000 / max(1, len(found))),
            "gap_p50_s": _percentile(gaps, 50),
            "gap_p99_s": _percentile(gaps, 99),
            "newest_record_to_commit_p50_s": _percentile(delays, 50),
            "newest_record_to_commit_p99_s": _percentile(delays, 99),
            "peak_mb": round(peak_mb),
            "mb": {role: round(mb) for role, mb in memory_mb_by_role(pid).items()},
        }

    def kill(self, sender: Sender) -> float:
        """Kill the runner while records come, and return the seconds until the next committed slice."""
        before, is_over = self.last_slice(), threading.Event()

        def send_on() -> None:
            drawn = np.random.default_rng(seed=before)
            while not is_over.wait(1.0):
                sender.send(drawn.integers(0, self.options.keys, self.options.rate).tolist())

        thread = threading.Thread(target=send_on)
        os.kill(self.pid(), signal.SIGKILL)
        thread.start()
        try:
            return self.wait_for_slice("a slice after the kill", before)
        finally:
            is_over.set()
            thread.join()


def _percentile(values: list[float], percent: int) -> float | None:
    return round(quantiles(values, n=100)[percent - 1], 2) if len(values) > 1 else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_keys", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="directory of the running stack")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="control service")
    parser.add_argument("--keys", type=int, default=10_000_000, help="number of open keys")
    parser.add_argument("--rate", type=int, default=2_000, help="records per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of the measurement")
    parser.add_argument("--job", default="many-keys", help="name of the job and its stream")
    parser.add_argument(
        "--recovery", action="append", choices=("snapshot", "rewind"), help="kills to measure (default: both)"
    )
    options = parser.parse_args()
    settings = Settings(data_dir=options.data_dir, ledger_url=f"sqlite:///{options.data_dir / 'ledger.sqlite'}")
    bench = Bench(options, settings)
    recoveries = options.recovery or ["snapshot", "rewind"]
    bench.apply(recoveries[0])
    now_ms = time.time_ns() // 1_000_000
    sender = Sender(settings.kafka_bootstrap, options.job, now_ms // WINDOW_MS * WINDOW_MS + 1)
    began_s = time.monotonic()
    sender.send(range(options.keys))
    print(f"{options.keys:,} records are in the log ({time.monotonic() - began_s:.0f} s)", file=sys.stderr)
    to_open_s = bench.wait("all keys open", lambda: bench.records_committed() >= options.keys)
    print(f"all keys are open ({to_open_s:.0f} s later)", file=sys.stderr)
    figures: dict[str, Any] = {"keys": options.keys, "to_open_s": round(to_open_s, 1)}
    for recovery in recoveries:
        if recovery != recoveries[0]:
            bench.apply(recovery)
            bench.wait_for_version(sender, bench.checkpoints(0)[-1]["version"])
        figures[recovery] = {"live": bench.live(sender, options.seconds)}
        print(json.dumps(figures), file=sys.stderr)  # in case that the recovery doesn't end
        figures[recovery]["after_kill_s"] = round(bench.kill(sender), 1)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
