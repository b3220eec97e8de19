"""Every format becomes rows by its own bytes and its source alone; what can't be read costs its neighbours nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cbor2
import msgspec
import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.cbor.reader import cbor_maps
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.json_rows import EXPLODED_BYTES_MAX
from strandline.processing.formats.msgpack.reader import msgpack_maps
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.pipelines.model.pipeline import PipelineSpec

EXAMPLES = Path(__file__).parents[2] / "examples" / "formats"
Source = bytes | None


def read(
    schema: dict[str, Any], *records: bytes | tuple[bytes, Source] | None, **document: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """The accepted rows, and the rejected ones as `record/element reason: message`."""
    stream = StreamSpec.from_document({"stream": "s", "schema": schema, **document})
    reader = RowReader(config := record_format(stream))
    decoder = Decoder(config.fields, EventTimeSource(None), list(schema))
    values = [record[0] if isinstance(record, tuple) else record for record in records]
    sources = [record[1] if isinstance(record, tuple) else None for record in records]
    accepted: list[dict[str, Any]] = []
    rejected: list[str] = []
    for rows in reader.parts(values, sources if any(sources) else []):
        places = rows.of_each(range(len(values)))
        decoded = decoder.decode(rows.texts, [0] * len(rows.texts), None)
        columns = {name: array.to_pylist() for name, array in decoded.arrays.items()}
        accepted += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for one in decoded.rejects:
            element = None if rows.elements is None else rows.elements[one.index]
            place = f"{places[one.index]}" if element is None else f"{places[one.index]}/{element}"
            rejected.append(f"{place} {one.reason}: {one.message}")
    return accepted, rejected


# --- Paths into JSON

PATHS = {
    "device": {"type": "string", "from": "$.meta.id"},
    "temp": {"type": "double", "from": "$.sensors[1].t"},
    "wind": {"type": "double?", "from": '$["wind speed"]["m/s"]'},
    "plain": "long?",
}


def test_fields_are_read_where_their_paths_lead() -> None:
    accepted, rejected = read(
        PATHS,
        b'{"meta":{"id":"a","other":[1]},"sensors":[{"t":1},{"t":2.5,"u":"C"}],"plain":7,"wind speed":{"m/s":3}}',
        b' {"sensors" : [ null , {"t" : 4} ] , "meta" : {"id" : "\\u00e4"} } ',
    )
    assert rejected == []
    assert accepted == [
        {"device": "a", "temp": 2.5, "wind": 3.0, "plain": 7},
        {"device": "ä", "temp": 4.0, "wind": None, "plain": None},
    ]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b'{"meta":{"id":"a"}}', "schema: temp: required but missing"),
        (b'{"meta":{"id":"a"},"sensors":[{"t":1}]}', "schema: temp: required but missing"),
        (b'{"meta":{"id":"a"},"sensors":{"1":{"t":1}}}', "schema: temp: required but missing"),
        (b'{"meta":"a","sensors":[0,{"t":1}]}', "schema: device: required but missing"),
        (b'{"meta":null,"sensors":[0,{"t":1}]}', "schema: device: required but missing"),
        (b'{"meta":{"id":7},"sensors":[0,{"t":1}]}', "schema: device: expected a string, got 7"),
        (b'{"meta":{"id":{"x":1}},"sensors":[0,{"t":1}]}', 'schema: device: expected a string, got {"x":1}'),
        (b'{"meta":{"id":"a","id":"b"},"sensors":[0,{"t":1}]}', 'decode: duplicate key "id"'),
        (b'{"meta":{"id":"a","\\u0069d":"b"},"sensors":[0,{"t":1}]}', 'decode: duplicate key "id"'),
        (b'{"meta":{"id":"a"},"meta":{"id":"b"},"sensors":[0,{"t":1}]}', 'decode: duplicate key "meta"'),
        (b'{"meta":{"id":"a"},"sensors":[0,{"t":1}]', "decode: not JSON: "),
        (b'{"meta":{"id":"a"},"sensors":[0,{"t":1}],"x":"\xff"}', "decode: not UTF-8: "),
        (b'{"meta":{"id":"a"},"sensors":[0,{"t":1}],"x":' + b"[" * 100 + b"]" * 100 + b"}", "decode: nested deeper"),
        (b"[1]", "schema: expected an object, got [1]"),
        (None, "decode: no value (a tombstone)"),
    ],
)
def test_what_a_path_does_not_reach_is_missing_and_what_is_broken_costs_only_itself(
    record: bytes | None, why: str
) -> None:
    good = b'{"meta":{"id":"a"},"sensors":[0,{"t":1}]}'
    accepted, rejected = read(PATHS, good, record, good)
    assert len(accepted) == 2
    (found,) = rejected
    assert found.startswith(f"1 {why}")


@pytest.mark.parametrize("name", ['a"b', "a\\b", "\x00", "\t"], ids=ascii)
def test_a_name_on_a_path_may_have_any_characters(name: str) -> None:
    inner = {"at": "long", "v": {"type": "double", "from": f"$.in[{json.dumps(name)}]"}}
    record = json.dumps({"at": 1, "in": {name: 2.5}}).encode()
    assert read(inner, record, record) == ([{"at": 1, "v": 2.5}] * 2, [])
    own = {"at": "long", "v": {"type": "double", "from": f"$[{json.dumps(name)}]"}}
    record = json.dumps({"at": 1, "r": [{name: 2.5}, {name: 3.5}]}).encode()
    assert read(own, record, explode="$.r") == ([{"at": 1, "v": 2.5}, {"at": 1, "v": 3.5}], [])


def test_a_path_may_lead_into_what_another_one_reads_whole() -> None:
    schema = {"whole": {"type": "string", "from": "$.a"}, "part": {"type": "long?", "from": "$.a.b"}}
    accepted, rejected = read(schema, b'{"a":"text"}', b'{"a":{"b":1}}')
    assert accepted == [{"whole": "text", "part": None}]
    assert rejected == ['1 schema: whole: expected a string, got {"b":1}']


def test_text_stands_for_a_number_only_where_the_schema_says_so() -> None:
    schema = {"temp": {"type": "double", "text": True}, "on": {"type": "boolean", "text": True}, "n": "long?"}
    accepted, rejected = read(
        schema, b'{"temp":"23.5","on":"true"}', b'{"temp":" -1e3 ","on":false,"n":1}', b'{"temp":"hot","on":true}',
        b'{"temp":1,"on":true,"n":"1"}',
    )  # fmt: skip
    assert accepted == [{"temp": 23.5, "on": True, "n": None}, {"temp": -1000.0, "on": False, "n": 1}]
    assert rejected == [
        '2 schema: temp: expected a double, got "hot"',
        '3 schema: n: expected a long, got "1"',
    ]


# --- An array, a row for each element

TOO_LARGE = f"its elements, each with the other members of the record, have more than {EXPLODED_BYTES_MAX} bytes"
READINGS = {"device": "string", "t": {"type": "double", "from": "$.temp"}}


@pytest.mark.guarantee(
    "G206",
    "In every format, the rows of a record depend only on its own bytes, its source, and its log time. An unreadable "
    "part affects no other record, and no other element of its record.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
def test_each_element_is_a_row_with_what_stands_beside_the_array() -> None:
    accepted, rejected = read(
        READINGS,
        b'{"device":"a","readings":[{"temp":1},{"temp":"x"},{"temp":3,"device":"own"},7]}',
        b'{"device":"b","readings":[]}',
        b'{"device":"c","temp":9,"readings":[{},{"temp":null}]}',
        b'{"device":"d"}',
        b'{"device":"e","readings":{"temp":1}}',
        b'{"device":"f","readings":[{"temp":1}',
        explode="$.readings",
    )
    assert accepted == [
        {"device": "a", "t": 1.0},
        {"device": "own", "t": 3.0},
        {"device": "c", "t": 9.0},
    ]
    assert rejected == [
        '0/1 schema: t: expected a double, got "x"',
        "0/3 schema: t: required but missing",
        "2/1 schema: t: expected a double, got null",
        "3 schema: $.readings: expected an array, it is missing",
        '4 schema: $.readings: expected an array, got {"temp":1}',
        "5 decode: not JSON: input data was truncated",
    ]


def test_elements_may_be_bare_values_and_stand_deep() -> None:
    schema = {"device": {"type": "string", "from": "$.id"}, "t": {"type": "double", "from": "$.data[0].values"}}
    accepted, rejected = read(schema, b'{"id":"a","data":[{"values":[1,2.5]},{}]}', explode="$.data[0].values")
    assert rejected == []
    assert accepted == [{"device": "a", "t": 1.0}, {"device": "a", "t": 2.5}]


@pytest.mark.parametrize("count", [1, 70])
@pytest.mark.parametrize("value", ["2.5", '"2.5"'])
def test_elements_may_be_arrays(count: int, value: str) -> None:
    schema = {
        "device": "string",
        "ts": {"type": "timestamp", "unit": "ms", "from": "$.values[0]"},
        "v": {"type": "double", "text": True, "from": "$.values[1]"},
    }
    record = f'{{"device":"a","values":[[1700000000000,{value}],[1700000001000,{value}]]}}'.encode()
    accepted, rejected = read(schema, *[record] * count, explode="$.values")
    assert rejected == []
    assert [(row["device"], row["ts"].timestamp(), row["v"]) for row in accepted] == [
        ("a", 1_700_000_000.0, 2.5),
        ("a", 1_700_000_001.0, 2.5),
    ] * count


def test_a_dead_letter_of_an_element_holds_a_record_of_it_alone() -> None:
    stream = StreamSpec.from_document({"stream": "s", "schema": READINGS, "explode": "$.data[0].readings"})
    reader = RowReader(record_format(stream))
    value = b'{"device": "a", "n": 1.50, "data": [{"readings": [{"temp": 1}, {"temp": "x", "u": 1e400}]}, 3]}'
    (rows,) = reader.parts([value], [])
    assert reader.dead_letter_value([value], rows, 1) == (
        b'{"device":"a","n":1.50,"data":[{"readings":[{"temp": "x", "u": 1e400}]},3]}'
    )
    (rows,) = reader.parts([b"{"], [])
    assert reader.dead_letter_value([b"{"], rows, 0) == b"{"


def test_a_record_that_would_be_too_many_bytes_of_rows_is_rejected_whole() -> None:
    beside = b"x" * 100_000
    elements = b",".join([b"{}"] * (EXPLODED_BYTES_MAX // len(beside) + 1))
    value = b'{"device":"%s","temp":1,"readings":[%s]}' % (beside, elements)
    accepted, rejected = read(READINGS, value, explode="$.readings")
    assert accepted == []
    assert rejected == [f"0 schema: $.readings: {TOO_LARGE}"]


def test_what_no_field_takes_is_no_more_in_dead_letters_than_in_rows() -> None:
    """Each element's dead letter repeats it."""
    beside = b"x" * 100_000
    for extra in (-1, 1):
        elements = b",".join([b"{}"] * (EXPLODED_BYTES_MAX // len(beside) + extra))
        value = b'{"device":"a","other":"%s","readings":[%s]}' % (beside, elements)
        accepted, rejected = read(READINGS, value, explode="$.readings")
        assert accepted == []
        expected = "0/0 schema: t: required but missing" if extra < 0 else f"0 schema: $.readings: {TOO_LARGE}"
        assert rejected[0] == expected


def test_a_record_is_read_once_for_all_of_its_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StreamSpec.from_document({"stream": "s", "schema": READINGS, "explode": "$.readings"})
    reader = RowReader(record_format(stream))
    values = [b'{"device":"%s","readings":[%s]}' % (name, b",".join([b"{}"] * 50)) for name in (b"a", b"b")]
    (rows,) = reader.parts(values, [])
    read_of: list[bytes] = []
    letters_of = reader._letters_of
    monkeypatch.setattr(reader, "_letters_of", lambda value: read_of.append(value) or letters_of(value))
    letters = [reader.dead_letter_value(values, rows, at) for at in range(100)]
    assert letters == [b'{"device":"a","readings":[{}]}'] * 50 + [b'{"device":"b","readings":[{}]}'] * 50
    assert read_of == values


def test_many_rows_come_in_parts_of_whole_records() -> None:
    stream = StreamSpec.from_document({"stream": "s", "schema": {"t": "long"}, "explode": "$.r"})
    value = json.dumps({"r": [{"t": at} for at in range(4_000)]}).encode()
    parts = list(RowReader(record_format(stream)).parts([value] * 5, []))
    assert [len(part.texts) for part in parts] == [12_000, 8_000]
    assert parts[1].of_each("abcde") == ["d"] * 4_000 + ["e"] * 4_000


# --- Bare values

TOPIC = {"mqtt": {"topics": ["farm/+/temp"], "fields": {"device": 1}}}


def test_a_bare_value_goes_where_nothing_else_does() -> None:
    accepted, rejected = read(
        {"device": "string", "temp": "double"},
        (b"23.5", b"mqtt:farm/a/temp"),
        (b" 7\n", b"?device=b%20c&other=1"),
        (b'"8"', b"?device=d"),
        (b"warm", b"mqtt:farm/e/temp"),
        (b"\xff", b"mqtt:farm/f/temp"),
        (b"1", b"mqtt:elsewhere"),
        (b"1", b"?device=g&temp=2"),
        format="value", **TOPIC,
    )  # fmt: skip
    assert accepted == [
        {"device": "a", "temp": 23.5},
        {"device": "b c", "temp": 7.0},
        {"device": "d", "temp": 8.0},
    ]
    assert rejected == [
        '3 schema: temp: expected a double, got "warm"',
        "4 decode: not UTF-8: invalid start byte (byte 0)",
        "5 schema: it is unknown which of the fields device, temp contains the value; mark one with 'from: $'",
        "6 schema: topic and query fill every field, so no field can contain the value",
    ]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b'{"temp": 52.', "not JSON: invalid number (byte 12)"),
        (b' {"temp": 52.', "not JSON: invalid number (byte 13)"),
        (b'\xef\xbb\xbf{"temp": 52.', "not JSON: invalid number (byte 15)"),
        (b'{"temp": \xff}', "not UTF-8: invalid start byte (byte 9)"),
        (b'{"temp":1,"n":NaN,"x":1 2}', "not JSON: expected ',' or '}' (byte 24)"),
    ],
)
@pytest.mark.parametrize("neighbours", [0, 100])
@pytest.mark.parametrize(
    "way",
    [
        {"path": "$.temp"},
        {"path": "$.in.temp"},
        {"path": "$.temp", "explode": "$.rows"},
    ],
)
def test_the_position_of_a_mistake_is_that_in_the_bytes_of_the_sender(
    record: bytes, message: str, neighbours: int, way: dict[str, str]
) -> None:
    explode = {key: one for key, one in way.items() if key == "explode"}
    temp = {"type": "double?", "missing": ["nan"], "from": way["path"]}
    schema = {"device": "string", "temp": temp}
    good = b'{"temp":1,"in":{"temp":1},"rows":[{"temp":1}]}'
    records: list[bytes | tuple[bytes, Source] | None] = [
        *[(good, b"mqtt:farm/turbine-seven/temp")] * neighbours,
        (record, b"mqtt:farm/turbine-seven/temp"),
    ]
    accepted, rejected = read(schema, *records, **explode, **TOPIC)
    assert len(accepted) == neighbours
    assert rejected == [f"{neighbours} decode: {message}"]


