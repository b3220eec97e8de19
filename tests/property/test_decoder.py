"""The outcome of a record depends only on the record, and the fast way and the exact way agree on it."""

from __future__ import annotations

import json
import re
from calendar import isleap
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.core.times.time_zones import rules_of
from strandline.processing.formats.decimals import DecimalParser
from strandline.processing.formats.decoder import Decoder, RecordField
from strandline.processing.formats.record_fields import RecordValidator, Rejection
from strandline.processing.formats.timestamps import parse_timestamp, parse_timestamp_column
from strandline.processing.pipelines.event_time import EventTimeSource
from tests.support.examples import examples

ZONES = ["Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "Pacific/Apia"]
FIELDS = [
    RecordField("device", "string"),
    RecordField("ts", "timestamp", unit="ms"),
    RecordField("temp", "double", required=False, min=-50),
    RecordField("count", "integer", max=1_000),
    RecordField("price", "decimal(6,2)", required=False),
    RecordField("seen", "timestamp", required=False, unit="s"),
    RecordField("note", "string", required=False),
    RecordField("levels", "array<double>", required=False),
    RecordField("parts", "array<struct<n: integer, price: decimal(6,2)>>", required=False),
]
NAMES = [field.name for field in FIELDS]
NOW_MS = 1_700_000_000_000
START = datetime(2023, 11, 14, 22, 13, 10, tzinfo=UTC)
WATERMARK_MS = NOW_MS - 5_000
MAX_AHEAD_MS = 5_000


@dataclass(frozen=True)
class Sent:
    value: bytes | None
    log_time_ms: int


def decoder() -> Decoder:
    return Decoder(FIELDS, EventTimeSource("ts"), NAMES)


def outcomes(sent: list[Sent], watermark_ms: int | None = WATERMARK_MS) -> list[Any]:
    """Decode in one call and return, for each record, its row of values or its reject without the index."""
    values, log_times_ms = [record.value for record in sent], [record.log_time_ms for record in sent]
    decoded = decoder().decode(values, log_times_ms, watermark_ms, MAX_AHEAD_MS)
    indexes = [reject.index for reject in decoded.rejects]
    assert indexes == sorted(set(indexes))
    micros = decoded.event_time.cast(pa.int64()).to_pylist()
    assert decoded.latest_event_ms == (max(micros) // 1000 if micros else None)
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in decoded.arrays.values()
    ]
    # As text, so that 0.0 and -0.0 differ.
    rows = iter([repr(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)])
    rejects = {reject.index: (reject.reason, reject.message) for reject in decoded.rejects}
    found = [rejects.get(index) or next(rows) for index in range(len(sent))]
    assert next(rows, None) is None
    return found


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(['"', "\\", '"ts"', '{"ts":1}', "\0", "é"])
times = st.one_of(
    st.integers(NOW_MS - 10_000, NOW_MS + 10_000).map(str),
    st.floats(NOW_MS - 10_000, NOW_MS + 10_000).map(repr),
    st.integers(0, 20_000_000).map(lambda micros: as_json(str(START + timedelta(microseconds=micros)))),
    st.sampled_from(
        ["1700000000", "1700000000000000", '"soon"', '"2023-11-14"', '"2023-02-30 00:00:00"', "1e3", "1e999"]
    ),
)
numbers = st.one_of(
    st.integers(-100, 1_100).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.decimals(-10_000, 10_000, places=2).map(str),
    st.sampled_from(["-0", "-0.0", "1.0", "9" * 400, "9223372036854775808", "1e999", "0.001", "NaN", "01"]),
)
odd = st.sampled_from(
    ["null", "true", "[]", "{}", '""', '"\\ud800"', '"\\u0031"', "[" * 101 + "]" * 101, "[[{}]]", "x"]
)
any_value = st.one_of(numbers, times, texts.map(as_json), odd)


def in_brackets(values: list[str]) -> str:
    return f"[{', '.join(values)}]"


usual_values = {
    "device": texts.map(as_json),
    "ts": times,
    "temp": st.floats(-50, 50).map(repr) | st.just("null"),
    "count": st.integers(0, 1_000).map(str),
    "price": st.decimals(-9_999, 9_999, places=2).map(str) | st.just('"12.5"') | st.just("null"),
    "seen": st.integers(0, 10**9).map(str) | st.just('"2023-11-14T22:13:20Z"') | st.just("null"),
    "note": texts.map(as_json) | st.just("null"),
    "levels": st.lists(st.floats(-50, 50).map(repr) | numbers | st.just("null"), max_size=3).map(in_brackets),
    "parts": st.lists(
        st.builds(
            lambda n, price, more: f'{{"n": {n}, "price": {price}{more}}}',
            st.integers(-5, 5) | st.just("null"),
            st.sampled_from(["1.5", '"2"', "0.001", "null", "7"]),
            st.sampled_from(["", "", ', "n": 1', ', "ts": "x"']),
        )
        | st.sampled_from(["null", "{}", '{"price": 1}', "[]"]),
        max_size=2,
    ).map(in_brackets),
}
BLANKS = ["", "", "", " ", "\n"]


@st.composite
def records(draw: st.DrawFn) -> bytes | None:
    """Mostly records as declared; then one or two things are done to them."""
    if draw(st.integers(0, 30)) == 0:
        return draw(st.none() | st.binary(max_size=20) | any_value.map(str.encode))
    optional = [field.name for field in FIELDS if not field.required]
    left_out = draw(st.sets(st.sampled_from(optional)))
    members = [(name, draw(usual_values[name])) for name in draw(st.permutations(NAMES)) if name not in left_out]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(members)))
        name = draw(st.sampled_from([*NAMES, "other", "nested"]))
        change = draw(st.sampled_from(["add", "replace", "remove", "escape"]))
        if change == "add":
            members.insert(at, (name, draw(any_value)))
        elif at < len(members):
            old_name, old_value = members[at]
            if change == "replace":
                members[at] = (old_name, draw(any_value))
            elif change == "remove":
                del members[at]
            else:
                members[at] = (f"\\u{ord(old_name[0]):04x}{old_name[1:]}", old_value)
    blank = draw(st.sampled_from(BLANKS))
    text = "{" + ",".join(f'{blank}"{name}"{blank}:{blank}{value}' for name, value in members) + blank + "}"
    value = text.encode()
    if draw(st.integers(0, 8)) == 0:
        at = draw(st.integers(0, len(value)))
        value = (
            value[:at] + draw(st.binary(max_size=2) | st.just(b"\xed\xa0\x80")) + value[at + draw(st.integers(0, 2)) :]
        )
    return value


