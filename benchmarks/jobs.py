"""Cost of many small jobs: `python -m benchmarks.jobs --data-dir DIR --jobs 100`, after `strandline up --data-dir DIR --detach`.

Applies jobs with windows of 10 s, and sends 20 records per second to each by HTTP. Measures memory and CPU time of all processes
of the stack, and the growth of its ledger. Also measures the time from apply to running, the age of the newest result, and the
time to stop. The jobs share pools, as the setting `STRANDLINE_JOBS_PER_POOL` of the stack says. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx

from benchmarks.process_tree import cpu_by_role, memory_mb_by_role
from benchmarks.stack_memory import parents
from strandline.services.supervision.pools import POOL_NAME

WINDOW_MS, DELAY_MS, DEVICES = 10_000, 1_000, 10
LOOK_S, LOOK_S_PER_JOB, SENDERS, RECOVERY_S_MAX = 0.25, 0.01, 16, 300.0
KILL_AT_S = 0.5
"""Time of a kill after the end of a window."""
SERVERS = ("kafka", "elasticsearch", "mqtt", "watcher")


def document(job: str) -> str:
    """Return the documents of one job and its stream."""
    return f"""
stream: of-{job}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
---
pipeline: {job}
input: {{stream: of-{job}}}
event_time: {{field: ts, delay: {DELAY_MS}ms}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*), mean: avg(temp)}}}}
    emit: [{{elasticsearch: {job}-tens}}]
"""


def trees(data_dir: Path) -> dict[str, list[int]]:
    """Return the processes of the stack: `pool`, `runners`, `control`, `gateways`, and each server. A process that has another
    one of the stack as ancestor belongs to its own part only."""
    named = json.loads((data_dir / "pids.json").read_text())
    found: dict[str, list[int]] = {}
    for name, pid in named.items():
        part = "pool" if name.startswith(POOL_NAME) else name.partition("-")[0] if "-" in name else name
        found.setdefault(part, []).append(int(pid))
    return found


def oldest_pool(data_dir: Path) -> list[int]:
    """Return the process of the pool that was started first: the newest one is the spare."""
    named = {name: pid for name, pid in json.loads((data_dir / "pids.json").read_text()).items() if POOL_NAME in name}
    return [int(named[min(named, key=lambda name: int(name.removeprefix(POOL_NAME)))])]


def used(data_dir: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return CPU-seconds and MiB of each part."""
    pids = trees(data_dir)
    above, all_of_them = parents(), {pid for found in pids.values() for pid in found}
    cpu_s: dict[str, float] = {}
    memory_mb: dict[str, float] = {}
    for part, found in pids.items():
        for pid in found:
            # A part below another one would count twice.
            inner = [other for other in all_of_them if above.get(other) == pid]
            cpu_s[part] = cpu_s.get(part, 0.0) + sum(cpu_by_role(pid).values())
            memory_mb[part] = memory_mb.get(part, 0.0) + sum(memory_mb_by_role(pid).values())
            for other in inner:
                cpu_s[part] -= sum(cpu_by_role(other).values())
                memory_mb[part] -= sum(memory_mb_by_role(other).values())
    return cpu_s, memory_mb


