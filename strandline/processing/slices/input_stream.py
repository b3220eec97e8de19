"""The stream that a job reads must stay what it was: its records are read again at every start, and must come out the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.core.streams.stream import StreamSpec
from strandline.log.topics import require_whole_log

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.jobs import JobStates
    from strandline.log.index import LogIndex


def require_same_stream(ledger: JobStates, index: LogIndex, job: str, stream: StreamSpec) -> None:
    """Make sure that the records of the job's stream can be read again as they were read before.

    1. The topic is whole: compaction would take records out of its middle.
    2. The document by which the job's first run decodes records is in the ledger. Later ones are known by the slices.

    Raises Conflict, NotFound, LogUnavailable, LedgerUnavailable.
    """
    require_whole_log(stream.stream, index.settings(stream.stream))
    ledger.record_input(job, stream.stream, stream.as_document())
