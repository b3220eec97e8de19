"""Converts OpenTelemetry requests with metrics (OTLP 1, `ExportMetricsServiceRequest`), in Protobuf or JSON, to their data
points.

All points have `metric`, `unit`, `type` (`gauge`, `sum`, `histogram`, `exponential_histogram`, `summary`), `time` and
`start_time` in nanoseconds, `attributes`, `resource` (the attributes of the source), and `scope`. The values are:

- gauge and sum: `value`;
- other types: `count`, `sum`, `min`, and `max`, if they were sent;
- histogram: also `bucket_counts` and `explicit_bounds`;
- summary: also `quantiles`.

A point whose flags say that it has no recorded value, because its series has ended, has none of these.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

from strandline.core.record_headers import REASON_DECODE
from strandline.processing.formats.record_fields import JsonText, Rejection
from strandline.processing.formats.telemetry.points import Series, is_of_points, message_class, of_points

_TIMES = [("start_time_unix_nano", 2, "fixed64"), ("time_unix_nano", 3, "fixed64")]
_DISTRIBUTION = [("count", 4, "fixed64"), ("sum", 5, "optional double")]
_MESSAGES = {
    "Request": [("resource_metrics", 1, "repeated ResourceMetrics")],
    "ResourceMetrics": [("resource", 1, "Resource"), ("scope_metrics", 2, "repeated ScopeMetrics")],
    "Resource": [("attributes", 1, "repeated KeyValue")],
    "ScopeMetrics": [("scope", 1, "Scope"), ("metrics", 2, "repeated Metric")],
    "Scope": [("name", 1, "string")],
    "Metric": [
        ("name", 1, "string"), ("unit", 3, "string"), ("gauge", 5, "optional Numbers"), ("sum", 7, "optional Numbers"),
        ("histogram", 9, "optional Histograms"), ("exponential_histogram", 10, "optional ExponentialHistograms"),
        ("summary", 11, "optional Summaries"),
    ],
    "Numbers": [("data_points", 1, "repeated Number")],
    "Histograms": [("data_points", 1, "repeated Histogram")],
    "ExponentialHistograms": [("data_points", 1, "repeated ExponentialHistogram")],
    "Summaries": [("data_points", 1, "repeated Summary")],
    "Number": [
        *_TIMES, ("as_double", 4, "optional double"), ("as_int", 6, "optional sfixed64"), ("attributes", 7, "repeated KeyValue"),
        ("flags", 8, "uint32"),
    ],
    "Histogram": [
        *_TIMES, *_DISTRIBUTION, ("bucket_counts", 6, "repeated fixed64"), ("explicit_bounds", 7, "repeated double"),
        ("attributes", 9, "repeated KeyValue"), ("flags", 10, "uint32"), ("min", 11, "optional double"),
        ("max", 12, "optional double"),
    ],
    "ExponentialHistogram": [
        *_TIMES, *_DISTRIBUTION, ("attributes", 1, "repeated KeyValue"), ("flags", 10, "uint32"),
        ("min", 12, "optional double"), ("max", 13, "optional double"),
    ],
    "Summary": [
        *_TIMES, ("count", 4, "fixed64"), ("sum", 5, "double"), ("quantile_values", 6, "repeated Quantile"),
        ("attributes", 7, "repeated KeyValue"), ("flags", 8, "uint32"),
    ],
    "Quantile": [("quantile", 1, "double"), ("value", 2, "double")],
    "KeyValue": [("key", 1, "string"), ("value", 2, "AnyValue")],
    "AnyValue": [
        ("string_value", 1, "optional string"), ("bool_value", 2, "optional bool"), ("int_value", 3, "optional int64"),
        ("double_value", 4, "optional double"), ("array_value", 5, "optional Values"), ("kvlist_value", 6, "optional KeyValues"),
        ("bytes_value", 7, "optional bytes"),
    ],
    "Values": [("values", 1, "repeated AnyValue")],
    "KeyValues": [("values", 1, "repeated KeyValue")],
}  # fmt: skip
_NO_RECORDED_VALUE = 1
"""Flag of a point that only shows that its series has ended, like Prometheus' stale markers."""
_KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


class OtlpMetrics:
    """Reads the requests of one stream."""

    def objects(self, values: Sequence[bytes | None], _sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each request as an object with its points."""
        return [value if value is None or is_of_points(value) else _read(value) for value in values]


@cache
def _request_class() -> Any:
    return message_class("strandline.otlp", _MESSAGES, "Request")


def _read(value: bytes) -> JsonText:
    from google.protobuf import (
        json_format,
    )  # only imported if a stream needs it: each Python worker imports this module
    from google.protobuf.message import DecodeError

    try:
        return of_points(_series(_request(value)))
    except (DecodeError, json_format.Error, ValueError, TypeError, AttributeError, RecursionError) as error:
        return Rejection(REASON_DECODE, f"not a request with OpenTelemetry's metrics: {str(error)[:200]}")


def _request(value: bytes) -> Any:
    """Return the request. It is JSON if it begins with a brace."""
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError

    request_class = _request_class()
    if value.lstrip(b" \t\r\n")[:1] != b"{":
        return request_class.FromString(value)
    try:
        return json_format.Parse(value, request_class(), ignore_unknown_fields=True)
    except (json_format.Error, ValueError):
        # Protobuf can begin in the same way: with its tag, which is a line break, and a first part of 123 bytes. A message with
        # metrics contains control characters, which JSON can't contain.
        if value.startswith(b"\n"):
            with suppress(DecodeError):
                return request_class.FromString(value)
        raise


def _series(request: Any) -> Iterator[Series]:
    for of_resource in request.resource_metrics:
        if not any(of_scope.metrics for of_scope in of_resource.scope_metrics):
            continue
        resource = _attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_metrics:
            common = {"resource": resource} | ({"scope": of_scope.scope.name} if of_scope.scope.name else {})
            for metric in of_scope.metrics:
                for kind in _KINDS:
                    if metric.HasField(kind):
                        about = {"metric": metric.name, "unit": metric.unit, "type": kind, **common}
                        yield about, map(partial(_point, kind), getattr(metric, kind).data_points)


def _point(kind: str, point: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"attributes": _attributes(point.attributes)}
    if point.time_unix_nano:  # 0 means that the time of the point is unknown
        found["time"] = point.time_unix_nano
    if point.start_time_unix_nano:
        found["start_time"] = point.start_time_unix_nano
    if point.flags & _NO_RECORDED_VALUE:
        return found
    if kind in ("gauge", "sum"):
        for name in ("as_double", "as_int"):
            if point.HasField(name):
                found["value"] = getattr(point, name)
        return found
    found["count"] = point.count
    if kind == "summary":
        return found | {
            "sum": point.sum,
            "quantiles": {str(one.quantile): one.value for one in point.quantile_values},
        }
    for name in ("sum", "min", "max"):
        if point.HasField(name):
            found[name] = getattr(point, name)
    if kind == "histogram":
        found |= {"bucket_counts": list(point.bucket_counts), "explicit_bounds": list(point.explicit_bounds)}
    return found


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    for name in ("string_value", "int_value", "double_value", "bool_value"):
        if value.HasField(name):
            return getattr(value, name)
    if value.HasField("array_value"):
        return [_value(one) for one in value.array_value.values]
    if value.HasField("kvlist_value"):
        return _attributes(value.kvlist_value.values)
    return base64.b64encode(value.bytes_value).decode() if value.HasField("bytes_value") else None
