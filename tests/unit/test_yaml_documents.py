"""The reader of documents, and the stream model: what is accepted, and what every refusal says and where."""

import json

import pytest

from strandline.core.documents import DEPTH_MAX, DOCUMENT_BYTES_MAX, read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.core.times.durations import FOREVER_MS

TURBINES = """\
stream: turbines
partitions: 8
format: json
schema:
  turbine: string
  ts: {type: timestamp, unit: us}
  power: {type: double, min: 0}
  wind: double?
  cost: decimal(10, 2)
key: turbine
retention: 36h
durability: spool
mqtt: {topics: ["farm/+/turbine/+"], fields: {turbine: 3}}
udp: {port: 8082}
"""


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(InvalidDocument) as caught:
        [StreamSpec.parse(document) for document in read_documents(text, "farm.yaml")]
    return [str(problem) for problem in caught.value.problems]


def stream(text: str) -> StreamSpec:
    (document,) = read_documents(text, "farm.yaml")
    return StreamSpec.parse(document)


def changed(old: str, new: str) -> str:
    assert old in TURBINES
    return TURBINES.replace(old, new)


def test_several_documents_keep_their_kinds_and_lines() -> None:
    first, second = read_documents(
        f"---\n{TURBINES}---\n\n---\npipeline: health\nsteps:\n  - where: on\n---\n", "f.yaml"
    )
    assert (first.kind, first.name, second.kind, second.name) == ("stream", "turbines", "pipeline", "health")
    assert first.line_of(("schema", "wind")) == 9
    assert first.line_of(("schema", "power", "min")) == 8
    assert second.line_of(("steps", 0, "where")) == 21
    assert second.line_of(("steps", 0, "absent", "deeper")) == 21  # the nearest value around it


def test_scalars_resolve_as_in_yaml_1_2() -> None:
    (document,) = read_documents(
        "stream: a\nb: [no, on, y, 1:30, 010, 1e3, 0x1F, 2026-11-01, ~, true, '7', -0.5]\n", "f.yaml"
    )
    assert document.data["b"] == ["no", "on", "y", "1:30", 10, 1000.0, 31, "2026-11-01", None, True, "7", -0.5]


