"""Check of a job's stream: its records are read again at every start, and must decode to the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.core.streams.stream import StreamSpec
from strandline.log.topics import require_complete_log

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.jobs import JobStates
    from strandline.log.index import LogIndex


def require_same_stream(ledger: JobStates, index: LogIndex, job: str, stream: StreamSpec) -> None:
    """Make sure that the records of the job's stream can be read again as they were read before.

    1. The topic isn't compacted: compaction removes records from its middle.
    2. The ledger contains the document with which the job's first run decodes records. Slices record later documents.

    Raises Conflict, NotFound, LogUnavailable, LedgerUnavailable.
    """
    require_complete_log(stream.stream, index.settings(stream.stream))
    ledger.record_input(job, stream.stream, stream.as_document())