sents = st.builds(Sent, records(), st.integers(NOW_MS - 5_000, NOW_MS + 5_000))
GOOD = Sent(b'{"device":"a","ts":1700000000000,"count":1}', NOW_MS)
REPEATED = Sent(b'{"device":"a","ts":1700000000000,"count":1,"ts":1700000000001}', NOW_MS)
WITHOUT = Sent(b'{"device":"a","count":1,"x":"ts"}', NOW_MS)


@pytest.mark.guarantee(
    "G4",
    "The outcome of a record depends only on its bytes, its log time, and the watermark recorded for its slice. Its "
    "neighbours and the ranges in which the log is read don't matter.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
@examples(200)
@given(sent=st.lists(sents, max_size=12), data=st.data())
def test_neighbours_and_cuts_never_matter(sent: list[Sent], data: st.DataObject) -> None:
    alone = [outcomes([record])[0] for record in sent]
    assert outcomes(sent) == alone

    order = data.draw(st.permutations(range(len(sent))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=3)))
    found: list[Any] = []
    for first, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        found += outcomes([sent[at] for at in order[first:end]])
    assert found == [alone[at] for at in order]


@pytest.mark.guarantee("G3")
@examples(50)
@given(sent=st.lists(sents, min_size=1, max_size=6), data=st.data())
def test_bad_records_among_thousands_of_good_ones_cost_only_themselves(sent: list[Sent], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, 2_500), min_size=len(sent), max_size=len(sent), unique=True))
    crowd = [GOOD] * 2_501
    expected = [outcomes([GOOD])[0]] * 2_501
    for place, record in zip(places, sent, strict=True):
        crowd[place] = record
        expected[place] = outcomes([record])[0]
    assert outcomes(crowd) == expected


@pytest.mark.guarantee("G483")
@examples(200)
@given(sent=st.lists(sents, max_size=6))
@example(sent=[GOOD, REPEATED])
@example(sent=[REPEATED, WITHOUT])
def test_the_fast_way_and_the_judge_agree(sent: list[Sent]) -> None:
    validator = RecordValidator(FIELDS)
    for record, outcome in zip(sent, outcomes(sent, None), strict=True):
        rejection = validator.validate(record.value)
        if isinstance(rejection, Rejection):
            assert outcome == (rejection.reason, rejection.message)
        else:
            # The reference doesn't know which field is the event time, or when the record arrived.
            is_of_time = outcome[0] in ("future_event", "time_unit") or "is before 1970" in outcome[1]
            assert isinstance(outcome, str) or is_of_time