def test_a_bare_value_goes_where_the_schema_says() -> None:
    schema = {"room": "string?", "state": {"type": "string", "from": "$"}, "ts": "timestamp?"}
    accepted, rejected = read(schema, b"ON", b"", (b' "off" ', b"?room=hall"), b'"off"', b"a\n", format="value")
    assert rejected == []
    assert [row["state"] for row in accepted] == ["ON", "", ' "off" ', "off", "a\n"]
    assert accepted[2]["room"] == "hall"
    # If nothing else fills several fields, the only required one.
    accepted, rejected = read({"a": "long?", "b": "boolean", "c": "string?"}, b"true", b"false\r\n", format="value")
    assert [row["b"] for row in accepted] == [True, False]


# --- Fields from a query, of every format


def test_a_query_fills_in_what_the_record_lacks() -> None:
    accepted, rejected = read(
        {"device": "string", "temp": "double"},
        (b'{"temp":1}', b"?device=a&device=b"),
        (b'{"temp":2,"device":"own"}', b"?device=a"),
        (b'{"device":"c"}', b"?temp=3.5"),
        (b"{}", b"?temp=x&device="),
    )
    assert accepted == [
        {"device": "a", "temp": 1.0},
        {"device": "own", "temp": 2.0},
        {"device": "c", "temp": 3.5},
    ]
    assert rejected == ['3 schema: temp: expected a double, got "x"']


