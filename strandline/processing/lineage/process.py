"""One trace: `python -m strandline.processing.lineage.process --job NAME record STREAM PARTITION OFFSET`, `... result STAGE
DOCUMENT VERSION SLICE`, or `... windows [--stage STAGE] [--key TEXT]`.

It writes one pickled `TraceOutcome` to stdout. The process ends itself when it exceeds its limits of time or memory.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.core.errors import PermanentError, StrandlineError, TooExpensive
from strandline.core.portable_errors import picklable

if TYPE_CHECKING:
    from strandline.processing.lineage.record_life import Lives
    from strandline.processing.lineage.views import OpenWindows, RecordLife, ResultSources

SECONDS_MAX = 60
MEMORY_BYTES_MAX = 4 << 30
"""Maximum address space in bytes."""


@dataclass(frozen=True)
class TraceOutcome:
    """Outcome of a trace. One of the fields is set."""

    value: RecordLife | ResultSources | OpenWindows | None = None
    error: StrandlineError | None = None


def main(arguments: list[str] | None = None) -> int:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write to stdout
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    options = _parser().parse_args(arguments)
    try:
        answer = TraceOutcome(_traced(options))
    except StrandlineError as error:
        answer = TraceOutcome(error=picklable(error))
    except MemoryError:
        answer = TraceOutcome(
            error=TooExpensive("the trace needs too much memory; choose a result of a shorter window")
        )
    except Exception as error:  # noqa: BLE001  the caller needs each outcome
        answer = TraceOutcome(error=PermanentError(f"the trace failed with {type(error).__name__}: {error}"))
    with answers:
        pickle.dump(answer, answers)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="strandline-trace", description="Traces one record, or one result.")
    parser.add_argument("--job", required=True, help="name of the job")
    kinds = parser.add_subparsers(dest="kind", required=True)
    record = kinds.add_parser("record")
    record.add_argument("stream")
    record.add_argument("partition", type=int)
    record.add_argument("offset", type=int)
    result = kinds.add_parser("result")
    result.add_argument("stage")
    result.add_argument("document")
    result.add_argument("version", type=int)
    result.add_argument("slice", type=int)
    windows = kinds.add_parser("windows")
    windows.add_argument("--stage")
    windows.add_argument("--key", default="")
    return parser


def _traced(options: argparse.Namespace) -> RecordLife | ResultSources | OpenWindows:
    # Imported after the limits are effective.
    from strandline.core.logs import configure_logs
    from strandline.core.settings import Settings
    from strandline.ledger.database import without_secrets
    from strandline.ledger.roles import LedgerReader
    from strandline.log.index import LogIndex
    from strandline.processing.lineage.record_life import Lives
    from strandline.processing.pipelines.stored import inputs_of
    from strandline.processing.slices.continuity import require_same_topic

    settings = Settings()
    configure_logs(as_json=settings.log_json)
    ledger, job = LedgerReader.open(settings.ledger_url), options.job
    try:
        index = LogIndex(settings.kafka_bootstrap)
        for stream in inputs_of(ledger, job, ledger.job(job).version):
            what_now = "The records of the job were deleted, and can't be traced."
            require_same_topic(job, stream, ledger.stream(stream).topic_id, index.topic_id(stream), what_now)
        lives = Lives(ledger, job, settings.kafka_bootstrap, without_secrets(settings.ledger_url))
        return _asked(lives, options)
    finally:
        ledger.close()


def _asked(lives: Lives, options: argparse.Namespace) -> RecordLife | ResultSources | OpenWindows:
    if options.kind == "record":
        return lives.of_record(options.stream, options.partition, options.offset)
    if options.kind == "windows":
        return lives.open_windows(options.stage, options.key)
    return lives.of_result(options.stage, options.document, options.version, options.slice)


if __name__ == "__main__":
    # The class of a pickled answer must be that of the module, not of `__main__`.
    from strandline.processing.lineage import process

    sys.exit(process.main())
