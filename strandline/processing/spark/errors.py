"""What a Spark query failed of. Spark passes on only the text of an error that was raised in one of its workers."""

from __future__ import annotations

import re

from strandline.core.errors import (
    Conflict,
    Divergence,
    Fenced,
    IndexUnavailable,
    LedgerUnavailable,
    LogTruncated,
    LogUnavailable,
    NotFound,
    PermanentError,
    StrandlineError,
)

_RAISED = re.compile(r"(?!(?:org|java|scala|py4j|pyspark)\.)(?:(?:\w+\.)+\w+|\w*(?:Error|Exception)): \S")
"""`module.Class: text` or `ValueError: text`, the last line of a Python traceback."""
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
    )
}
"""What planner and executors raise, by the name that Spark passes on."""


def typed_error(error: Exception) -> StrandlineError:
    """What a Spark query failed of, as the error that was raised where it happened: Spark passes on only its text."""
    sentence = sentence_of(error)
    name, _, message = sentence.partition(": ")
    kind = _TOLD_AS_TEXT.get(name.rpartition(".")[2])
    return kind(message) if kind is not None else StrandlineError(sentence)


def sentence_of(error: Exception) -> str:
    """The line of a failure's text that a person needs: what the Python side raised, else what Spark names as the cause,
    else what it says first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    causes = [found[1] for line in lines if (found := _OF_SPARK.match(line))]
    return (raised or causes or lines[:1] or ["the Spark query failed without a word; see the runner's log"])[-1]