# --- Lines of csv


def test_lines_of_values() -> None:
    schema = {"device": "string", "temp": "double", "ok": "boolean?", "price": "decimal(6,2)?"}
    accepted, rejected = read(
        schema,
        b"a,1.5,true,10.25",
        b'"b, ""the"" one",2,,\r\n',
        b"c,hot,,",
        b"d,1",
        b'"e,1,,',
        b"\xff,1,,",
        (b"g,,,", b"?temp=9"),
        b'h,"1\n2",,',
        format="csv",
    )  # fmt: skip
    assert [(row["device"], row["temp"], row["ok"]) for row in accepted] == [
        ("a", 1.5, True),
        ('b, "the" one', 2.0, None),
        ("g", 9.0, None),
    ]
    assert str(accepted[0]["price"]) == "10.25"
    assert rejected == [
        '2 schema: temp: expected a double, got "hot"',
        "3 decode: 2 values in the line; expected 4",
        "4 decode: not a line of values: unexpected end of data",
        "5 decode: not UTF-8: invalid start byte (byte 0)",
        '7 schema: temp: expected a double, got "1\\\\n2"',
    ]


def test_quotes_change_neither_how_long_a_value_may_be_nor_where_a_row_ends() -> None:
    long = b"x" * 200_000
    accepted, rejected = read(
        {"a": "string", "b": "string"},
        b'"' + long + b'",1',
        long + b",1",
        '"a",b\u2028c\x85\x0cd'.encode(),
        "a,b\u2028c\x85\x0cd".encode(),
        b'a,"b\r\n\r\nc"',
        format="csv",
    )
    assert rejected == []
    assert accepted[0] == accepted[1]
    assert accepted[2] == accepted[3] == {"a": "a", "b": "b\u2028c\x85\x0cd"}
    assert accepted[4]["b"] == "b\r\n\r\nc"


