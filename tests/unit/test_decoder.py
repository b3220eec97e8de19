"""The outcome of each kind of record: the accepted value, or the reason and a message that names the field."""

from __future__ import annotations

import json
import pickle
import sys
import time
from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strandline.processing.formats.decoder import NEVER_AHEAD, NEVER_LATE, Decoded, Decoder, RecordField
from strandline.processing.formats.record_fields import NESTING_MAX
from strandline.processing.pipelines.event_time import EventTimeSource

DEVICE = RecordField("device", "string")
TS = RecordField("ts", "timestamp", unit="ms")
TEMP = RecordField("temp", "double", required=False)
NOW_MS = 1_700_000_000_000


def decode(
    *values: bytes | None,
    fields: list[RecordField] | None = None,
    late_below_ms: int | None = None,
    max_ahead_ms: int | None = None,
    log_times_ms: list[int] | None = None,
) -> Decoded:
    fields = fields or [DEVICE, TS, TEMP]
    decoder = Decoder(fields, EventTimeSource("ts"), [field.name for field in fields])
    return decoder.decode(list(values), log_times_ms or [NOW_MS] * len(values), late_below_ms, max_ahead_ms)


def with_field(field: RecordField, text: str) -> tuple[Any, str | None]:
    """Return what a record with `text` as the value of `field` becomes: the value and the reject, one of them None."""
    value = f'{{"ts": {NOW_MS}, "{field.name}": {text}}}'.encode()
    decoded = decode(value, fields=[TS, field])
    if decoded.rejects:
        return None, f"{decoded.rejects[0].reason}: {decoded.rejects[0].message}"
    return decoded.arrays[field.name].to_pylist()[0], None


def event_micros(text: str, unit: str = "ms") -> int | None:
    # In addition to the event time, which must not be before 1970.
    fields = [RecordField("at", "timestamp", unit=unit), RecordField("ts", "timestamp")]
    decoded = decode(f'{{"at": {text}, "ts": 1}}'.encode(), fields=fields)
    micros: list[int] = decoded.arrays["at"].cast(pa.int64()).to_pylist()
    return micros[0] if micros else None


@pytest.mark.parametrize("end", [b"", b"\\", b"\\\\"])
def test_a_broken_record_costs_time_with_its_length(end: bytes) -> None:
    """A text that never ends, with a quote in each second byte: to look for its end from each would take minutes."""
    began_s = time.process_time()
    decoded = decode(b"[" * (NESTING_MAX + 1) + b'"' + b'\\"' * 40_000 + end, b"[" * (NESTING_MAX + 1) + b'"\\"]"]')
    assert time.process_time() - began_s < 5
    assert [reject.message[:8] for reject in decoded.rejects] == ["nested d"] * 2


def test_good_records_become_columns_in_order() -> None:
    decoded = decode(
        b'{"device":"a","ts":1700000000000,"temp":1.5}',
        b' {"temp":2, "ts":1700000000001, "device":"b", "other":[{"x":null}]} ',
        b'{"device":"","ts":1699999999999}',
        b'{"device":"\\u00e4\\u0000\xe2\x80\xae","ts":1700000000000,"temp":null}',
    )
    assert decoded.rejects == []
    assert decoded.arrays["device"].to_pylist() == ["a", "b", "", "ä\0\u202e"]
    assert decoded.arrays["temp"].to_pylist() == [1.5, 2.0, None, None]
    assert decoded.arrays["ts"].equals(decoded.event_time)
    assert decoded.event_time.type == pa.timestamp("us", tz="UTC")
    assert [array.type for array in decoded.arrays.values()] == [pa.string(), decoded.event_time.type, pa.float64()]
    assert decoded.latest_event_ms == NOW_MS + 1


def test_only_the_columns_asked_for_are_returned_but_all_fields_are_checked() -> None:
    decoder = Decoder([DEVICE, TS, TEMP], EventTimeSource("ts"), ["device"])
    decoded = decoder.decode([b'{"device":"a","ts":1}', b'{"device":"b","ts":2,"temp":"hot"}'], [1, 2], None)
    assert list(decoded.arrays) == ["device"]
    assert decoded.arrays["device"].to_pylist() == ["a"]
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(1, "schema")]


