"""A process that runs several jobs in one Spark application. It is killed, and one job meets a record that ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from strandline.ledger.states import Desired, JobState
from tests.support.audit_lab import AuditLab
from tests.support.postgresql import new_database
from tests.support.waiting import stretched, wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
JOBS = [f"pooled-{number}" for number in range(5)]
POISONED, *HEALTHY = JOBS
BASE_MS = 1_700_000_000_000 // 60_000 * 60_000
ROUND = 300


def text_of(job: str) -> str:
    return f"""
stream: of-{job}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
---
pipeline: {job}
input: {{stream: of-{job}}}
event_time: {{field: ts, delay: 1s, max_ahead: null, idle_timeout: null}}
on_error: {"crash" if job == POISONED else "dead_letter"}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*), peak: max(temp)}}}}
    emit: [{{elasticsearch: {job}-tens}}]
"""


def send(lab: AuditLab, number: int, jobs: Sequence[str]) -> None:
    """The records of one round: 300 for each job, in which 30 s pass."""
    for job in jobs:
        lines = [
            {"device": f"d{at % 7}", "ts": BASE_MS + 100 * (ROUND * number + at), "temp": at % 50}
            for at in range(ROUND)
        ]
        lab.send(f"of-{job}", [json.dumps(one).encode() for one in lines])


def start(lab: AuditLab, jobs: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    settings = lab.settings.model_dump(mode="json", exclude_none=True)
    environment = {f"STRANDLINE_{name.upper()}": str(value) for name, value in settings.items()}
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "strandline.processing.run.process", "--pool", *jobs],
            env={**os.environ, **environment},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


@pytest.mark.guarantee("G907")
@pytest.mark.guarantee("G908")
def test_a_pool_is_killed_and_one_of_its_jobs_is_poisoned(audit_lab: AuditLab, tmp_path: Path) -> None:
    lab, output = audit_lab, tmp_path / "pool.log"

    def wait_for(rounds: int, process: subprocess.Popen[bytes]) -> None:
        def are_read() -> bool:
            assert process.poll() is None, output.read_text()[-5_000:]
            return all(lab.ledger.totals(job).records >= ROUND * rounds for job in HEALTHY)

        wait_until(are_read, bool, f"{rounds} rounds of each job", 120)

    for job in JOBS:
        lab.apply(text_of(job))
        lab.ledger.set_desired(job, Desired.RUNNING)
    process = start(lab, JOBS, output)
    try:
        send(lab, 0, JOBS)
        wait_for(1, process)
        lab.send(f"of-{POISONED}", [b"poison"])
        wait_until(lambda: lab.ledger.job(POISONED).state, lambda one: one is JobState.FAILED, "the job fails", 60)
        send(lab, 1, HEALTHY)
        wait_for(2, process)
        assert all(len(lab.ledger.runs(job)) == 1 for job in JOBS)
        send(lab, 2, HEALTHY)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process = start(lab, HEALTHY, output)
        send(lab, 3, HEALTHY)
        wait_for(4, process)
        for job in HEALTHY:
            lab.ledger.set_desired(job, Desired.DRAINED)
        assert process.wait(stretched(120)) == 0, output.read_text()[-5_000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for job in HEALTHY:
        assert lab.ledger.job(job).state is JobState.DRAINED and len(lab.ledger.runs(job)) == 2
        assert lab.ledger.totals(job).records == 4 * ROUND
        lab.require_clean(job)
        assert len(lab.documents(f"{job}-tens")) == 12 * 7


EMITTERS = """
stream: mixed-feed
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, temp: double}}
key: device
---
pipeline: mixed-tens
input: {{stream: mixed-feed}}
event_time: {{field: ts, delay: 1s, max_ahead: null, idle_timeout: null}}
steps:
  - where: temp < 45
  - emit: [{{files: {{path: "{files}"}}}}, {{sql: {{table: mixed_records}}}}]
    name: records
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*), peak: max(temp)}}}}
    emit: [{{stream: mixed-tens}}, {{elasticsearch: {{name: mixed-tens, updates: 5s}}}}]
---
pipeline: mixed-minutes
input: {{stream: mixed-tens}}
event_time: {{field: window_start, delay: 0s, watermark: newest, max_ahead: null, idle_timeout: null}}
steps:
  - window: {{name: minutes, tumbling: 1m, by: [device], aggregate: {{n: sum(n), peak: max(peak)}}}}
    emit: [{{elasticsearch: mixed-minutes}}, {{sql: {{table: mixed_minutes}}}}]
"""


@pytest.mark.guarantee("G907")
def test_jobs_with_all_kinds_of_emissions_share_a_pool(
    audit_lab: AuditLab, tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job emits files, rows of a table, documents, updates of open windows, and a stream. The other job of the same pool
    reads this stream."""
    lab, output, files, jobs = audit_lab, tmp_path / "pool.log", tmp_path / "files", ["mixed-tens", "mixed-minutes"]

    def wait_for_records(job: str, records: int, process: subprocess.Popen[bytes]) -> None:
        def are_read() -> bool:
            assert process.poll() is None, output.read_text()[-5_000:]
            return lab.ledger.totals(job).records >= records

        wait_until(are_read, bool, f"{records} records", 120)

    with new_database(postgresql_url) as url:
        monkeypatch.setenv("STRANDLINE_SQL_SINK_URL", url)
        lab.settings = lab.settings.model_copy(update={"sql_sink_url": url})
        lab.apply(EMITTERS.format(files=files))
        for job in jobs:
            lab.ledger.set_desired(job, Desired.RUNNING)
        process = start(lab, jobs, output)
        try:
            for number in range(4):
                lines = [
                    {"device": f"d{at % 7}", "ts": BASE_MS + 100 * (ROUND * number + at), "temp": at % 50}
                    for at in range(ROUND)
                ]
                lab.send("mixed-feed", [json.dumps(one).encode() for one in lines])
                wait_for_records("mixed-tens", ROUND * (number + 1), process)
                if number == 2:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    process = start(lab, jobs, output)
            for job in jobs:
                lab.ledger.set_desired(job, Desired.DRAINED)
                wait_until(lambda job=job: lab.ledger.job(job).state, lambda one: one is JobState.DRAINED, job, 120)
            assert process.wait(stretched(120)) == 0, output.read_text()[-5_000:]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        counts = {job: lab.require_clean(job) for job in jobs}
        good = sum(at % 50 < 45 for at in range(ROUND)) * 4
        assert counts["mixed-tens"][f"files:{files}"] == counts["mixed-tens"]["table:mixed_records"] == {"same": good}
        assert len(lab.documents("mixed-tens")) == 12 * 7
        assert sum(one["n"] for one in lab.documents("mixed-minutes").values()) == good
