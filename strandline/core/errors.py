"""Tree of errors. The class determines the caller's reaction. The message and the attributes contain the facts. "Raises
X." in a docstring, without a condition, means the condition in this list.

* StrandlineError
  x TransientError         try again with backoff, until a deadline
    - LogUnavailable       Kafka didn't respond or didn't confirm
    - IndexUnavailable     Elasticsearch didn't respond
    - SinkUnavailable      another store of results (files, a database) didn't respond
    - SourceUnavailable    the source of a lookup (a database) didn't respond, or refused the login
    - LedgerUnavailable    the ledger's database didn't respond
    - RegistryUnavailable  the schema registry didn't respond, or refused the login
    - SparkUnavailable     the Spark cluster's master didn't respond, or the job has no executor
  x PermanentError         a retry can't help
    - InvalidDocument      a document is wrong; contains a list of problems, each with its line
    - InvalidSettings      the process must not start
    - NotFound             the stream, job, or version doesn't exist
    - Unauthenticated      the request has no token, or an invalid token
    - Forbidden            the client doesn't have the required right
    - TooExpensive         a request needs more memory or time than its limit
    - Conflict             the request contradicts the current state (an illegal transition, a change that loses data)
       - LogChanged         the log isn't the log that was read
       - ResultsMissing     a store lost results of committed slices: restore them
       - LedgerBehind       the ledger is older than the results of a job: it lost its last commits, or is an old copy
       - SchemaChanged      the schema registry returns a different schema for a number than before
    - FunctionUnusable     a Python function of a pipeline isn't allowed, doesn't exist, or doesn't match the pipeline
    - BadRecord            becomes a dead letter, with reason and step
    - RecordTooLarge       Kafka responds, but its topic refuses a record of this size: raise the topic's limit
    - Fenced               a newer epoch owns this job: stop now
    - Divergence           the results store contains a different value under the same id: alarm, never overwrite
    - IndexMisconfigured   Elasticsearch responds, but its configuration refuses results: an operator must correct it
    - LogTruncated         the log no longer contains offsets that a rewind needs
    - ReplayMismatch       recorded slices differ from their content at the commit
    - StackError           a part of the embedded stack could not be downloaded, started, or stopped
"""

from __future__ import annotations

from dataclasses import dataclass, field


class StrandlineError(Exception):
    """Root of all errors. The message has one or two sentences: what happened, to which object, and what to do next."""

    code = "error"


class TransientError(StrandlineError):
    """The operation may succeed on a retry."""

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


class NeedsOwnRunner(StrandlineError):
    """A job can't run in a pool with other jobs."""

    code = "needs_own_runner"


class PermanentError(StrandlineError):
    """A retry can't help."""


PROBLEMS_MAX = 50
"""Maximum number of problems in one response. For each problem, a search for similar names may be necessary."""


@dataclass(frozen=True)
class Problem:
    """One error in a document: its position, and the expected value."""

    message: str
    path: str = ""
    """The field, as `steps[1].window.tumbling`; empty for the document as a whole."""
    source: str = ""
    """File name, or `<request>`."""
    line: int | None = None
    """Line, counted from 1."""
    column: int | None = None
    """Column, counted from 1. None unless the document was written in SQL."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.source, self.line, self.column) if part)
        return ": ".join(part for part in (place, self.path, self.message) if part)


@dataclass
class InvalidDocument(PermanentError):
    """A document is wrong. `problems` has between 1 and PROBLEMS_MAX entries, and one more if there are more problems."""

    problems: list[Problem] = field(default_factory=list)
    code = "invalid_document"

    def __post_init__(self) -> None:
        if len(self.problems) > PROBLEMS_MAX:
            more = Problem(f"there are more problems than these {PROBLEMS_MAX}; correct these first")
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
    """A request needs more memory or time than its limit."""

    code = "too_expensive"


class Conflict(PermanentError):
    code = "conflict"


class LogChanged(Conflict):
    """The log isn't the log that was read: it was truncated, and possibly grew again, or its topic was recreated."""


class LedgerBehind(Conflict):
    """The ledger doesn't contain slices or backfills whose results were written. It lost its last commits in a failover, or was
    restored from an older copy."""

    @classmethod
    def of(cls, job: str, evidence: str) -> LedgerBehind:
        """Return the error for a job.

        Args: evidence: What the ledger contains, and what was written.
        """
        return cls(
            f"the ledger is older than what job {job} has written: {evidence}. Nothing more is written; restore the newest copy "
            f"of the ledger, then run strandline job start {job}. If there is no newer copy, submit the pipeline under another "
            "name, with other names of its aliases, streams of results and tables"
        )


class ResultsMissing(Conflict):
    """A store lacks results that the ledger records as emitted. It was restored from an older copy, or lost writes."""


class SchemaChanged(Conflict):
    """The schema registry returns a different schema for a number than before. New records may have another meaning."""

    code = "schema_changed"


@dataclass
class BadRecord(PermanentError):
    """A record that can't be used. `reason` is one of: decode, schema, expression, late, future_event."""

    reason: str
    message: str
    step: str = "decode"
    code = "bad_record"

    def __str__(self) -> str:
        return f"{self.reason} at {self.step}: {self.message}"


class RecordTooLarge(PermanentError):
    """A record, or a batch of records, is larger than the topic accepts. Kafka is available."""

    code = "record_too_large"


class Fenced(PermanentError):
    code = "fenced"


class Divergence(PermanentError):
    code = "divergence"


class IndexMisconfigured(PermanentError):
    """Elasticsearch refuses results because an index is closed or read-only, a right is missing, or a pipeline is missing. The
    results are valid, and none is dropped."""

    code = "index_misconfigured"


class LogTruncated(PermanentError):
    code = "log_truncated"


class ReplayMismatch(PermanentError):
    """Slices that were read again differ from their content at the commit, so results that follow would be wrong. Nothing was
    emitted."""

    code = "replay_mismatch"


class StackError(PermanentError):
    code = "stack"