def test_columns_and_delimiter_of_lines() -> None:
    accepted, rejected = read(
        {"a": "long", "b": "long"}, b"1;2", format="csv", csv={"delimiter": ";", "columns": ["b", "a"]}
    )
    assert rejected == []
    assert accepted == [{"a": 2, "b": 1}]


# --- MessagePack and CBOR

PACKED = [("msgpack", msgspec.msgpack.encode, "MessagePack"), ("cbor", cbor2.dumps, "CBOR")]


@pytest.mark.parametrize(("name", "pack", "title"), PACKED)
def test_packed_maps(name: str, pack: Any, title: str) -> None:
    schema = {"device": "string", "temp": {"type": "double", "from": "$.m.t"}, "n": "long?"}
    good = pack({"device": "ä", "m": {"t": 1.5}, "n": 2**40, "other": [None, b"\xff"]})
    accepted, rejected = read(
        schema,
        good,
        good[:-1],
        good + b"\x00",
        b"",
        pack([1]),
        pack({"device": "b", "m": {"t": float("nan")}}),
        pack({"device": b"b", "m": {"t": 1}}),
        None,
        (pack({"m": {"t": 2}}), b"?device=c"),
        format=name,
    )
    assert accepted == [
        {"device": "ä", "temp": 1.5, "n": 2**40},
        {"device": "Yg==", "temp": 1.0, "n": None},
        {"device": "c", "temp": 2.0, "n": None},
    ]
    assert [reject.split(":")[0] for reject in rejected] == [
        "1 decode", "2 decode", "3 decode", "4 schema", "5 schema", "7 decode",
    ]  # fmt: skip
    assert rejected[0].startswith(f"1 decode: not {title}: ")
    assert rejected[3] == "4 schema: expected a map, got list"