@pytest.mark.parametrize(
    ("unit", "number", "message"),
    [
        (
            "ms",
            "1700000000",
            "ts: as ms it is 1970-01-20T16:13:20.000000Z, as s it would be 2023-11-14T22:13:20.000000Z,",
        ),
        (
            "us",
            "1700000000000",
            "ts: as us it is 1970-01-20T16:13:20.000000Z, as ms it would be 2023-11-14T22:13:20.000000Z,",
        ),
        ("ns", "1.7e9", "ts: as ns it is 1970-01-01T00:00:01.700000Z, as s it would be 2023-11-14T22:13:20.000000Z,"),
        ("s", "1700000000000", "ts: 1700000000000 is no time in s; as ms it would be 2023-11-14T22:13:20.000000Z;"),
        (
            "ms",
            "1700000000000000000",
            "ts: 1700000000000000000 is no time in ms; as ns it would be 2023-11-14T22:13:20",
        ),
    ],
)
def test_a_time_in_another_unit_is_said_to_be_one(unit: str, number: str, message: str) -> None:
    decoded = decode(b'{"device":"a","ts":%s}' % number.encode(), fields=[DEVICE, replace(TS, unit=unit)])
    (reject,) = decoded.rejects
    assert reject.reason == "time_unit"
    assert reject.message.startswith(message)


@pytest.mark.parametrize("ts", ["1000", "1380000000000", '"2013-12-02 21:15:00"', "4102444800000"])
def test_an_old_time_is_no_wrong_unit(ts: str) -> None:
    assert decode(b'{"device":"a","ts":%s}' % ts.encode()).rejects == []


LOG_TIMES_MS = [NOW_MS, NOW_MS + 7, NOW_MS + 3]


def test_event_time_can_be_log_time() -> None:
    decoder = Decoder([DEVICE, TEMP], EventTimeSource(None), ["device"])
    decoded = decoder.decode([b'{"device":"a"}', b"{}", b'{"device":"c"}'], LOG_TIMES_MS, NOW_MS + 2, 0)
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(0, "late"), (1, "schema")]
    assert decoded.rejects[0].message == (
        "log time: 2023-11-14T22:13:20.000000Z is before the watermark 2023-11-14T22:13:20.002000Z"
    )
    assert decoded.arrays["device"].to_pylist() == ["c"]
    assert decoded.event_time.cast(pa.int64()).to_pylist() == [(NOW_MS + 3) * 1000]
    assert decoded.latest_event_ms == NOW_MS + 3


@pytest.mark.parametrize("required", [True, False])
def test_log_time_stands_in_for_a_missing_event_time(required: bool) -> None:
    fields = [DEVICE, replace(TS, required=required)]
    decoder = Decoder(fields, EventTimeSource("ts", or_log=True), ["device", "ts"])
    values = [b'{"device":"a","ts":5}', b'{"device":"b"}', b'{"device":"c","ts":null}']
    decoded = decoder.decode(values, LOG_TIMES_MS, None)
    assert decoded.rejects == []
    assert decoded.event_time.cast(pa.int64()).to_pylist() == [5_000, (NOW_MS + 7) * 1000, (NOW_MS + 3) * 1000]
    assert decoded.arrays["ts"].cast(pa.int64()).to_pylist() == [5_000, None, None]
    # A time that is there and can't be read is no missing one.
    decoded = decoder.decode([b'{"device":"a","ts":"noon"}', b'{"device":"b"}'], LOG_TIMES_MS[:2], None)
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(0, "schema")]


def test_nothing_in_nothing_out() -> None:
    decoded = decode()
    assert decoded.latest_event_ms is None
    assert decoded.rejects == []
    assert [len(array) for array in decoded.arrays.values()] == [0, 0, 0]
    assert decode(b"{}").event_time.type == decoded.event_time.type == pa.timestamp("us", tz="UTC")