def test_json_is_read_too() -> None:
    assert read_documents(json.dumps({"stream": "a", "é": [1.5, "\u20ac"]}), "f")[0].data["é"] == [1.5, "€"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "farm.yaml: contains no document"),
        ("---\n---\n", "farm.yaml: contains no document"),
        ("- 1", "farm.yaml:1: expected a mapping that starts with 'stream: NAME'"),
        ("name: a", "farm.yaml:1: has no kind"),
        ("stream: a\npipeline: b", "farm.yaml:1: has both 'stream:' and 'pipeline:'"),
        ("stream: Farm", "farm.yaml:1: stream: 'Farm' is not a name; expected lower-case letters"),
        ("stream: ../a", "stream: '../a' is not a name"),
        ("stream:\n  - a", "farm.yaml:1: stream: ['a'] is not a name"),
        ("stream:\n  name: a", "farm.yaml:1: stream: put the fields at the level of 'stream: NAME', not below it"),
        (f"stream: {'a' * 201}", "is not a name"),
        ("stream: a\nb: [1", "farm.yaml:2: is not valid YAML: while parsing a flow sequence"),
        ("stream: a\n\tb: 1", "farm.yaml:2: is not valid YAML"),
        ("stream: a\nb: {c: double?}", "inside {...} or [...], a string with a '?' needs quotes"),
        ("stream: a\nb: 'x", "farm.yaml:2: is not valid YAML"),
        ("stream: a\n\tb: 1", "; indent with spaces, YAML takes no tabs"),
        ("stream: a\nb:\n  - c: 1\n    d: 2\n   e: 3", "; a line above is indented more or less"),
        ("stream: a\nb: \0", "farm.yaml:2: is not valid YAML: the character U+0000 is not allowed"),
        ("stream: a\nb: \ud800", "farm.yaml:2: is not valid YAML: the character U+D800 is not allowed"),
        ('stream: a\nb: "\\ud800"', "farm.yaml:2: b: contains half of a surrogate pair"),
        (b"stream: a\nb: \xff", "farm.yaml:2: is not UTF-8 text"),
        ("stream: &x a", "farm.yaml:1: anchor &x is not supported"),
        ("stream: a\nb: *x", "farm.yaml:2: alias *x is not supported"),
        ("stream: a\nb: !!python/object:os.system x", "farm.yaml:2: tag tag:yaml.org,2002:python/object:os.system"),
        ("stream: a\nb: 1\nb: 2", "farm.yaml:3: b: 'b' occurs twice, first on line 2"),
        ("stream: a\nb: {c: 1, c: 1}", "farm.yaml:2: b.c: 'c' occurs twice"),
        ("stream: a\nb: .nan", "farm.yaml:2: b: .nan is not a finite number"),
        ("stream: a\nb: 1e999", "farm.yaml:2: b: 1e999 is not a finite number"),
        ("stream: a\nb: 9223372036854775808", "farm.yaml:2: b: 9223372036854775808 does not fit into 64 bits"),
        (f"stream: a\nb: {'9' * 5000}", "... (5,000 characters) does not fit into 64 bits"),
        ("stream: a\n? [b]\n: 1", "farm.yaml:2: expected a name before the ':'"),
        ("stream: a\nb: " + "[" * (DEPTH_MAX + 1), "farm.yaml:2: is nested more than 32 levels deep"),
        ("[" * 100_000, "farm.yaml:1: is nested more than 32 levels deep"),
        ("a" * (DOCUMENT_BYTES_MAX + 1), "farm.yaml: is larger than 250,000 bytes"),
    ],
)
def test_what_is_no_document_is_refused_with_its_line(text: str | bytes, expected: str) -> None:
    (found,) = problems(text)
    assert expected in found


def test_several_problems_of_a_file_are_told_at_once() -> None:
    assert [line.split(" ")[0] for line in problems("stream: A\n---\nstream: b\nc: .inf\nc: 1\n---\nd: 1\n")] == [
        "farm.yaml:4:",
        "farm.yaml:5:",
        "farm.yaml:1:",
        "farm.yaml:7:",
    ]


def test_a_stream_is_read_whole() -> None:
    spec = stream(TURBINES)
    assert (spec.stream, spec.partitions, spec.key, spec.durability) == ("turbines", 8, "turbine", "spool")
    assert spec.retention_ms == 36 * 3_600_000
    assert spec.types == {
        "turbine": "string",
        "ts": "timestamp",
        "power": "double",
        "wind": "double",
        "cost": "decimal(10,2)",
    }
    assert [name for name, field in spec.fields.items() if not field.required] == ["wind"]
    assert spec.fields["ts"].unit == "us"
    assert spec.fields["power"].min == 0
    assert spec.mqtt is not None and spec.mqtt.topics == ["farm/+/turbine/+"]
    assert spec.udp is not None and spec.udp.port == 8082


def test_the_defaults_of_a_stream() -> None:
    spec = stream("stream: a\nschema: {ts: timestamp}")
    assert (spec.partitions, spec.format, spec.retention_ms, spec.durability) == (4, "json", 7 * 86_400_000, "log")
    assert (spec.key, spec.mqtt, spec.udp, spec.tcp, spec.fields["ts"].unit) == (None, None, None, None, "ms")


def test_a_stream_may_keep_its_records_forever() -> None:
    spec = stream("stream: a\nschema: {ts: timestamp}\nretention: forever")
    assert spec.retention_ms == FOREVER_MS == -1
    assert spec.as_document()["retention"] == "forever"
    assert StreamSpec.from_document(spec.as_document()) == spec