def test_times_of_cbor_are_times() -> None:
    record = b"\xa1\x62ts\xc1\x1a\x65\x53\xf1\x00"  # tag 1: seconds since 1970
    accepted, rejected = read({"ts": "timestamp"}, record, format="cbor")
    assert rejected == []
    assert accepted[0]["ts"].isoformat() == "2023-11-14T22:13:20+00:00"


def test_a_map_that_holds_itself_is_rejected() -> None:
    accepted, rejected = read({"a": "long"}, b"\xd8\x1c\xa1\x61a\xd8\x1d\x00", format="cbor")
    assert accepted == []
    assert rejected == ["0 schema: a: expected a long, got null"]


def test_references_of_cbor_are_not_written_out() -> None:
    """Each array holds the one before it twelve times: written out, they are three million numbers."""
    value = b"\xd8\x1c\x8c" + b"\x01" * 12
    for number in range(5):
        value = b"\xd8\x1c\x8c" + value + (b"\xd8\x1d" + bytes([number + 1])) * 11
    text = b"\xd9\x01\x00\x82\x64abcd\xd8\x19\x00"
    (found,) = cbor_maps().objects([b"\xa2\x61a" + value + b"\x61b" + text], [None])
    assert isinstance(found, bytes)
    assert len(found) < 1_000
    assert json.loads(found)["b"] == ["abcd", None]


