"""The failure of a Spark query is only text; the runner recreates the error that was raised from it."""

from __future__ import annotations

import pytest

from strandline.core.errors import (
    Divergence,
    FunctionUnusable,
    InvalidSettings,
    LogChanged,
    LogTruncated,
    LogUnavailable,
    RecordTooLarge,
    ReplayMismatch,
    SparkUnavailable,
    StrandlineError,
)
from strandline.processing.spark.errors import typed_error

OF_AN_EXECUTOR = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure
Py4JJavaError: an error occurred
pyspark.errors.PythonException: Traceback (most recent call last):
  File "stage_emission.py", line 50, in __call__
    refused += writer.write_batches([new], self.epoch, emission).refused
{name}: {text}
\tat org.apache.spark.api.python.BasePythonRunner
"""
OF_A_KILLED_WORKER = """Job aborted due to stage failure: Task 1 in stage 12.0 failed 1 times
=== Streaming Query ===
Identifier: power [id = e0cd4b59, runId = 4223ab22]
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.util.SparkErrorUtils.tryWithSafeFinally(SparkErrorUtils.scala:86)
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
Caused by: java.io.EOFException
"""


@pytest.mark.parametrize(
    "kind",
    [
        LogUnavailable,
        InvalidSettings,
        LogChanged,
        LogTruncated,
        RecordTooLarge,
        ReplayMismatch,
        Divergence,
        FunctionUnusable,
    ],
)
def test_our_own_error_comes_back_as_what_it_was(kind: type[StrandlineError]) -> None:
    error = typed_error(
        RuntimeError(OF_AN_EXECUTOR.format(name=f"strandline.core.errors.{kind.__name__}", text="Kafka: it is gone."))
    )
    assert type(error) is kind
    assert str(error) == "Kafka: it is gone."


@pytest.mark.parametrize(
    "said",
    [
        "/opt/python: Error while finding module specification for 'strandline.processing.spark.worker_daemon' "
        "(ModuleNotFoundError: No module named 'strandline')",
        "/opt/python: No module named strandline.processing.spark.worker_daemon",
        'java.io.IOException: Cannot run program "/opt/venv/bin/python": error=2, No such file or directory',
    ],
)
def test_an_executor_without_strandline_is_told_with_the_remedy(said: str) -> None:
    error = typed_error(RuntimeError(OF_A_KILLED_WORKER + said))
    assert type(error) is InvalidSettings
    assert "install it on each machine" in str(error)


@pytest.mark.guarantee(
    "G620",
    "A machine that is too busy for Spark to reach its Python processes in time ends no job. The run is repeated with "
    "pauses, as in an outage of an external service, and the job's status reports the reason.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.parametrize(
    "said",
    [
        "Caused by: org.apache.spark.SparkException: Python worker failed to connect back.",
        "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back",
    ],
)
def test_a_busy_machine_is_no_fault_of_the_job(said: str) -> None:
    """Spark gives a Python process 10 s to answer, whatever the load: the run ends as if something outside were away."""
    error = typed_error(RuntimeError(OF_A_KILLED_WORKER + said))
    assert type(error) is SparkUnavailable
    assert "too much to do" in str(error)


def test_anything_else_is_an_error_with_its_own_name_in_the_text() -> None:
    error = typed_error(RuntimeError(OF_AN_EXECUTOR.format(name="strandline.core.errors.Unheard", text="what?")))
    assert type(error) is StrandlineError
    assert str(error) == "strandline.core.errors.Unheard: what?"


def test_a_failure_without_a_python_line_is_its_first_line() -> None:
    assert str(typed_error(RuntimeError("out of memory\nat java"))) == "out of memory"


def test_without_a_python_error_the_cause_that_spark_names_is_told() -> None:
    error = typed_error(RuntimeError(OF_A_KILLED_WORKER))
    assert str(error) == "Python worker exited unexpectedly (crashed)."
