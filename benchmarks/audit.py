"""`python -m benchmarks.audit`: duration of the audit of work W1, with the results of both stages in Elasticsearch.

Starts its own servers, fills the log, runs the job until it is drained, and audits it with the process of `strandline audit`.
Fails if the audit finds differences. Writes the `audit` part of RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.process_tree import WatchedTree, tree_memory_mb
from benchmarks.report import RESULTS, machine_text, markdown, put_part, show, written_by
from benchmarks.servers import new_stack
from benchmarks.works import STREAM_TEXT, W1, Readings
from strandline.core.documents import read_documents
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired
from strandline.log.topics import Topics
from strandline.services.embedded.addresses import settings_environment
from strandline.services.jobs.apply_documents import DocumentApplier, ensure_templates
from strandline.services.supervision.audit_jobs import audit_command

JOB = "w1-audited"


@dataclass(frozen=True)
class Measured:
    """Measurements of one audit."""

    records: int
    documents: int
    seconds: float
    """Time from the start of its process to its report."""
    cpu_s: float
    peak_mb: float
    """Maximum total memory of its processes; shared pages count once."""


def measure(directory: Path, records: int, console: Console) -> list[Measured]:
    """Audit a job of W1 three times. Raises RuntimeError if an audit finds differences."""
    stack = new_stack(directory / "stack", console)
    try:
        bootstrap, url = stack.start_kafka(), stack.start_elasticsearch()
        settings = stack.settings.model_copy(
            update={"ledger_url": f"sqlite:///{directory / 'ledger.sqlite'}", "slice_rows_max": 250_000}
        )
        readings = Readings.generate(records)
        topics = Topics(bootstrap, replication=1, record_bytes_max=1_000_000)
        topics.ensure_stream_topic(StreamSpec.parse(read_documents(STREAM_TEXT, "w1.yaml")[0]))
        readings.send(bootstrap)
        _run_job(settings, topics, url)
        return [_audit(settings) for _ in range(3)]
    finally:
        stack.stop()


def _run_job(settings: Settings, topics: Topics, url: str) -> None:
    emits = (f"[{{elasticsearch: {JOB}-tens}}]", f"[{{elasticsearch: {JOB}-minute}}]")
    text = W1.pipeline_text(JOB).replace("mean: avg(temp)}}", f"mean: avg(temp)}}}}\n    emit: {emits[0]}")
    text = text.replace(f"[{{elasticsearch: {JOB}}}]", emits[1])
    ledger = Ledger.open(settings.ledger_url)
    try:
        applier = DocumentApplier(ledger, topics, lambda pipeline: ensure_templates(url, pipeline), lambda stream: {})
        applier.apply(f"{STREAM_TEXT}---\n{text}".encode(), "w1.yaml")
        ledger.set_desired(JOB, Desired.DRAINED)
    finally:
        ledger.close()
    command = [sys.executable, "-m", "strandline.processing.run.process", "--job", JOB]
    done = subprocess.run(command, env=settings_environment(settings), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the job ended with {done.returncode}: {done.stderr[-4000:]}")


def _audit(settings: Settings) -> Measured:
    began_s = time.monotonic()
    report, peaks = None, [0.0]
    with subprocess.Popen(
        audit_command(JOB, None, None),
        env=settings_environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        watcher = threading.Thread(target=_watch_memory, args=(process, peaks))
        watcher.start()
        with WatchedTree(process.pid) as tree:
            for line in process.stdout:
                if line.startswith('{"report"'):
                    report, seconds = json.loads(line)["report"], time.monotonic() - began_s
                    cpu_s = tree.cpu_s()
    if report is None or report["outcome"] != "clean":
        raise RuntimeError(f"the audit is not clean: {report}")
    documents = sum(one["counts"]["same"] for one in report["stores"] if one["stage"])
    return Measured(report["computed"]["records"], documents, seconds, cpu_s, max(peaks))


def _watch_memory(process: subprocess.Popen[str], peaks: list[float]) -> None:
    while process.poll() is None:
        peaks.append(tree_memory_mb(process.pid))
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=RESULTS, help="file for the table")
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as directory:
        audits = measure(Path(directory), options.records, console)
    rows = [("audit", "records", "documents", "seconds", "records/s", "CPU-s", "peak MB")]
    rows += [
        (
            str(at),
            f"{a.records:,}",
            f"{a.documents:,}",
            f"{a.seconds:.1f}",
            f"{a.records / a.seconds:,.0f}",
            f"{a.cpu_s:.1f}",
            f"{a.peak_mb:,.0f}",
        )
        for at, a in enumerate(audits, start=1)
    ]
    show(rows, "Audit of work W1", console)
    text = f"""\
## Audit

{written_by(" ".join(["python -m benchmarks.audit", *sys.argv[1:]]))}

{machine_text()}

Work W1 with both stages in Elasticsearch, drained, then audited: every window was recomputed from the log, and every document was
read back and compared. Seconds count from the start of the audit's process. Peak MB is the memory of
its processes together. No audit found differences.

{markdown(rows)}
"""
    put_part(options.output, "audit", text)


if __name__ == "__main__":
    main()