def test_no_tag_of_cbor_means_more_than_is_said() -> None:
    """Whatever tags the library knows, only those that the docs name change what they enclose, if that fits."""
    meant = {25, 29}
    unpacked = cbor_maps().objects(
        [b"\xa1\x61a\xd9" + tag.to_bytes(2, "big") + b"\x81\x18\x2a" for tag in range(65_536)], [None]
    )
    assert {tag for tag, found in enumerate(unpacked) if found != b'{"a":[42]}'} == meant


@pytest.mark.parametrize("tag", [1234, 55_799])
def test_a_map_inside_a_tag_of_cbor_is_a_map(tag: int) -> None:
    """Tag 55799 says no more than that this is CBOR; the other means nothing here."""
    inside = {"t": 21.5, "deep": [{"x": {"y": 1}}, cbor2.undefined]}
    text = b'{"t":21.5,"deep":[{"x":{"y":1}},null]}'
    records = [
        cbor2.dumps(record)
        for record in (
            cbor2.CBORTag(tag, inside),
            {"meta": cbor2.CBORTag(tag, inside)},
            {"all": cbor2.CBORTag(tag, [inside])},
            {"all": [cbor2.CBORTag(tag, inside)]},
        )
    ]
    expected = [text, b'{"meta":%s}' % text, b'{"all":[%s]}' % text, b'{"all":[%s]}' % text]
    reader = cbor_maps()
    assert reader.objects(records, [None] * 4) == expected
    assert reader.objects([*records, b""], [None] * 5)[:4] == expected  # one by one, as with a bad record in the batch


