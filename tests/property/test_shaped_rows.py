"""Records of several rows: reading many records as columns gives the same rows, rejections, and dead letters as reading each one
by its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.json_rows import EXPLODED_BYTES_MAX
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.shapes.shaped_columns import ShapedColumns
from strandline.processing.pipelines.event_time import EventTimeSource
from tests.support.examples import examples

OPTIONAL_A = {"type": "long?", "from": "$.m.a"}
SHAPES: dict[str, tuple[dict[str, Any], Any]] = {
    "array": ({"a": "long?", "b": "double?", "t": "timestamp?"}, "$"),
    "elements": (
        {
            "g": {"type": "string?", "from": "$.x.g"},
            "a": OPTIONAL_A,
            "b": {"type": "double?", "from": "$.m.b"},
            "n": "long?",
        },
        {"elements": "$.m", "index": "n"},
    ),
    "values": (
        {"g": "string?", "v": {"type": "double?", "from": "$.m"}, "n": "long"},
        {"elements": "$.m", "index": "n"},
    ),
    "members": ({"g": "string?", "n": "long?", "a": "long?", "b": "double?"}, {"members": "$.m", "name": "n"}),
    "member values": ({"n": "string", "v": {"type": "double?", "from": "$.m"}}, {"members": "$.m", "name": "n"}),
    "members at the top": ({"n": "string", "a": "long?", "b": "double?"}, {"members": "$", "name": "n"}),
    "wide": (
        {"g": "string?", "k": "string", "v": {"type": "double?", "from": "$"}, "a": {"type": "long?", "from": "$.b.a"}},
        {"members": "$", "match": "(?P<k>[mn].?)"},
    ),
    "arrays": ({"g": "string?", "a": OPTIONAL_A, "b": {"type": "double?", "from": "$.m.b"}}, {"arrays": "$.m"}),
    "table": ({"g": "string?", "a": "long?", "b": "double?"}, {"columns": "$.c", "rows": "$.m"}),
    "inner": (
        {"g": "string?", "a": OPTIONAL_A, "b": {"type": "double?", "from": "$.m.m.b"}},
        {"elements": "$.m", "inner": "$.m.m"},
    ),
    "times": (
        {"g": "string?", "t": "timestamp?", "v": {"type": "double?", "from": "$.m"}},
        {"elements": "$.m", "time": "t", "step": "1s"},
    ),
}
PLAIN = {
    "array": b'[{"a":1,"b":2.5},{"t":5}]',
    "elements": b'{"x":{"g":"x"},"m":[{"a":1,"b":2.5},{}]}',
    "values": b'{"g":"x","m":[1,2.5]}',
    "members": b'{"g":"x","m":{"1":{"a":1},"2":{"b":2.5}}}',
    "member values": b'{"m":{"k1":1,"k2":2.5}}',
    "members at the top": b'{"k1":{"a":1},"k2":{"b":2.5}}',
    "wide": b'{"m1":1,"m2":2.5,"g":"x","b":{"a":1}}',
    "arrays": b'{"g":"x","m":{"a":[1,2],"b":[1.5,2]}}',
    "table": b'{"g":"x","c":["a","b"],"m":[[1,2.5],[3,4]]}',
    "inner": b'{"g":"x","m":[{"a":1,"m":[{"b":1},{"b":2.5}]}]}',
    "times": b'{"g":"x","t":5,"m":[1,2.5]}',
}
"""A record of each shape that is read as columns."""
NAMES = st.sampled_from(["a", "b", "g", "m", "n", "t", "x", "ü"])
SCALARS = st.sampled_from(
    [
        "1",
        "2.5",
        "-0",
        "1e400",
        "null",
        "true",
        '"x"',
        '"a"',
        '"2026-10-05T06:00:00Z"',
        '"ü"',
        '"\\u0061"',
        '"a : b"',
        '":"',
    ]
)
BLANKS = st.sampled_from(["", "", "", " ", "\n"])


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str], names: st.SearchStrategy[str] = NAMES) -> str:
    """An object, sometimes with a name twice, and with blanks between its parts."""
    members = draw(st.lists(st.tuples(names, values), max_size=4))
    blank = draw(BLANKS)
    return "{" + ",".join(f'{blank}"{name}"{blank}:{blank}{value}' for name, value in members) + blank + "}"


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=3).map(lambda some: "[" + ",".join(some) + "]")


KEYS = st.sampled_from(["1", "2", "3", "a", "1.5", "99999999999999999999"])
PLAIN_ROWS = objects(st.sampled_from(["1", "2.0", "null"]), st.sampled_from(["a", "b", "t"]))
ANY = st.recursive(SCALARS, lambda inner: st.one_of(arrays(inner), objects(inner)), max_leaves=8)
CONTAINERS = st.one_of(
    arrays(PLAIN_ROWS),
    arrays(st.sampled_from(["1", "2.5", "null"])),
    objects(PLAIN_ROWS, KEYS),
    objects(st.sampled_from(["1", "2.5"]), KEYS),
    st.sampled_from(['{"a":[1,2],"b":[1.5,2]}', '[["1",2]]', "[[1,2.5],[3,4]]", '[{"a":1,"m":[{"b":1},{"b":2.5}]}]']),
    ANY,
)
WHOLE = st.one_of(
    CONTAINERS,
    st.tuples(
        CONTAINERS,
        st.sampled_from(
            [
                "",
                ',"g":"x"',
                ',"g":"x","t":5',
                ',"g":"x","g":"y"',
                ',"b":{"a":1}',
                ',"x":{"g":"x"}',
                ',"x":{"g":1,"g":"x"}',
            ]
        ),
    ).map(lambda parts: f'{{"c":["a","b"],"m":{parts[0]}{parts[1]}}}'),
    st.tuples(CONTAINERS, CONTAINERS).map(lambda parts: f'{{"m":{parts[0]},"m" :{parts[1]}}}'),
    st.sampled_from(
        ['{"m1":1,"m2":2.5,"g":"x"}', '{"m1":1,"m1":2}', '{"m1":1,"b":{"a":1,"a":2}}', '{"m1":1,"b":{"a":1}}']
    ),
    objects(ANY),
)
BROKEN = st.sampled_from(
    [
        *[
            b"",
            b"\xff",
            b"1],[2",
            b"[1],[2]",
            b'[{"a":1}],[{"a":2}]',
            b'{"m":[1],[2]}',
            b'{"c":["a","b"],"m":[[]]}',
            b'{"m":[1',
            b'{"a":1},{"a":2}',
        ],
        *[b'{"m":["\xff"]}', b'{"x":"\xff","m":[1]}', b'{"x":' + b"[" * 99 + b"]" * 99 + b',"m":[{"a":1}]}'],
        *[b'{"x":' + b"[" * 100 + b"]" * 100 + b',"m":[{"a":1}]}', b'[{"a":1,"x":' + b"[" * 99 + b"]" * 99 + b"}]"],
    ]
)
RECORDS = st.lists(
    st.one_of(WHOLE.map(str.encode), WHOLE.map(str.encode), WHOLE.map(str.encode), BROKEN, st.none()),
    min_size=1,
    max_size=12,
)


def outcome(reader: RowReader, fields: Any, values: Sequence[bytes | None]) -> list[Any]:
    """Each row with its record and element, or the reason why it is rejected and its dead letter."""
    decoder = Decoder(fields, EventTimeSource(None), [field.name for field in fields])
    found: list[Any] = []
    for rows in reader.parts(values, []):
        decoded = decoder.decode(rows.texts, [0] * len(rows.texts), None)
        places = rows.of_each(range(len(values)))
        elements = rows.elements or [None] * len(places)
        rejected = {one.index: (one.reason, one.message) for one in decoded.rejects}
        accepted = iter(zip(*(array.to_pylist() for array in decoded.arrays.values()), strict=True))
        for at, (place, element) in enumerate(zip(places, elements, strict=True)):
            row = (*rejected[at], reader.dead_letter_value(values, rows, at)) if at in rejected else next(accepted)
            found.append((place, element, row))
    return found


@pytest.mark.guarantee("G842")
@pytest.mark.parametrize("kind", SHAPES)
@given(records=RECORDS, plain=st.booleans())
@examples(60)
def test_records_of_a_shape_read_as_columns_have_the_rows_of_their_text(
    kind: str, records: list[bytes | None], plain: bool
) -> None:
    schema, explode = SHAPES[kind]
    config = record_format(StreamSpec.from_document({"stream": "s", "schema": schema, "explode": explode}))
    values = records + [PLAIN[kind]] * plain * (len(records) + 1)  # columns are read if most records are plain
    by_text = RowReader(config)
    by_text.leave_columns()
    assert repr(outcome(RowReader(config), config.fields, values)) == repr(outcome(by_text, config.fields, values))


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(
    "member",
    [
        *[
            b'"z":"\xff"',
            b'"\xff":1',
            b'"z":"\\ud800"',
            b'"z":01',
            b'"z":1 "z":1',
            b'"z":1,"z":2',
            b'"m":1',
            b'"g":"y"',
            b'"k1":1',
        ],
        *[b'"z":' + b"[" * depth + b"]" * depth for depth in (98, 99, 100)],
        *[
            b'"z":{"a":1,"a":2}',
            b'"z":{"a":1}',
            b'"z":["a","b","m","g"]',
            b'"z" : 1',
            b'"a":1',
            b'"b":{"a":1}',
            b'"\\u0061":1',
            b'"\\u0067":"y"',
        ],
    ],
)
def test_another_member_has_the_same_outcome_in_columns(kind: str, member: bytes) -> None:
    schema, explode = SHAPES[kind]
    config = record_format(StreamSpec.from_document({"stream": "s", "schema": schema, "explode": explode}))
    record = PLAIN[kind].replace(b"{", b"{" + member + b",", 1)
    values = [*[PLAIN[kind]] * 100, record]
    by_text = RowReader(config)
    by_text.leave_columns()
    assert repr(outcome(RowReader(config), config.fields, values)) == repr(outcome(by_text, config.fields, values))


@pytest.mark.parametrize("kind", SHAPES)
def test_a_plain_record_of_each_shape_is_read_as_columns(kind: str) -> None:
    schema, explode = SHAPES[kind]
    config = record_format(StreamSpec.from_document({"stream": "s", "schema": schema, "explode": explode}))
    assert config.shape is not None
    quick = ShapedColumns(config.fields, config.shape, EXPLODED_BYTES_MAX).columns([PLAIN[kind]])
    assert quick is not None
    assert quick.fits.all()
