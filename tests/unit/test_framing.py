"""The borders between records, and the key with which each is logged."""

from functools import partial

import msgspec
import pytest

from strandline.core.streams.format_registry import form_of
from strandline.ingest.gateway import framing
from strandline.ingest.gateway.framing import (
    Form,
    RefusedRecord,
    TooLarge,
    Unframable,
    frame,
    split_json,
    split_lines,
)
from strandline.log.record_key import key_finder
from strandline.processing.formats.influx.lines import split_influx

split_influx_lines = partial(split_lines, split=split_influx)
DEEP = b"[" * 5_000 + b"]" * 5_000


def test_an_object_is_one_record_with_every_byte_of_the_body():
    body = b' \r\n{"a" : 1, "a": NaN, "b": "\\q"}\n trailing'
    assert split_json(body) == [body]


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"[]", []),
        (b" [ \n ] ", []),
        (b'[ {"a" : 1} ,\t"x, ]" , 2 ]', [b'{"a" : 1}', b'"x, ]"', b"2"]),
        (b'[{"a":1},{"a":NaN},{"a":2}]', [b'{"a":1}', b'{"a":NaN}', b'{"a":2}']),
        (b"[1e999, 1]", [b"1e999", b"1"]),
        (b'["\\q", "\\ud800", "\\"", 1]', [b'"\\q"', b'"\\ud800"', b'"\\""', b"1"]),
        (b'["a\nb", "\xff\x00", 1]', [b'"a\nb"', b'"\xff\x00"', b"1"]),
        (b"[" + DEEP + b", 1]", [DEEP, b"1"]),
        (b"[" + b"9" * 5_000 + b", 01, tru, 'x', 1 2]", [b"9" * 5_000, b"01", b"tru", b"'x'", b"1 2"]),
        (b'[{"a":1,"a":2}]', [b'{"a":1,"a":2}']),
    ],
)
def test_the_elements_of_an_array_are_records_with_the_senders_bytes(body, values):
    assert split_json(body) == values


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "empty"),
        (b" \r\n", "empty"),
        (b"null", "neither"),
        (b"[", "never ends"),
        (b'[{"a":1}', "never ends: 1 bracket"),
        (b'[{"a":"x}]', "string that starts at byte 6"),
        (b'[{"a":1]]', "bracket at byte 7"),
        (b"[1}", "bracket at byte 2"),
        (b"[1,]", "element 2"),
        (b"[,1]", "element 1"),
        (b"[1,,2]", "element 2"),
        (b"[1] [2]", "more follows"),
        (b"[NaN]]", "more follows"),
        (b"[" * 100_000, "never ends"),
    ],
)
def test_a_body_in_which_records_cannot_be_told_apart_is_refused(body, part):
    with pytest.raises(Unframable, match=r"^[^\n]+$") as refused:
        split_json(body)
    assert part in str(refused.value)


def test_lines_keep_their_bytes_without_the_line_ending():
    body = b'{"a":1}\r\n\n \t\r\n {"b": 2} \nnot json\r\r\n{"c":"\x0b"}'
    assert split_lines(body) == [b'{"a":1}', b' {"b": 2} ', b"not json\r", b'{"c":"\x0b"}']


@pytest.mark.parametrize(
    "lines",
    [
        [b'syslog,host=a message="user said:\ncpu,host=db1 usage=99.9 1764000000000000000\nend" 1764000000000000001'],
        [b'w x="a\r\n\n# b",y="",z="\\"\n\\\\" 1', b'w x="\n"'],
        [b'w,a\\ b=" x=1', b'w" x=1', b'w,a=" x=1,y"=2,\\="z=3', b"w x=1\\"],
        [b'w x="a', b'w x="b"', b'w x="c', b'w x=""', b'w x="d', b"w x=2", b'w x="e'],
        [b'w x="say "a" b"', b'w x="c"', b'"', b'w "x="d"'],
    ],
)
def test_a_line_of_influx_ends_outside_of_texts(lines):
    """Escapes and quotes count where InfluxDB has them count; a text that never ends costs its own line."""
    for end in (b"\n", b"\r\n", b"\n\n \n", b"\n# it's\n \t#\n"):
        assert split_influx_lines(end.join(lines) + end) == lines


@pytest.mark.parametrize("body", [b"# x\n  # y\r\n", b'# "\n'])
def test_comments_of_influx_are_no_records(body):
    assert split_influx_lines(b"w x=1\n" + body) == [b"w x=1"]
    with pytest.raises(Unframable, match="no record"):
        split_influx_lines(body)


@pytest.mark.parametrize("body", [b"", b"\n", b" \r\n\t\n"])
def test_lines_without_a_record_are_refused(body):
    with pytest.raises(Unframable, match="no record"):
        split_lines(body)


