"""Poison jobs of a pool next to many healthy ones: `python -m tests.fault.pool_poison --data-dir DIR --jobs 100`, after
`strandline up --data-dir DIR --detach`.

Each fault hits one job. These jobs must fail: a record ends the job, an expression fails, a store refuses, a result is foreign,
or a topic is deleted. These jobs must get their own runners: a state is above its limit, a slice hangs, or a worker ends. No
other job may start again, and no result of another job may be more than two batches late.

A result is late by the batches that ran while its slice was due: they began after the slice was due, and before its own batch.
A slice isn't due as soon as records arrive. A job waits up to 2 s for the records that close a window, and batches of other jobs
run meanwhile without any delay for it. The pool logs for how long each slice was due.

Prints one JSON object. With any violation, the exit code is 1.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import signal
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.jobs import WINDOW_MS, Bench, document
from strandline.log.admin import KafkaAdmin
from strandline.processing.emission.work_marks import marks_of_living
from strandline.results.document import document_id
from strandline.services.embedded.addresses import read_stack
from tests.support.chaos.dump import query
from tests.support.waiting import Patience

BATCHES_LATE_MAX = 2
_BATCH_GAP_MS = 100
"""After this time without a planned slice, the next one belongs to another batch. A batch takes longer."""
_STATE_BYTES = 120_000_000
_LONG_SLICE_RECORDS = 5_000
_SIGNALS_S_MAX = 120.0
"""Maximum time in seconds until a job whose worker gets signals is moved out."""
_COMMITTED = re.compile(r"slice committed .*\bslice=(\d+) .*\bwaited=([\d.]+)")
_ROUNDS_MAX = 5
"""Maximum number of rounds until the job of a fault has ended."""


class Poison:
    """The faults, each with the end that its job must have."""

    def __init__(self, bench: Bench, kafka: str, data_dir: Path) -> None:
        self._bench, self._kafka, self._data_dir = bench, kafka, data_dir
        self.faults: dict[str, tuple[Callable[[str], None], Callable[[dict[str, Any]], bool]]] = {
            "record": (self._send_bad_record, _has_failed),
            "expression": (self._send_unfit_record, _has_failed),
            "store": (self._refuse_writes, _has_failed),
            "foreign": (self._write_foreign_results, _has_failed),
            "topic": (self._delete_topic, _has_failed),
            "state": (self._send_large_keys, self._has_own_runner),
            "hang": (partial(self._signal_worker, signal.SIGSTOP), self._has_own_runner),
            "worker": (partial(self._signal_worker, signal.SIGKILL), self._has_own_runner),
        }

    def apply(self) -> list[str]:
        """Apply the jobs that will be poisoned, and return their names."""
        for fault in self.faults:
            text = document(f"poison-{fault}").replace("schema: {", "schema: {note: {type: string, required: false}, ")
            text = text.replace("steps:", "on_error: crash\nsteps:\n  - derive: {inverse: 1 / (temp - 1000)}")
            if fault == "state":
                text = text.replace("tumbling: 10s, by: [device]", "session: {gap: 1h}, by: [device, note]")
            self._bench.apply_text(text)
        return [f"poison-{fault}" for fault in self.faults]

    def _send_bad_record(self, job: str) -> None:
        self._bench.send_lines(job, ['{"device": "d0", "ts": "never", "temp": 1}'])

    def _send_unfit_record(self, job: str) -> None:
        self._bench.send_lines(job, [json.dumps({"device": "d0", "ts": time.time_ns() // 1_000_000, "temp": 1000})])

    def _refuse_writes(self, job: str) -> None:
        self._bench.index.put(f"/{job}-tens/_settings", json={"index.blocks.write": True}).raise_for_status()

    def _write_foreign_results(self, job: str) -> None:
        (index,) = self._bench.index.get(f"/_alias/{job}-tens").raise_for_status().json()
        hit = self._bench.index.post(f"/{index}/_search", json={"size": 1}).raise_for_status().json()["hits"]["hits"][0]
        now_ms = time.time_ns() // 1_000_000 // WINDOW_MS * WINDOW_MS
        for number in range(1, 4):
            start_ms = now_ms + number * WINDOW_MS
            name = document_id(job, "tens", start_ms, start_ms + WINDOW_MS, ("d0",))
            foreign = hit["_source"] | {"n": -1}
            self._bench.index.put(f"/{index}/_doc/{name}", json=foreign).raise_for_status()

    def _delete_topic(self, job: str) -> None:
        KafkaAdmin(self._kafka, timeout_s=30.0, changes_topics=True).delete(f"of-{job}")

    def _send_large_keys(self, job: str) -> None:
        now_ms = time.time_ns() // 1_000_000
        for first in range(0, _STATE_BYTES, 800_000):
            notes = [base64.b85encode(os.urandom(6_400)).decode() for _ in range(100)]
            lines = [{"device": f"d{first}", "ts": now_ms, "temp": 1, "note": note} for note in notes]
            self._bench.send_lines(job, list(map(json.dumps, lines)))

    def _signal_worker(self, number: signal.Signals, job: str) -> None:
        """Send the signal to each worker that works on the job, until the job is moved out.

        A worker that is stopped hangs as one that never returns from native code. The job gets many records at once, so that its
        slice takes long enough to be seen.
        """
        threading.Thread(target=self._signal_workers, args=(number, job), daemon=True).start()

    def _signal_workers(self, number: signal.Signals, job: str) -> None:
        at_ms, sent_s = time.time_ns() // 1_000_000, 0.0
        lines = [
            json.dumps({"device": "d0", "ts": at_ms, "temp": number % 50}) for number in range(_LONG_SLICE_RECORDS)
        ]
        patience = Patience(f"moved out {job}", _SIGNALS_S_MAX, poll_s=0.001)
        signalled: set[str] = set()
        while not self._has_own_runner({"name": job}):
            patience.check()
            patience.pause()
            if time.monotonic() - sent_s > 1.0 and not (signalled and number is signal.SIGSTOP):
                self._bench.send_lines(job, lines)
                sent_s = time.monotonic()
            for directory in (self._data_dir / "scratch").glob("*/pool.*/checkpoint/marks"):
                for mark in marks_of_living(directory):
                    if mark.job == job and mark.text not in signalled:
                        with suppress(ProcessLookupError):
                            os.kill(mark.pid, number)
                        signalled.add(mark.text)

    def _has_own_runner(self, job: dict[str, Any]) -> bool:
        return job.get("name") is not None and f"runner-{job['name']}" in json.loads(
            (self._data_dir / "pids.json").read_text()
        )


def _has_failed(job: dict[str, Any]) -> bool:
    return bool(job["state"] == "failed")


def runs_of_jobs(ledger_url: str) -> dict[str, int]:
    """Return the number of runs of each job."""
    return {row["job"]: row["runs"] for row in query(ledger_url, "SELECT job, count(*) AS runs FROM runs GROUP BY job")}


def waits_of(log: Path) -> dict[int, float]:
    """Return slice -> seconds for which it was due before it was planned, by the log of a job."""
    found = map(_COMMITTED.search, log.read_text(errors="replace").splitlines())
    return {int(one[1]): float(one[2]) for one in found if one is not None}


def batches_late(ledger_url: str, waits: Mapping[str, Mapping[int, float]], from_ms: int) -> list[int]:
    """Return for each window of these jobs that ended after `from_ms` how many batches its result was late.

    It is the number of batches that were planned after its slice was due, and before its own batch. `waits`: job -> slice ->
    seconds for which it was due before it was planned.
    """
    rows = query(
        ledger_url,
        "SELECT s.job, s.number, s.planned_ms, c.emitted FROM slices s "
        "JOIN checkpoints c ON c.job = s.job AND c.slice = s.number ORDER BY s.planned_ms",
    )
    planned = [row["planned_ms"] for row in rows]
    begun = planned[:1] + [at_ms for before_ms, at_ms in pairwise(planned) if at_ms - before_ms > _BATCH_GAP_MS]
    late, closed = [], dict.fromkeys(waits, 0)
    for row in rows:
        job, end_ms = row["job"], row["emitted"].get("tens", 0)
        if job not in closed or end_ms <= closed[job]:
            continue
        closed[job] = end_ms
        if end_ms > from_ms:
            own = bisect_right(begun, row["planned_ms"]) - 1
            due_ms = row["planned_ms"] - 1_000 * waits[job][row["number"]]
            late.append(max(0, own - bisect_right(begun, due_ms)))
    return late


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.pool_poison", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="directory of the running stack")
    parser.add_argument("--jobs", type=int, default=100, help="number of healthy jobs")
    parser.add_argument("--warm-up", type=float, default=40.0, help="seconds before the first fault")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds after each fault")
    options = parser.parse_args()
    stack = read_stack(options.data_dir)
    assert stack is not None, "the stack isn't running"
    options.url, options.gateway, options.elasticsearch = stack.api_url, stack.ingest_url, stack.elasticsearch_url
    logins = options.data_dir / "passwords" / "strandline.env"
    if logins.exists():
        os.environ.update(line.split("=", 1) for line in logins.read_text().splitlines() if "=" in line)
    options.rate, options.prefix = 20, "many-"
    bench = Bench(options)
    healthy = list(bench.jobs)
    for job in healthy:
        bench.apply(job)
    poison = Poison(bench, stack.kafka_bootstrap, options.data_dir)
    bench.jobs += poison.apply()
    bench.wait_for("running", bench.jobs)
    bench.run(options.warm_up)
    runs = runs_of_jobs(stack.ledger_url)
    from_ms, violations = time.time_ns() // 1_000_000, []
    ended: dict[str, str] = {}
    for fault, (harm, has_ended) in poison.faults.items():
        job = f"poison-{fault}"
        harm(job)
        if fault == "topic":
            bench.jobs.remove(job)
        seconds = 0.0
        state: dict[str, Any] = {"state": "running"}
        for _ in range(_ROUNDS_MAX):
            bench.run(options.seconds)
            seconds += options.seconds
            state = bench.control.get(f"/v1/jobs/{job}").raise_for_status().json()
            if has_ended(state):
                break
        ended[job] = f"{state['state']} after {seconds:g} s {state['message']}"
        print(job, ended[job], file=sys.stderr, flush=True)
        if not has_ended(state):
            violations.append(f"{job} is {state['state']}")
    until_ms = time.time_ns() // 1_000_000
    waits = {job: waits_of(options.data_dir / "logs" / f"runner-{job}.log") for job in healthy}
    late = Counter(batches_late(stack.ledger_url, waits, from_ms))
    states, runs_now = bench.states(), runs_of_jobs(stack.ledger_url)
    again = {job: runs_now[job] - runs[job] for job in healthy if runs_now[job] != runs[job]}
    not_running = [job for job in healthy if states[job]["state"] != "running"]
    violations += [f"{job} started again {times} times" for job, times in again.items()]
    violations += [f"{job} is not running" for job in not_running]
    violations += [f"{count} results are {by} batches late" for by, count in late.items() if by > BATCHES_LATE_MAX]
    print(json.dumps({
        "jobs": len(healthy), "ended": ended, "seconds": round((until_ms - from_ms) / 1_000),
        "windows": late.total(), "batches_late": {str(by): late[by] for by in sorted(late)}, "violations": violations,
    }))  # fmt: skip
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