NOT_JSON: dict[str, bytes | None] = {
    "tombstone": None,
    "empty": b"",
    "blank": b"  \n",
    "byte order mark of UTF-16": b'\xff\xfe{"device":"a","ts":1}',
    "truncated": b'{"device":"a","ts":1',
    "truncated UTF-8": b'{"device":"\xc3","ts":1}',
    "UTF-8 of a surrogate": b'{"device":"\xed\xa0\x80","ts":1}',
    "overlong UTF-8": b'{"device":"\xc0\x80","ts":1}',
    "bad UTF-8 in a field that is not declared": b'{"device":"a","ts":1,"x":"\xff"}',
    "bad UTF-8 in a key that is not declared": b'{"device":"a","ts":1,"\xff":0}',
    "UTF-16": '{"device":"a","ts":1}'.encode("utf-16"),
    "lone surrogate": b'{"device":"\\ud800","ts":1}',
    "lone surrogate elsewhere": b'{"device":"a","ts":1,"x":"\\ud800"}',
    "NaN": b'{"device":"a","ts":1,"temp":NaN}',
    "Infinity": b'{"device":"a","ts":1,"temp":-Infinity}',
    "leading zero": b'{"device":"a","ts":01}',
    "trailing comma": b'{"device":"a","ts":1,}',
    "single quotes": b"{'device':'a','ts':1}",
    "comment": b'{"device":"a","ts":1} // no',
    "two objects": b'{"device":"a","ts":1}{"device":"b","ts":2}',
    "two lines": b'{"device":"a","ts":1}\n{"device":"b","ts":2}',
    "NUL in a string": b'{"device":"a\0","ts":1}',
    "NUL behind": b'{"device":"a","ts":1}\0',
    "deep arrays": b'{"device":"a","ts":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects, cut off": b'{"a":' * 100_000,
    "just too deep": b'{"device":"a","ts":1,"x":' + b"[" * NESTING_MAX + b"]" * NESTING_MAX + b"}",
    "wrong type, then cut off": b'{"device":1,"ts":1',
    "wrong type, then a lone surrogate": b'{"ts":true,"device":"\\ud800"}',
    "duplicate key": b'{"device":"a","ts":1,"ts":2}',
    "duplicate key with the same value": b'{"device":"a","ts":1,"ts":1}',
    "duplicate key with an escape": b'{"device":"a","ts":1,"t\\u0073":2}',
    "duplicate key and a wrong type": b'{"device":1,"ts":1,"ts":2}',
    "duplicate optional key": b'{"device":"a","temp":1,"ts":1,"temp":null}',
    "duplicate key spread over lines": b'{"device":"a",\n"ts" :1,\n"ts"\t: 2}',
}


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_not_json_is_a_decode_reject(value: bytes | None) -> None:
    good = b'{"device":"a","ts":1,"temp":3}'
    decoded = decode(good, value, good)
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(1, "decode")]
    assert decoded.arrays["temp"].to_pylist() == [3.0, 3.0]
    assert 0 < len(decoded.rejects[0].message) < 150


@pytest.mark.parametrize("good", list(product([True, False], repeat=4)), ids=str)
def test_good_records_keep_their_order_and_log_times_whichever_are_bad(good: tuple[bool, ...]) -> None:
    values = [f'{{"device":"{at}","ts":{at + 1}}}'.encode() if fine else b"?" for at, fine in enumerate(good)]
    decoded = decode(*values, max_ahead_ms=0, log_times_ms=[1, 2, 2, 4])
    expected = [str(at) for at, fine in enumerate(good) if fine and at != 2]
    assert decoded.arrays["device"].to_pylist() == expected
    assert len(decoded.event_time) == len(expected)
    assert decoded.latest_event_ms == (int(expected[-1]) + 1 if expected else None)
    reasons = {at: "future_event" if fine else "decode" for at, fine in enumerate(good) if not fine or at == 2}
    assert {reject.index: reject.reason for reject in decoded.rejects} == reasons


@pytest.mark.parametrize("kind", ["duplicate key", "duplicate key with an escape", "just too deep"])
@pytest.mark.parametrize("rest", [b"}", b',"other":"x"}'], ids=["declared only", "an undeclared field"])
@pytest.mark.parametrize("place", [0, 31, 1_023, 1_024, 1_500, 2_499])
def test_a_bad_record_is_found_in_any_place(kind: str, rest: bytes, place: int) -> None:
    values: list[bytes | None] = [b'{"device":"a","ts":1' + rest] * 2_500
    values[place] = NOT_JSON[kind]
    decoded = decode(*values)
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(place, "decode")]
    assert len(decoded.event_time) == 2_499


def test_bad_utf8_is_found_in_any_place() -> None:
    values: list[bytes | None] = ['{"device":"é","ts":1}'.encode()] * 2_500
    for place in (0, 1_024, 2_499):
        values[place] = NOT_JSON["bad UTF-8 in a field that is not declared"]
    assert [reject.index for reject in decode(*values).rejects] == [0, 1_024, 2_499]


