"""Records of several rows in shapes of other vendors: each shape by its definition, and as columns, with the same rows."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.framing import Form, frame
from strandline.processing.formats.json_rows import EXPLODED_BYTES_MAX
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.shapes.shaped_columns import ShapedColumns
from tests.unit.test_record_rows import read

DOUBLE, OPTIONAL = {"type": "double"}, {"type": "double", "required": False}


def text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def rows_of(schema: dict[str, Any], explode: Any, *records: object) -> list[dict[str, Any]]:
    """The rows of records that are all accepted: read as columns, one at a time, and with an escape, which columns don't read."""
    written = [record if isinstance(record, bytes) else text(record) for record in records]
    accepted, rejected = read(schema, *written, explode=explode)
    assert rejected == []
    config = record_format(StreamSpec.from_document({"stream": "s", "schema": schema, "explode": explode}))
    assert config.shape is not None
    quick = ShapedColumns(config.fields, config.shape, EXPLODED_BYTES_MAX).columns(written)
    assert quick is not None, "no record was read as columns"
    assert quick.fits.all(), "a record was not read as columns"
    escaped = [
        one.replace(b":", b": ", 1).replace(b"a", b"\\u0061") if b'"a"' in one else b" " + one + b" " for one in written
    ]
    assert read(schema, *escaped, explode=explode) == (accepted, [])
    return accepted


# --- A record that is an array (KEPServerEX with a template, Azure Event Grid, Fluent Bit)

TAGS = {"line": "string?", "tagname": "string", "timestamp": "timestamp", "value": "double"}


def test_a_record_that_is_an_array_has_a_row_for_each_element() -> None:
    record = [
        {"tagname": "Flow", "timestamp": 1793534400000, "value": 1.5},
        {"tagname": "Speed", "timestamp": 1793534400000, "value": 1290},
    ]
    rows = rows_of(TAGS, "$", record, [], record[:1])
    assert [(row["tagname"], row["value"], row["line"]) for row in rows] == [
        ("Flow", 1.5, None), ("Speed", 1290.0, None), ("Flow", 1.5, None)
    ]  # fmt: skip
    assert read(TAGS, text(record[0]), explode="$")[0] == rows[:1], "HTTP splits the array into its elements"


def test_a_topic_fills_the_fields_of_each_element() -> None:
    record = text([{"tagname": "F", "timestamp": 0, "value": 1}, {"tagname": "S", "timestamp": 0, "value": 2}])
    document = {"explode": "$", "mqtt": {"topics": ["plc/+"], "fields": {"line": 1}}}
    for times in (1, 100):
        accepted, rejected = read(TAGS, *[(record, b"mqtt:plc/l1")] * times, **document)
        assert rejected == []
        assert [(row["line"], row["tagname"]) for row in accepted] == [("l1", "F"), ("l1", "S")] * times


def test_a_bad_element_costs_only_itself_and_its_letter_is_an_array_of_it() -> None:
    record = b'[{"tagname":"F","timestamp":0,"value":1},{"tagname":"S","timestamp":0,"value":"x"}]'
    accepted, rejected = read(TAGS, record, b'"x"', b"[1]", explode="$")
    assert len(accepted) == 1
    assert rejected == [
        '0/1 schema: value: expected a double, got "x"',
        '1 schema: expected an object, got "x"',
        "2/0 schema: tagname: required but missing",
    ]
    stream = StreamSpec.from_document({"stream": "s", "schema": TAGS, "explode": "$"})
    reader = RowReader(record_format(stream))
    (rows,) = reader.parts([record], [])
    assert reader.dead_letter_value([record], rows, 1) == b'[{"tagname":"S","timestamp":0,"value":"x"}]'


POSITIONS = {
    "at": {"type": "timestamp", "unit": "s", "from": "$[0]"},
    "t": DOUBLE | {"from": "$[1]"},
    "h": OPTIONAL | {"from": "$[2]"},
}


