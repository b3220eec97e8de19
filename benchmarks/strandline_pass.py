"""Our side of W1: `python -m benchmarks.strandline_pass`. The runner as in production, one job a pass, over one Spark
session; the settings come from the environment as for any runner."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measured import measure
from benchmarks.work_w1 import STREAM, STREAM_TEXT, Outcome, pipeline_text
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired
from strandline.log.topics import Topics
from strandline.processing.run.runner import Runner
from strandline.processing.spark.session import start_spark
from strandline.results.writer import WriteReport
from strandline.services.rest.apply_documents import Applier


@dataclass(frozen=True)
class SummingWriter:
    """Stands for the store: counts results and adds them up, so that they can be checked, and keeps nothing."""

    directory: str

    def write_batches(self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int) -> WriteReport:
        report = WriteReport()
        with (Path(self.directory) / str(os.getpid())).open("a", encoding="utf-8") as file:
            for batch in batches:
                report.created += batch.num_rows
                sums = [pc.sum(batch.column(name)).as_py() or 0 for name in ("n", "peak")]
                file.write(json.dumps([batch.num_rows, *sums]) + "\n")
        return report


def run_pass(settings: Settings, ledger: Ledger, spark: object, job: str, sums: Path) -> tuple[Outcome, int]:
    """Run one job from the log's start until it is drained; return what it gave out, and its number of slices."""
    sums.mkdir()
    topics = Topics(settings.kafka_bootstrap, replication=1, record_bytes_max=settings.record_bytes_max)
    documents = f"{STREAM_TEXT}---\n{pipeline_text(job)}"
    Applier(ledger, topics, lambda pipeline: None, lambda stream: {}).apply(documents.encode(), "w1.yaml")
    ledger.set_desired(job, Desired.DRAINED)
    code = Runner(settings, job, spark, writer_of=lambda shape: SummingWriter(str(sums))).run()
    totals = ledger.totals(job)
    if code != 0 or totals.accepted != totals.records:
        raise SystemExit(f"the pass failed: exit {code}, {totals}")
    rows = [json.loads(line) for path in sums.iterdir() for line in path.read_text().splitlines()]
    results, readings, peaks = (sum(column) for column in zip(*rows, strict=True))
    if results != totals.results["minute"]:
        raise SystemExit(f"the sink counted {results} results, the ledger {totals.results} of stream {STREAM}")
    return Outcome(results, readings, peaks), ledger.slice_count(job)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--began", type=float, required=True)
    parser.add_argument("--passes", type=int, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    settings = Settings()
    configure_logs(as_json=False)
    ledger = Ledger.open(settings.ledger_url)
    scratch = options.directory / "spark"
    scratch.mkdir()
    spark = start_spark(settings, "w1", scratch)

    def run(number: int) -> tuple[Outcome, int]:
        return run_pass(settings, ledger, spark, f"w1-{number}", options.directory / f"sums-{number}")

    measure(options.passes, options.began, run, options.report)
    spark.stop()
    ledger.close()


if __name__ == "__main__":
    main()
