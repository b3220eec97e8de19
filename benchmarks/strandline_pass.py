"""Run of a work in Strandline: `python -m benchmarks.strandline_pass`. The runner is as in production, with the settings of the
environment.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from benchmarks.progress import tell_answer, telling_mark
from benchmarks.works import STREAM_TEXT, WORKS, Outcome, Work
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired
from strandline.log.topics import Topics
from strandline.processing.run.runner import Runner
from strandline.processing.spark.session import start_spark
from strandline.results.writer import WINDOW_START, WriteReport
from strandline.services.jobs.apply_documents import DocumentApplier

JOB = f"work-{time.time_ns()}"
"""Name of the job, different in each process. So no process finds dead letters of a job that its ledger doesn't contain."""


@dataclass(frozen=True)
class SummingWriter:
    """Fake of the store: counts results and adds them up for a check, but keeps none."""

    directory: str
    every_ms: int
    value: str

    def prepare(self, next_end_ms: int | None) -> None:
        """Do nothing, because the store needs no preparation."""

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        report = WriteReport()
        with (Path(self.directory) / str(os.getpid())).open("a", encoding="utf-8") as file:
            for batch in batches:
                report.created += batch.num_rows
                readings = batch.column("n")
                windows = pc.multiply(pc.divide(batch.column(WINDOW_START), self.every_ms), readings)
                sums = [pc.sum(column).as_py() or 0 for column in (readings, windows, batch.column(self.value))]
                file.write(json.dumps([batch.num_rows, *sums]) + "\n")
        return report


def run(
    settings: Settings, ledger: Ledger, spark: SparkSession, work: Work, mark: int, sums: Path
) -> tuple[int, Outcome]:
    """Run the job from the log's start until it is drained. Return the number of records that it read, and its outcome."""
    sums.mkdir()
    topics = Topics(settings.kafka_bootstrap, replication=1, record_bytes_max=settings.record_bytes_max)
    documents = f"{STREAM_TEXT}---\n{work.pipeline_text(JOB)}"
    DocumentApplier(ledger, topics, lambda pipeline: None, lambda stream: {}).apply(documents.encode(), "work.yaml")
    ledger.set_desired(JOB, Desired.DRAINED)
    writer = SummingWriter(str(sums), work.every_ms, work.value)
    with telling_mark(lambda: ledger.totals(JOB).records, mark):
        code = Runner(settings, JOB, spark, writer_of=lambda shape, index: writer, is_alone=True).run()
    totals = ledger.totals(JOB)
    if code != 0 or totals.rejected.keys() - {"decode"}:
        raise SystemExit(f"the run failed: exit {code}, {totals}")
    rows = [json.loads(line) for path in sums.iterdir() for line in path.read_text().splitlines()]
    results, readings, windows, values = (sum(column) for column in zip(*rows, strict=True))
    if results != totals.results["minute"]:
        raise SystemExit(f"the sink counted {results} results, the ledger {totals.results}")
    return totals.records, Outcome(results, readings, windows, values)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--mark", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    settings = Settings()
    configure_logs(as_json=False)
    ledger = Ledger.open(settings.ledger_url)
    scratch = options.directory / "spark"
    scratch.mkdir()
    spark = start_spark(settings, JOB, scratch)
    work = WORKS[options.work]
    tell_answer(*run(settings, ledger, spark, work, options.mark, options.directory / "sums"))
    spark.stop()
    ledger.close()


if __name__ == "__main__":
    main()
