"""Lookups of registered jobs and streams by name."""

from __future__ import annotations

from strandline.core.errors import NotFound
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import JobRow


def find_job(ledger: LedgerReader, name: str) -> JobRow | None:
    """Return the job. None if it doesn't exist."""
    try:
        return ledger.job(name)
    except NotFound:
        return None


def stream_spec(ledger: LedgerReader, name: str) -> StreamSpec:
    """Return the stream's current document. Raises NotFound."""
    return StreamSpec.from_document(ledger.stream(name).document)


def find_stream(ledger: LedgerReader, name: str) -> StreamSpec | None:
    """Return the stream's current version. None if the stream doesn't exist."""
    try:
        return stream_spec(ledger, name)
    except NotFound:
        return None