@pytest.mark.guarantee(
    "G483",
    "A record whose array or struct isn't as declared, in any element, is a dead letter. The fast and the exact "
    "reader agree.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
@examples(200)
@given(sent=sents)
@example(sent=Sent(b'{"device":"","count":0,"ts":-1}', NOW_MS))
@example(sent=Sent(b'{"device":"","count":0,"ts":1700000000}', NOW_MS))
@example(sent=Sent(b'{"device":"","count":0,"ts":1700000000000000}', NOW_MS))
@example(sent=Sent(b'{"device":"","count":0,"ts":1700000000000,"seen":1700000000000}', NOW_MS))
@example(sent=Sent(b'{"device":"","count":0,"ts":1700000000000,"price":"\\u0031"}', NOW_MS))
def test_an_independent_reading_agrees(sent: Sent) -> None:
    expected = independent_outcome(sent)
    outcome = outcomes([sent])[0]
    assert (outcome if isinstance(outcome, str) else outcome[0]) == expected


class NotJsonError(Exception):
    pass


def independent_outcome(sent: Sent) -> str:
    """The reason for a reject, or the row as text, by the standard library's parser and none of the decoder's code."""
    try:
        pairs = read_strictly(sent.value)
        if isinstance(pairs, list) and len(pairs) == 1 and isinstance(pairs[0], Members):
            members = pairs[0]
        else:
            return "schema"
        declared = [name for name, _ in members if name in NAMES]
        if len(declared) != len(set(declared)):
            return "decode"
    except NotJsonError:
        return "decode"
    values = dict(members)
    row = [independent_value(field, values.get(field.name)) for field in FIELDS]
    if "wrong" in row:
        first = FIELDS[row.index("wrong")]
        return "time_unit" if is_in_another_unit(first, values.get(first.name)) else "schema"
    micros = row[1]
    if micros < 0:
        return "schema"
    if abs(micros - sent.log_time_ms * 1000) > YEAR_S * 10**6:
        arrived_s = Fraction(sent.log_time_ms, 1000)
        if any(abs(Fraction(micros * 1000, per * 10**6) - arrived_s) <= YEAR_S for per in PER_SECOND if per != 1000):
            return "time_unit"
    if micros > (sent.log_time_ms + MAX_AHEAD_MS) * 1000:
        return "future_event"
    if micros < WATERMARK_MS * 1000:
        return "late"
    return repr(tuple(value.text if isinstance(value, Text) else value for value in row))


YEAR_S = 366 * 86_400
PER_SECOND = (1, 10**3, 10**6, 10**9)


def is_in_another_unit(field: RecordField, value: Any) -> bool:
    """Return whether an integer that is no time of the years 1 to 9999 is a time of 2010 to 2090 in another unit."""
    if field.type != "timestamp" or not isinstance(value, Number) or not re.fullmatch(r"-?\d{1,30}", value.text):
        return False
    own = {"s": 1, "ms": 1000}[field.time_unit]
    in_time = -62_135_596_800 * own <= int(value.text) < 253_402_300_800 * own
    times = [Fraction(int(value.text), per) for per in PER_SECOND if per != own]
    return not in_time and any(abs(time - 2_524_608_000) <= 1_262_304_000 for time in times)


class Members(list[tuple[str, Any]]):
    pass


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Number:
    text: str


def read_strictly(value: bytes | None) -> Any:
    def refuse(text: str) -> Any:
        raise NotJsonError(text)

    try:
        text = (value or b"").decode("utf-8")
        if "\ufeff" in text[:1] or depth(text) > 100:
            raise NotJsonError
        found = json.loads(
            f"[{text}]", object_pairs_hook=Members, parse_int=Number, parse_float=Number, parse_constant=refuse
        )
        if text.strip(" \t\r\n") == "" or not json.dumps(strings(found), ensure_ascii=False).encode("utf-8"):
            raise NotJsonError
    except (ValueError, RecursionError) as error:
        raise NotJsonError from error
    if len(found) != 1:
        raise NotJsonError
    return found


def depth(text: str) -> int:
    level = deepest = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "[{":
            level += 1
            deepest = max(deepest, level)
        elif character in "]}":
            level -= 1
    return deepest


def strings(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [strings(item) for item in value]
    return value if isinstance(value, str) else None


def independent_value(field: RecordField, value: Any) -> Any:
    if value is None:
        return "wrong" if field.required else None
    if field.type == "string":
        return Text(value) if isinstance(value, str) else "wrong"
    if field.type == "double" and isinstance(value, Number):
        number = float(value.text)
        if value.text == "-0":
            number = 0.0
        return number if -50 <= number < float("inf") else "wrong"
    if field.type == "integer" and isinstance(value, Number):
        whole = value.text.removeprefix("-").isdigit() and len(value.text) < 20 and -(2**31) <= int(value.text) <= 1_000
        return int(value.text) if whole else "wrong"
    if field.type == "decimal(6,2)" and isinstance(value, Number | str):
        return independent_decimal(value if isinstance(value, str) else value.text)
    if field.type == "timestamp" and isinstance(value, Number | str):
        return independent_time(value, 1_000 if field.unit == "ms" else 1_000_000)
    if field.type.startswith("array") and isinstance(value, list) and not isinstance(value, Members):
        found = [independent_element(field, element) for element in value]
        return "wrong" if "wrong" in found else found
    return "wrong"


def independent_element(field: RecordField, value: Any) -> Any:
    if value is None:
        return None
    if field.name == "levels":
        number = float(value.text) if isinstance(value, Number) else float("inf")
        return "wrong" if abs(number) == float("inf") else 0.0 if value.text == "-0" else number
    if not isinstance(value, Members) or len({name for name, _ in value}) < len(value):
        return "wrong"
    members = dict(value)
    integer, price = RecordField("", "integer", required=False), RecordField("", "decimal(6,2)", required=False)
    found = {
        "n": independent_value(integer, members.get("n")),
        "price": independent_value(price, members.get("price")),
    }
    return "wrong" if "wrong" in found.values() else found


def independent_decimal(text: str) -> Any:
    allowed = text and set(text) <= set("0123456789+-.eE") and text[0] in "-0123456789" and text[-1].isdigit()
    if not allowed or len(text) > 300 or ("." in text and not text.split(".")[0][-1:].isdigit()):
        return "wrong"
    try:
        number = Decimal(text)
    except ArithmeticError:
        return "wrong"
    cents = number * 100
    return Decimal(int(cents)) / 100 + Decimal("0.00") if cents == int(cents) and abs(cents) < 10**6 else "wrong"


def independent_time(value: Any, micros_per_unit: int) -> Any:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    if isinstance(value, str):
        if not value[:4].isdigit() or not value.isascii() or (len(value) > 10 and value[10] not in " T"):
            return "wrong"
        # Python takes any character, and a z, between a sixth fractional digit and the offset.
        if len(value) > 10 and not re.fullmatch(r"[0-9:.,]*[0-9]([Zz]|[-+][0-9:]+)?", value[11:]):
            return "wrong"
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            return "wrong"
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return (time - epoch) // timedelta(microseconds=1)
    whole = value.text.removeprefix("-").isdigit()
    number: Any = int(value.text) if whole and len(value.text) < 30 else float(value.text)
    micros = round(number * micros_per_unit) if abs(number) < 1e18 else 10**30
    return micros if -62_135_596_800_000_000 <= micros < 253_402_300_800_000_000 else "wrong"


time_texts = st.one_of(
    st.builds(
        "{}{}{}{}".format,
        st.dates().map(str) | st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", fullmatch=True),
        st.sampled_from([" ", "T", "t", ""]),
        st.times().map(str) | st.from_regex(r"[0-2][0-9]:[0-6][0-9](:[0-6][0-9]([.,][0-9]{0,8})?)?", fullmatch=True),
        st.sampled_from(
            ["", "", "Z", "z", "+00:00", "-11:30", "+0530", "+23", "+23:59", "-23:60", "+24:00", "+1:00", "ZZ"]
        ),
    ),
    st.dates().map(str),
    texts,
)


@examples(400)
@given(
    values=st.lists(time_texts | st.integers(-(10**10), 10**10) | st.floats(-1e10, 1e10) | st.none()),
    unit=st.sampled_from(["s", "ms", "us"]),
    tz=st.sampled_from([None, *ZONES]),
)
@example(["2023-11-14 22:13:20", "2023-11-14T22:13:20.1234567Z", "2023-11-14 22:13:20+0100"], "s", None)
@example(["2023-11-14T22Z", "2023-11-14T22+01:00", "0000-12-31T23:59:59-00:01", "2023-11-14 22:13:20"], "s", None)
@example(["2023-02-29 00:00:00", "1900-02-29T00:00:00Z", "2000-02-29 00:00:00", "2024-04-31 00:00:00"], "s", None)
@example([1, "2023-11-14", 2.5, None, 3, None, 1e9, "2023-11-14T22:13:20Z"], "s", "Europe/Berlin")
@example(["0001-01-01 00:00:00+00:01", "9999-12-31 23:59:59.999999-00:01", ""], "s", None)
@example(["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2026-03-29 02:30:00"], "s", "Europe/Berlin")
@example(["9999-12-31 23:59:59", "2026-03-29T02:30", "2026-03-29"], "s", "America/St_Johns")
def test_a_column_of_timestamps_is_read_as_each_alone(values: list[Any], unit: str, tz: str | None) -> None:
    micros, valid = parse_timestamp_column(values, unit, set(map(type, values)), tz)
    found = [micro if good else None for micro, good in zip(micros.tolist(), valid.tolist(), strict=True)]
    assert found == [None if value is None else parse_timestamp(value, unit, tz) for value in values]


@examples(200)
@given(clock=st.datetimes(datetime(1890, 1, 1), datetime(2100, 1, 1)), tz=st.sampled_from(ZONES))  # noqa: DTZ001
@example(datetime(2026, 3, 29, 2, 30), "Europe/Berlin")  # noqa: DTZ001  # skipped: counts on from before, so 01:30 UTC
@example(datetime(2026, 10, 25, 2, 30), "Europe/Berlin")  # noqa: DTZ001  # shown twice: the first time, so 00:30 UTC
def test_a_text_without_a_zone_is_what_clocks_of_the_field_s_zone_show(clock: datetime, tz: str) -> None:
    expected = (clock.replace(tzinfo=rules_of(tz)).astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )
    assert parse_timestamp(str(clock), "ms", tz) == expected
    for zoned in (f"{clock}Z", f"{clock}+00:00"):
        assert parse_timestamp(zoned, "ms", tz) == parse_timestamp(zoned, "ms")


@examples(300)
@given(st.lists(st.tuples(st.text("0123456789-: TZ.+", max_size=32), st.integers(0, 31)), min_size=1, max_size=5))
def test_a_usual_text_with_some_bytes_changed_is_read_as_alone(changes: list[tuple[str, int]]) -> None:
    usual = "2023-11-14T22:13:20.123456+01:00"
    changed = [usual[:at] + text + usual[at + len(text) :] for text, at in changes]
    micros, valid = parse_timestamp_column(changed, "ms", {str})
    found = [micro if good else None for micro, good in zip(micros.tolist(), valid.tolist(), strict=True)]
    assert found == [parse_timestamp(text, "ms") for text in changed]


def test_every_day_of_a_column_is_read_as_alone() -> None:
    years = [999, 1000, 1600, 1900, 1904, 1999, 2000, 2023, 2024, 2100, 9996, 9999]
    days = [f"{year:04}-{month:02}-{day:02} 23:59:59" for year in years for month in range(14) for day in range(33)]
    micros, valid = parse_timestamp_column(days, "ms", {str})
    found = [micro if good else None for micro, good in zip(micros.tolist(), valid.tolist(), strict=True)]
    assert found == [parse_timestamp(day, "ms") for day in days]
    assert sum(valid) == sum(365 + isleap(year) for year in years)


number_texts = st.one_of(
    st.from_regex(r"-?[0-9]{0,4}\.?[0-9]{0,4}([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.decimals(-20_000, 20_000, places=2).map(str),
    st.sampled_from(
        ["+1", ".5", "1.", "-", "-0", "0.00", "007", "1e2", "12e-1", "0e99", "1" * 39, "0." + "0" * 60, ""]
    ),
    st.sampled_from(["NaN", "Infinity", "true", "[1,2]", "{}", "1,5", " 1", "1 ", "\\u0031", "1\n", "é", "\u0663"]),
)


def is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


number_values = st.one_of(
    number_texts.map(str.encode),
    number_texts.map(lambda text: f'"{text}"'.encode()),
    st.sampled_from([b"null", b'"null"', b'"\xff"', b'"\\"1"']),
).filter(is_json)


@examples(500)
@given(
    texts=st.lists(number_values, max_size=12),
    kind=st.sampled_from(["decimal(6,2)", "decimal(3,3)", "decimal(38,0)", "decimal(4,0)", "decimal(38,20)"]),
    limits=st.sampled_from([(None, None), (-50, None), (None, 99.995), (0, 1)]),
)
@example(texts=[b"1.5", b'"2.5"', b"1e0", b"null", b"[1]"], kind="decimal(6,2)", limits=(None, None))
@example(texts=[b"1.5", b"-3", b"0.25"], kind="decimal(6,2)", limits=(0, 1))
def test_a_column_of_decimals_is_read_as_each_alone(
    texts: list[bytes], kind: str, limits: tuple[float | None, float | None]
) -> None:
    parser = DecimalParser(kind, *limits)
    numbers, strings = parser.parse_column([msgspec.Raw(text) for text in texts])
    assert numbers.to_pylist() == [parser.parse(text) for text in texts]
    assert strings.tolist() == [text.startswith(b'"') for text in texts]
