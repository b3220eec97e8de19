"""The process from which Spark forks the Python workers of a runner, with their imports already done.

Spark ends workers that were idle for a minute, and forks new ones for the next task. Forked from this process, they need no
imports: a standby stays warm however long it waits, and a cold start imports once instead of once for each worker.
"""

from __future__ import annotations

import gc
import importlib

from pyspark.daemon import manager

from strandline.core.streams import format_registry
from strandline.processing.pipelines.kind_registry import ROW_KINDS, STAGE_KINDS, module_of
from strandline.processing.spark.executor_check import require_expected

MODULE = "strandline.processing.spark.worker_daemon"
_NEEDED_BY_WORKERS = (
    "pyspark.worker",
    "pandas",
    "strandline.processing.source.data_source",
    "strandline.processing.source.source_task",
    "strandline.log.range_reader",
    "strandline.processing.emission.keyed_task",
    "strandline.results.elasticsearch_writer",
    "strandline.ledger.roles",
    *(module_of(kind, "operator") for kind in (*ROW_KINDS, *STAGE_KINDS)),
    *(format_registry.module_of(name, part) for name in format_registry.FORMATS for part in ("format", "reader")),
)

if __name__ == "__main__":
    require_expected()
    for needed in _NEEDED_BY_WORKERS:
        importlib.import_module(needed)
    # PySpark collects garbage after each task; what is imported here needs no look again.
    gc.collect()
    gc.freeze()
    manager()
