"""Converts lines of InfluxDB's protocol to JSON objects, one record per line: `weather,site=lundy temp=4.5,open=t
1764000000000000000`.

Tags and fields become members with their names. The measurement becomes `measurement`, and the timestamp becomes `time`, in
nanoseconds, unless a tag or a field has that name. A line without a timestamp has no `time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import parse_qsl

import msgspec

from strandline.core.record_headers import QUERY_MARK, REASON_DECODE, unpack_header_values
from strandline.processing.formats.columns.read_columns import ColumnsAndMarks
from strandline.processing.formats.influx.columns import InfluxColumns
from strandline.processing.formats.record_fields import JsonText, RecordField, Rejection

_NANOS_PER = {
    "ns": 1,
    "us": 1_000,
    "u": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 10**9,
    "h": 3_600 * 10**9,
}
"""Nanoseconds by the `precision` of a write request. Names of one letter are those of InfluxDB 1."""


class InfluxLines:
    """Reads the lines of one stream."""

    def __init__(self, fields: Sequence[RecordField] = ()) -> None:
        self._quick = InfluxColumns(fields)

    def columns(
        self, values: Sequence[bytes | None], sources: Sequence[bytes | None] = (None,)
    ) -> ColumnsAndMarks | None:
        """Return the lines as columns, if all times are nanoseconds."""
        if any(source is not None and _nanos_per(source) != 1 for source in sources):
            return None
        return self._quick.columns(values)

    def objects(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return each line as a JSON object. `sources`: query of the request, which can contain the `precision` of timestamps."""
        from line_protocol_parser import LineFormatError, parse_line  # only needed for this format

        objects: list[JsonText] = []
        for value, source in zip(values, sources, strict=True):
            if value is None:
                objects.append(None)
                continue
            try:
                line = parse_line(value.decode())
            except (LineFormatError, UnicodeDecodeError) as error:
                objects.append(Rejection(REASON_DECODE, f"not a line of InfluxDB's protocol: {error}"))
                continue
            if line is None:
                objects.append(
                    Rejection(REASON_DECODE, "not a line of InfluxDB's protocol: a comment contains no values")
                )
                continue
            tags, fields = line["tags"], line["fields"]
            members = {"measurement": line["measurement"]}
            if line["time"] is not None:
                members["time"] = line["time"] * (1 if source is None else _nanos_per(source))
            if both := tags.keys() & fields.keys():
                objects.append(Rejection(REASON_DECODE, f'a tag and a field are called "{min(both)}"'))
                continue
            objects.append(msgspec.json.encode(members | tags | fields))
        return objects


@lru_cache(maxsize=1_000)
def _nanos_per(source: bytes) -> int:
    first, _ = unpack_header_values(source)
    if first is None or not first.startswith(QUERY_MARK):
        return 1
    query = dict(parse_qsl(first[len(QUERY_MARK) :].decode("latin-1")))
    return _NANOS_PER.get(query.get("precision", "ns"), 1)
