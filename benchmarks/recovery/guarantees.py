"""Cost of `exactly_once` compared with `none`: `python -m benchmarks.recovery.guarantees`, in a separate process.

Work W1 from the log's start until it is drained, with results in the real results store, once with each guarantee, alternately
in one Spark session. One pass of each warms up and doesn't count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.process_tree import WatchedTree
from benchmarks.works import STREAM_TEXT, W1, Readings
from strandline.core.documents import read_documents
from strandline.core.logs import configure_logs
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired
from strandline.log.topics import Topics
from strandline.processing.run.runner import Runner
from strandline.processing.spark.session import start_spark
from strandline.services.embedded.addresses import settings_environment
from strandline.services.jobs.apply_documents import DocumentApplier, ensure_templates

GUARANTEES = ("none", "exactly_once")
ROWS_MAX = 100_000


def measure(
    settings: Settings, directory: Path, records: int, repetitions: int
) -> dict[str, list[tuple[float, float]]]:
    """Fill the topic and run the passes. Return records per second and CPU-seconds per million for each guarantee, one pair per
    pass. Raises RuntimeError."""
    readings = Readings.generate(records)
    topics = Topics(settings.kafka_bootstrap, replication=1, record_bytes_max=1_000_000)
    topics.ensure_stream_topic(StreamSpec.parse(read_documents(STREAM_TEXT, "w1.yaml")[0]))
    readings.send(settings.kafka_bootstrap)
    mine = settings.model_copy(
        update={
            "data_dir": directory,
            "ledger_url": f"sqlite:///{directory / 'ledger.sqlite'}",
            "slice_rows_max": ROWS_MAX,
        }
    )
    Ledger.migrate(mine.ledger_url)
    root, report = Path(__file__).parents[2], directory / "report"
    arguments = ["--records", str(records), "--repetitions", str(repetitions), "--report", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.recovery.guarantees", *arguments],
        env=settings_environment(mine) | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path[1:]])},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the passes ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    found: dict[str, list[tuple[float, float]]] = json.loads(report.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--repetitions", type=int, required=True)
    parser.add_argument("--report", type=Path, required=True)
    options = parser.parse_args()
    settings = Settings()
    configure_logs(as_json=False)
    ledger = Ledger.open(settings.ledger_url)
    scratch = settings.data_dir / "spark"
    scratch.mkdir()
    spark = start_spark(settings, "w1", scratch)
    expected = W1.expected(Readings.generate(options.records), None)
    found: dict[str, list[tuple[float, float]]] = {guarantee: [] for guarantee in GUARANTEES}

    def run(guarantee: str, number: int) -> tuple[float, float]:
        job = f"w1-{guarantee.replace('_', '-')}-{number}"
        _apply(settings, ledger, job, guarantee)
        with WatchedTree(os.getpid()) as tree:
            began_s, before_s = time.monotonic(), tree.cpu_s()
            code = Runner(settings, job, spark).run()
            took_s, spent_s = time.monotonic() - began_s, tree.cpu_s() - before_s
        totals = ledger.totals(job)
        if code != 0 or totals.accepted != options.records or totals.results["minute"] != expected.results:
            raise SystemExit(f"the pass failed: exit {code}, {totals}, expected {expected}")
        return options.records / took_s, spent_s * 1e6 / options.records

    for guarantee in GUARANTEES:
        run(guarantee, 0)
    for number in range(1, options.repetitions + 1):
        # Each runs first equally often, because the store is busier for the second.
        for guarantee in GUARANTEES if number % 2 else GUARANTEES[::-1]:
            found[guarantee].append(run(guarantee, number))
    options.report.write_text(json.dumps(found))
    spark.stop()
    ledger.close()


def _apply(settings: Settings, ledger: Ledger, job: str, guarantee: str) -> None:
    text = W1.pipeline_text(job)
    topics = Topics(settings.kafka_bootstrap, replication=1, record_bytes_max=settings.record_bytes_max)
    url = settings.elasticsearch_url
    applier = DocumentApplier(ledger, topics, lambda pipeline: ensure_templates(url, pipeline), lambda stream: {})
    applier.apply(f"{STREAM_TEXT}---\n{text}guarantee: {guarantee}\n".encode(), "w1.yaml")
    ledger.set_desired(job, Desired.DRAINED)


if __name__ == "__main__":
    main()
