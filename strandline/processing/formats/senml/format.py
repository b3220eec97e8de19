"""Packs of SenML (RFC 8428) in JSON. Each record of a pack is a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.core.streams.format import Framing
from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from strandline.processing.formats.inference.sample import Proposed, Sample


class SenmlFormat(Format):
    name = "senml"
    content_type = b"application/senml+json"
    rows_at = ("records",)
    has_line_files = True
    sample_rank = 5
    """Before formats whose records are JSON objects: a pack is an array of objects."""

    def framing(self) -> Framing:
        """Framing of a request body: an array is one record, a pack, because base values apply to the SenML records after
        them."""
        return super().framing()._replace(is_of_arrays=True)

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.senml.reader import SenmlPacks

        return SenmlPacks()

    def propose(self, name: str, sample: Sample) -> Proposed | None:
        from strandline.processing.formats.senml.sample import propose

        return propose(name, sample)


FORMAT = SenmlFormat()
