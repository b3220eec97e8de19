"""Versions of stream documents that decode recorded slices, and of lookups that enrich them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from strandline.processing.formats.record_rows import RecordFormat, record_format
from strandline.processing.source.kept_lookups import LookupRef, SliceLookups

if TYPE_CHECKING:  # the ledger's SQL takes half a second to import
    from strandline.ledger.roles import LedgerReader
    from strandline.ledger.states import SliceRow


class StreamFormats:
    """The formats of recorded slices. Queries the ledger only for versions that it has not seen."""

    def __init__(
        self, ledger: LedgerReader, own: Mapping[str, RecordFormat], lookups: Iterable[tuple[str, int]] = ()
    ) -> None:
        """`own`: stream -> format in the reader's pipeline. `lookups`: lookups of that pipeline, as for `SliceLookups`."""
        self._ledger = ledger
        self._own = own
        self._lookups = SliceLookups(ledger, lookups)
        self._known: dict[tuple[str, int], RecordFormat | None] = {}

    @property
    def keeps_sessions(self) -> bool:
        """True if the decoding of a record depends on earlier records, for at least one stream. All versions of a stream's
        document have the same format."""
        return any(one.keeps_sessions for one in self._own.values())

    def of(self, row: SliceRow, stream: str) -> RecordFormat | None:
        """Return the format of this stream's records in the slice. None if it is the format of `own`."""
        version = row.stream_versions[stream]
        if (stream, version) not in self._known:
            from strandline.core.streams.stream import StreamSpec

            found = record_format(StreamSpec.from_document(self._ledger.stream_documents(stream)[version]))
            # Equal ones are one object, so that what adjoins is fetched at once.
            own = self._own[stream]
            same = next((one for one in (own, *self._known.values()) if one == found), found)
            self._known[stream, version] = None if same is own else same
        return self._known[stream, version]

    def lookups_of(self, row: SliceRow) -> tuple[LookupRef, ...]:
        """Return the versions of the lookups that enrich the records of the slice."""
        return self._lookups.of(row)
