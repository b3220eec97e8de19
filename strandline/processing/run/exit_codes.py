"""The exit codes of a runner and of a backfill's process, as the control service that starts them expects."""

from __future__ import annotations

from strandline.core.errors import (
    IndexUnavailable,
    LedgerUnavailable,
    LogUnavailable,
    NeedsOwnRunner,
    RegistryUnavailable,
    StrandlineError,
    TransientError,
)

EXIT_DONE = 0
"""Stopped or drained as asked, or another run owns the job."""
EXIT_FAILED = 1
"""The run failed permanently. The message of the job has the reason."""
EXIT_TRY_AGAIN = 3
"""The run failed, and a new start may succeed."""
EXIT_AWAY = 4
"""A server that the job needs (Kafka, Elasticsearch, the ledger, a schema registry) does not answer. The control service checks
this itself."""
EXIT_AWAY_UNSEEN = 5
"""A server that the control service does not check is away: another store of results, a server that a package uses, or the Spark
cluster."""

EXIT_OTHER_RUNNER = 6
"""The job needs another runner: its own instead of the pool, or the other way around. The control service places it again."""


def exit_code_of(error: StrandlineError, otherwise: int = EXIT_TRY_AGAIN) -> int:
    """Return the exit code for an error: that of the server that is unavailable, or `otherwise` for any other error."""
    if isinstance(error, NeedsOwnRunner):
        return EXIT_OTHER_RUNNER
    if isinstance(error, LogUnavailable | IndexUnavailable | LedgerUnavailable | RegistryUnavailable):
        return EXIT_AWAY
    return EXIT_AWAY_UNSEEN if isinstance(error, TransientError) else otherwise