NOT_AS_DECLARED = {
    "array": (b"[1]", "expected an object, got [1]"),
    "null": (b"null", "expected an object, got null"),
    "number": (b"17", "expected an object, got 17"),
    "empty object": (b"{}", "device: required but missing"),
    "missing": (b'{"device":"a"}', "ts: required but missing"),
    "key in another case": (b'{"Device":"a","ts":1}', "device: required but missing"),
    "null though required": (b'{"device":null,"ts":1}', "device: expected a string, got null"),
    "number for a string": (b'{"device":7,"ts":1}', "device: expected a string, got 7"),
    "string for a number": (b'{"device":"a","ts":1,"temp":"7"}', 'temp: expected a double, got "7"'),
    "no number": (
        b'{"device":"a","ts":1,"temp":"NaN"}',
        'temp: expected a double, got "NaN"; where there is none, leave it out',
    ),
    "decimal comma": (
        b'{"device":"a","ts":1,"temp":"-55,2"}',
        'temp: expected a double, got "-55,2"; write a point, not a comma',
    ),
    "boolean for a number": (b'{"device":"a","ts":1,"temp":true}', "temp: expected a double, got true"),
    "beyond a double": (b'{"device":"a","ts":1,"temp":1e999}', "temp: expected a double, got 1e999"),
    "object for a string": (b'{"device":{"device":1},"ts":1}', 'device: expected a string, got {"device":1}'),
    "tricks on a terminal": (
        '{"device":["\u202e\x7f"],"ts":1}'.encode(),
        'device: expected a string, got ["\\u202e\\x7f"]',
    ),
    "first field in the schema's order": (b'{"ts":[],"device":1}', "device: expected a string, got 1"),
}


@pytest.mark.parametrize(("value", "message"), NOT_AS_DECLARED.values(), ids=NOT_AS_DECLARED.keys())
def test_what_is_not_as_declared_is_a_schema_reject(value: bytes, message: str) -> None:
    decoded = decode(value)
    assert [(reject.reason, reject.message) for reject in decoded.rejects] == [("schema", message)]


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("NaN", "null, or add 'missing: [NaN]' to the stream"),
        ("Infinity", "null, or add 'missing: [Infinity]' to the stream"),
        ("True", "true"),
        ("None", "null"),
    ],
)
def test_words_of_other_languages_are_told_with_what_json_has(written: str, instead: str) -> None:
    told = decode(f'{{"device":"a","temp":{written},"ts":1}}'.encode()).rejects[0].message
    assert told == f"not JSON: invalid character (byte 21); JSON has no {written}: write {instead}"
    assert decode(b'{"device":"a","temp":Nothing}').rejects[0].message == "not JSON: invalid character (byte 21)"


def test_messages_stay_short() -> None:
    digits = b"9" * 5_000
    for value in (
        b'{"device":"a","ts":' + digits + b"}",
        b'{"device":"a","ts":1,"temp":' + digits + b"}",
        b'{"device":[' + digits + b'],"ts":1}',
        b'{"device":"a","ts":"' + "é".encode() * 5_000 + b'"}',
    ):
        reject = decode(value).rejects[0]
        assert reject.reason == "schema"
        assert len(reject.message) < 300
        assert reject.message.endswith("...")


ACCEPTED = {
    "quotes and braces in a string": rb'{"device":"\"{[:\\","ts":1}',
    "a key of 64 kB": b'{"' + b"k" * 65_536 + b'":1,"device":"a","ts":1}',
    "a field name as a value": b'{"device":"ts","ts":1,"x":"ts"}',
    "duplicates of what is not declared": b'{"device":"a","ts":1,"x":1,"x":2}',
    "a declared name within another object": b'{"device":"a","ts":1,"x":{"ts":2,"device":3}}',
    "as deep as allowed": b'{"device":"a","ts":1,"x":' + b"[" * (NESTING_MAX - 1) + b"]" * (NESTING_MAX - 1) + b"}",
    "many brackets, not deep": b'{"device":"a","ts":1,"x":[' + b"[],{}," * 500 + b"0]}",
    "brackets in a string": b'{"device":"a","ts":1,"x":"' + b'[{\\"' * 500 + b'"}',
    "a key with an escape": b'{"d\\u0065vice":"a","ts":1}',
    "a huge number that is not declared": b'{"device":"a","ts":1,"x":' + b"9" * 5_000 + b"}",
    "lines within a record, and around it": b'\n{"device":"a",\n"ts"\r\n:1\n}\n\n',
    "right to left": '{"device":"\u05e9\u05dc\u05d5\u05dd \u202e","ts":1}'.encode(),
}


