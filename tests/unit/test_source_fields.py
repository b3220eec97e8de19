"""Fields from the MQTT topic: filled in where the record lacks them, and never at the record's cost."""

import json

import pytest

from strandline.processing.formats.decoder import Decoder, RecordField
from strandline.processing.formats.source_fields import SourceFields
from strandline.processing.pipelines.event_time import EventTimeSource

TYPES = {"site": "string", "turbine": "long", "on": "boolean", "price": "decimal(9,2)", "ts": "timestamp"}


def fill_in(value, topic, levels=None, types=TYPES):
    fields = SourceFields(levels or {"site": 1, "turbine": 3}, types)
    return fields.fill_in([value], [topic])[0]


@pytest.mark.guarantee(
    "G34",
    "A field from the MQTT topic changes no byte in the log, and the record's own field has priority.",
    promise="records-are-stored-once-and-unchanged",
)
@pytest.mark.parametrize(
    ("value", "filled_in"),
    [
        (b'{"load":1}', {"site": "lundy", "turbine": 7, "load": 1}),
        (b' \r\n{"load":1} ', {"site": "lundy", "turbine": 7, "load": 1}),
        (b"{}", {"site": "lundy", "turbine": 7}),
        (b"{ \t}", {"site": "lundy", "turbine": 7}),
        (b'{"site":"own"}', {"site": "own", "turbine": 7}),
        (b'{"site":null,"turbine":"x"}', {"site": None, "turbine": "x"}),
        (b'{"s\\u0069te":"own"}', {"site": "own", "turbine": 7}),
        (b'{"note":"a \\"site\\" here"}', {"site": "lundy", "turbine": 7, "note": 'a "site" here'}),
        (b'{"note":"site","deep":{"site":1}}', {"site": "lundy", "turbine": 7, "note": "site", "deep": {"site": 1}}),
    ],
)
def test_the_topic_fills_in_what_the_record_lacks(value, filled_in):
    found = fill_in(value, b"mqtt:farm/lundy/turbine/7")
    names = [name for name, _ in json.loads(found, object_pairs_hook=list)]
    assert json.loads(found) == filled_in
    assert len(names) == len(set(names))


@pytest.mark.parametrize("value", [None, b"", b"[1]", b"not json", b'{"site" "turbine"', b'{"\xff\\":1}'])
@pytest.mark.parametrize("source", [b"mqtt:farm/lundy/turbine/7"])
def test_what_is_no_object_stays_what_it_is(value, source):
    assert fill_in(value, source) == value


@pytest.mark.parametrize("source", [None, b"http:127.0.0.1", b"mqtt", b"xmqtt:farm/lundy/turbine/7"])
def test_a_record_that_came_another_way_stays_as_it_is(source):
    assert fill_in(b'{"load":1}', source) == b'{"load":1}'


@pytest.mark.parametrize(
    ("name", "level", "content"),
    [
        ("site", "7", '"7"'),
        ("site", 'a"b\u00e9', '"a\\"b\u00e9"'),
        ("turbine", "7", "7"),
        ("turbine", "-7.50", "-7.50"),
        ("turbine", "07", '"07"'),
        ("turbine", "T07", '"T07"'),
        ("turbine", "\u0667", '"\u0667"'),
        ("on", "true", "true"),
        ("on", "True", '"True"'),
        ("price", "1.10", "1.10"),
        ("ts", "1700000000000", "1700000000000"),
        ("ts", "2026-01-01T00:00Z", '"2026-01-01T00:00Z"'),
    ],
)
def test_a_level_is_written_as_its_field_is(name, level, content):
    found = fill_in(b"{}", f"mqtt:a/{level}".encode(), {name: 1})
    assert found == f'{{"{name}":{content}}}'.encode()


@pytest.mark.parametrize("topic", [b"mqtt:farm", b"mqtt:farm/", b"mqtt:farm//x", b"mqtt:"])
def test_a_level_that_is_not_there_is_no_field(topic):
    assert fill_in(b'{"load":1}', topic, {"site": 1}) == b'{"load":1}'


def test_65_535_levels():
    assert fill_in(b"{}", b"mqtt:" + b"/".join([b"a"] * 65_535), {"site": 65_534}) == b'{"site":"a"}'


def test_the_decoder_reads_it_like_a_record_of_the_sender():
    fields = [RecordField("site", "string"), RecordField("turbine", "long"), RecordField("ts", "timestamp")]
    values = [b'{"ts":1}', b'{"ts":2,"turbine":9}', b'{"ts":3']
    topics = [b"mqtt:f/lundy/t/7", b"mqtt:f/skye/t/8", b"mqtt:f/skye/t/8"]
    types = {field.name: field.type for field in fields}
    filled_in = SourceFields({"site": 1, "turbine": 3}, types).fill_in(values, topics)
    decoded = Decoder(fields, EventTimeSource("ts"), ["site", "turbine"]).decode(filled_in, [5, 5, 5], None)
    assert decoded.arrays["site"].to_pylist() == ["lundy", "skye"]
    assert decoded.arrays["turbine"].to_pylist() == [7, 9]
    assert [reject.index for reject in decoded.rejects] == [2]