def test_fields_are_read_by_their_position_in_an_array() -> None:
    expected = [{"at": datetime(2026, 11, 1, 12, tzinfo=UTC), "t": 21.5, "h": 40.0}]
    record = b"[1793534400, 21.5, 40]"
    assert read(POSITIONS, record) == (expected, [])
    assert read(POSITIONS, record, b"[1793534400,21.5]", b'{"t":1}') == (
        [*expected, expected[0] | {"h": None}],
        ['2 schema: expected an array, got {"t":1}'],
    )
    assert read(POSITIONS, b"[[1793534400,21.5,40],[1793534400,21.5,40]]", explode="$") == (expected * 2, [])
    assert read(POSITIONS, record, explode="$") == (expected, []), "HTTP splits an array of arrays"


@pytest.mark.parametrize(
    ("body", "records"),
    [
        (b"[1793534400, 21.5, 40]", [b"[1793534400, 21.5, 40]"]),
        (b"[[1,2],[3,4]]", [b"[1,2]", b"[3,4]"]),
        (b"[[1,2],3]", [b"[[1,2],3]"]),
        (b"[]", [b"[]"]),
    ],
)
def test_an_array_of_values_is_one_record_of_a_request(body: bytes, records: list[bytes]) -> None:
    framing = StreamSpec.from_document({"stream": "s", "schema": POSITIONS}).framing
    assert [value for value, _ in frame(body, Form.JSON, None, 1_000, framing).records] == records


def test_the_index_of_an_element_is_a_field() -> None:
    schema = {"dev": "string", "v": DOUBLE | {"from": "$.values"}, "n": "long"}
    explode = {"elements": "$.values", "index": "n"}
    assert rows_of(schema, explode, {"dev": "a", "values": [1.5, 2.5]}) == [
        {"dev": "a", "v": 1.5, "n": 0}, {"dev": "a", "v": 2.5, "n": 1}
    ]  # fmt: skip


# --- Names that are data

SENSORS = {"gw": "string", "sensor": "string", "t": DOUBLE, "rh": OPTIONAL}
BY_NAME = {"members": "$.sensors", "name": "sensor"}


def test_each_member_of_an_object_is_a_row_with_its_name() -> None:
    record = {"gw": "g1", "sensors": {"kitchen": {"t": 21.5, "rh": 40}, "cellar": {"t": 12}}}
    assert (
        rows_of(SENSORS, BY_NAME, record, {"gw": "g2", "sensors": {}}, record)
        == [
            {"gw": "g1", "sensor": "kitchen", "t": 21.5, "rh": 40.0},
            {"gw": "g1", "sensor": "cellar", "t": 12.0, "rh": None},
        ]
        * 2
    )


def test_names_may_be_times_and_members_bare_values() -> None:
    """Such records are sent by a feed of prices, or by Graphite with values by time."""
    schema = {"meter": "string", "at": "timestamp", "kwh": DOUBLE | {"from": "$.values"}}
    record = {"meter": "m", "values": {"2026-10-05T06:00:00Z": 1.5, "2026-10-05T07:00:00Z": 2}}
    rows = rows_of(schema, {"members": "$.values", "name": "at"}, record)
    assert [(row["at"].hour, row["kwh"]) for row in rows] == [(6, 1.5), (7, 2.0)]
    seconds = {**schema, "at": {"type": "timestamp", "unit": "s"}}
    rows = rows_of(seconds, {"members": "$.values", "name": "at"}, {"meter": "m", "values": {"1793534400": 1.5}})
    assert rows[0]["at"] == datetime(2026, 11, 1, 12, tzinfo=UTC)


