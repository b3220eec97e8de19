"""Records in another charset, JSON within strings of a record, and rows with a first time and a step."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.framing import Form, Unframable, frame
from strandline.processing.formats.record_rows import RowReader, record_format

TEMP = {"schema": {"t": {"type": "double", "from": "$.data.t"}}}
STEPS = {
    "schema": {"at": {"type": "timestamp", "unit": "s"}, "g": {"type": "double", "from": "$.g"}},
    "explode": {"elements": "$.g", "time": "at", "step": "100ms"},
}


def stream(**document: Any) -> StreamSpec:
    return StreamSpec.from_document({"stream": "s", **document})


def rows_of(spec: StreamSpec, *records: bytes) -> list[Any]:
    found = [text for rows in RowReader(record_format(spec)).parts(records, []) for text in rows.texts]
    return [json.loads(one) if isinstance(one, bytes) else one for one in found]


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("text", '{"t": 2.5}'),
        ("text", {"t": 2.5}),
        ("base64", base64.b64encode(b'{"t": 2.5}').decode()),
        ("hex", b'{"t": 2.5}'.hex()),
    ],
)
def test_json_in_a_string_is_read_as_members(encoding: str, data: object) -> None:
    spec = stream(**TEMP, embedded=[{"at": "$.data", "encoding": encoding}])
    assert rows_of(spec, json.dumps({"data": data}).encode()) == [{"t": 2.5}]
    assert rows_of(spec, json.dumps({"data": data, "copy": data}).encode()) == [{"t": 2.5}]
    assert rows_of(spec, json.dumps({"data": "no"}).encode()) == [{}]


def test_a_dead_letter_in_utf_16_can_be_requeued() -> None:
    spec = stream(**STEPS, charset="utf-16")
    record = json.dumps({"at": 1_790_000_000, "g": [1, 2, 3]}).encode("utf-16")
    reader = RowReader(record_format(spec))
    (rows,) = reader.parts([record], [])
    letter = reader.dead_letter_value([record], rows, 2)
    assert letter is not None
    assert rows_of(spec, letter) == [{"at": "2026-09-21T14:13:20.200000Z", "g": 3}]


def test_the_time_of_a_row_is_its_step() -> None:
    for first in (b"1790000000", b'"2026-09-21T14:13:20Z"'):
        times = [one["at"][17:23] for one in rows_of(stream(**STEPS), b'{"at": %b, "g": [1, 2, 3]}' % first)]
        assert times == ["20.000", "20.100", "20.200"]


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be", "utf-16"])
def test_a_body_in_utf_16_is_split_into_records(charset: str) -> None:
    mark = "\ufeff" if charset != "utf-16" else ""
    framing = stream(schema={"a": "string"}, charset="utf-16").framing
    body = f'{mark}[{{"a": "\u00e4"}}, {{"a": "b"}}]'.encode(charset)
    framed = frame(body, Form.JSON, None, 1_000, framing)
    assert [value.decode("utf-16-le") for value, _ in framed.records] == ['{"a": "\u00e4"}', '{"a": "b"}']
    one = f'{mark}{{"a": "\u00e4"}}'.encode(charset)
    assert frame(one, Form.JSON, None, 1_000, framing).records == [(one, None)], "the bytes of the sender"
    with pytest.raises(Unframable, match="isn't text in utf-16"):
        frame(b"abc", Form.JSON, None, 1_000, framing)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({**TEMP, "embedded": [{"at": "$.data[0]"}]}, "expected names of members, as $.payload"),
        ({**TEMP, "format": "cbor", "embedded": [{"at": "$.data"}]}, "is of 'format: json'"),
        ({"schema": {"t": "double"}, "format": "cbor", "charset": "latin-1"}, "records of format cbor are bytes"),
        ({"schema": {"t": "double"}, "charset": "utf-16", "tcp": {"port": 9000}}, "a line in UTF-16"),
        ({**STEPS, "explode": {"elements": "$.g", "time": "at"}}, "write both"),
        ({**STEPS, "explode": {"elements": "$.g", "time": "g", "step": "1s"}}, "'g' is not a timestamp"),
        ({**STEPS, "explode": {"elements": "$.g", "time": "at", "step": "0s"}}, "all rows would have the same time"),
    ],
)
def test_a_mistake_is_reported_with_its_remedy(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        stream(**document)
    assert problem in str(refused.value)
