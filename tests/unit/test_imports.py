"""Modules that the processes of a run import before they can work: a takeover waits for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from strandline.processing.spark.worker_daemon import _NEEDED_BY_WORKERS
from tests.support.waiting import stretched


def imported_by(*modules: str, after: Sequence[str] = ()) -> set[str]:
    """Return every module that a fresh process has after importing these, without those it had after importing `after`."""
    first = f"import {', '.join(after)}; had = {{*sys.modules}}" if after else "had = set()"
    program = f"import sys\n{first}\nimport {', '.join(modules)}\nprint(*{{*sys.modules}} - had)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=stretched(60)
    )
    return set(done.stdout.split())


def test_the_planner_starts_without_what_only_tasks_need() -> None:
    held = imported_by("strandline.processing.source.data_source")
    assert not held & {"sqlglot", "pydantic", "sqlalchemy", "strandline.processing.operators.cascade"}


def test_workers_are_forked_with_all_that_a_task_needs() -> None:
    assert imported_by("strandline.processing.source.source_task", after=_NEEDED_BY_WORKERS) == set()


def test_a_pipeline_at_the_desk_begins_without_what_only_a_stack_needs() -> None:
    held = imported_by("strandline.services.cli.commands", "strandline.processing.desk.case_run")
    assert not held & {"pyspark", "sqlalchemy", "httpx", "pydantic_settings", "aiokafka", "pandas", "fastapi"}


def test_a_stack_is_stopped_without_what_looks_at_servers() -> None:
    held = imported_by("strandline.services.embedded.stack")
    assert not held & {"elasticsearch", "pyarrow", "aiokafka", "paho", "pyspark"}


@pytest.mark.long
def test_a_control_service_starts_without_spark() -> None:
    assert not imported_by("strandline.services.control") & {"pyspark", "py4j", "pandas", "duckdb"}
