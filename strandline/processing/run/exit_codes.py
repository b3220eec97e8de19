"""The exit codes of a runner and of a backfill's process, as the control service that starts them expects. Imports nothing."""

from __future__ import annotations

EXIT_DONE = 0
"""Stopped or drained as asked, or another run owns the job."""
EXIT_FAILED = 1
"""Failed for good; the job says why."""
EXIT_TRY_AGAIN = 3
"""Failed in a way that a new start may mend."""
EXIT_AWAY = 4
"""Something outside that the job needs (Kafka, Elasticsearch, the ledger) does not answer; no fault of the job."""
