"""Measure how long results are delayed after a kill: `make bench-failover [KILLS=5]`.

For each ledger and each target it kills `KILLS` times. It prints, in seconds from the kill, when the next run starts
and when the first results of a new run are committed.

Two control services run with the default lease. There is a measurement without a warm standby and one with it, and its
memory (proportional set size) is printed too. The job's windows are 1 s long and the feed is small, so the failover is
measured, not the replay.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.runners import warm_standby
from strandline.core.settings import Settings
from strandline.services.embedded.stack import Stack
from tests.support.failover import Failover, Service, failover
from tests.support.ports import free_port_offset
from tests.support.postgresql import new_database, running_postgresql
from tests.support.waiting import wait_until

TARGETS = ("runner", "java", "leader")


@dataclass
class Times:
    """Seconds from each kill of one kind."""

    led: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    results: list[float] = field(default_factory=list)


def measure(stage: Failover, target: str, standbys: int) -> tuple[float, float, float]:
    """Kill once; return the seconds until there is a leader, a new run has started, and results are committed."""
    leader = wait_until(stage.leader, lambda one: one is not None, "led", 60)
    assert leader is not None
    for service in stage.services if standbys else ():
        _wait_for_warm_standby(stage, service)
    epoch = stage.wait_for_results(stage.ledger.job(stage.job).epoch).epoch
    runner = stage.runner(leader)
    pid = {"runner": lambda: runner, "java": lambda: stage.java_of(runner), "leader": lambda: leader.process.pid}
    killed_at = time.monotonic()
    os.kill(pid[target](), signal.SIGKILL)
    if target == "leader":
        leader.process.wait()
        wait_until(stage.leader, lambda now: now is not None and now is not leader, "led by another", 60)
    led_s = time.monotonic() - killed_at
    wait_until(lambda: stage.ledger.job(stage.job).epoch, lambda now: now > epoch, "a new run", 180)
    begun_s = time.monotonic() - killed_at
    stage.wait_for_results(epoch + 1)
    results_s = time.monotonic() - killed_at
    if target == "leader":
        stage.start_again(leader)
    return led_s, begun_s, results_s


def _wait_for_warm_standby(stage: Failover, service: Service) -> str:
    """Return the name of a warm standby, or of a warm pool without jobs."""
    found = wait_until(
        lambda: warm_standby(service.directory, service.pids(), stage.ledger),
        bool,
        f"a warm standby of {service.name}",
        180,
    )
    assert found is not None
    return found


def _standby_mb(stage: Failover, service: Service) -> float:
    """The proportional set size of a warm standby with its JVM and workers."""
    name = _wait_for_warm_standby(stage, service)
    kilobytes = 0
    for pid in service.family(f".{name}"):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kilobytes / 1024


@contextmanager
def _new_ledger(kind: str, directory: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{directory / 'ledger.sqlite'}"
    else:
        with running_postgresql() as server, new_database(server) as url:
            yield url


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=5, help="of each target, with each ledger, with and without standby"
    )
    parser.add_argument("--ledgers", nargs="+", default=["sqlite", "postgresql"], choices=["sqlite", "postgresql"])
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="strandline-failover-") as made:
        root = Path(made)
        servers = Stack(Settings(), root / "servers", free_port_offset(), console)
        try:
            kafka, elasticsearch = servers.start_kafka(), servers.start_elasticsearch()
            for ledger, standbys in itertools.product(options.ledgers, (0, 1)):
                place = root / f"{ledger}-{standbys}"
                place.mkdir()
                with _new_ledger(ledger, place) as url:
                    _measure_all(console, place, url, kafka, elasticsearch, ledger, standbys, options.kills)
        finally:
            servers.stop()
    return 0


def _measure_all(
    console: Console, place: Path, url: str, kafka: str, elasticsearch: str, ledger: str, standbys: int, kills: int
) -> None:
    job, environment = f"{ledger}-{standbys}", {"STRANDLINE_STANDBYS": str(standbys)}
    with failover(place, url, kafka, elasticsearch, job, **environment) as stage:
        stage.start_service()
        stage.start_service()
        stage.begin()
        if standbys:
            console.print(f"{ledger:10} a warm standby takes {_standby_mb(stage, stage.services[0]):,.0f} MB")
        for target in TARGETS:
            times = Times()
            for _ in range(kills):
                led_s, begun_s, results_s = measure(stage, target, standbys)
                times.led.append(led_s)
                times.begun.append(begun_s)
                times.results.append(results_s)
            _print(console, ledger, standbys, target, times)
        console.print(f"{ledger:10} standbys {standbys}  {stage.check()} results: all right, none missing, none twice")


def _print(console: Console, ledger: str, standbys: int, target: str, times: Times) -> None:
    def of(values: list[float]) -> str:
        return f"median {statistics.median(values):5.1f}  worst {max(values):5.1f}"

    console.print(
        f"{ledger:10} standbys {standbys}  {target:6} killed {len(times.results)} times, seconds until: "
        f"led {of(times.led)}   run begun {of(times.begun)}   results {of(times.results)}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main())