def test_names_at_the_top_of_a_record_are_data() -> None:
    """Such records are sent by Philips Hue for lights, or by a price feed by currency."""
    schema = {
        "light": "string",
        "bri": {"type": "long", "from": "$.state.bri"},
        "on": {"type": "boolean", "from": "$.state.on"},
    }
    record = {"1": {"state": {"bri": 144, "on": True}}, "2": {"state": {"bri": 0, "on": False}}}
    accepted, rejected = read(schema, text(record), explode={"members": "$", "name": "light"})
    assert rejected == []
    assert accepted == [{"light": "1", "bri": 144, "on": True}, {"light": "2", "bri": 0, "on": False}]


def test_a_member_that_stands_twice_makes_the_record_a_dead_letter() -> None:
    accepted, rejected = read(SENSORS, b'{"gw":"g","sensors":{"a":{"t":1},"a":{"t":2}}}', explode=BY_NAME)
    assert (accepted, rejected) == ([], ['0 decode: duplicate key "a"'])
    bare = {"gw": "string", "sensor": "string", "v": DOUBLE | {"from": "$.sensors"}}
    many = [b'{"gw":"g","sensors":{"a":1,"a":2}}'] * 100
    assert read(bare, *many, explode=BY_NAME)[0] == []


@pytest.mark.parametrize("name", ["x", "1.5", "99999999999999999999999", "null", "", "true", "2026-10-05T06:00:00Z"])
def test_a_name_that_is_not_a_value_of_its_field_rejects_its_row_only(name: str) -> None:
    schema = {"n": "long", "v": DOUBLE | {"from": "$.m"}}
    accepted, rejected = read(schema, text({"m": {name: 1, "7": 2.5}}), explode={"members": "$.m", "name": "n"})
    assert accepted == [{"n": 7, "v": 2.5}]
    assert [one.split(",")[0] for one in rejected] == ["0/0 schema: n: expected a long"]


# --- Wide rows to long rows


def test_members_whose_names_match_are_rows_and_the_others_hold_for_each() -> None:
    """Such records are sent by Ecowitt with temp1f, temp2f, or by a data logger with channels."""
    schema = {"station": "string", "at": "timestamp", "channel": "long", "temp": DOUBLE | {"from": "$"}}
    explode = {"members": "$", "match": "temp(?P<channel>[0-9]+)f"}
    record = {"station": "s", "at": "2026-10-05T06:00:00Z", "temp1f": 50.5, "temp2f": 60, "humidity": 3}
    rows = rows_of(schema, explode, record)
    assert [(row["station"], row["channel"], row["temp"], row["at"].hour) for row in rows] == [
        ("s", 1, 50.5, 6), ("s", 2, 60.0, 6)
    ]  # fmt: skip
    assert read(schema, b'{"station":"s","at":0}', explode=explode) == ([], [])


@pytest.mark.guarantee("G842")
def test_the_letter_of_a_wide_row_has_its_member_alone() -> None:
    schema = {"station": "string", "tag": "string", "v": DOUBLE | {"from": "$"}}
    explode = {"members": "$", "match": "v_.+", "name": "tag"}
    record = b'{"station":"s","v_a":1,"v_b":"bad","v_c":3}'
    accepted, rejected = read(schema, record, explode=explode)
    assert [row["tag"] for row in accepted] == ["v_a", "v_c"]
    assert rejected == ['0/1 schema: v: expected a double, got "bad"']
    reader = RowReader(record_format(StreamSpec.from_document({"stream": "s", "schema": schema, "explode": explode})))
    (rows,) = reader.parts([record], [])
    assert reader.dead_letter_value([record], rows, 1) == b'{"station":"s","v_b":"bad"}'


# --- Arrays side by side

HOURS = {
    "lat": DOUBLE | {"from": "$.latitude"},
    "at": {"type": "timestamp", "from": "$.hourly.time"},
    "celsius": {"type": "double?", "from": "$.hourly.temperature_2m"},
    "rain": {"type": "double?", "from": "$.hourly.precipitation"},
}