@pytest.mark.parametrize("value", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_odd_but_good_records_are_accepted(value: bytes) -> None:
    assert decode(value).rejects == []


def test_nesting_does_not_depend_on_the_callers_stack() -> None:
    deepest = ACCEPTED["as deep as allowed"]
    too_deep = NOT_JSON["just too deep"]

    def deeper(levels: int) -> Decoded:
        return decode(deepest, too_deep) if levels == 0 else deeper(levels - 1)

    levels = sys.getrecursionlimit() // 2
    assert [deeper(0).rejects, deeper(levels).rejects] == [decode(deepest, too_deep).rejects] * 2


LONG = RecordField("n", "long")
INTEGER = RecordField("n", "integer")
BOUNDED = RecordField("n", "long", min=-5, max=10)
DOUBLE = RecordField("n", "double", min=0, max=100)
PRICE = RecordField("n", "decimal(5,2)", min=-1)
OPTIONAL_PRICE = RecordField("n", "decimal(5,2)", required=False)
WIDE = RecordField("n", "decimal(38,0)")
FLAG = RecordField("n", "boolean")


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        (LONG, "9223372036854775807", 2**63 - 1),
        (LONG, "-9223372036854775808", -(2**63)),
        (LONG, "-0", 0),
        (INTEGER, "-2147483648", -(2**31)),
        (BOUNDED, "-5", -5),
        (BOUNDED, "10", 10),
        (DOUBLE, "0", 0.0),
        (DOUBLE, "1e2", 100.0),
        (DOUBLE, "1e-999", 0.0),
        (FLAG, "false", False),
        (PRICE, "1", Decimal("1.00")),
        (PRICE, "0.10", Decimal("0.10")),
        (PRICE, '"999.99"', Decimal("999.99")),
        (PRICE, "1.50000", Decimal("1.50")),
        (PRICE, "-1e0", Decimal("-1.00")),
        (PRICE, '"\\u0031.5"', Decimal("1.50")),
        (PRICE, "-0", Decimal("0.00")),
        (OPTIONAL_PRICE, "null", None),
        (WIDE, "9" * 38, Decimal("9" * 38)),
    ],
)
def test_numbers_are_kept_exactly(field: RecordField, text: str, value: object) -> None:
    assert with_field(field, text) == (value, None)


def test_the_sign_of_zero_is_kept() -> None:
    value, _ = with_field(DOUBLE, "-0.0")
    assert str(value) == "-0.0"


@pytest.mark.parametrize(
    ("field", "text", "expected"),
    [
        (LONG, "9223372036854775808", "a long"),
        (LONG, "18446744073709551616", "a long"),
        (LONG, "-9223372036854775809", "a long"),
        (LONG, "1.5", "a long"),
        (LONG, "1e16", "a long"),
        (LONG, '"1"', "a long"),
        (INTEGER, "2147483648", "an integer"),
        (BOUNDED, "-6", "a long >= -5 and <= 10"),
        (BOUNDED, "11", "a long >= -5 and <= 10"),
        (DOUBLE, "-0.001", "a double >= 0 and <= 100"),
        (DOUBLE, "100.00001", "a double >= 0 and <= 100"),
        (FLAG, "1", "a boolean (true or false)"),
        (FLAG, '"true"', "a boolean (true or false)"),
        (PRICE, "1.005", "a decimal(5,2) >= -1"),
        (PRICE, "1000", "a decimal(5,2) >= -1"),
        (PRICE, "-1.01", "a decimal(5,2) >= -1"),
        (PRICE, "1e999999999999999999999", "a decimal(5,2) >= -1"),
        (PRICE, "null", "a decimal(5,2) >= -1"),
        (PRICE, "true", "a decimal(5,2) >= -1"),
        (PRICE, "[1]", "a decimal(5,2) >= -1"),
        (PRICE, '"NaN"', "a decimal(5,2) >= -1"),
        (PRICE, '"1_0"', "a decimal(5,2) >= -1"),
        (PRICE, '" 1"', "a decimal(5,2) >= -1"),
        (PRICE, '"\\u004eaN"', "a decimal(5,2) >= -1"),
        (PRICE, '""', "a decimal(5,2) >= -1"),
        (WIDE, "1" + "0" * 38, "a decimal(38,0)"),
    ],
)
def test_numbers_that_do_not_fit_are_schema_rejects(field: RecordField, text: str, expected: str) -> None:
    shown = text[:40] + ("..." if len(text) > 40 else "")
    remedy = "; where there is none, leave it out" if text in ('"NaN"', '""') else ""
    assert with_field(field, text) == (
        None,
        f"schema: n: expected {expected}, got {shown}{remedy}".replace("\\", "\\\\"),
    )


