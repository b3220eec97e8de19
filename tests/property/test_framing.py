"""Framing, with generated bodies: a record keeps its bytes, and a bad one costs its neighbours nothing."""

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.ingest.gateway.framing import (
    Unframable,
    split_broken_array,
    split_json,
    split_lines,
)
from strandline.log.record_key import key_finder
from strandline.processing.formats.influx.lines import split_influx

split_influx_lines = partial(split_lines, split=split_influx)
WHITESPACE = st.text(" \t\r\n", max_size=3).map(str.encode)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
good = st.builds(
    lambda value, is_ascii, indent: json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode(
        "utf-8", "surrogatepass"
    ),
    json_values,
    st.booleans(),
    st.sampled_from([None, 1]),
)
bad_text = st.binary(min_size=1, max_size=8).filter(
    lambda text: not set(text) & set(b'"[]{},\\') and text.strip(b" \t\r\n") == text
)
bad_string = (
    st.binary(max_size=8)
    .filter(lambda text: not set(text) & set(b'"\\'))
    .map(lambda text: b'"' + text + b'\\q, ]}{[ \\" \\ud800"')
)
bad = (
    st.sampled_from(
        [b"NaN", b"-Infinity", b"1e999", b"[NaN]", b'{"a":}', b"[,]", b"{,,}", b"01", b"[" * 2_000 + b"]" * 2_000]
    )
    | bad_text
    | bad_string
)


def array_of(elements: list[bytes], spaces: list[bytes]) -> bytes:
    """The elements with the given spaces before and after each."""
    padded = [
        spaces[2 * number % len(spaces)] + element + spaces[(2 * number + 1) % len(spaces)]
        for number, element in enumerate(elements)
    ]
    return spaces[0] + b"[" + b",".join(padded) + b"]" + spaces[-1]


@settings(deadline=None)
@given(st.lists(good | bad, max_size=12), st.lists(WHITESPACE, min_size=1, max_size=6))
def test_every_element_comes_out_with_its_bytes_whatever_its_neighbours_are(elements, spaces):
    assert split_json(array_of(elements, spaces)) == elements


@settings(deadline=None)
@given(st.lists(good, max_size=12), st.lists(WHITESPACE, min_size=1, max_size=6))
def test_both_ways_split_valid_json_alike(elements, spaces):
    body = array_of(elements, spaces)
    assert split_broken_array(body) == split_json(body) == elements


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text('[]{},"\\ a1\n').map(str.encode))
def test_any_body_is_split_or_refused_and_no_byte_is_changed(body):
    for split in (split_json, split_lines):
        try:
            values = split(body)
        except Unframable:
            continue
        rest = body
        for value in values:
            before, found, rest = rest.partition(value)
            assert found and not before.strip(b" \t\r\n[,")
        assert not rest.strip(b" \t\r\n]" if values else b" \t\r\n[]")


@settings(deadline=None)
@given(
    st.lists((good | bad).filter(lambda line: b"\n" not in line and line.strip(b" \t\r\n") == line), min_size=1),
    st.data(),
)
def test_every_line_comes_out_with_its_bytes(lines, data):
    endings = data.draw(
        st.lists(st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n \r\n"]), min_size=len(lines), max_size=len(lines))
    )
    body = b"".join(line + ending for line, ending in zip(lines, endings, strict=True))
    assert split_lines(body) == lines


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text('="\\ a,\r\n').map(str.encode))
def test_of_any_lines_of_influx_no_byte_is_lost(body):
    body = body.replace(b"#", b"") + b"\nw x=1"
    joined = b"".join(split_influx_lines(body))
    assert joined.translate(None, b" \t\r\n") == body.translate(None, b" \t\r\n")


def escaped(characters: str) -> st.SearchStrategy[str]:
    """A name of InfluxDB's protocol, as Telegraf writes it."""
    return st.text('a"#é' + characters, min_size=1, max_size=4).map(
        lambda name: "".join("\\" + one if one in characters else one for one in name)
    )


influx_texts = st.text('a"\\\n\r# ,=1').map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
influx_lines = st.builds(
    lambda measurement, tags, fields, time: (
        ",".join([measurement, *tags]) + " " + ",".join(f"{name}={value}" for name, value in fields) + time
    ),
    escaped(", ").filter(lambda name: name[0] != "#"),
    st.lists(st.builds("{}={}".format, escaped(",= "), escaped(",= ")), max_size=2),
    st.lists(st.tuples(escaped(",= "), influx_texts | st.just("1i")), min_size=1, max_size=3),
    st.sampled_from(["", " 1"]),
).map(str.encode)


@pytest.mark.guarantee(
    "G653",
    "Each line of an InfluxDB write request becomes one record with its bytes, whatever its names and strings "
    "contain. Nothing within a string becomes a record.",
    promise="records-are-stored-once-and-unchanged",
)
@settings(deadline=None)
@given(st.lists(influx_lines, min_size=1), st.sampled_from([b"\n", b"\r\n", b'\n#"\n']))
def test_every_line_of_influx_comes_out_with_its_bytes(lines, end):
    assert split_influx_lines(end.join(lines) + end) == lines


@settings(deadline=None)
@given(st.dictionaries(st.text(), json_values), st.text() | st.booleans() | st.integers() | st.floats(allow_nan=False))
def test_the_key_is_found_among_any_other_fields(record, key):
    record["the_key"] = key
    for is_ascii in (True, False):
        value = json.dumps(record, ensure_ascii=is_ascii).encode()
        expected = key if isinstance(key, str) else json.dumps(key)
        if isinstance(key, float) and key in (float("inf"), float("-inf")):
            assert key_finder("the_key")(value) is None
        else:
            assert key_finder("the_key")(value) == expected.encode()


@settings(deadline=None)
@given(st.binary(max_size=100) | good)
def test_looking_for_a_key_never_fails(value):
    assert key_finder("the_key")(value) is None or b"the_key" in value
