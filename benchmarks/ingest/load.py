"""Common parts of the loads. Each is a separate process that the benchmark starts, and prints a Load."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.process_tree import machine_cpu_s, tree_cpu_s
from strandline.services.embedded.preflight import is_free

WARM_UP_S = 3.0
TICK_S = 0.001
"""Interval in seconds at which a load with a rate checks for due requests."""
ANSWERS_WAIT_S = 30.0
"""Maximum time in seconds that a load waits for its last responses."""
ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 300


class Costs(NamedTuple):
    """CPU-seconds up to now."""

    gateway: float
    kafka: float
    load: float
    machine: float

    @classmethod
    def read(cls, gateway_pid: int, kafka_pid: int) -> Costs:
        """Read the CPU time of these process trees, of this process, and of the whole machine."""
        kafka = tree_cpu_s(kafka_pid) if kafka_pid else 0.0
        return cls(tree_cpu_s(gateway_pid), kafka, time.process_time(), machine_cpu_s())


@dataclass(frozen=True)
class Load:
    """Counts and costs of the measured time, after the warm-up."""

    records: int
    """Records that were acknowledged in the measured time."""
    seconds: float
    failed: int
    """Requests or messages with another response or none, in the whole run."""
    first_failure: str
    """First unexpected response."""
    gateway_cpu_s: float
    kafka_cpu_s: float
    load_cpu_s: float
    other_cpu_s: float
    """CPU time of all other programs of the machine in the same time, which the measurement did not get."""
    latency_p50_s: float
    latency_p99_s: float
    records_whole_run: int
    """Acknowledged records, including the warm-up. The topic contains at least this number."""

    @classmethod
    def of(
        cls,
        *,
        records: int,
        records_whole_run: int,
        seconds: float,
        failed: int,
        first_failure: str,
        before: Costs,
        after: Costs,
        latencies_s: array[float],
    ) -> Load:
        gateway, kafka, load, machine = (b - a for a, b in zip(before, after, strict=True))
        p50_s, p99_s = np.percentile(np.frombuffer(latencies_s), (50, 99)) if latencies_s else (0.0, 0.0)
        return cls(
            records=records,
            seconds=seconds,
            failed=failed,
            first_failure=first_failure,
            gateway_cpu_s=gateway,
            kafka_cpu_s=kafka,
            load_cpu_s=load,
            other_cpu_s=max(0.0, machine - gateway - kafka - load),
            latency_p50_s=float(p50_s),
            latency_p99_s=float(p99_s),
            records_whole_run=records_whole_run,
        )

    def print(self) -> None:
        print(json.dumps(asdict(self)))


def load_parser() -> argparse.ArgumentParser:
    """Return a parser with the common options of loads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="records per second; 0: as fast as responses arrive")
    parser.add_argument("--warm-up-s", type=float, default=WARM_UP_S)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--gateway-pid", type=int, required=True)
    parser.add_argument("--kafka-pid", type=int, default=0)
    return parser


def run_module(module: str, arguments: Sequence[str]) -> str:
    """Run the module to its end, and return its output. Raises RuntimeError."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def run_load(module: str, arguments: Sequence[str]) -> Load:
    return Load(**json.loads(run_module(module, arguments)))


def full_and_half(module: str, arguments: Sequence[str]) -> tuple[Load, Load]:
    """Run the load at full speed, and then at half of the reached rate."""
    full = run_load(module, arguments)
    return full, run_load(module, [*arguments, "--rate", str(full.records / full.seconds / 2)])


def ceiling(responder: str, responder_arguments: Sequence[str], load: str, arguments: Sequence[str]) -> float:
    """Return the records per second that the load reaches with a responder that does no work."""
    port = str(next(port for port in range(23_100, 32_000) if is_free(port)))
    process = subprocess.Popen([sys.executable, "-m", responder, port, *responder_arguments], cwd=ROOT)
    try:
        deadline_s = time.monotonic() + 30
        while is_free(int(port)):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{responder} did not start")
            time.sleep(0.05)
        reached = run_load(load, [*arguments, "--port", port, "--warm-up-s", "1", "--gateway-pid", str(process.pid)])
        return reached.records / reached.seconds
    finally:
        process.kill()
        process.wait()


def require_complete(name: str, loads: Sequence[Load], logged: int) -> None:
    """Raise RuntimeError unless all records were acknowledged, and the topic contains exactly these."""
    acknowledged, failed = sum(load.records_whole_run for load in loads), sum(load.failed for load in loads)
    if failed or logged != acknowledged:
        first = next((load.first_failure for load in loads if load.first_failure), "none")
        raise RuntimeError(
            f"{name}: {acknowledged} records were acknowledged and {logged} are in the topic; {failed} attempts failed, "
            f"the first with: {first[-300:]}"
        )
