"""The Python processes that Spark starts: those that plan a query end when it runs, and none compiles PySpark."""

from __future__ import annotations

import psutil

from strandline.ledger.states import Desired
from strandline.processing.run.runner import Runner
from strandline.processing.spark.planning_workers import end_planning_workers
from tests.support.audit_lab import AuditLab

STREAM = "planned-readings"


def documents(job: str) -> str:
    return f"""
stream: {STREAM}
schema: {{device: string, ts: {{type: timestamp, unit: ms}}}}
---
pipeline: {job}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 1s}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*)}}}}
    emit: [{{elasticsearch: {job}-tens}}]
"""


def planners(lab: AuditLab) -> list[int]:
    """The workers that have planned and wait; their daemons are no workers."""
    java = psutil.Process(lab.spark.sparkContext._gateway.proc.pid)
    daemons = [one for one in java.children() if "pyspark.sql.worker" in " ".join(words(one))]
    return [worker.pid for daemon in daemons for worker in daemon.children()]


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # it has just ended
        return []


def drain(lab: AuditLab, job: str) -> None:
    lab.apply(documents(job))
    lab.send(STREAM, [b'{"device": "a", "ts": %d}' % (1_700_000_000_000 + at * 1_000) for at in range(60)])
    lab.ledger.set_desired(job, Desired.DRAINED)
    assert Runner(lab.settings, job, lab.spark, is_alone=True).run() == 0


def test_no_worker_that_has_planned_is_left_behind_a_runs_first_slice(audit_lab: AuditLab) -> None:
    end_planning_workers(audit_lab.spark)  # those of earlier tests
    drain(audit_lab, "planned-first")
    assert planners(audit_lab) == []


def test_a_session_whose_planning_workers_were_ended_plans_another_query(audit_lab: AuditLab) -> None:
    drain(audit_lab, "planned-before")
    drain(audit_lab, "planned-after")
    assert audit_lab.ledger.totals("planned-after").results == {"tens": 6}


def test_python_processes_of_spark_take_pyspark_compiled_and_from_no_archive(audit_lab: AuditLab) -> None:
    places = audit_lab.spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).collect()
    assert [place for place in places if ".zip" in place] == []