@pytest.mark.parametrize(
    ("text", "unit", "micros"),
    [
        ("0", "s", 0),
        ("-1", "ms", -1_000),
        ("1700000000", "s", 1_700_000_000_000_000),
        ("1700000000.123456", "s", 1_700_000_000_123_456),
        ("1700000000123", "ms", 1_700_000_000_123_000),
        ("1700000000123.5", "ms", 1_700_000_000_123_500),
        ("1700000000123456", "us", 1_700_000_000_123_456),
        ("-62135596800", "s", -62_135_596_800_000_000),
        ("253402300799999999", "us", 253_402_300_799_999_999),
        ('"2023-11-14"', "ms", 1_699_920_000_000_000),
        ('"2023-11-14 22:13"', "ms", 1_699_999_980_000_000),
        ('"2023-11-14 22:13:20"', "ms", 1_700_000_000_000_000),
        ('"2023-11-14T22:13:20Z"', "ms", 1_700_000_000_000_000),
        ('"2023-11-14t22:13:20z"', "ms", 1_700_000_000_000_000),
        ('"2023-11-14T23:13:20+01:00"', "ms", 1_700_000_000_000_000),
        ('"2023-11-14T16:43:20.5-0530"', "ms", 1_700_000_000_500_000),
        ('"2023-11-15T00:13:20+02"', "ms", 1_700_000_000_000_000),
        ('"2023-11-14T22:13:20.1"', "s", 1_700_000_000_100_000),
        ('"2023-11-14T22:13:20,123456"', "s", 1_700_000_000_123_456),
        ('"2023-11-14T22:13:20.123456999Z"', "s", 1_700_000_000_123_456),
        ('"1969-12-31T23:59:59.9999999"', "s", -1),
        ('"0001-01-01T00:00:00"', "s", -62_135_596_800_000_000),
        ('"9999-12-31T23:59:59.999999"', "s", 253_402_300_799_999_999),
        ('"2024-02-29 00:00:00"', "s", 1_709_164_800_000_000),
    ],
)
def test_timestamps(text: str, unit: str, micros: int) -> None:
    assert event_micros(text, unit) == micros


@pytest.mark.parametrize(
    "text",
    [
        *(
            "1e999",
            "-62135596801",
            "253402300800",
            "253402300799.9999999",
            "17000000000000000000000",
            "true",
            "null",
            "[]",
        ),
        *('""', '"now"', '"1700000000"', '"2023-11-14T"', '"2023-11-14T22"', '"2023-11-14T22:13:20 Z"'),
        *('"2023-11-14T22:13:20.Z"', '"2023-11-14T22:13:20."', '"2023-11-14X22:13:20"', '" 2023-11-14 22:13:20"'),
        *('"2023-11-14 22:13:20\\n"', '"2023-13-01 00:00:00"', '"2023-00-01 00:00:00"', '"2023-02-29 00:00:00"'),
        *('"2023-04-31 00:00:00"', '"2023-04-00 00:00:00"', '"2023-04-01 24:00:00"', '"2023-04-01 00:60:00"'),
        *(
            '"2016-12-31 23:59:60"',
            '"0000-01-01 00:00:00"',
            '"0000-12-31T23:59:59-00:01"',
            '"-001-01-01 00:00:00"',
            '"10000-01-01 00:00:00"',
        ),
        *('"0001-01-01T00:00:00+00:01"', '"9999-12-31T23:59:59-00:01"', '"2023-11-14T22:13:20+24:00"'),
        *('"2023-11-14T22:13:20+01:60"', '"２０２３-11-14 22:13:20"', '"2023-11-14 22:13:2é"'),
    ],
)
def test_what_means_no_time_is_a_schema_reject(text: str) -> None:
    decoded = decode(f'{{"ts": {text}}}'.encode(), b'{"ts":1}', fields=[RecordField("ts", "timestamp", unit="s")])
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(0, "schema")]
    assert decoded.rejects[0].message.startswith(
        "ts: expected a timestamp of years 1 to 9999 (a number in s, or ISO 8601"
    )
    assert decoded.event_time.cast(pa.int64()).to_pylist() == [1_000_000]


