"""The meaning of `exactly_once`, `at_least_once` and `none`: three jobs over one log are killed at the same step."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from strandline.services.processes.process_tree import MARK_VARIABLE, tree_mark
from tests.support.audit_lab import AuditLab
from tests.support.waiting import stretched

pytestmark = pytest.mark.timeout(600)
STREAM = "guaranteed-readings"
BASE_MS = 1_700_000_000_000 // 60_000 * 60_000
RECORDS, DEVICES, STEP_MS, WINDOW_MS = 6_000, 5, 20, 3_000
DISORDER_MS = 2_000
SLICE_RECORDS = 1_000
"""20 s of event time, so that each slice closes windows; those of the last 6 s stay open."""
EMISSIONS_BEFORE_THE_KILL = 4

Results = dict[tuple[str, str], list[int]]
"""(window end, device) -> the count that each document of it says."""


def pipeline_text(job: str, guarantee: str) -> str:
    return f"""
pipeline: {job}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 6s, max_ahead: null, idle_timeout: null}}
guarantee: {guarantee}
steps:
  - window: {{name: counted, tumbling: {WINDOW_MS}ms, by: [device], aggregate: {{n: count(*)}}}}
    emit: [{{elasticsearch: {job}-counted}}]
"""


@pytest.fixture(scope="module")
def right(audit_lab: AuditLab) -> int:
    """The log is there; the count of every window and device of it, which holds whole windows only."""
    assert RECORDS * STEP_MS % WINDOW_MS == 0
    audit_lab.apply(f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}}}
key: device
""")
    lines = [{"device": f"d{number % DEVICES}", "ts": BASE_MS + number * STEP_MS} for number in range(RECORDS)]
    # In some disorder: wherever a slice ends, windows have records before and after that.
    chance = random.Random(7)
    lines.sort(key=lambda line: line["ts"] + chance.randrange(DISORDER_MS))
    audit_lab.send(STREAM, [json.dumps(line).encode() for line in lines])
    return WINDOW_MS // STEP_MS // DEVICES


def results_after_a_kill(lab: AuditLab, directory: Path, guarantee: str) -> Results:
    """Run a job with this guarantee, kill its runner when results of a slice are out and not committed, drain it."""
    job = f"guaranteed-{guarantee.replace('_', '-')}"
    lab.apply(pipeline_text(job, guarantee))
    environment = {
        **os.environ,
        "STRANDLINE_DATA_DIR": str(directory),
        "STRANDLINE_KAFKA_BOOTSTRAP": lab.settings.kafka_bootstrap,
        "STRANDLINE_ELASTICSEARCH_URL": lab.settings.elasticsearch_url,
        "STRANDLINE_LEDGER_URL": lab.settings.ledger_url,
        "STRANDLINE_SLICE_ROWS_MAX": str(SLICE_RECORDS),
        "STRANDLINE_FAILPOINTS": f"emit.written=kill-family:{EMISSIONS_BEFORE_THE_KILL}",
        MARK_VARIABLE: tree_mark(directory, job),
    }
    command = [sys.executable, "-m", "strandline.processing.run.process", "--job", job]
    with (directory / f"{job}.log").open("wb") as output:
        killed = subprocess.run(
            command, env=environment, stdout=output, stderr=output, timeout=stretched(300), check=False
        )
    assert killed.returncode == -signal.SIGKILL, (directory / f"{job}.log").read_text()
    before = lab.ledger.last_checkpoint(job)
    assert before is not None, "some slices are committed, and one is half done"
    planned = lab.ledger.last_slice(job)
    assert planned is not None
    assert planned.number == before.slice + 1
    lab.drain(job)
    assert len(lab.ledger.runs(job)) == 2
    results: Results = defaultdict(list)
    for document in lab.documents(f"{job}-counted").values():
        results[document["@timestamp"], document["device"]].append(document["n"])
    return results


@pytest.mark.guarantee(
    "G5",
    "Results equal a recomputation from the sent records: none is missing, none is extra, integers are exact, and "
    "floats differ by at most 1e-9 relative.",
    promise="each-result-exists-once-with-the-right-value",
)
@pytest.mark.guarantee(
    "G70",
    "A process of a running job can be killed at any instant and between any two steps of a slice. Each result of a "
    "closed window is in the index once with the right value. Each rejected record is one dead letter, and the "
    "accounts of every slice close.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.guarantee(
    "G74",
    "After a kill, `exactly_once` has each result once with the right value, and `at_least_once` has all with right "
    "values, some twice under different ids. With `none`, open windows lack earlier records, and the interrupted "
    "slice's results can be there twice.",
    promise="each-result-exists-once-with-the-right-value",
)
def test_exactly_once_every_window_is_there_once_and_right(audit_lab: AuditLab, tmp_path: Path, right: int) -> None:
    results = results_after_a_kill(audit_lab, tmp_path, "exactly_once")
    assert len(results) == RECORDS * STEP_MS // WINDOW_MS * DEVICES
    assert set(map(tuple, results.values())) == {(right,)}


@pytest.mark.guarantee("G74")
@pytest.mark.long
def test_at_least_once_some_windows_are_there_twice_and_all_are_right(
    audit_lab: AuditLab, tmp_path: Path, right: int
) -> None:
    results = results_after_a_kill(audit_lab, tmp_path, "at_least_once")
    assert len(results) == RECORDS * STEP_MS // WINDOW_MS * DEVICES
    assert set(map(tuple, results.values())) == {(right,), (right, right)}


@pytest.mark.guarantee("G74")
@pytest.mark.long
def test_with_none_windows_that_were_open_lack_what_they_held_before_the_kill(
    audit_lab: AuditLab, tmp_path: Path, right: int
) -> None:
    results = results_after_a_kill(audit_lab, tmp_path, "none")
    of_a_slice = (SLICE_RECORDS * STEP_MS + 3 * WINDOW_MS) // WINDOW_MS * DEVICES
    short = sum(min(counts) < right for counts in results.values())
    missing = RECORDS * STEP_MS // WINDOW_MS * DEVICES - len(results)
    assert 0 < short + missing <= of_a_slice
    assert sum(len(counts) == 2 for counts in results.values()) <= of_a_slice, "only the interrupted slice's"
    assert max(map(len, results.values())) <= 2
    assert max(map(max, results.values())) == right