def test_a_stream_round_trips_through_json() -> None:
    spec = stream(TURBINES)
    stored = json.loads(json.dumps(spec.as_document(), sort_keys=False))
    assert StreamSpec.from_document(stored) == spec
    assert StreamSpec.from_document(stored).as_document() == stored
    assert list(stored["schema"]) == list(spec.fields)


def test_the_same_stream_written_in_two_ways_is_the_same_document() -> None:
    short = stream("stream: a\nschema: {x: 'double?', ts: timestamp}\nretention: 7d")
    long = stream(
        "stream: a\nschema: {x: {type: double, required: false}, ts: {type: timestamp, unit: ms}}\npartitions: 4"
    )
    assert short.as_document() == long.as_document()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("partitions: 8", "partitions: 0", ":2: partitions: should be greater than or equal to 1, got 0"),
        ("partitions: 8", "partitions: 1001", ":2: partitions: should be less than or equal to 1000, got 1001"),
        ("partitions: 8", "partitions: '8'", ":2: partitions: expected an integer, got '8'"),
        ("partitions: 8", "partitions: true", ":2: partitions: expected an integer, got true"),
        ("partitions: 8", "partions: 8", ":2: partions: unknown field 'partions'; did you mean 'partitions'?"),
        (
            "format: json",
            "format: xml",
            ":3: format: expected 'json', 'value', 'raw', 'csv', 'msgpack', 'cbor', 'influx', 'avro', 'protobuf', 'debezium', "
            "'otlp', 'prometheus', 'sparkplug', 'senml' or 'struct', got 'xml'",
        ),
        (
            "turbine: string",
            "turbine: bytes",
            ":5: schema.turbine: 'bytes' is not a type; expected one of: array<...>, boolean",
        ),
        ("turbine: string", "turbine: Float", ":5: schema.turbine: 'Float' is not a type; did you mean 'double'?"),
        ("turbine: string", "turbine: sting", ":5: schema.turbine: 'sting' is not a type; did you mean 'string'?"),
        (
            "format: json",
            "event_time: {field: t}",
            ":3: event_time: each pipeline that reads the stream specifies its event time",
        ),
        ("turbine: string", "turbine: 5", ":5: schema.turbine: expected a mapping of names to values, got 5"),
        ("turbine: string", "turbine:", ":5: schema.turbine: expected a mapping of names to values, got no value"),
        ("{type: double, min: 0}", "{min: 0}", ":7: schema.power.type: is missing; expected: Type of the field"),
        ("min: 0}", "mni: 0}", ":7: schema.power.mni: unknown field 'mni'; did you mean 'min'?"),
        ("min: 0}", "min: low}", ":7: schema.power.min: expected a number, got 'low'"),
        ("min: 0}", "min: true}", ":7: schema.power.min: expected a number, or a time of a timestamp, got true"),
        ("min: 0}", "min: 2, max: 1}", ":7: schema.power.min: 'min' 2 is greater than 'max' 1"),
        (
            "{type: double, min: 0}",
            "{type: long, min: 0.5}",
            ":7: schema.power.min: 'min' is 0.5, which is not a value",
        ),
        ("{type: double, min: 0}", "{type: integer, max: 3000000000}", "which is not a value of integer"),
        (
            "{type: double, min: 0}",
            "{type: string, min: 0}",
            ":7: schema.power.min: 'min' is for numbers and timestamps, and this is a s",
        ),
        (
            "{type: double, min: 0}",
            "{type: timestamp, min: 0}",
            ":7: schema.power.min: 0 is not a time with a zone; expected",
        ),
        (
            "{type: double, min: 0}",
            "{type: timestamp, max: 2020-01-01T00:00}",
            "is not a time with a zone; expected 2020",
        ),
        ("{type: double, min: 0}", "{type: timestamp, max: 2020-13-01}", "'2020-13-01' is not a time with a zone"),
        (
            "{type: double, min: 0}",
            "{type: timestamp, min: 2020-01-01, max: 2020-01-01T00:00:00+01:00}",
            "'min' 2020-01-01 is greater than 'max' 2020-01-01T00:00:00+01:00",
        ),
        ("{type: double, min: 0}", "{type: double, unit: ms}", ":7: schema.power.unit: 'unit' is for timestamps"),
        ("{type: double, min: 0}", "{type: double, tz: UTC}", ":7: schema.power.tz: 'tz' is for timestamps"),
        ("{type: double, min: 0}", "{type: timestamp, tz: Europe/Berlim}", "zone; did you mean 'Europe/Berlin'?"),
        ("{type: double, min: 0}", "{type: 'double?', required: true}", ":7: schema.power: 'double?' is optional and"),
        ("unit: us", "unit: min", ":6: schema.ts.unit: expected 's', 'ms', 'us' or 'ns', got 'min'"),
        ("decimal(10, 2)", "decimal(39,2)", ":9: schema.cost: 'decimal(39,2)': a decimal has 1 to 38 digits"),
        ("decimal(10, 2)", "decimal(3,4)", ":9: schema.cost: 'decimal(3,4)': a decimal has"),
        ("decimal(10, 2)", "decimal", ":9: schema.cost: 'decimal' is not a type; did you mean 'decimal(p,s)'?"),
        ("wind: double?", "window: double", ":8: schema.window: 'window' is reserved"),
        ("wind: double?", "_strandline_x: double", ":8: schema._strandline_x: '_strandline_x' is reserved"),
        ("wind: double?", "wind speed: double", ":8: schema.wind speed: 'wind speed' is not a field name"),
        ("wind: double?", "2wind: double", "'2wind' is not a field name"),
        ("wind: double?", "Power: double", ":8: schema.Power: 'power' and 'Power' differ only in case"),
        ("key: turbine", "key: turbin", ":10: key: 'turbin' is not a field of the schema; did you mean 'turbine'?"),
        ("retention: 36h", "retention: 36", ":11: retention: 36 is not a duration; write a number and a unit"),
        ("retention: 36h", "retention: never", "such as 250ms, 10s, 1m, 1h30m, 7d (or forever)"),
        ("retention: 36h", "retention: 20000d", ":11: retention: '20000d' is longer than ten years"),
        ("durability: spool", "durability: disk", ":12: durability: expected 'log' or 'spool', got 'disk'"),
        (
            "farm/+/turbine/+",
            "farm/a+/turbine/+",
            ":13: mqtt.topics[0]: 'farm/a+/turbine/+' is not an MQTT topic filter",
        ),
        ("farm/+/turbine/+", "#/farm", ":13: mqtt.topics[0]: '#/farm' is not an MQTT topic filter"),
        ("turbine: 3}", "turbine: 4}", ":13: mqtt.fields.turbine: level 4 is not in 'farm/+/turbine/+'"),
        ("fields: {turbine: 3}", "fields: {turbin: 3}", ":13: mqtt.fields.turbin: is not a field of the schema"),
        ("port: 8082", "port: 70000", ":14: udp.port: should be less than or equal to 65535, got 70000"),
        ("stream: turbines", "stream: turbines.dead-letter", ":1: stream: names that end in '.dead-letter' belong to"),
    ],
)
def test_what_is_wrong_in_a_stream_is_told_with_field_and_line(old: str, new: str, expected: str) -> None:
    found = problems(changed(old, new))
    assert len(found) == 1
    assert found[0].startswith("farm.yaml:")
    assert expected in found[0]


def test_a_stream_without_schema_is_told_what_is_expected() -> None:
    assert problems("stream: a\n") == [
        "farm.yaml:1: schema: is missing; expected: Field name -> type, or {type, required, min, max, unit}."
    ]


def test_several_problems_of_a_stream_are_told_at_once() -> None:
    text = changed("partitions: 8", "partitions: no").replace("wind: double?", "wind: dbl").replace("udp:", "upd:")
    assert [line.split(" ")[0] for line in problems(text)] == ["farm.yaml:2:", "farm.yaml:8:", "farm.yaml:14:"]