def ledger_bytes(data_dir: Path) -> int:
    """Return the used bytes of the ledger of the stack, without free pages."""
    with closing(sqlite3.connect(f"file:{data_dir / 'ledger.sqlite'}?mode=ro", uri=True)) as ledger:
        (pages,), (free,), (size,) = (
            ledger.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


class Bench:
    """The jobs of one measurement."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.control = httpx.Client(base_url=options.url, timeout=120, trust_env=False)
        self.gateway = httpx.Client(base_url=options.gateway, timeout=30, trust_env=False)
        netrc = options.data_dir / "passwords" / "netrc"
        auth = httpx.NetRCAuth(str(netrc)) if netrc.exists() else None
        self.index = httpx.Client(base_url=options.elasticsearch, timeout=30, trust_env=False, auth=auth)
        self.jobs = [f"{options.prefix}{number}" for number in range(options.jobs)]
        self.prefix, self.rate = options.prefix, options.rate
        self.first_seen_s: dict[tuple[str, int], float] = {}
        """Job and end of a window -> time at which its result was first seen."""

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the jobs of this measurement."""
        jobs = self.control.get("/v1/jobs").raise_for_status().json()
        found = jobs["jobs"] if isinstance(jobs, dict) else jobs
        return {job["name"]: job for job in found if job["name"] in self.jobs}

    def wait_for(self, state: str, among: list[str], limit_s: float = 900.0) -> float:
        """Return the seconds until all these jobs have the state."""
        began_s = time.monotonic()
        while True:
            states = self.states()
            if all(states.get(job, {}).get("state") == state for job in among):
                return time.monotonic() - began_s
            if time.monotonic() - began_s > limit_s:
                raise SystemExit(
                    f"the jobs are not {state} after {limit_s:g} s: {[one['state'] for one in states.values()]}"
                )
            time.sleep(0.1)

    def apply(self, job: str) -> float:
        """Apply the documents of a job, and return the seconds of the request."""
        began_s = time.monotonic()
        self.apply_text(document(job))
        return time.monotonic() - began_s

    def apply_text(self, text: str) -> None:
        """Apply these documents."""
        headers = {"content-type": "application/yaml"}
        self.control.post("/v1/documents", content=text.encode(), headers=headers).raise_for_status()

    def send(self, job: str) -> None:
        """Send the records of one second."""
        now_ms = time.time_ns() // 1_000_000
        lines = [
            json.dumps({"device": f"d{at % DEVICES}", "ts": now_ms - 1_000 + at * 1_000 // self.rate, "temp": at % 50})
            for at in range(self.rate)
        ]
        self.send_lines(job, lines)

    def send_lines(self, job: str, lines: Sequence[str]) -> None:
        """Send records to the stream of the job."""
        headers = {"content-type": "application/x-ndjson"}
        body = "\n".join(lines).encode()
        while True:
            answer = self.gateway.post(f"/v1/streams/of-{job}/records", content=body, headers=headers)
            if answer.status_code not in (429, 503):
                answer.raise_for_status()
                return
            time.sleep(0.5)  # the gateway asks for a repetition

    def look(self) -> None:
        """Note which windows have results now."""
        last = {"max": {"field": "window.end"}}
        query = {"size": 0, "aggs": {"of": {"terms": {"field": "_index", "size": 2_000}, "aggs": {"last": last}}}}
        answer = self.index.post(f"/{self.prefix}*-tens*/_search", json=query)
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return  # the first index has just been created
        answer.raise_for_status()
        seen_s = time.time()
        for bucket in answer.json().get("aggregations", {}).get("of", {}).get("buckets", []):
            if bucket["last"]["value"] is not None:
                self.first_seen_s.setdefault((bucket["key"], int(bucket["last"]["value"])), seen_s)

    def run(self, seconds: float) -> float:
        """Send to all jobs, each once per second, and look for results all the time. Return the records that were sent per second
        and job."""
        began_s = time.monotonic()
        is_over = threading.Event()

        def look_on() -> None:
            # Each search reads the indices of all jobs. With 100 jobs, 4 searches per second would take a fifth of a core.
            while not is_over.wait(max(LOOK_S, LOOK_S_PER_JOB * len(self.jobs))):
                self.look()

        sent = 0
        with ThreadPoolExecutor(SENDERS + 1) as threads:
            looking = threads.submit(look_on)
            try:
                for second in range(int(seconds)):
                    time.sleep(max(0.0, began_s + second - time.monotonic()))
                    list(threads.map(self.send, self.jobs))
                    sent += self.rate
                time.sleep(max(0.0, began_s + seconds - time.monotonic()))
            finally:
                is_over.set()
                looking.result()
        return sent / (time.monotonic() - began_s)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send to all jobs, each once per second, until the end of the block."""
        is_over = threading.Event()

        def send_on() -> None:
            began_s = time.monotonic()
            with ThreadPoolExecutor(SENDERS) as threads:
                for second in itertools.count(1):
                    list(threads.map(self.send, self.jobs))
                    if is_over.wait(max(0.0, began_s + second - time.monotonic())):
                        return

        with ThreadPoolExecutor(1) as sender:
            sent = sender.submit(send_on)
            try:
                yield
            finally:
                is_over.set()
                sent.result()

    def recover(self, data_dir: Path) -> dict[str, Any]:
        """Kill the pool with jobs while the spare pool is warm, and go on sending. Return the parts of the recovery in seconds
        since the kill: for all jobs the first, the median, and the last."""
        with self.sending():
            spare = wait_for_spare(data_dir)
            # Results are due about one second later: the records that close the window arrive by then.
            time.sleep((KILL_AT_S - time.time()) % (WINDOW_MS / 1_000))
            before = slowest_age_s(data_dir, self.jobs)
            killed_ms = time.time() * 1_000
            for pid in oldest_pool(data_dir):
                os.kill(pid, signal.SIGKILL)
            limit_s = time.monotonic() + RECOVERY_S_MAX
            while time.monotonic() < limit_s:
                time.sleep(LOOK_S)
                parts = parts_of_recovery(data_dir, self.jobs, killed_ms)
                if len(parts["first_result"]) == len(self.jobs):
                    break
        missing = sorted(set(self.jobs) - parts["first_result"].keys())
        if missing:
            print(f"after {RECOVERY_S_MAX:g} s, these jobs have no new result: {missing}", file=sys.stderr)
        figures = {
            part: {"jobs": len(times)} | {name: round(pick(times.values()), 1) for name, pick in PICKS.items()}
            for part, times in parts.items()
            if times
        }
        return {"spare": spare, "newest_result_before_s": before} | figures


PICKS: dict[str, Callable[[Iterable[float]], float]] = {"first": min, "p50": median, "last": max}


def wait_for_spare(data_dir: Path, limit_s: float = 300.0) -> str:
    """Wait until a pool without jobs is warm, as its log says, and return its name. Otherwise, the recovery would contain the
    start of Spark."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < limit_s:
        names: list[str] = [
            name for name in json.loads((data_dir / "pids.json").read_text()) if name.startswith(POOL_NAME)
        ]
        for name in sorted(names, key=lambda one: int(one.removeprefix(POOL_NAME)))[1:]:
            log = data_dir / "logs" / f"{name}.log"
            if log.exists() and "standing by" in log.read_text(encoding="utf-8"):
                return name
        time.sleep(LOOK_S)
    raise SystemExit(f"no spare pool is warm after {limit_s:g} s; is STRANDLINE_STANDBYS=0?")


def slowest_age_s(data_dir: Path, jobs: Sequence[str]) -> float:
    """Return the seconds since the last checkpoint with results, of the job with the oldest one."""
    newest = _times(data_dir, _NEWEST_RESULTS, 0.0)
    return round(time.time() - min(newest[job] for job in jobs), 1)


_NEWEST_RESULTS = (
    "SELECT job, MAX(committed_ms) FROM checkpoints WHERE json_extract(results, '$.tens') > 0 GROUP BY job"
)
_PARTS = {
    "noticed": "SELECT job, MIN(at_ms) FROM events WHERE kind = 'runner_died' AND at_ms > :from_ms GROUP BY job",
    "run_began": "SELECT job, MIN(started_ms) FROM runs WHERE started_ms > :from_ms GROUP BY job",
    "prepared": "SELECT job, MIN(at_ms) FROM events WHERE kind = 'run_begins' AND at_ms > :from_ms GROUP BY job",
    "first_slice": "SELECT job, MIN(committed_ms) FROM checkpoints WHERE committed_ms > :from_ms GROUP BY job",
    "first_result": (
        "SELECT job, MIN(committed_ms) FROM checkpoints WHERE committed_ms > :from_ms AND json_extract(results, '$.tens') > 0 "
        "GROUP BY job"
    ),
}
"""Part of a recovery -> query of its time for each job. A checkpoint is committed when its results are stored."""


def parts_of_recovery(data_dir: Path, jobs: Sequence[str], killed_ms: float) -> dict[str, dict[str, float]]:
    """Return part -> job -> seconds since the kill, for the jobs that have reached it."""
    found = {part: _times(data_dir, query, killed_ms) for part, query in _PARTS.items()}
    return {part: {job: times[job] for job in jobs if job in times} for part, times in found.items()}


def _times(data_dir: Path, query: str, from_ms: float) -> dict[str, float]:
    """Return job -> seconds from `from_ms` to the time that the query returns."""
    with closing(sqlite3.connect(f"file:{data_dir / 'ledger.sqlite'}?mode=ro", uri=True, timeout=30)) as ledger:
        return {job: (at_ms - from_ms) / 1_000 for job, at_ms in ledger.execute(query, {"from_ms": from_ms})}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="directory of the running stack")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="control service")
    parser.add_argument("--gateway", default="http://127.0.0.1:8081", help="HTTP gateway")
    parser.add_argument("--elasticsearch", default="http://127.0.0.1:9200", help="Elasticsearch")
    parser.add_argument("--jobs", type=int, default=10, help="number of jobs")
    parser.add_argument("--rate", type=int, default=20, help="records per second of each job")
    parser.add_argument("--warm-up", type=float, default=40.0, help="seconds before the measurement")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of the measurement")
    parser.add_argument("--prefix", default="many-", help="beginning of the names of the jobs")
    parser.add_argument(
        "--kill", action="store_true", help="at the end, kill the pool with jobs, and measure the parts of the recovery"
    )
    options = parser.parse_args()
    bench = Bench(options)
    began_s = time.monotonic()
    for job in bench.jobs:
        bench.apply(job)
    applied_s = time.monotonic() - began_s
    bench.wait_for("running", bench.jobs)
    all_running_s = time.monotonic() - began_s
    bench.run(options.warm_up)
    one_more = f"{options.prefix}{options.jobs}"
    bench.jobs.append(one_more)
    in_apply_s = bench.apply(one_more)
    to_running_s = bench.wait_for("running", [one_more])
    (cpu_before, _), at_s = used(options.data_dir), time.monotonic()
    from_ms, ledger_before = time.time() * 1_000, ledger_bytes(options.data_dir)
    rate = bench.run(options.seconds)
    (cpu_after, memory_mb), seconds = used(options.data_dir), time.monotonic() - at_s
    ledger_per_day = (ledger_bytes(options.data_dir) - ledger_before) / seconds * 86_400
    ages = sorted(
        seen_s - (end_ms + DELAY_MS) / 1_000 for (_, end_ms), seen_s in bench.first_seen_s.items() if end_ms > from_ms
    )
    began_s = time.monotonic()
    bench.control.post(f"/v1/jobs/{one_more}/stop").raise_for_status()
    bench.wait_for("stopped", [one_more])
    cores = {part: (cpu_after[part] - cpu_before.get(part, 0.0)) / seconds for part in cpu_after}
    ours = [part for part in cores if part not in SERVERS]
    percentiles = quantiles(ages, n=100) if len(ages) > 1 else [float("nan")] * 99
    figures = {
        "jobs": options.jobs,
        "records_per_s_and_job": round(rate, 1),
        "cores": {part: round(value, 3) for part, value in cores.items()},
        "cores_ours": round(sum(cores[part] for part in ours), 3),
        "mb": {part: round(value) for part, value in memory_mb.items()},
        "mb_ours": round(sum(memory_mb[part] for part in ours)),
        "ledger_gb_per_day": round(ledger_per_day / 1e9, 2),
        "age_p50_s": round(percentiles[49], 2),
        "age_p99_s": round(percentiles[98], 2),
        "results_seen": len(ages),
        "all_applied_s": round(applied_s, 1),
        "all_running_s": round(all_running_s, 1),
        "one_more": {"apply_s": round(in_apply_s, 2), "running_after_s": round(to_running_s, 2)},
        "stop_s": round(time.monotonic() - began_s, 2),
        "load": os.getloadavg()[0],
    }
    if options.kill:
        del bench.jobs[-1]  # it is stopped
        print(json.dumps(figures), file=sys.stderr)  # in case that the recovery doesn't end
        figures["after_kill_s"] = bench.recover(options.data_dir)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
