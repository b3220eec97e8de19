"""Converts Prometheus remote-write 1.0 requests (a `WriteRequest` in Protobuf, packed as one Snappy block) to their samples.

A sample has `metric`, the label `__name__`; `labels`, the other labels; `time` in milliseconds; and `value`. The value is null
if it is NaN, also for a stale marker, which shows that a series has ended. A native histogram has `count` and `sum` instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from strandline.core.record_headers import REASON_DECODE, REASON_SCHEMA
from strandline.processing.formats.record_fields import JsonText, Rejection
from strandline.processing.formats.telemetry.points import Series, is_of_points, message_class, of_points

PLAIN_BYTES_MAX = 64 << 20
"""Maximum size of an unpacked request, by the size in its header. Larger requests are rejected."""
PARTS_MAX = 500_000
"""Maximum number of series, labels, samples, and histograms of a request: Snappy packs a million empty ones into 100 kB."""
_MESSAGES = {
    "WriteRequest": [("timeseries", 1, "repeated TimeSeries")],
    "TimeSeries": [
        ("labels", 1, "repeated Label"), ("samples", 2, "repeated Sample"), ("histograms", 4, "repeated Histogram"),
    ],
    "Label": [("name", 1, "string"), ("value", 2, "string")],
    "Sample": [("value", 1, "double"), ("timestamp", 2, "int64")],
    "Histogram": [
        ("count_int", 1, "optional uint64"), ("count_float", 2, "optional double"), ("sum", 3, "double"),
        ("timestamp", 15, "int64"),
    ],
}  # fmt: skip


class RemoteWrites:
    """Reads the requests of one stream."""

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each request as an object with its samples."""
        return [value if value is None or is_of_points(value) else _read(value) for value in values]


@cache
def _request_class() -> Any:
    return message_class("strandline.prometheus", _MESSAGES, "WriteRequest")


def _read(value: bytes) -> JsonText:
    from google.protobuf.message import DecodeError  # only imported if a stream needs it

    request = _request_class()()
    try:
        request.ParseFromString(unpack_snappy(value))
        return of_points(_series(request))
    except _TooManyPartsError:
        return Rejection(REASON_SCHEMA, f"it has more than {PARTS_MAX} series, labels, samples and histograms")
    except (DecodeError, ValueError, RecursionError) as error:
        return Rejection(REASON_DECODE, f"not a request of Prometheus' remote write: {str(error)[:200]}")


class _TooManyPartsError(Exception):
    pass


def _series(request: Any) -> Iterator[Series]:
    """Yield the series. Raises _TooManyPartsError."""
    parts = len(request.timeseries)
    for series in request.timeseries:
        parts += len(series.labels) + len(series.samples) + len(series.histograms)
        if parts > PARTS_MAX:
            raise _TooManyPartsError
        if not series.samples and not series.histograms:
            continue
        labels = {label.name: label.value for label in series.labels}
        yield {"metric": labels.pop("__name__", ""), "labels": labels}, _samples(series)


def _samples(series: Any) -> Iterator[dict[str, Any]]:
    for sample in series.samples:
        yield {"time": sample.timestamp, "value": sample.value}
    for one in series.histograms:
        count = one.count_int if one.HasField("count_int") else one.count_float
        yield {"time": one.timestamp, "count": count, "sum": one.sum}


def unpack_snappy(value: bytes) -> bytes:
    """Return the bytes of one block. Raises ValueError if it isn't a block, or if its size is over PLAIN_BYTES_MAX."""
    import pyarrow as pa  # already imported in every worker that decodes

    size = shift = 0
    for byte in value[:5]:  # the length, 7 bits per byte, lowest first
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise ValueError("it doesn't begin with the length of a Snappy block")
    if size > PLAIN_BYTES_MAX:
        raise ValueError(f"its header has {size} bytes unpacked, but the maximum is {PLAIN_BYTES_MAX}")
    try:
        plain = bytes(pa.Codec("snappy").decompress(value, size, asbytes=True))
    except OSError as error:
        raise ValueError("it is not a Snappy block") from error
    return plain
