"""A million records without a window are written to the index, to files and to PostgreSQL, through ten kills.

The kills are at any moment of a slice. Each store contains exactly what the log leads to.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from strandline.ledger.states import Desired
from strandline.results.sinks.files.writer import committed_files
from tests.integration.test_record_emissions import BASE_MS
from tests.support.audit_lab import AuditLab
from tests.support.waiting import wait_until

NAME = "million"
RECORDS = int(os.environ.get("RECORDS", "1000000"))
KILLS = 10
KILLED_AT = ("slice.written", "commit.before_checkpoint", "checkpoint.committed")
DOCUMENTS = """
stream: {name}-readings
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, number: long, temp: double}}
---
pipeline: {name}
input: {{stream: {name}-readings}}
event_time: {{field: ts, delay: 1h, max_ahead: null}}
steps:
  - derive: {{half: temp / 2}}
  - where: number % 10 <> 3
  - emit: [{{elasticsearch: {name}}}, {{files: {{path: "{files}"}}}}, {{sql: {{table: {name}}}}}]
"""


def run_killed_while_it_writes(lab: AuditLab, files: Path) -> None:
    """A run that is killed, driver first, when it has written some of a slice's files; the rest of its family a moment later."""
    lab.ledger.set_desired(NAME, Desired.RUNNING)
    settings = lab.settings.model_dump(mode="json", exclude_none=True)
    environment = {f"STRANDLINE_{key.upper()}": str(value) for key, value in settings.items()}
    before = len(list(files.glob("day=*/*.parquet")))
    with subprocess.Popen(
        [sys.executable, "-m", "strandline.processing.run.process", "--job", NAME],
        env={**os.environ, **environment},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:

        def has_written() -> bool:
            assert run.poll() is None, "the run ended by itself"
            return len(list(files.glob("day=*/*.parquet"))) != before

        wait_until(has_written, what="writing files", timeout_s=300)
        os.kill(run.pid, signal.SIGKILL)
        time.sleep(0.5)  # sleeps: the rest of the family outlives the driver for a moment
        os.killpg(run.pid, signal.SIGKILL)


@pytest.mark.guarantee("G243")
@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_a_million_records_are_in_each_store_once_through_ten_kills(
    audit_lab: AuditLab, tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, files = audit_lab, tmp_path / "files"
    lab.settings = lab.settings.model_copy(
        update={"sql_sink_url": postgresql_url, "slice_rows_max": max(1_000, RECORDS // 12)}
    )
    monkeypatch.setenv("STRANDLINE_SQL_SINK_URL", postgresql_url)
    lab.apply(DOCUMENTS.format(name=NAME, files=files))
    for number in range(RECORDS):
        one = {"device": f"d{number % 100}", "ts": BASE_MS + number * 200, "number": number, "temp": number / 7}
        while True:
            try:
                lab.producer.produce(f"{NAME}-readings", json.dumps(one).encode(), partition=number % 2)
                break
            except BufferError:
                lab.producer.poll(0.1)
    assert lab.producer.flush(60) == 0
    began = time.monotonic()
    for number in range(KILLS):
        if number % 2:
            lab.run_killed_at(NAME, KILLED_AT[number // 2 % len(KILLED_AT)])
        else:
            run_killed_while_it_writes(lab, files)
        print(f"kill {number + 1} after {time.monotonic() - began:.0f} s", flush=True)
    lab.drain(NAME)
    print(f"drained after {time.monotonic() - began:.0f} s", flush=True)

    numbers = [number for number in range(RECORDS) if number % 10 != 3]
    wanted = pa.table({"number": numbers, "half": [number / 7 / 2 for number in numbers]})
    table = ds.dataset(list(committed_files(str(files), NAME))).to_table(
        columns=["number", "half", "strandline_offset"]
    )
    assert table.num_rows == len(numbers)
    assert table.select(["number", "half"]).sort_by("number").combine_chunks().equals(wanted.combine_chunks())
    assert pc.all(pc.equal(table["strandline_offset"], pc.divide(table["number"], 2))).as_py()
    engine = sa.create_engine(postgresql_url)
    with engine.connect() as connection:
        found: list[Any] = list(connection.execute(sa.text(f"SELECT number, half FROM {NAME} ORDER BY number")))
    engine.dispose()
    assert [row[0] for row in found] == numbers
    assert [row[1] for row in found] == wanted["half"].to_pylist()
    report = lab.audit(NAME)  # reads every document, and compares it with the log
    assert report["outcome"] == "clean", report
    counts = {one["store"]: one["counts"] for one in report["stores"]}
    assert counts[NAME] == {"same": len(numbers)}
    print(f"checked after {time.monotonic() - began:.0f} s", flush=True)