def test_a_record_over_the_limit_is_named_and_its_neighbours_are_taken():
    framed = frame(b'["1234567", "12345678"]', Form.JSON, None, record_bytes_max=10)
    assert framed == ([(b'"1234567"', None), (b'"12345678"', None)], [], True, None)
    assert framed.indexes() == [0, 1]
    framed = frame(b'["1234567", "123456789", 1]', Form.JSON, None, record_bytes_max=10)
    assert framed.records == [(b'"1234567"', None), (b"1", None)]
    assert framed.indexes() == [0, 2]
    assert framed.refused == [RefusedRecord(1, "too_large", "it has 11 bytes, the limit is 10")]


@pytest.mark.parametrize(
    ("body", "form", "is_batch"),
    [(b"{}", Form.JSON, False), (b" {}\n", Form.JSON, False), (b"[{}]", Form.JSON, True), (b"{}", Form.LINES, True)],
)
def test_a_form_that_allows_several_records_is_a_batch(body, form, is_batch):
    assert frame(body, form, None, 100).is_batch is is_batch


@pytest.mark.parametrize(
    ("body", "form", "values"),
    [
        (b"23.5", Form.JSON, [b"23.5"]),
        (b' "on" ', Form.JSON, [b' "on" ']),
        (b' [1, "on"]', Form.JSON, [b"1", b'"on"']),
        (b"1\n2\r\n", Form.LINES, [b"1", b"2"]),
        (b" 1\n2", Form.WHOLE, [b" 1\n2"]),
    ],
)
def test_bare_values(body, form, values):
    assert [value for value, _ in frame(body, form, None, 100, framing=form_of("value").framing()).records] == values


@pytest.mark.parametrize(
    ("body", "form"), [(b"", Form.WHOLE), (b" ", Form.JSON), (b"", Form.LINES), (b"\n", Form.LINES)]
)
def test_no_bytes_are_no_bare_value(body, form):
    with pytest.raises(Unframable):
        frame(body, form, None, 100, framing=form_of("value").framing())


def test_a_body_without_a_record_that_can_be_taken_is_refused():
    with pytest.raises(TooLarge, match="record 1 of 1 has 7 bytes"):
        frame(b"1234567\n", Form.LINES, None, record_bytes_max=6)


@pytest.mark.parametrize("commas_max", [0, 1_000_000], ids=["slow way", "fast way"])
def test_too_many_records_are_refused(monkeypatch, commas_max):
    monkeypatch.setattr(framing, "RECORDS_MAX", 3)
    monkeypatch.setattr(framing, "_COMMAS_MAX", commas_max)
    assert len(split_json(b"[1,2,3]")) == 3
    with pytest.raises(TooLarge, match="more than 3 records"):
        split_json(b"[1,2,3,4]")
    for split in (split_lines, split_influx_lines):
        assert len(split(b'1\n2"\n3\n')) == 3
        with pytest.raises(TooLarge, match="more than 3 lines"):
            split(b'1\n2"\n3\n\n')


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'{"id":"t-1"}', b"t-1"),
        (b'{"x":[1,{"id":2}],"id": "\\u0074\\n" }', b"t\n"),
        (b'{"id":"\xc3\xbc"}', b"\xc3\xbc"),
        (b'{"id":""}', b""),
        (b'{"id": 12.50}', b"12.50"),
        (b'{"id": -0}', b"-0"),
        (b'{"id":false}', b"false"),
        (b'{"id":"a","id":"b"}', b"b"),
        (b'{"id":null}', None),
        (b'{"id":{"id":1}}', None),
        (b'{"id":["a"]}', None),
        (b'{"ID":"a"}', None),
        (b"{}", None),
        (b'["id"]', None),
        (b'"id"', None),
        (b'{"x":NaN,"id":"a"}', None),
        (b'{"id":"\\ud800"}', None),
        (b'{"id":"\xff"}', None),
        (b'{"id":' + DEEP + b"}", None),
        (b'{"x":' + b"9" * 5_000 + b',"id":"a"}', b"a"),
        (b'{"x":1e999,"id":"a"}', b"a"),
        (b"", None),
    ],
)
def test_the_key_is_the_value_of_one_field(value, key):
    assert key_finder("id")(value) == key


def test_each_record_has_its_own_key():
    body = b'[{"id":"a","v":1}, {"v":2}, {"id":"b",}]'
    assert frame(body, Form.JSON, "id", 1_000).records == [
        (b'{"id":"a","v":1}', b"a"),
        (b'{"v":2}', None),
        (b'{"id":"b",}', None),
    ]


def test_the_fast_reader_does_refuse_what_the_slow_way_is_for():
    """If msgspec ever takes these, the slow way goes untested by the cases above."""
    for body in (b"[NaN]", b'["\\q"]', b"[01]"):
        with pytest.raises(msgspec.DecodeError):
            framing._read_array(body)
    with pytest.raises(RecursionError):
        framing._read_array(DEEP)
