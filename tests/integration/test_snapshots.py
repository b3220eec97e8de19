"""`recovery: snapshot` with real Kafka, Elasticsearch and Spark: kills at several steps, and everything that may be wrong with
a snapshot. After each start every document is held against a recomputation that shares no code with the platform.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.core.settings import Settings
from strandline.ledger.states import JobState
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.run.snapshots import link_tree
from strandline.processing.slices.rewind import RewindPlan, plan_of_job
from strandline.services.embedded.addresses import settings_environment
from strandline.services.processes.process_tree import MARK_VARIABLE
from tests.support.audit_lab import AuditLab
from tests.support.waiting import stretched

pytestmark = [pytest.mark.timeout(900), pytest.mark.in_order, pytest.mark.long]

JOB = "snapped"
STREAM = f"{JOB}-in"
BASE_MS = 1_793_491_200_000
STEP_MS = 20
RECORDS = 2_500
"""Sent before each start: 50 s of event time, so each start closes windows, and leaves some open."""
LATE = 100


def text(more: str = "") -> str:
    return f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, ts: timestamp, power: long}}
---
pipeline: {JOB}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 5s, max_ahead: null, idle_timeout: null}}
recovery: snapshot
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*), peak: max(power){more}}}}}
    emit: [{{elasticsearch: {JOB}-tens}}]
  - window: {{name: minute, tumbling: 1m, aggregate: {{n: sum(n), peak: max(peak)}}}}
    emit: [{{elasticsearch: {JOB}-minute}}]
"""


def record(number: int) -> tuple[int, str, int]:
    return BASE_MS + number * STEP_MS, f"d{number % 3}", number * 7 % 1_000


