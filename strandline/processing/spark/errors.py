"""Typed errors from failed Spark queries. Spark passes on only the text of an error that a worker raised. See
`core.portable_errors`."""

from __future__ import annotations

import re
import sys

from strandline.core.errors import BadRecord, InvalidDocument, InvalidSettings, SparkUnavailable, StrandlineError
from strandline.core.portable_errors import CLASSES

_RAISED = re.compile(r"(?!(?:org|java|scala|py4j|pyspark)\.)(?:(?:\w+\.)+\w+|\w*(?:Error|Exception)): \S")
"""`module.Class: text` or `ValueError: text`, the last line of a Python traceback."""
_BAD_RECORD = re.compile(
    rf"{re.escape(BadRecord.__module__)}\.{BadRecord.__name__}: (?P<reason>\w+) at (?P<step>\S+): (?P<message>.*)"
)
"""The message of `BadRecord`."""
_OF_SPARK = re.compile(r"(?:Caused by: )?org\.apache\.spark\.SparkException: (\S.*)")
_OF_AN_EXECUTORS_MACHINE = re.compile(r"No module named '?strandline\b|Cannot run program \"[^\"]*python[^\"]*\"")
_WORKER_TOO_LATE = re.compile(r"Python worker failed to connect back|Timed out while waiting for the Python worker")
"""Spark's limits for a Python process to answer, 10 s for a planner and 60 s for a worker, are constants of Spark (4.2.0:
`PythonWorkerFactory`) and no settings."""
_BY_NAME = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in CLASSES.values()
    if not issubclass(kind, BadRecord | InvalidDocument)
}
"""Name with which Spark passes on an error -> class. The name has the module: a package can have a class of the same name.
`BadRecord` has its own form. An `InvalidDocument` doesn't cross (see `typed_for_driver`)."""


def typed_error(error: Exception) -> StrandlineError:
    """Return the error that made a Spark query fail, with the type with which a worker raised it."""
    if (found := _OF_AN_EXECUTORS_MACHINE.search(str(error))) is not None:
        return InvalidSettings(
            f"An executor can't start Strandline ({found[0]}): install it on each machine of the cluster as on the job's driver, "
            f"with the same Python at the same path ({sys.executable})."
        )
    if _WORKER_TOO_LATE.search(str(error)):
        return SparkUnavailable(
            "A Python process of Spark did not answer in time: this machine has too much to do, or no memory is free. The run is "
            "tried again. If it stays so, run fewer jobs here or give the machine more cores."
        )
    text = message_of(error)
    name, _, message = text.partition(": ")
    if (bad := _BAD_RECORD.match(text)) is not None:
        return BadRecord(bad["reason"], bad["message"], bad["step"])
    kind = _BY_NAME.get(name)
    return kind(message) if kind is not None else StrandlineError(text)


def message_of(error: Exception) -> str:
    """Return the line of an error that a person needs: the Python error, else the cause in Spark's text, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    causes = [found[1] for line in lines if (found := _OF_SPARK.match(line))]
    return (raised or causes or lines[:1] or ["the Spark query failed and gave no reason; see the runner's log"])[-1]