@pytest.mark.parametrize(
    ("format_name", "member", "text"),
    [
        ("cbor", "d9270f01", "1"),  # an unknown tag
        ("cbor", "f7", "null"),  # undefined
        ("cbor", "f0", "null"),  # a simple value without a defined meaning
        ("cbor", "d9010283616261616162", '["b","a","b"]'),  # a set
        ("cbor", "d823615b", '"["'),  # a regular expression, which is none
        ("cbor", "d8255000112233445566778899aabbccddeeff", '"00112233-4455-6677-8899-aabbccddeeff"'),
        ("cbor", "c249010000000000000000", "18446744073709551616"),
        ("cbor", "c349010000000000000000", "-18446744073709551617"),
        ("cbor", "c25a00010000" + "ff" * 65_536, "null"),
        ("cbor", "c48221196ab3", "273.15"),
        ("cbor", "c4820205", "500"),
        ("cbor", "c5822103", "0.75"),
        ("cbor", "c4821a000f424001", "null"),  # a million digits
        ("cbor", "c48200c25850" + "ff" * 80, "[0,null]"),
        ("cbor", "c4820101", "10"),
        ("cbor", "c46178", '"x"'),
        ("cbor", "c11b0000019d36e3ec00", "1774742400000"),  # milliseconds, where the tag says seconds
        ("cbor", "c1f6", "null"),
        ("cbor", "c0646e6f7065", '"nope"'),
        ("cbor", "d8641b000000e8d4a51000", "1000000000000"),
        ("cbor", "d903ec6178", '"x"'),
        ("cbor", "d825423132", '"MTI="'),
        ("cbor", "c26178", '"x"'),
        ("msgpack", "d4052a", '"Kg=="'),  # an extension
    ],
)
def test_an_unusual_value_costs_no_record(format_name: str, member: str, text: str) -> None:
    head = {"cbor": b"\xa2\x61n\x01\x61a", "msgpack": b"\x82\xa1n\x01\xa1a"}[format_name]
    reader = {"cbor": cbor_maps, "msgpack": msgpack_maps}[format_name]()
    assert reader.objects([head + bytes.fromhex(member)], [None]) == [b'{"n":1,"a":%s}' % text.encode()]


def test_decimals_of_cbor_are_numbers() -> None:
    records = [cbor2.dumps({"v": cbor2.CBORTag(4, [-2, number])}) for number in (27_315, -5)]
    assert read({"v": "double?"}, *records, format="cbor") == ([{"v": 273.15}, {"v": -0.05}], [])
    (found,) = cbor_maps().objects([b"\xa1\xc4\x82\x21\x19\x6a\xb3\x01"], [None])
    assert isinstance(found, Rejection)  # JSON has no number as a name


# --- InfluxDB's line protocol


def test_lines_of_influx() -> None:
    schema = {
        "measurement": "string?", "host": "string", "usage": "double", "n": "long?", "ok": "boolean?", "note": "string?",
        "time": {"type": "timestamp?", "unit": "ns"},
    }  # fmt: skip
    accepted, rejected = read(
        schema,
        b'cpu,host=a\\ b usage=1.5,n=3i,ok=t,note="x\\"y" 1700000000000000001',
        b"cpu,host=b usage=2",
        (b"cpu,host=c usage=3 1700000000", b"?bucket=b&precision=s"),
        (b"cpu usage=4", b"?host=d"),
        (b"cpu,host=e usage=5 1700000000000000000", b"mqtt:a/b"),
        b"cpu,host=f",
        b"cpu,host=g usage=x",
        b"cpu,host=h,usage=1 usage=2",
        b"cpu,host=i usage=1i",
        b"\xff",
        b"# cpu,host=j usage=1",
        format="influx",
    )
    assert [(row["measurement"], row["host"], row["usage"]) for row in accepted] == [
        ("cpu", "a b", 1.5), ("cpu", "b", 2.0), ("cpu", "c", 3.0), ("cpu", "d", 4.0), ("cpu", "e", 5.0), ("cpu", "i", 1.0),
    ]  # fmt: skip
    assert (accepted[0]["n"], accepted[0]["ok"], accepted[0]["note"]) == (3, True, 'x"y')
    assert [row["time"] and int(row["time"].timestamp()) for row in accepted] == [
        1_700_000_000, None, 1_700_000_000, None, 1_700_000_000, None,
    ]  # fmt: skip
    assert [one[:8] for one in rejected] == ["5 decode", "6 decode", "7 decode", "9 decode", "10 decod"]
    assert rejected[2] == '7 decode: a tag and a field are called "usage"'


