"""Maps in CBOR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from strandline.processing.formats.inference.sample import Proposed


class CborFormat(Format):
    name = "cbor"
    content_type = b"application/cbor"
    has_nested = True
    keeps_rest = True

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.cbor.reader import cbor_maps

        return cbor_maps(request.fields)

    def propose_for_records(self, name: str, records: Sequence[bytes]) -> Proposed | None:
        from strandline.processing.formats.cbor.reader import cbor_maps
        from strandline.processing.formats.inference.objects import propose_for_maps

        read = cbor_maps().objects(records, [None] * len(records))
        return propose_for_maps(name, self.name, read, records)


FORMAT = CborFormat()