@pytest.mark.parametrize(
    "explode", [["$.hourly.time", "$.hourly.temperature_2m", "$.hourly.precipitation"], {"arrays": "$.hourly"}]
)
def test_arrays_are_read_in_parallel(explode: Any) -> None:
    """Open-Meteo; its units have the names of the arrays."""
    record = {
        "latitude": 50.1,
        "hourly_units": {"time": "iso8601", "temperature_2m": "C", "precipitation": "mm"},
        "hourly": {
            "time": ["2026-10-05T00:00", "2026-10-05T01:00"],
            "temperature_2m": [9.5, 9],
            "precipitation": [0.0, None],
        },
    }
    rows = rows_of(HOURS, explode, record)
    assert [(row["lat"], row["at"].hour, row["celsius"], row["rain"]) for row in rows] == [
        (50.1, 0, 9.5, 0.0), (50.1, 1, 9.0, None)
    ]  # fmt: skip


def test_a_shorter_array_is_null_by_choice() -> None:
    schema = {"t": {"type": "timestamp", "from": "$.ts"}, "v": {"type": "double?", "from": "$.values"}}
    record = b'{"ts":[1,2,3],"values":[1.5]}'
    accepted, rejected = read(schema, record, explode=["$.ts", "$.values"])
    assert accepted == []
    assert rejected == [
        "0 schema: $.values: has 1 values, and another array has 3; if the last rows lack the value, add 'shorter: \"null\"' to "
        "'explode'"
    ]
    accepted, rejected = read(schema, record, explode={"arrays": ["$.ts", "$.values"], "shorter": "null"})
    assert ([row["v"] for row in accepted], rejected) == ([1.5, None, None], [])


def test_the_letter_of_parallel_arrays_has_one_value_of_each() -> None:
    schema = {"t": {"type": "timestamp", "from": "$.a.t"}, "v": {"type": "double", "from": "$.a.v"}}
    document = {"stream": "s", "schema": schema, "explode": ["$.a.t", "$.a.v"]}
    record = b'{"x":1,"a":{"t":[1,2],"v":[1.5,"bad"]}}'
    reader = RowReader(record_format(StreamSpec.from_document(document)))
    (rows,) = reader.parts([record], [])
    assert reader.dead_letter_value([record], rows, 1) == b'{"x":1,"a":{"t":[2],"v":["bad"]}}'


# --- Names in one array, rows in another


def test_rows_of_values_are_read_by_the_names_of_their_columns() -> None:
    """InfluxDB 1.x, Dynatrace, and Druid answer so."""
    schema = {
        "series": {"type": "string", "from": "$.name"},
        "time": "timestamp",
        "usage": {"type": "double?", "from": '$["usage idle"]'},
    }
    explode = {"columns": "$.columns", "rows": "$.values"}
    record = {
        "name": "cpu",
        "columns": ["time", "host", "usage idle"],
        "values": [["2026-10-05T00:00:00Z", "a", 1.5], [0, "b", None]],
    }
    rows = rows_of(schema, explode, record)
    assert [(row["series"], row["time"].year, row["usage"]) for row in rows] == [
        ("cpu", 2026, 1.5),
        ("cpu", 1970, None),
    ]
    _, rejected = read(
        schema,
        b'{"name":"x","columns":["time","time"],"values":[]}',
        b'{"name":"x","columns":["time"],"values":[[1,2]]}',
        b'{"name":"x","columns":["time"]}',
        b'{"name":"x","columns":["time"],"values":[[]]}',
        explode=explode,
    )
    assert rejected == [
        "0 schema: $.columns: has the name 'time' twice",
        "1 schema: $.values: has a row of 2 values, and there are 1 names",
        "2 schema: $.values: expected an array of arrays, it is missing",
        "3 schema: $.values: has a row of 0 values, and there are 1 names",
    ]


# --- Arrays within elements (OCPP, PI Web API, Cognite), and within members (ThingsBoard gateways)

METER = {
    "box": {"type": "string", "from": "$.id"},
    "at": {"type": "timestamp", "from": "$.meter.timestamp"},
    "value": {"type": "double", "from": "$.meter.samples.value"},
    "unit": {"type": "string?", "from": "$.meter.samples.unit"},
    "n": "long?",
}
SAMPLES = {"elements": "$.meter", "inner": "$.meter.samples"}


