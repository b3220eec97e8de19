"""Lines of InfluxDB's protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.processing.formats.format import Format, FormatReader, ReaderRequest

if TYPE_CHECKING:
    from strandline.processing.formats.inference.sample import Proposed, Sample


class InfluxFormat(Format):
    name = "influx"
    content_type = b"text/plain"
    untyped_body = "lines"
    is_line = True
    keeps_rest = True
    sample_rank = 30

    def split_lines(self, body: bytes) -> list[bytes] | None:
        from strandline.processing.formats.influx.lines import split_influx

        return split_influx(body)

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.influx.reader import InfluxLines

        return InfluxLines(request.fields)

    def propose(self, name: str, sample: Sample) -> Proposed | None:
        from strandline.processing.formats.influx.sample import propose

        return propose(name, sample)


FORMAT = InfluxFormat()