class Work:
    """The job, what was sent to it, and how its runs are started."""

    def __init__(self, lab: AuditLab) -> None:
        self.lab, self.sent, self.late = lab, 0, 0
        lab.apply(text())

    @property
    def snapshots(self) -> Path:
        return self.lab.settings.data_dir / "snapshots" / JOB

    def send(self, count: int = RECORDS) -> None:
        rows = [record(number) for number in range(self.sent, self.sent + count)]
        late = LATE if self.sent else 0  # not before event time has come somewhere
        rows += [(BASE_MS - 3_600_000, "d0", 0)] * late
        self.lab.send(STREAM, [json.dumps({"device": d, "ts": ts, "power": p}).encode() for ts, d, p in rows])
        self.sent, self.late = self.sent + count, self.late + late

    def run_until_killed(self, armed: str) -> None:
        """A runner process of its own, which kills itself and all that it started at a failpoint."""
        environment = settings_environment(self.lab.settings)
        environment |= {"STRANDLINE_FAILPOINTS": armed, MARK_VARIABLE: f"{self.lab.settings.data_dir}:{JOB}"}
        command = [sys.executable, "-m", "strandline.processing.run.process", "--job", JOB]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=stretched(300)
        )
        assert done.returncode == -signal.SIGKILL, done.stdout[-3_000:] + done.stderr[-3_000:]

    def run(self) -> None:
        with self.lab.running(JOB, STREAM):
            pass

    def start(self) -> dict[str, Any]:
        """Return the event of how the newest run started."""
        event = self.lab.ledger.last_event(JOB, "run_begins")
        assert event is not None
        return event.facts

    def unusable(self) -> list[str]:
        return [
            event.message for event in self.lab.ledger.events(JOB, limit=1_000) if event.kind == "snapshot_unusable"
        ]

    def conflicts(self) -> int:
        """Return how often a document was written that already existed."""
        stats = self.lab.index.get(f"/{JOB}-*/_stats/indexing").json()["_all"]["primaries"]["indexing"]
        return int(stats["index_failed"])

    def check(self) -> int:
        """Hold all documents against what was sent; returns how many there are."""
        checkpoint = self.lab.ledger.last_checkpoint(JOB)
        assert checkpoint is not None
        tens: dict[Any, list[int]] = defaultdict(list)
        minutes: dict[Any, list[int]] = defaultdict(list)
        for ts, device, power in map(record, range(self.sent)):
            tens[ts // 10_000 * 10_000, device].append(power)
            minutes[ts // 60_000 * 60_000, None].append(power)
        found = expected = 0
        for stage, size_ms, groups in (("tens", 10_000, tens), ("minute", 60_000, minutes)):
            wanted = {
                key: (len(powers), max(powers))
                for key, powers in groups.items()
                if key[0] + size_ms <= checkpoint.emitted[stage]
            }
            documents = self.lab.documents(f"{JOB}-{stage}").values()
            held = {(millis(one["window"]["start"]), one.get("device")): (one["n"], one["peak"]) for one in documents}
            assert held == wanted
            found, expected = found + len(documents), expected + len(wanted)
        assert found == expected, "one is there twice"
        totals = self.lab.ledger.totals(JOB)
        assert totals.rejected.get("late", 0) == self.late
        return found


def millis(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp).timestamp() * 1_000)


@pytest.fixture(scope="module")
def work(audit_lab: AuditLab) -> Work:
    audit_lab.settings = audit_lab.settings.model_copy(update={"slice_rows_max": 1_000})
    work = Work(audit_lab)
    work.send()
    return work


def newest(work: Work) -> Path:
    return max(work.snapshots.iterdir(), key=lambda one: int(one.name)) / "checkpoint"


@pytest.mark.guarantee("G90")
def test_after_each_kill_a_run_goes_on_from_the_snapshot(work: Work) -> None:
    """No slice is read again but the one that was interrupted, and nothing of a committed one is emitted again."""
    work.run_until_killed("checkpoint.committed=kill-family:3")
    assert work.start()["way"] == "rewind"
    committed = work.lab.ledger.slice_count(JOB)
    assert committed == 3
    kept = work.lab.settings.data_dir / "kept"
    kept.mkdir()
    link_tree(newest(work), kept)
    before = {one.relative_to(kept): one.read_bytes() for one in kept.rglob("*") if one.is_file()}

    work.send()
    # Its first batch is slice 3 once more: Spark had not noted that it was done.
    work.run_until_killed("slice.written=kill-family:2")
    assert (work.start()["way"], work.start()["slice_first"], work.start()["slice_committed"]) == ("snapshot", 3, 3)
    assert work.conflicts() == 0, "slice 3 emitted nothing again"
    assert before == {one.relative_to(kept): one.read_bytes() for one in kept.rglob("*") if one.is_file()}

    work.run()
    start = work.start()
    assert (start["way"], start["slice_first"], start["slice_committed"]) == ("snapshot", 4, 3)
    assert work.conflicts() > 0, "what slice 4 had written was there already"
    assert start["records"] <= 2_000, "slice 4, and none of those before"
    assert work.unusable() == []
    assert work.check() > 0
    assert [one.name for one in work.snapshots.iterdir()] == [str(start["epoch"])], "older ones are removed"
    assert work.lab.audit(JOB)["outcome"] == "clean"


def expect_rewind(work: Work, why: str) -> None:
    """Run; it must rewind, say why, and be right."""
    said = len(work.unusable())
    work.send()
    work.run()
    assert work.start()["way"] == "rewind"
    assert why in work.unusable()[said], work.unusable()[said]
    assert len(work.unusable()) == said + 1
    assert work.check() > 0


@pytest.mark.guarantee("G91")
@pytest.mark.parametrize("how", ["cut", "changed"])
def test_a_torn_state_file_leads_to_a_rewind_in_the_same_process(work: Work, how: str) -> None:
    epochs = work.lab.ledger.job(JOB).epoch
    files = [*newest(work).glob("state/*/*/*.delta"), *newest(work).glob("state/*/*/*.snapshot")]
    for file in (one for one in files if one.stat().st_size > 100):
        content = file.read_bytes()
        file.unlink()
        middle = len(content) // 2
        file.write_bytes(
            content[:middle] + (b"" if how == "cut" else bytes([content[middle] ^ 1]) + content[middle + 1 :])
        )
    expect_rewind(work, "the snapshot of run")
    assert work.lab.ledger.job(JOB).epoch == epochs + 1, "one run did both"


@pytest.mark.guarantee("G91")
def test_a_log_that_names_another_slice_leads_to_a_rewind(work: Work) -> None:
    """The log is still readable, and agrees with the ledger.

    Continuing from it would add a slice to the state twice.
    """
    last = max((newest(work) / "offsets").glob("[0-9]*"), key=lambda one: int(one.name))
    text = last.read_text()
    number = json.loads(text.splitlines()[-1])["slice"]
    last.unlink()
    last.write_text(
        text.replace(f'"slice": {number}', f'"slice": {number - 1}').replace(
            f'"slice":{number}', f'"slice":{number - 1}'
        )
    )
    assert last.read_text() != text
    expect_rewind(work, "is not as it was written")


def test_a_version_with_an_unrelated_change_goes_on_from_the_snapshot(work: Work) -> None:
    work.send()
    work.run()  # so there is a snapshot
    minute = f"{{elasticsearch: {JOB}-minute}}"
    unrelated = text().replace("recovery:", "on_error: crash\nrecovery:")
    work.lab.apply(unrelated.replace(minute, f"{minute}, {{stream: {JOB}-minutes}}"))
    said = len(work.unusable())
    work.send()
    work.run()
    assert (work.start()["way"], len(work.unusable())) == ("snapshot", said)
    assert work.check() > 0


@pytest.mark.guarantee("G91")
def test_a_version_that_computes_something_else_rewinds(work: Work) -> None:
    work.lab.apply(text(", low: min(power)"))
    expect_rewind(work, "it was made by a version of the pipeline that computes its windows in another way")


@pytest.mark.guarantee("G91")
def test_a_lost_directory_leads_to_a_rewind_and_without_any_the_job_runs_all_the_same(work: Work) -> None:
    usual = work.lab.settings
    file = usual.data_dir / "a-file"
    file.write_text("")
    work.lab.settings = usual.model_copy(update={"snapshot_dir": file})
    try:
        work.send()
        work.run()
    finally:
        work.lab.settings = usual
    assert work.start()["way"] == "rewind"
    lost, unwritable = work.unusable()[-2:]
    assert "there is none" in lost
    assert "no snapshot can be written" in unwritable
    assert work.check() > 0


def test_a_snapshot_is_enough_where_the_log_no_longer_holds_a_rewind(work: Work) -> None:
    """Records of its open windows are gone from the log."""
    ledger = work.lab.ledger
    plan = RewindPlan(0, 0)
    while plan.slice_first > plan.slice_committed - 2:
        work.send()
        work.run()
        plan = plan_of_job(ledger, load_pipeline(ledger, JOB, ledger.job(JOB).version))
    (kept_from,) = ledger.slices(JOB, plan.slice_committed, plan.slice_committed)
    admin = AdminClient({"bootstrap.servers": work.lab.settings.kafka_bootstrap})
    gone = [TopicPartition(STREAM, partition, offset) for partition, offset in kept_from.offsets_first[STREAM].items()]
    for future in admin.delete_records(gone).values():
        future.result(stretched(30))
    work.send(50)
    work.run()
    assert work.start()["way"] == "snapshot"
    assert ledger.slice_count(JOB) > plan.slice_committed
    assert work.check() > 0
    shutil.rmtree(work.snapshots)
    work.send(50)
    with pytest.raises(AssertionError):
        work.run()
    assert ledger.job(JOB).state is JobState.FAILED
    assert "retention removed" in ledger.job(JOB).message


def test_the_environment_names_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "STRANDLINE_SNAPSHOT_DIR", "/mnt/shared")
    assert Settings().snapshot_dir == Path("/mnt/shared")
