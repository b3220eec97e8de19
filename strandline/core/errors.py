"""The tree of errors. The class tells the caller what to do; the facts are in the sentence and in attributes.

* StrandlineError
  x TransientError         try again with backoff, inside a deadline
    - LogUnavailable       Kafka did not answer or did not confirm
    - IndexUnavailable     Elasticsearch did not answer
    - SinkUnavailable      another store of results (files, a database) did not answer
    - SourceUnavailable    the source of a lookup (a database) did not answer, or refused us
    - LedgerUnavailable    the ledger's database did not answer
    - RegistryUnavailable  the schema registry did not answer, or refused us
    - SparkUnavailable     the Spark cluster's master did not answer, or the job has no executor
  x PermanentError         trying again cannot help
    - InvalidDocument      a stream or pipeline document is wrong; has a list of problems, each with its line
    - InvalidSettings      do not start
    - NotFound             no such stream, job or version
    - Unauthenticated      nobody says who asks, or the token is not valid
    - Forbidden            who asks may not do this
    - TooExpensive         a request needs more memory or time than it may use
    - Conflict             the request contradicts the present state (an illegal move, a change that loses data)
      - LogChanged         the log is not the one that was read
      - ResultsMissing     a store lost results of committed slices: restore them
      - LedgerBehind       the ledger is older than what a job has written: it lost its last commits, or is an older copy
      - SchemaChanged      the schema registry gives another schema for a number than before
    - FunctionUnusable     a pipeline calls a Python function that is not allowed, not there, or not what the pipeline says
    - BadRecord            becomes a dead letter, with reason and step
    - RecordTooLarge       Kafka answers, and its topic takes no record of this size: raise the topic's limit
    - Fenced               a newer epoch owns this job: stop now
    - Divergence           the results store holds another value under the same id: alarm, never overwrite
    - IndexMisconfigured   Elasticsearch answers, and takes no results the way it is set up: an operator has to mend that
    - LogTruncated         the log no longer holds offsets that a rewind needs
    - ReplayMismatch       recorded slices, read again, hold something else than when they were committed
    - StackError           a part of the embedded stack could not be fetched, started or stopped
"""

from __future__ import annotations

from dataclasses import dataclass, field


class StrandlineError(Exception):
    """The root. The text is one sentence or two: what happened, to what, and what to do next."""

    code = "error"


class TransientError(StrandlineError):
    """May succeed when tried again."""

    code = "unavailable"


class LogUnavailable(TransientError):
    code = "log_unavailable"


class IndexUnavailable(TransientError):
    code = "index_unavailable"


class SinkUnavailable(TransientError):
    code = "sink_unavailable"


class SourceUnavailable(TransientError):
    code = "source_unavailable"


class LedgerUnavailable(TransientError):
    code = "ledger_unavailable"


class RegistryUnavailable(TransientError):
    code = "registry_unavailable"


class SparkUnavailable(TransientError):
    code = "spark_unavailable"


class PermanentError(StrandlineError):
    """Trying again cannot help."""


PROBLEMS_MAX = 50
"""Of one answer. Each may cost a search for what was meant."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a document: where it stands, and what was expected there."""

    message: str
    path: str = ""
    """The field, as `steps[1].window.tumbling`; empty for the document as a whole."""
    source: str = ""
    """The file, or `<request>`."""
    line: int | None = None
    """Counted from 1."""
    column: int | None = None
    """Counted from 1; where it is known: of a document that was written in SQL."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.source, self.line, self.column) if part)
        return ": ".join(part for part in (place, self.path, self.message) if part)


@dataclass
class InvalidDocument(PermanentError):
    """A stream, lookup or pipeline document is wrong. `problems` has at least one entry, and at most PROBLEMS_MAX and one that
    says that there are more."""

    problems: list[Problem] = field(default_factory=list)
    code = "invalid_document"

    def __post_init__(self) -> None:
        if len(self.problems) > PROBLEMS_MAX:
            more = Problem(f"there are more problems than these {PROBLEMS_MAX}; mend these first")
            self.problems = [*[problem for problem in self.problems if problem != more][:PROBLEMS_MAX], more]

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class InvalidSettings(PermanentError):
    code = "invalid_settings"


class FunctionUnusable(PermanentError):
    code = "function_unusable"


class NotFound(PermanentError):
    code = "not_found"


class Unauthenticated(PermanentError):
    code = "unauthenticated"


class Forbidden(PermanentError):
    code = "forbidden"


class TooExpensive(PermanentError):
    """A request needs more memory or time than a request may use."""

    code = "too_expensive"


class Conflict(PermanentError):
    code = "conflict"


class LogChanged(Conflict):
    """The log is not the one that was read: it was cut off, and perhaps grew again, or its topic was made anew."""


class LedgerBehind(Conflict):
    """The ledger doesn't contain slices or backfills whose results were written. It lost its last commits in a failover, or was
    restored from an older copy."""

    @classmethod
    def of(cls, job: str, evidence: str) -> LedgerBehind:
        """`evidence`: what the ledger contains, and what was written."""
        return cls(
            f"the ledger is older than what job {job} has written: {evidence}. Nothing more is written; restore the newest copy "
            f"of the ledger, then run strandline job start {job}. If there is no newer copy, submit the pipeline under another "
            "name, with other names of its aliases, streams of results and tables"
        )


class ResultsMissing(Conflict):
    """A store doesn't contain results that the ledger knows to be emitted. It was restored from an older copy, or lost writes."""


class SchemaChanged(Conflict):
    """The schema registry gives another schema for a number than it gave before: new records may mean something else."""

    code = "schema_changed"


@dataclass
class BadRecord(PermanentError):
    """A record that could not be used. `reason` is one of: decode, schema, expression, late, future_event."""

    reason: str
    message: str
    step: str = "decode"
    code = "bad_record"

    def __str__(self) -> str:
        return f"{self.reason} at {self.step}: {self.message}"


class RecordTooLarge(PermanentError):
    """A record, or the records that were sent together, are larger than the topic takes. It is no sign that Kafka is away."""

    code = "record_too_large"


class Fenced(PermanentError):
    code = "fenced"


class Divergence(PermanentError):
    code = "divergence"


class IndexMisconfigured(PermanentError):
    """A closed or read-only index, a lost right, a missing pipeline: nothing is wrong with the results, and none is given up."""

    code = "index_misconfigured"


class LogTruncated(PermanentError):
    code = "log_truncated"


class ReplayMismatch(PermanentError):
    """Slices that were read again hold something else than when they were committed: what follows from them would be wrong.
    Nothing was emitted."""

    code = "replay_mismatch"


class StackError(PermanentError):
    code = "stack"
