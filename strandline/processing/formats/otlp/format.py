"""OpenTelemetry requests with metrics. Each data point is a row."""

from __future__ import annotations

from strandline.processing.formats.format import Format, FormatReader, ReaderRequest


class OtlpFormat(Format):
    name = "otlp"
    module = "google.protobuf"
    content_type = b"application/x-protobuf"
    has_line_files = True  # in JSON, the form that a collector writes
    rows_at = ("points",)

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.otlp.reader import OtlpMetrics

        return OtlpMetrics()


FORMAT = OtlpFormat()