# --- The examples


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_example_is_a_stream_with_a_pipeline_that_fits(path: Path) -> None:
    stream, pipeline = read_documents(path.read_bytes(), path.name)
    check(PipelineSpec.parse(pipeline), StreamSpec.parse(stream), pipeline)


# --- What a document may not say


@pytest.mark.parametrize(
    ("schema", "document", "problem"),
    [
        ({"a": {"type": "long", "from": "a.b"}}, {}, "schema.a.from: 'a.b' is not a path; expected '$', then '.name'"),
        ({"a": {"type": "long", "from": "$"}}, {}, "schema.a.from: is the whole record, which is not a value"),
        ({"a": {"type": "long", "from": '$["\\ud800"]'}}, {}, "schema.a.from: '$[\"\\\\ud800\"]' is not a path"),
        ({"a": {"type": "long", "from": "$[0].ts"}, "b": "long"}, {}, "begins with an index, but a record of format json is"),
        ({"a": {"type": "string", "text": True}}, {}, "schema.a.text: a string is text anyway"),
        ({"a": {"type": "long", "from": "$.b.c"}}, {"format": "csv"}, "a.from: '$.b.c' is not a column; expected '$.NAME'"),
        ({"a": "long"}, {"csv": {"delimiter": ";"}}, "csv: is for 'format: csv', but this is json"),
        ({"a": "long"}, {"format": "csv", "csv": {"columns": ["b"]}}, "csv.columns: 'b' is not a field of the schema"),
        ({"a": "long"}, {"format": "csv", "csv": {"delimiter": "\n"}}, "csv.delimiter: '\\n' can't be a delimiter"),
        ({"a": "long"}, {"format": "cbor", "explode": "$.r"}, "explode: is for 'format: json | avro | protobuf'"),
        ({"a": "long"}, {"format": "value", "key": "a"}, "key: 'a' is not a member of a JSON object"),
        ({"a": {"type": "long", "from": "$.b.c"}}, {"key": "a"}, "key: 'a' is not a member of a JSON object"),
        (
            {name: {"type": "long?", "from": "$"} for name in "ab"},
            {"format": "value"},
            "schema.b.from: the value goes to 'a' already",
        ),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused_in_a_sentence(schema: Any, document: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        StreamSpec.from_document({"stream": "s", "schema": schema, **document})
    assert problem in str(refused.value)


# --- Limits of timestamps


@pytest.mark.parametrize("neighbours", [0, 100])
def test_a_clock_of_1970_is_a_dead_letter_if_the_schema_says_so(neighbours: int) -> None:
    """Whatever slice the record is in: without a minimum, it makes a window in the first slice, and is late afterwards."""
    schema = {"ts": {"type": "timestamp", "unit": "s", "min": "2020-01-01"}}
    good = b'{"ts":1700000000}'
    accepted, rejected = read(schema, *[good] * neighbours, b'{"ts":3.41}', good)
    assert len(accepted) == neighbours + 1
    assert rejected == [
        f"{neighbours} schema: ts: expected a timestamp >= 2020-01-01 (a number in s, or ISO 8601 text), got 3.41"
    ]
