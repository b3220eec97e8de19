"""Jobs that are run and audited in one process, over one Spark session: real Kafka, Elasticsearch, Spark and ledger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import BackfillRow, Desired, SliceRow
from strandline.log.admin import KafkaAdmin
from strandline.log.index import LogIndex
from strandline.log.topics import Topics
from strandline.processing.audit.index_reader import EndRange, open_snapshot, read_documents
from strandline.processing.audit.process import Audit
from strandline.processing.backfill.plan import plan_backfill
from strandline.processing.backfill.process import Backfill
from strandline.processing.pipelines.stored import load_pipeline, streams_of_version
from strandline.processing.run.runner import Runner
from strandline.services.jobs.apply_documents import DocumentApplier, ensure_templates
from strandline.services.jobs.job_lifecycle import JobLifecycle
from tests.support.waiting import stretched


class AuditLab:
    """Applies, sends, runs, audits."""

    def __init__(self, settings: Settings, ledger: Ledger, spark: SparkSession) -> None:
        self.settings = settings
        self.ledger = ledger
        self.spark = spark
        self.index = httpx.Client(base_url=settings.elasticsearch_url, timeout=60, trust_env=False)
        self.producer = Producer(
            {"bootstrap.servers": settings.kafka_bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        topics = Topics(settings.kafka_bootstrap, replication=1, record_bytes_max=settings.record_bytes_max)
        admin = KafkaAdmin(settings.kafka_bootstrap, timeout_s=30, changes_topics=True)
        self.lifecycle = JobLifecycle(ledger, admin, settings.elasticsearch_url)
        self._applier = DocumentApplier(
            ledger,
            topics,
            lambda pipeline: ensure_templates(settings.elasticsearch_url, pipeline, ledger.generation_of(pipeline.job)),
            LogIndex(settings.kafka_bootstrap).starts,
            self.lifecycle.origin,
        )

    def close(self) -> None:
        self.index.close()

    def apply(self, text: str) -> None:
        self._applier.apply(text.encode(), "test.yaml")

    def send(self, stream: str, lines: list[bytes]) -> None:
        """Write records to both partitions by turns; in some hundred log times, so that slices can be cut between them."""
        for number, line in enumerate(lines):
            self.producer.produce(stream, line, partition=number % 2)
            if number % 100 == 99:
                assert self.producer.flush(60) == 0
        assert self.producer.flush(60) == 0

    def drain(self, job: str) -> None:
        """Run the job until all is read and every window closed."""
        self.ledger.set_desired(job, Desired.DRAINED)
        assert Runner(self.settings, job, self.spark).run() == 0

    @contextmanager
    def running(self, job: str, stream: str) -> Iterator[None]:
        """The job runs inside, and afterwards until all is read; its windows stay open."""
        self.ledger.set_desired(job, Desired.RUNNING)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(Runner(self.settings, job, self.spark).run()))
        thread.start()
        try:
            yield
            ends = LogIndex(self.settings.kafka_bootstrap).ends(stream)
            while thread.is_alive() and not self._has_read(job, stream, ends):
                thread.join(0.2)
        finally:
            self.ledger.set_desired(job, Desired.STOPPED)
            thread.join()
        assert codes == [0]

    def run_killed_at(self, job: str, failpoint: str) -> None:
        """A run in a process of its own that kills itself there."""
        self.ledger.set_desired(job, Desired.RUNNING)
        self._killed_at(failpoint, ["-m", "strandline.processing.run.process", "--job", job])

    def run_failed_at(self, job: str, failpoint: str) -> None:
        """A run in a process of its own whose workers kill themselves there, so that it fails."""
        self.ledger.set_desired(job, Desired.RUNNING)
        self._killed_at(failpoint, ["-m", "strandline.processing.run.process", "--job", job], of_worker=True)

    def _killed_at(self, failpoint: str, command: list[str], *, of_worker: bool = False) -> None:
        settings = self.settings.model_dump(mode="json", exclude_none=True)
        environment = {f"STRANDLINE_{name.upper()}": str(value) for name, value in settings.items()}
        done = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, **environment, "STRANDLINE_FAILPOINTS": f"{failpoint}=kill"},
            capture_output=True,
            text=True,
            timeout=stretched(200),
            check=False,
        )
        is_right = done.returncode > 0 if of_worker else done.returncode == -signal.SIGKILL
        assert is_right, done.stdout + done.stderr

    def _has_read(self, job: str, stream: str, ends: dict[int, int]) -> bool:
        last = self.ledger.last_checkpoint(job)
        return last is not None and self.ledger.slices(job, last.slice, last.slice)[0].offsets[stream] == ends

    def slices(self, job: str) -> list[SliceRow]:
        return self.ledger.slices(job, 1, self.ledger.slice_count(job))

    def audit(self, job: str, after_ms: int | None = None, up_to_ms: int | None = None) -> dict[str, Any]:
        """The report of an audit, as the process tells it."""
        return asdict(Audit(self.settings, job, EndRange(after_ms, up_to_ms)).run())

    def require_clean(self, job: str) -> dict[str, dict[str, int]]:
        """Audit the job, which must be clean. Return what was counted: store -> counts."""
        report = self.audit(job)
        assert report["outcome"] == "clean", report
        return {one["store"]: one["counts"] for one in report["stores"]}

    def request_backfill(self, job: str, from_ms: int, to_ms: int | None = None) -> BackfillRow:
        """Request a backfill with the job's current version."""
        starts = LogIndex(self.settings.kafka_bootstrap).starts
        load = partial(load_pipeline, self.ledger, job)
        plan = plan_backfill(self.ledger, job, load, starts, from_ms, to_ms)
        return self.ledger.request_backfill(
            job,
            plan.version,
            (from_ms, to_ms),
            plan.windows,
            plan.slice_committed,
            plan.records,
            streams_of_version(self.ledger, job, plan.version),
        )

    def backfill(self, row: BackfillRow) -> BackfillRow:
        """One attempt at a backfill, in this process; its row afterwards."""
        Backfill(self.settings, row.job, row.generation, self.spark).run()
        return self.ledger.backfill(row.job, row.generation)

    def backfill_killed_at(self, row: BackfillRow, failpoint: str) -> BackfillRow:
        """One attempt at a backfill, in a process that kills itself there; its row afterwards."""
        command = ["-m", "strandline.processing.backfill.process", "--job", row.job]
        self._killed_at(failpoint, [*command, "--generation", str(row.generation)])
        return self.ledger.backfill(row.job, row.generation)

    def documents(self, alias: str) -> dict[str, dict[str, Any]]:
        """Every document behind the alias, by its id."""
        url = self.settings.elasticsearch_url
        found = {}
        for page in read_documents(url, open_snapshot(url, alias), EndRange(), 0, 1):
            wanted = [{"_index": one.index, "_id": one.id} for one in page]
            for one in self.index.post("/_mget", json={"docs": wanted}).json()["docs"]:
                found[one["_id"]] = one["_source"]
        return found


@pytest.fixture(scope="module")
def audit_lab(
    kafka: str, elasticsearch: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AuditLab]:
    """A ledger of the module's own; Kafka, Elasticsearch and Spark are those of the run."""
    directory: Path = tmp_path_factory.mktemp("audit")
    settings = Settings(
        data_dir=directory,
        kafka_bootstrap=kafka,
        elasticsearch_url=elasticsearch,
        ledger_url=f"sqlite:///{directory / 'ledger.sqlite'}",
        slice_rows_max=2_000,
    )
    ledger = Ledger.open(settings.ledger_url)
    lab = AuditLab(settings, ledger, spark)
    yield lab
    lab.close()
    ledger.close()