def _meter(*values: object) -> dict[str, Any]:
    return {"timestamp": "2026-10-05T06:00:00Z", "samples": [{"value": value, "unit": "A"} for value in values]}


def test_each_element_of_an_inner_array_is_a_row_with_the_fields_of_its_outer_element() -> None:
    record = {"id": "b1", "meter": [_meter(1, 2.5), _meter(), _meter(3)]}
    rows = rows_of(METER, SAMPLES | {"index": "n"}, record, {"id": "b2", "meter": []})
    assert [(row["box"], row["at"].hour, row["value"], row["unit"], row["n"]) for row in rows] == [
        ("b1", 6, 1.0, "A", 0), ("b1", 6, 2.5, "A", 1), ("b1", 6, 3.0, "A", 2)
    ]  # fmt: skip


def test_an_outer_element_without_its_array_is_one_row() -> None:
    schema = METER | {"value": {"type": "double?", "from": "$.meter.samples.value"}}
    record = {"id": "b", "meter": [{"timestamp": 0, "samples": None}, {"timestamp": 1000}, _meter(5)]}
    accepted, rejected = read(schema, text(record), explode=SAMPLES)
    assert ([row["value"] for row in accepted], rejected) == ([None, None, 5.0], [])
    _, rejected = read(schema, b'{"id":"b","meter":[{"timestamp":0,"samples":7}]}', explode=SAMPLES)
    assert rejected == ["0 schema: $.meter.samples: expected an array, got 7"]


def test_a_name_in_an_outer_and_an_inner_element_is_read_from_each() -> None:
    schema = {"of": {"type": "string", "from": "$.items.unit"}, "v": {"type": "double", "from": "$.items.points.v"}}
    schema |= {"unit": {"type": "string", "from": "$.items.points.unit"}}
    record = {"items": [{"unit": "bar", "points": [{"v": 1, "unit": "a"}, {"v": 2, "unit": "b"}]}]}
    rows = rows_of(schema, {"elements": "$.items", "inner": "$.items.points"}, record)
    assert rows == [{"of": "bar", "v": 1.0, "unit": "a"}, {"of": "bar", "v": 2.0, "unit": "b"}]


@pytest.mark.guarantee("G842")
@pytest.mark.parametrize("kind", ["inner", "inner values", "inner positions", "inner of members"])
def test_the_letter_of_an_inner_row_has_this_row_only(kind: str) -> None:
    chance = random.Random(kind)
    schema, explode = SHAPES[kind]
    schema = {name: spec for name, spec in schema.items() if name != "n"}
    explode = {name: setting for name, setting in explode.items() if name != "index"}
    reader = RowReader(record_format(StreamSpec.from_document({"stream": "s", "schema": schema, "explode": explode})))
    letters = 0
    for _ in range(100):
        record = _record(kind, chance)
        accepted, rejected = read(schema, record, explode=explode)
        for rows in reader.parts([record], []):
            count = len(accepted) + len(rejected)
            if not accepted or count != len(rows.texts):
                continue
            alone = [read(schema, reader.dead_letter_value([record], rows, at), explode=explode) for at in range(count)]
            assert [len(good) + len(bad) for good, bad in alone] == [1] * count
            assert [row for good, _ in alone for row in good] == accepted
            letters += count
    assert letters > 50


# --- Columns and definition agree

