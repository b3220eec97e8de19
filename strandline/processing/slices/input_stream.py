"""The stream that a job reads must stay what it was: its records are read again at every start, and must come out the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.core.errors import Conflict
from strandline.core.stream import StreamSpec
from strandline.log.topics import require_log_of_arrivals

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.ledger import Ledger
    from strandline.log.index import LogIndex


def require_same_stream(ledger: Ledger, index: LogIndex, job: str, stream: StreamSpec) -> None:
    """Make sure that the records of the job's stream can be read again as they were read before.

    1. The topic is a log of arrivals: compaction would take records out of its middle.
    2. The stream's document decodes records as the one of the job's first run, which the ledger keeps.

    Raises Conflict, NotFound, LogUnavailable, LedgerUnavailable.
    """
    require_log_of_arrivals(stream.stream, index.settings(stream.stream))
    first = StreamSpec.from_document(ledger.record_input(job, stream.stream, stream.as_document()))
    if changes := first.decoding_changes(stream):
        raise Conflict(
            f"the document of stream {stream.stream} is not the one by which job {job} has read it: {', '.join(changes)} differ, "
            "so its records would be decoded otherwise than before. Apply the stream's document as it was and start the job "
            "again, or register the stream under another name"
        )