def test_one_column_may_mix_every_kind_of_timestamp() -> None:
    decoded = decode(
        b'{"ts":1700000000000,"seen":null}',
        b'{"ts":"2023-11-14 22:13:20","seen":1.5}',
        b'{"ts":1700000000000.0,"seen":"1970-01-01"}',
        b'{"ts":"2023-11-14","seen":"soon"}',
        b'{"ts":"2023-11-14T22:13Z"}',
        fields=[RecordField("ts", "timestamp"), RecordField("seen", "timestamp", required=False, unit="s")],
    )
    assert [reject.index for reject in decoded.rejects] == [3]
    assert decoded.event_time.cast(pa.int64()).to_pylist() == [NOW_MS * 1000] * 3 + [(NOW_MS - 20_000) * 1000]
    assert decoded.arrays["seen"].cast(pa.int64()).to_pylist() == [None, 1_500_000, 0, None]


def test_late_and_future_are_judged_to_the_microsecond() -> None:
    fields = [RecordField("ts", "timestamp", unit="us")]
    decoded = decode(
        *(f'{{"ts":{micros}}}'.encode() for micros in (999_999, 1_000_000, 3_000_000, 3_000_001, 0)),
        fields=fields,
        late_below_ms=1_000,
        max_ahead_ms=1_000,
        log_times_ms=[2_000] * 5,
    )
    assert [(reject.index, reject.reason, reject.message) for reject in decoded.rejects] == [
        (0, "late", "ts: 1970-01-01T00:00:00.999999Z is before the watermark 1970-01-01T00:00:01.000000Z"),
        (3, "future_event", "ts: 1970-01-01T00:00:03.000001Z is 1001 ms ahead of its log time, more than 1000 ms"),
        (4, "late", "ts: 1970-01-01T00:00:00.000000Z is before the watermark 1970-01-01T00:00:01.000000Z"),
    ]
    assert decoded.latest_event_ms == 3_000


def test_each_record_is_held_against_its_own_log_time() -> None:
    decoded = decode(
        b'{"device":"a","ts":5000}',
        b"?",
        b'{"device":"b","ts":5000}',
        max_ahead_ms=1_000,
        log_times_ms=[3_999, 0, 4_000],
    )
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(0, "future_event"), (1, "decode")]
    assert decoded.arrays["device"].to_pylist() == ["b"]


def test_each_record_may_have_a_bound_of_its_own() -> None:
    """A replay has such bounds, because its slices were cut under different rules."""
    values: list[bytes | None] = [b'{"device":"a","ts":5000}'] * 4
    late_below_ms, ahead_ms = np.array([NEVER_LATE, 5_001, 0, 0]), np.array([1_000, 1_000, 999, NEVER_AHEAD])
    decoded = Decoder([DEVICE, TS], EventTimeSource("ts"), ["device"]).decode(
        values, [4_000, 4_000, 4_000, 0], late_below_ms, ahead_ms
    )
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(1, "late"), (2, "future_event")]


def test_the_first_reason_that_holds_is_given() -> None:
    """decode before schema before future_event before late."""
    decoded = decode(
        b'{"device":1,"ts":9,"ts":9}',
        b'{"device":1,"ts":9000}',
        b'{"device":"a","ts":9000}',
        b'{"device":"a","ts":8000}',
        late_below_ms=10_000,
        max_ahead_ms=0,
        log_times_ms=[8_500] * 4,
    )
    assert [reject.reason for reject in decoded.rejects] == ["decode", "schema", "future_event", "late"]
    assert decoded.latest_event_ms is None


def test_latest_event_is_rounded_down_and_ignores_rejects() -> None:
    fields = [DEVICE, RecordField("ts", "timestamp", unit="us")]
    decoded = decode(
        b'{"device":"a","ts":1999}', b'{"device":1,"ts":5000}', b'{"ts":7000,"device":"b","ts":7000}', fields=fields
    )
    assert decoded.latest_event_ms == 1


def test_the_event_time_is_required_whatever_its_declaration_says() -> None:
    fields = [RecordField("ts", "timestamp", required=False)]
    decoded = decode(b'{"ts":null}', b"{}", b'{"ts":1}', fields=fields)
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(0, "schema"), (1, "schema")]


