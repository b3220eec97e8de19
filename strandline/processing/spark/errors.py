"""Typed errors from failed Spark queries. Of an error that one of its workers raised, Spark passes on only the text."""

from __future__ import annotations

import re

from strandline.core.errors import (
    BadRecord,
    Conflict,
    Divergence,
    Fenced,
    IndexUnavailable,
    LedgerUnavailable,
    LogTruncated,
    LogUnavailable,
    NotFound,
    PermanentError,
    RecordTooLarge,
    StrandlineError,
)

_RAISED = re.compile(r"(?!(?:org|java|scala|py4j|pyspark)\.)(?:(?:\w+\.)+\w+|\w*(?:Error|Exception)): \S")
"""`module.Class: text` or `ValueError: text`, the last line of a Python traceback."""
_BAD_RECORD = re.compile(rf".*\b{BadRecord.__name__}: (?P<reason>\w+) at (?P<step>\S+): (?P<message>.*)")
"""As `BadRecord` says it."""
_OF_SPARK = re.compile(r"(?:Caused by: )?org\.apache\.spark\.SparkException: (\S.*)")
_TOLD_AS_TEXT: dict[str, type[StrandlineError]] = {
    kind.__name__: kind
    for kind in (
        LogUnavailable,
        IndexUnavailable,
        LedgerUnavailable,
        PermanentError,
        NotFound,
        Conflict,
        Fenced,
        Divergence,
        LogTruncated,
        RecordTooLarge,
    )
}
"""The errors that planner and executors raise, by the name that Spark passes on."""


def typed_error(error: Exception) -> StrandlineError:
    """The error that made a Spark query fail, with the type that it was raised with."""
    sentence = sentence_of(error)
    name, _, message = sentence.partition(": ")
    if (bad := _BAD_RECORD.match(sentence)) is not None:
        return BadRecord(bad["reason"], bad["message"], bad["step"])
    kind = _TOLD_AS_TEXT.get(name.rpartition(".")[2])
    return kind(message) if kind is not None else StrandlineError(sentence)


def sentence_of(error: Exception) -> str:
    """The line of an error's text that a person needs: the Python error, else the cause that Spark names, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    causes = [found[1] for line in lines if (found := _OF_SPARK.match(line))]
    return (raised or causes or lines[:1] or ["the Spark query failed and gave no reason; see the runner's log"])[-1]
