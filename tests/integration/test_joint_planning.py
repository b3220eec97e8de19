"""One look at a real Kafka plans the slices of twenty jobs, and a topic that is deleted meanwhile stops only its reader."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.core.errors import LogChanged
from strandline.ledger.ledger import Ledger
from strandline.ledger.progress import RunRequest
from strandline.ledger.states import EventTimeRule, SliceRow
from strandline.log.index import LogIndex
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.slices.continuity import DOUBT_MS
from strandline.processing.slices.joint_planning import Outcome, plan_next_slices
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from tests.support.ledgers import a_checkpoint
from tests.support.waiting import stretched, wait_until

JOBS = [f"joint-{number:02}" for number in range(20)]
GONE = JOBS[6]
RULE = EventTimeRule(delay_ms=1_000, idle_timeout_ms=30_000)
HOUR = WindowShape(3_600_000, 3_600_000)


class Lab:
    def __init__(self, kafka: str, ledger: Ledger) -> None:
        self.ledger, self.index = ledger, LogIndex(kafka, patience_s=0)
        self.admin = AdminClient({"bootstrap.servers": kafka})
        self.producer = Producer({"bootstrap.servers": kafka})
        for made in self.admin.create_topics([NewTopic(job, 2, 1) for job in JOBS]).values():
            made.result()
        for job in JOBS:
            ledger.put_stream(job, {"stream": job})
            ledger.submit_job(job, "", {"pipeline": job})
        wait_until(
            lambda: self.index.ends_of(JOBS), lambda ends: set(map(str, ends.values())) == {"{0: 0, 1: 0}"}, "led"
        )
        runs, _ = ledger.begin_runs([RunRequest(job, 1) for job in JOBS])
        self.planners = [
            SlicePlanner(self._settings(job, runs[job].epoch), ledger, self.index, filling_ms=0) for job in JOBS
        ]

    def _settings(self, job: str, epoch: int) -> PlannerSettings:
        inputs = (InputStream(job, topic_id=self.index.topic_id(job), stream_version=1),)
        return PlannerSettings(job, 1, epoch, inputs, 1_000, RULE, (HOUR,))

    def send(self, *but: str) -> None:
        for job in JOBS:
            for partition in (0, 1):
                if job not in but:
                    self.producer.produce(job, b"x", partition=partition)
        assert self.producer.flush(stretched(20)) == 0

    def plan(self) -> dict[str, Outcome]:
        return plan_next_slices(self.planners, self.ledger, self.index, lambda: time.monotonic_ns() // 1_000_000)

    def commit(self, outcomes: Mapping[str, Outcome]) -> dict[str, int]:
        """Commit the slices; return the end of each in partition 0."""
        rows = [row for row in outcomes.values() if isinstance(row, SliceRow)]
        never_fall = {"emitted": {}, "reached": {}, "closes_ms": None, "result_offsets": {}}
        checkpoints = [a_checkpoint(row.number, row.epoch, row.job, **never_fall) for row in rows]
        assert self.ledger.commit_checkpoints(checkpoints) == {}
        return {row.job: row.offsets[row.job][0] for row in rows}


@pytest.fixture
def lab(kafka: str, tmp_path: Path) -> Iterator[Lab]:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    lab = Lab(kafka, ledger)
    yield lab
    lab.index.close()
    for deleted in lab.admin.delete_topics(JOBS).values():
        deleted.exception()
    ledger.close()


@pytest.mark.guarantee("G900")
def test_a_topic_that_is_deleted_among_twenty_stops_only_the_job_that_reads_it(lab: Lab) -> None:
    lab.send()
    assert lab.commit(lab.plan()) == dict.fromkeys(JOBS, 1)
    lab.admin.delete_topics([GONE])[GONE].result()
    others = [job for job in JOBS if job != GONE]
    lab.send(GONE)
    began_s = time.monotonic()
    found = lab.plan()
    assert time.monotonic() - began_s < stretched(5), "no job waits for the topic"
    assert lab.commit(found) == dict.fromkeys(others, 2)
    assert found[GONE] is None, "a broker that is behind may not know it for a moment"
    for row in found.values():
        assert row is None or (isinstance(row, SliceRow) and row.checksums[row.job].keys() == {0, 1})
    (planner,) = (one for one in lab.planners if one.job == GONE)
    planner._continuity._logs[GONE]._topic._since_ms -= DOUBT_MS  # type: ignore[operator]
    lab.send(GONE)
    found = lab.plan()
    assert lab.commit(found) == dict.fromkeys(others, 3)
    assert isinstance(found[GONE], LogChanged)
    assert "was deleted" in str(found[GONE])