def test_field_names_may_be_words_of_python() -> None:
    fields = [
        TS,
        RecordField("class", "string"),
        RecordField("__init__", "long"),
        RecordField("f0", "double", required=False),
    ]
    decoded = decode(b'{"class":"x","ts":1,"__init__":2,"f0":3}', fields=fields)
    assert {name: array.to_pylist() for name, array in decoded.arrays.items() if name != "ts"} == {
        "class": ["x"],
        "__init__": [2],
        "f0": [3.0],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type": "float"}, "no type 'float'"),
        ({"type": "decimal(39,0)"}, r"no type 'decimal\(39,0\)'"),
        ({"type": "decimal(2,3)"}, "no type"),
        ({"type": "timestamp", "unit": "m"}, "no unit 'm'"),
        ({"type": "string", "min": 1}, "a string has no min or max"),
        ({"type": "long", "min": 2, "max": 1}, "min 2 is above max 1"),
    ],
)
def test_a_field_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecordField(name="x", **arguments)


def test_a_decoder_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="no declared field tmp; declared are device, ts"):
        Decoder([DEVICE, TS], EventTimeSource("ts"), ["tmp"])
    with pytest.raises(ValueError, match="the event-time field device is a string, not a timestamp"):
        Decoder([DEVICE, TS], EventTimeSource("device"), [])


def test_record_fields_travel() -> None:
    assert pickle.loads(pickle.dumps(PRICE)) == PRICE


def test_an_event_before_1970_is_refused_because_sparks_watermark_begins_there():
    decoder = Decoder([RecordField("ts", "timestamp", True, None, None, "ms")], EventTimeSource("ts"), ["ts"])
    decoded = decoder.decode([b'{"ts": -1}', b'{"ts": 0}', b'{"ts": "1969-12-31 23:59:59"}'], [0, 0, 0], None)
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(0, "schema"), (2, "schema")]
    assert decoded.rejects[0].message == "ts: 1969-12-31T23:59:59.999000Z is before 1970-01-01 UTC; is the unit right?"
    assert len(decoded.event_time) == 1


# --- Limits of timestamps


@pytest.mark.parametrize("values", [["2020-01-01T00:00:00Z", "2019-12-31T23:59:59.999999Z"], [1_577_836_800, 3.41]])
@pytest.mark.parametrize("neighbours", [0, 200])
def test_a_time_outside_of_its_limits_is_rejected_as_a_number_would_be(
    values: list[str | float], neighbours: int
) -> None:
    field = RecordField("ts", "timestamp", unit="s", earliest="2020-01-01", latest="2030-01-01T01:00:00+01:00")
    texts = [b'{"ts":"2030-01-01T00:00:00Z"}'] * neighbours + [json.dumps({"ts": value}).encode() for value in values]
    texts.append(b'{"ts":"2030-01-01T00:00:00.000001Z"}')
    decoded = Decoder([field], EventTimeSource("ts"), ["ts"]).decode(texts, [1_600_000_000_000] * len(texts), None)
    assert [(one.index - neighbours, one.reason) for one in decoded.rejects] == [(1, "schema"), (2, "schema")]
    expected = (
        "ts: expected a timestamp >= 2020-01-01 and <= 2030-01-01T01:00:00+01:00 (a number in s, or ISO 8601 text), got"
    )
    assert all(one.message.startswith(expected) for one in decoded.rejects)
    assert len(decoded.arrays["ts"]) == neighbours + 1


@pytest.mark.parametrize("pattern", [None, "d/M/yyyy"])
def test_a_time_outside_of_its_limits_is_null_if_it_may_be(pattern: str | None) -> None:
    times = ["1/1/1970", "2/1/2020"] if pattern else ["1970-01-01", "2020-01-02"]
    texts = [json.dumps({"seen": time}).encode() for time in [*times, None]] + [b"{}"]
    for or_null in (True, False):
        field = RecordField(
            "seen", "timestamp", required=False, earliest="2020-01-01", pattern=pattern, or_null=or_null
        )
        decoded = Decoder([field], EventTimeSource(None), ["seen"]).decode(texts, [5] * 4, None)
        seen = [None if one is None else one.isoformat()[:10] for one in decoded.arrays["seen"].to_pylist()]
        assert seen == ([None] if or_null else []) + ["2020-01-02", None, None]
        assert [one.index for one in decoded.rejects] == ([] if or_null else [0])
        assert decoded.misfits == ({"seen": 1} if or_null else {})
