"""Prometheus remote-write requests. Each sample is a row."""

from __future__ import annotations

from strandline.processing.formats.format import Format, FormatReader, ReaderRequest


class PrometheusFormat(Format):
    name = "prometheus"
    module = "google.protobuf"
    content_type = b"application/x-protobuf"
    rows_at = ("points",)

    def reader(self, request: ReaderRequest) -> FormatReader:
        from strandline.processing.formats.prometheus.reader import RemoteWrites

        return RemoteWrites()


FORMAT = PrometheusFormat()