SHAPES: dict[str, tuple[dict[str, Any], Any]] = {
    "array": ({"a": "long?", "b": "double", "c": "string?"}, "$"),
    "members": (
        {"g": "string?", "name": "string", "a": "long?", "b": "double?"},
        {"members": "$.m", "name": "name", "index": "a"},
    ),
    "arrays": (
        {"g": "string?", "a": {"type": "long?", "from": "$.m.a"}, "b": {"type": "timestamp", "from": "$.m.b"}},
        {"arrays": "$.m"},
    ),
    "table": ({"g": "string?", "a": "long?", "b": "double"}, {"columns": "$.c", "rows": "$.m"}),
    "inner": (
        {
            "g": "string?",
            "o": {"type": "long?", "from": "$.m.o"},
            "a": {"type": "long?", "from": "$.m.i.a"},
            "b": {"type": "double", "from": "$.m.i.b"},
            "n": "long",
        },
        {"elements": "$.m", "inner": "$.m.i", "index": "n"},
    ),
    "inner values": (
        {"g": "string?", "o": {"type": "long?", "from": "$.m.o"}, "v": {"type": "double", "from": "$.m.i"}},
        {"elements": "$.m", "inner": "$.m.i"},
    ),
    "inner positions": (
        {
            "g": "string?",
            "o": {"type": "long?", "from": "$.m.o"},
            "a": {"type": "long?", "from": "$.m.i[0]"},
            "b": {"type": "double", "from": "$.m.i[1]"},
        },
        {"elements": "$.m", "inner": "$.m.i"},
    ),
    "inner of members": (
        {"g": "string?", "name": "string", "a": "long?", "b": "double"},
        {"members": "$.m", "name": "name", "inner": "$.m"},
    ),
    "wide": (
        {"g": "string?", "n": "string", "v": {"type": "double?", "from": "$"}},
        {"members": "$", "match": "m(?P<n>.)"},
    ),
}
VALUES = ["1", "-2.5", "3.0", '"x"', "null", '"2026-10-05T00:00:00Z"', "true", "[]", '{"a":1}', "1e400"]


def _record(kind: str, chance: random.Random) -> bytes:
    def value() -> str:
        return chance.choice(VALUES[:3] if chance.random() < 0.9 else VALUES)

    def members(names: str) -> str:
        picked = [name for name in names if chance.random() < 0.9] + [n for n in names if chance.random() < 0.03]
        return "{" + ",".join(f'"{name}":{value()}' for name in picked) + "}"

    count = chance.randrange(4)
    outer = '"g":"x",' if chance.random() < 0.8 else '"g":"x","g":"y",' if chance.random() < 0.1 else ""
    if kind == "array":
        return f"[{','.join(members('abc') for _ in range(count))}]".encode()
    if kind == "members":
        inner = [f'"k{at}":' + members("ab") for at in range(count)]
        return (f'{{{outer}"m":{{' + ",".join(inner) + "}}").encode()
    if kind == "arrays":
        sizes = count, count if chance.random() < 0.9 else count + 1
        a, b = ("[" + ",".join(value() for _ in range(size)) + "]" for size in sizes)
        return f'{{{outer}"m":{{"a":{a},"b":{b}}}}}'.encode()
    if kind == "table":
        rows = ",".join(f"[{value()},{value()}]" for _ in range(count))
        return f'{{{outer}"c":["b","a"],"m":[{rows}]}}'.encode()
    if kind.startswith("inner"):

        def array() -> str:
            kinds = {"inner values": value, "inner positions": lambda: f"[{value()},{value()}]"}
            some = ",".join(kinds.get(kind, lambda: members("ab"))() for _ in range(chance.randrange(3)))
            return f"[{some}]" if chance.random() < 0.95 else chance.choice(VALUES)

        def element() -> str:
            found = [f'"o":{value()}'] * (chance.random() < 0.9) + [f'"i":{array()}'] * (chance.random() < 0.95)
            return "{" + ",".join(found) + "}"

        named = kind == "inner of members"
        some = ",".join(f'"k{at}":{array()}' if named else element() for at in range(count))
        return f'{{{outer}"m":{"{" if named else "["}{some}{"}" if named else "]"}}}'.encode()
    wide = ",".join(f'"m{at}":{value()}' for at in range(count))
    return f'{{{outer}{wide}{"," if wide else ""}"z":0}}'.encode()


@pytest.mark.guarantee(
    "G842",
    "Records of a shape (`explode`) have the same rows whether they are read as columns or one at a time, whatever "
    "their neighbours are. The dead letter of a row is the record with this row only.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
@pytest.mark.parametrize("kind", SHAPES)
def test_records_read_together_have_the_rows_that_each_has_alone(kind: str) -> None:
    chance = random.Random(kind)
    schema, explode = SHAPES[kind]
    records = [_record(kind, chance) for _ in range(150)]
    together = read(schema, *records, explode=explode)
    alone = [read(schema, record, explode=explode) for record in records]
    assert together[0] == [row for rows, _ in alone for row in rows]
    assert [one.partition(" ")[2] for one in together[1]] == [
        one.partition(" ")[2] for _, some in alone for one in some
    ]
    escaped = [record.replace(b'"g"', b'"\\u0067"', 1) if kind != "array" else record + b" " for record in records]
    assert read(schema, *escaped, explode=explode) == together


def test_a_record_of_many_rows_is_read_as_columns_and_a_deep_one_is_refused() -> None:
    """More brackets than levels may be nested are no deep nesting."""
    record = [{"tagname": f"]{at}", "timestamp": at, "value": at} for at in range(500)]
    rows = rows_of(TAGS, "$", record)
    assert [row["value"] for row in rows] == list(range(500))
    deep = b'[{"tagname":"[]","timestamp":0,"value":1,"x":' + b"[" * 99 + b"]" * 99 + b"}]"
    assert read(TAGS, *[deep] * 100, explode="$") == (
        [],
        [f"{at} decode: nested deeper than 100 levels" for at in range(100)],
    )
    assert len(read(TAGS, *[deep.replace(b"[" * 99 + b"]" * 99, b"[" * 98 + b"]" * 98)] * 100, explode="$")[0]) == 100


# --- Documents


@pytest.mark.parametrize(
    ("schema", "explode", "problem"),
    [
        ({"a": "long"}, {"members": "$.m", "arrays": ["$.b"]}, "this shape has members and arrays"),
        ({"a": "long"}, {}, "this shape has none"),
        ({"a": "long"}, {"columns": "$.c"}, "write both"),
        ({"a": "long"}, {"elements": "$.c", "name": "a"}, "'name' is for members"),
        ({"a": "long"}, {"members": "$.c", "name": "b"}, "'b' is not a field of the schema"),
        ({"a": "long"}, {"members": "$"}, "no field distinguishes the rows"),
        ({"a": "string"}, {"elements": "$.c", "index": "a"}, "'a' is a string, but the index of a row is a long"),
        ({"a": "long"}, {"arrays": ["$.c"], "inner": "$.c"}, "'inner' is for the elements"),
        ({"a": "long"}, {"elements": "$.c", "inner": "$.d"}, "expected a path within $.c, as $.c.samples, got $.d"),
        ({"a": "long"}, {"elements": "$.c", "inner": "$.c"}, "expected a path within $.c"),
        ({"a": "long"}, {"members": "$.c", "inner": "$.c", "match": "x"}, "'match' can't be combined with 'inner'"),
        ({"a": "long"}, {"members": "$.c", "match": "("}, "is not a regular expression"),
        ({"a": {"type": "long", "from": "$[0]"}, "b": "long"}, None, "begins with an index"),
    ],
)
def test_a_shape_that_can_not_be_is_refused_in_a_sentence(schema: dict[str, Any], explode: Any, problem: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        StreamSpec.from_document({"stream": "s", "schema": schema, **({} if explode is None else {"explode": explode})})
    assert problem in str(refused.value.problems)


def test_a_document_of_a_shape_is_read_back() -> None:
    for schema, explode in SHAPES.values():
        stream = StreamSpec.from_document({"stream": "s", "schema": schema, "explode": explode})
        assert StreamSpec.from_document(stream.as_document()) == stream
