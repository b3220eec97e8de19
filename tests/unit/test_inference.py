"""A document that is proposed from a sample accepts the sample, and says what a person would have written."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from strandline.core.errors import PermanentError
from strandline.core.streams.stream import StreamSpec
from strandline.core.times.durations import DURATION_MS_MAX, parse_duration_ms
from strandline.ingest.gateway.framing import split_json
from strandline.processing.desk.record_files import read_records
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.inference.text_hints import time_patterns
from strandline.processing.formats.proposals import NoSampleError, Proposal, infer_from_topic, infer_stream
from strandline.processing.formats.record_rows import RecordFormat, RowReader, record_format
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import parse_expression
from strandline.services.cli.commands import app
from tests.support.examples import examples

READINGS = Path(__file__).parents[2] / "examples" / "readings.ndjson"


def infer(sample: str) -> Proposal:
    return infer_stream("s", sample.encode())


@pytest.mark.parametrize(
    ("sample", "document"),
    [
        (
            '{"id": "a", "ts": 1764000000, "on": true, "n": 1, "x": 1}\n{"id": "b", "ts": 1764000001, "on": false, "n": 2, "x": 1.5}',  # noqa: E501
            {
                "format": "json",
                "schema": {"id": "string", "ts": {"type": "timestamp", "unit": "s"}, "on": "boolean", "n": "long", "x": "double"},
            },
        ),
        (
            '[{"m": {"wind-speed": "3.5"}, "m2": {"t": null}, "when": "2026-11-24T06:00:00Z"}, {"m2": {"t": 1}, "when": "2026-11-24"}]',  # noqa: E501
            {
                "format": "json",
                "schema": {
                    "wind_speed": {"type": "double", "text": True, "required": False, "from": '$.m["wind-speed"]'},
                    "when": "timestamp",
                    "t": {"type": "long", "required": False, "from": "$.m2.t"},
                },
            },
        ),
        (
            '{"device": "a", "all": [{"time": 1764000000000, "v": 1}, {"time": 1764000000001}]}',
            {
                "format": "json",
                "explode": "$.all",
                "schema": {"device": "string", "time": {"type": "timestamp", "unit": "ms"}, "v": "long?"},
            },
        ),
        (
            "at;gate;n\n2026-11-24 06:00:00;a;1\n2026-11-24 06:01:00;b;\n",
            {"format": "csv", "csv": {"delimiter": ";"}, "schema": {"at": "timestamp", "gate": "string", "n": "long?"}},
        ),
        (
            'gate,note\r\n1,"two\r\n\r\nlines"\r\n2,one\r\n',
            {"format": "csv", "schema": {"gate": "long", "note": "string"}},
        ),
        ('{"a": "1\u20282"}\n{"a": "\u0085"}\n', {"format": "json", "schema": {"a": "string"}}),
        ("a,1\nb,2\n", {"format": "csv", "schema": {"column_1": "string", "column_2": "long"}}),
        (
            "w,site=a celsius=1.5 1764000000000000000\nw celsius=2\n",
            {
                "format": "influx",
                "schema": {
                    "measurement": "string",
                    "time": {"type": "timestamp?", "unit": "ns"},
                    "site": "string?",
                    "celsius": "double",
                },
            },
        ),
        ("23.5\n24\n", {"format": "value", "schema": {"value": "double"}}),
        (
            '{"id":"m1","t":"1386018900"}\n{"id":"m1","t":"1386019200"}\n',
            {"format": "json", "schema": {"id": "string", "t": {"type": "timestamp", "unit": "s", "text": True}}},
        ),
        (
            '{"createdAt": 1764000000000, "lastTimeMs": 1764000000000, "watt": 1764000000}',
            {
                "format": "json",
                "schema": {
                    "createdAt": {"type": "timestamp", "unit": "ms"},
                    "lastTimeMs": {"type": "timestamp", "unit": "ms"},
                    "watt": "double",
                },
            },
        ),
        ("ON\nOFF\n", {"format": "value", "schema": {"value": "string"}}),
    ],
)  # fmt: skip
def test_the_proposal_is_what_a_person_would_write(sample: str, document: dict[str, Any]) -> None:
    proposal = infer(sample)
    assert proposal.document == {"stream": "s", **document}
    assert proposal.rejected == []
    assert proposal.accepted >= proposal.records
    StreamSpec.from_document(yaml.safe_load(yaml.safe_dump(proposal.document)))


@pytest.mark.parametrize(
    ("times", "patterns"),
    [
        (["24.11.2026 08:00:00", "01.12.2026 09:30:00"], ["dd.MM.yyyy HH:mm:ss"]),
        (["02.12.2013 21:15"], ["dd.MM.yyyy HH:mm", "MM.dd.yyyy HH:mm"]),
        (["11/24/2026 8:00 AM", "11/24/2026 12:15 PM"], ["MM/dd/yyyy h:mm a"]),
        (["1/2/2026 8:00 AM"], ["M/d/yyyy h:mm a", "d/M/yyyy h:mm a"]),
        (["1/2/2026 18:00"], ["d/M/yyyy HH:mm", "M/d/yyyy HH:mm"]),
        (["2-Dec-13 9:15 PM"], ["d-MMM-yy h:mm a"]),
        (["24/November/2026T08:00:00.250+01:00"], ["dd/MMMM/yyyy'T'HH:mm:ss.SSSSSSXXX"]),
        (["2026/11/24 08:00:00,5 +0100"], ["yyyy/MM/dd HH:mm:ss,SSSSSS XX"]),
        (["24.11.2026, 08:00"], ["dd.MM.yyyy, HH:mm"]),
        (["32.13.2026 08:00"], []),
    ],
)
def test_a_time_in_another_form_is_read_by_its_pattern_unless_several_fit(
    times: list[str], patterns: list[str]
) -> None:
    assert time_patterns(times) == patterns
    proposal = infer("\n".join(json.dumps({"id": "m1", "t": time}) for time in times))
    if len(patterns) == 1:
        assert proposal.document["schema"]["t"] == {"type": "timestamp", "pattern": patterns[0]}
        assert (proposal.accepted, proposal.rejected) == (len(times), [])
        assert any("t has no time zone" in note for note in proposal.notes) == ("X" not in patterns[0])
        return
    assert proposal.document["schema"]["t"] == "string"
    (note,) = (note for note in proposal.notes if note.startswith("t is a string"))
    assert "as docs/formats.md shows (Times in other forms)" in note
    if patterns:
        written = [one.replace("'", r"\\'") for one in patterns]
        assert f"derive: {{t_time: \"to_timestamp(t, '{written[0]}')\"}}" in note
        assert all(f"the pattern is '{one}'" in note for one in written[1:])


def of_column(values: list[Any], form: str) -> Proposal:
    """The proposal for a field v with these values, of CSV or JSON."""
    if form == "csv":
        return infer("id,v\n" + "".join(f"d{at},{value}\n" for at, value in enumerate(values)))
    return infer("\n".join(json.dumps({"id": f"d{at}", "v": value}) for at, value in enumerate(values)))


NUMBERS = [at + 0.5 for at in range(99)]
TIMES = [f"2026-11-24T06:00:{at % 60:02}Z" for at in range(99)]


@pytest.mark.parametrize(
    ("form", "values", "odd", "kind"),
    [
        ("json", NUMBERS, "oops", "double"),
        ("json", NUMBERS, "1 5", "double"),
        ("json", list(range(99)), "ERR", "long"),
        ("json", [True] * 99, "on", "boolean"),
        ("json", TIMES, "later", "timestamp"),
        ("csv", NUMBERS, "oops", "double"),
        ("csv", NUMBERS, "0x1F", "double"),
        ("csv", NUMBERS, "1 000", "double"),
        ("csv", TIMES, "~", "timestamp"),
    ],
)
def test_one_odd_value_changes_no_type_and_it_is_said(form: str, values: list[Any], odd: str, kind: str) -> None:
    good = of_column(values, form).document["schema"]["v"]
    assert good == kind
    for place in (1, 50, 99):
        proposal = of_column([*values[:place], odd, *values[place:]], form)
        assert proposal.document["schema"]["v"] == good
        assert (proposal.records, proposal.accepted, len(proposal.rejected)) == (100, 99, 1)
        expected = f"v: values that don't fit {kind}: 1 of 100, as {json.dumps(odd)}; their records become dead letters"
        assert expected in proposal.notes


@pytest.mark.parametrize(
    ("good", "odd", "kind"),
    [(95, 5, "double"), (94, 6, "string"), (20, 1, "double"), (19, 1, "string"), (10, 1, "string")],
)
def test_a_text_stays_one_where_more_than_a_few_are_odd(good: int, odd: int, kind: str) -> None:
    for form in ("csv", "json"):
        texts = [f"{value}" for value in NUMBERS[:good]] + ["oops"] * odd
        proposal = of_column(texts, form)
        spec = proposal.document["schema"]["v"]
        assert (spec if isinstance(spec, str) else spec["type"]) == kind
        assert any(
            "v is a string, because too many values are not numbers, as 'oops'" in one for one in proposal.notes
        ) == (kind == "string")


@pytest.mark.parametrize("form", ["csv", "json"])
def test_numbers_of_things_stay_texts(form: str) -> None:
    """Otherwise the records of all those with a zero in front would become dead letters."""
    proposal = of_column([f"{at:04}" for at in range(999, 1_040)], form)
    assert proposal.document["schema"]["v"] == "string"
    assert (proposal.accepted, proposal.rejected) == (41, [])
    assert not [note for note in proposal.notes if note.startswith("v")]


def test_values_of_several_types_are_read_as_they_are_written() -> None:
    for values in ([1.5, 2.5, "x"], [1.5, "y", "x"], [1.5, "y"], [True, 1.5, "x"]):
        proposal = of_column(values, "json")
        assert proposal.document["schema"]["v"] == "any"
        assert (proposal.accepted, proposal.rejected) == (len(values), [])
        assert any('derive: {v_number: "try_cast(v as double)"}' in note for note in proposal.notes)


@pytest.mark.parametrize("other", ["", False, 5, [1]])
def test_an_object_that_few_records_have_otherwise_is_no_field(other: Any) -> None:
    """Each record with the object would be a dead letter."""
    records = [{"id": f"d{at}", "gps": {"lat": at + 0.5, "at": {"city": "x"}}} for at in range(59)]
    proposal = infer("\n".join(map(json.dumps, [*records[:30], {"id": "d", "gps": other}, *records[30:]])))
    assert list(proposal.document["schema"]) == ["id", "lat", "city"]
    assert (proposal.records, proposal.accepted) == (60, 60)
    shown = json.dumps(other)
    assert f"$.gps is an object, but in 1 of 60 records it has another type, as {shown}; left out" in proposal.notes


@pytest.mark.parametrize(("lacking", "is_required"), [(1, True), (5, True), (6, False)])
@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_time_that_few_records_lack_is_required_and_it_is_said(lacking: int, is_required: bool, form: str) -> None:
    times = [None] * lacking + [f"2026-10-05 06:00:{at % 60:02}" for at in range(100 - lacking)]
    records: list[dict[str, Any]] = [
        {"n": at} | ({} if time is None else {"at": time}) for at, time in enumerate(times)
    ]
    records.reverse()
    lines = (
        map(json.dumps, records)
        if form == "json"
        else ["n,at", *(f"{one['n']},{one.get('at', '')}" for one in records)]
    )
    proposal = infer("\n".join(lines))
    assert proposal.document["schema"]["at"] == ("timestamp" if is_required else "timestamp?")
    assert any(f"at: records without it: {lacking} of 100" in note for note in proposal.notes) == is_required
    assert proposal.accepted == (100 - lacking if is_required else 100)
    wanted = "event_time: {field: at, " if is_required else "event_time: {from: log}"
    assert any(wanted in note for note in proposal.notes)


@pytest.mark.parametrize(
    ("other", "field"), [({"settings": {"time": 1764000000}}, "received_at"), ({"time": 1764000000}, "time")]
)
def test_a_time_further_in_replaces_no_time_that_few_records_lack(other: dict[str, Any], field: str) -> None:
    records = [{"received_at": f"2026-10-05T06:00:{at:02}Z", **other} for at in range(50)] + [other]
    proposal = infer("\n".join(map(json.dumps, records)))
    assert any(f"event_time: {{field: {field}, " in note for note in proposal.notes), proposal.notes


def test_the_delay_is_one_that_a_document_may_have() -> None:
    years = [*range(2001, 2027), 2001]
    proposal = infer("\n".join(json.dumps({"at": f"{year}-01-01T00:00:00Z", "v": 0.5}) for year in years))
    (note,) = (note for note in proposal.notes if "event_time: " in note)
    rule = yaml.safe_load(note.removeprefix("for a pipeline: "))["event_time"]
    assert parse_duration_ms(rule["delay"]) == DURATION_MS_MAX
    assert any(note.startswith("a delay is at most ten years") for note in proposal.notes)


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_time_of_each_row_is_preferred_to_one_of_the_whole_record(lacking: int) -> None:
    rows = [{"id": "a.b", "v": at + 0.5, "q": True, "t": 1699999999000 + at} for at in range(50)]
    rows += [{"id": "a.b", "v": 0.5, "q": True}] * lacking
    records = [{"timestamp": 1700000000000 + at, "values": [row]} for at, row in enumerate(rows)]
    proposal = infer("\n".join(map(json.dumps, records)))
    assert proposal.event_time == "t"
    assert "for a pipeline: event_time: {field: t, delay: 10s}" in proposal.notes
    assert "t is a time of each row, so it is the event time; timestamp: of the whole record" in proposal.notes
    assert proposal.accepted == 50


@pytest.mark.parametrize(
    ("begin", "end", "accepted"),
    [
        ("", "", ["form", "query"]),
        ("GET /?", " HTTP/1.1", ["query"]),
        ("http://host:5055/?", "", ["query"]),
        ("/update?", "", ["query"]),
    ],
)
def test_parameters_of_forms_and_queries_are_recognized(begin: str, end: str, accepted: list[str]) -> None:
    lines = [f"{begin}id=car+{at % 2}&timestamp={1700000000 + at}&lat=52.5{at % 9}1{end}" for at in range(30)]
    proposal = infer("\n".join(lines))
    assert proposal.document == {
        "stream": "s",
        "format": "json",
        "http": {"accept": accepted},
        "schema": {
            "id": "string",
            "timestamp": {"type": "timestamp", "unit": "s", "text": True},
            "lat": {"type": "double", "text": True},
        },
    }
    assert (proposal.accepted, proposal.rejected) == (30, [])
    assert any(note.startswith("the lines are parameters of forms or queries") for note in proposal.notes)
    assert infer("\n".join([*lines, "hello world"])).document["format"] == "value"


def test_an_identifier_that_few_records_lack_is_pointed_out() -> None:
    records = [{"id": "a.b", "v": at / 2} for at in range(99)] + [{"v": 1.5}]
    proposal = infer("\n".join(map(json.dumps, records)))
    assert proposal.document["schema"]["id"] == "string?"
    assert any(note.startswith("id: records without it: 1 of 100") for note in proposal.notes)


def test_a_time_in_another_unit_changes_no_type() -> None:
    times = [{"ts": 1_793_534_400 + at} for at in range(99)]
    proposal = infer("\n".join(map(json.dumps, [*times[:40], {"ts": 1_793_534_440_000}, *times[40:]])))
    assert proposal.document["schema"] == {"ts": {"type": "timestamp", "unit": "s"}}
    assert "ts: values that are not times of 2000 to 2099 in s: 1 of 100, as 1793534440000" in proposal.notes


@pytest.mark.parametrize(("unit", "digits"), [("s", 0), ("ms", 3), ("us", 6), ("ns", 9)])
def test_the_unit_of_influx_lines_is_that_in_which_they_are_times(unit: str, digits: int) -> None:
    lines = "\n".join(f"temp,dev=a v={at}.5 {(1_793_534_400 + at) * 10**digits}" for at in range(3))
    proposal = infer(lines)
    assert proposal.document["schema"]["time"] == {"type": "timestamp", "unit": unit}
    assert (proposal.accepted, proposal.rejected) == (3, [])
    assert any(f"?precision={unit}" in note for note in proposal.notes) == (unit != "ns")
    reader = RowReader(config := record_format(StreamSpec.from_document(proposal.document)))
    for some in (lines.encode().split(b"\n"), [b"temp,dev=b v=1 %d" % (1_793_534_400 * 10**digits), b'temp v="x"']):
        (rows,) = reader.parts(some, [])
        decoded = Decoder(config.fields, EventTimeSource("time"), []).decode(
            rows.texts, [1_793_534_400_000] * len(some), None
        )
        assert decoded.event_time[0].as_py() == datetime.fromtimestamp(1_793_534_400, UTC)


def test_one_row_of_another_width_leaves_it_csv() -> None:
    rows = [f"d{at},{at}.5" for at in range(40)]
    proposal = infer("\n".join(["id,v", *rows[:20], "d7", *rows[20:]]))
    assert proposal.document == {"stream": "s", "format": "csv", "schema": {"id": "string", "v": "double"}}
    assert (proposal.records, proposal.accepted) == (41, 40)
    assert "rows with more or fewer than 2 values: 1 of 42; they become dead letters" in proposal.notes


def test_a_blank_behind_a_delimiter_is_part_of_the_value() -> None:
    """The blank is also part of the value for a reader of the stream: with a number, each row would be a dead letter."""
    proposal = infer("id, ts, v, ok\n" + "a, 2026-11-24 06:00, 1.5, true\n" * 3)
    assert proposal.document["schema"] == dict.fromkeys(("id", "ts", "v", "ok"), "string")
    assert (proposal.records, proposal.accepted) == (3, 3)
    assert (
        'values begin with a blank, as " 2026-11-24 06:00", which is a part of them; send them without it, or remove it with trim'
        in proposal.notes
    )
    assert (
        'v is a string, because there are blanks around its numbers, as " 1.5"; convert it in a pipeline: '
        'derive: {v_number: "try_cast(trim(v) as double)"}' in proposal.notes
    )
    assert any("derive: {ok_is_true: \"lower(trim(ok)) = 'true'\"}" in note for note in proposal.notes)
    proposal = infer("id;v\n" + "a;1.5 \n" * 3)
    assert (proposal.document["schema"]["v"], proposal.accepted) == ("string", 3)
    assert not [note for note in proposal.notes if "begin with a blank" in note]
    assert infer(" 12.5\n" * 3).document["schema"] == {"value": "double"}  # which takes blanks away


def test_an_index_without_a_name_is_a_column() -> None:
    """Pandas writes such a column."""
    proposal = infer(",ts,value\n0,2026-11-24 06:00:00,1.5\n1,2026-11-24 06:00:01,2.5\n")
    assert proposal.document["schema"] == {"column_1": "long", "ts": "timestamp", "value": "double"}
    assert (proposal.records, proposal.accepted) == (2, 2)
    assert list(infer("1,2\n,x\n3,4\n").document["schema"]) == ["column_1", "column_2"]


def test_comments_above_csv_are_said() -> None:
    proposal = infer("# logger v2\n# site: north, hall 2, left\nid,ts,v\nd0,1793534400,20.0\nd1,1793534401,20.5\n")
    assert list(proposal.document["schema"]) == ["id", "ts", "v"]
    assert (proposal.records, proposal.accepted) == (2, 2)
    assert (
        "comments (#) above the rows, which are not skipped when files are read: 2; remove them: tail -n +3 FILE"
        in proposal.notes
    )
    assert list(infer("#id,v\na,1\nb,2\n").document["schema"]) == ["f_id", "v"]  # that is the line of names


@pytest.mark.parametrize(
    ("values", "note", "read"),
    [
        (
            ["20,5", "21", "-3,25"],
            'v is a string with decimal commas, as "20,5"; convert it in a pipeline: derive: {v_number: '
            "\"try_cast(replace(v, ',', '.') as double)\"}",
            "double",
        ),
        (
            ["True", "False"],
            'v is a string with values as "True", but booleans are only true and false; convert it in a pipeline: derive: '
            "{v_is_true: \"lower(v) = 'true'\"}",
            "boolean",
        ),
        (
            ["1.5", "oops", "2"],
            "v is a string, because too many values are not numbers, as 'oops'; convert it in a pipeline: derive: "
            '{v_number: "try_cast(v as double)"}',
            "double",
        ),
        (
            ["04.11.2026 08:00:00", "05.11.2026 08:00:00"],
            'v is a string: times as "04.11.2026 08:00:00" are ambiguous, so they are not converted; in a pipeline, write '
            + "derive: {v_time: \"to_timestamp(v, 'dd.MM.yyyy HH:mm:ss')\"}, as docs/formats.md shows (Times in other forms)"
            + "; for another position of the month, the pattern is 'MM.dd.yyyy HH:mm:ss'",
            "timestamp",
        ),
    ],
)
def test_a_text_that_is_something_else_comes_with_what_to_do(values: list[str], note: str, read: str) -> None:
    proposal = infer("id;v\n" + "".join(f"d{at};{value}\n" for at, value in enumerate(values)))
    assert proposal.document["schema"] == {"id": "string", "v": "string"}
    assert note in proposal.notes
    derived = yaml.safe_load(note[note.index("derive: ") : note.index("}") + 1])["derive"]
    ((_, expression),) = derived.items()
    assert infer_type(parse_expression(expression), {"v": "string"}) == read


EIGHT = datetime(2026, 11, 24, 8, tzinfo=UTC)


@pytest.mark.guarantee(
    "G746",
    "Each expression that `stream infer` proposes for a text reads the values of the sample, whatever the field's "
    "name is. If two readings are possible, it proposes both.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize("name", ["v", "when", "from", "case", "true"])
@pytest.mark.parametrize(
    ("values", "readings"),
    [
        (["02.12.2026 08:00"] * 2, [[EIGHT.replace(month=12, day=2)] * 2]),
        ([" 24.11.2026 08:00", "24.11.2026 08:00 "], [[EIGHT] * 2]),
        (["20,5", "-3,25", "21"], [[20.5, -3.25, 21.0]]),
        (["20,5 ", " 21"], [[20.5, 21.0]]),
        (["0,125", "1,250"], [[0.125, 1.25]]),
        (["1,200", "950", "-12,000"], [[1.2, 950.0, -12.0], [1200.0, 950.0, -12000.0]]),
        (["1,200", "950.5"], [[1.2, 950.5], [1200.0, 950.5]]),
        (["1.200", "20,5"], [[1.2, 20.5], [1200.0, 20.5]]),
        (["True", "FALSE"], [[True, False]]),
        (["true ", " False"], [[True, False]]),
        (["1.5", " 2", "oops"], [[1.5, 2.0, None]]),
    ],
)
def test_a_proposed_expression_reads_what_the_sample_has(
    name: str, values: list[str], readings: list[list[Any]]
) -> None:
    proposal = infer("\n".join(json.dumps({name: value}) for value in values))
    ((field, kind),) = proposal.document["schema"].items()
    assert kind == "string"
    (note,) = (note for note in proposal.notes if note.startswith(f"{field} is a string"))
    derived = [yaml.safe_load(one) for one in re.findall(r'derive: (\{\w+: "(?:[^"\\]|\\.)*"\})', note)]
    found = []
    for text in (text for one in derived for text in one.values()):
        expression = ColumnExpression(parse_expression(text).sql, {field: "string"})
        found.append(expression({field: pa.array(values)}, len(values)).to_pylist())
    assert found == readings


@pytest.mark.parametrize(
    ("record", "explode"),
    [
        (
            {"id": "a", "rx": [{"gw": "g", "rssi": -90}], "object": {"readings": [{"t": 1, "v": 2.5}] * 3}},
            "$.object.readings",
        ),
        ({"id": "a", "readings": [{"v": 2.5}], "tags": [{"name": "x"}] * 9}, "$.readings"),
        ({"id": "a", "tags": [{"name": "x"}], "names": [{"name": "y"}] * 2}, "$.names"),
        ({"id": "a", "rx": [{"rssi": -90}], "empty": []}, "$.rx"),
        ({"id": "a", "v": [1, 2], "w": [[1, 2]]}, None),
    ],
)
def test_the_array_with_most_numbers_gives_the_rows(record: dict[str, Any], explode: str | None) -> None:
    proposal = infer("\n".join(map(json.dumps, [record, record])))
    assert proposal.document.get("explode") == explode
    assert proposal.rejected == []
    assert proposal.document["schema"]["id"] == "string"


def test_an_array_that_few_records_have_gives_no_rows() -> None:
    """Each record without it would be a dead letter."""
    proposal = infer("\n".join(map(json.dumps, [{"v": 1, "errors": [{"code": 3}]}, {"v": 2}, {"v": 3}])))
    assert proposal.document == {"stream": "s", "format": "json", "schema": {"v": "long"}}
    assert proposal.accepted == 3
    assert "$.errors is an array; read single elements by a path, as $.errors[0]; left out" in proposal.notes


def test_maps_with_arrays_of_maps_are_read_as_they_are() -> None:
    """MessagePack has no explode."""
    maps = [msgspec.msgpack.encode({"id": at, "all": [{"v": 1}]}) for at in range(3)]
    proposal = infer_from_topic("s", maps, 1, "7d")
    assert (proposal.document["format"], proposal.document["schema"]) == ("msgpack", {"id": "long"})
    assert (proposal.accepted, proposal.rejected) == (3, [])


def parquet(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    file = BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), file)
    return file.getvalue()


def test_a_file_of_parquet_brings_its_schema(tmp_path: Path) -> None:
    at = datetime(2026, 11, 24, 6, tzinfo=UTC)
    schema = pa.schema(
        {
            "id": pa.string(),
            "at": pa.timestamp("ns", "UTC"),
            "n": pa.int32(),
            "u": pa.uint32(),
            "v": pa.float32(),
            "cost": pa.decimal128(9, 2),
            "day": pa.date32(),
            "kind": pa.dictionary(pa.int8(), pa.string()),
            "levels": pa.list_(pa.float64()),
            "site": pa.struct({"name": pa.string(), "floor": pa.int8()}),
            "nothing": pa.float64(),
            "bytes": pa.binary(),
        }
    )
    row = {
        "id": "007", "at": at, "n": 1, "u": 2, "v": 1.5, "cost": Decimal("1.25"), "day": at.date(), "kind": "5", "levels": [1.0],
        "site": {"name": "north", "floor": 2}, "bytes": b"\xff",
    }  # fmt: skip
    sample = parquet([row, row | {"v": float("nan"), "site": None}], schema)
    proposal = infer_stream("s", sample)
    assert proposal.document == {
        "stream": "s",
        "format": "json",
        "schema": {
            "id": "string",
            "at": "timestamp",
            "n": "integer",
            "u": "long",
            "v": "double?",
            "cost": "decimal(9,2)",
            "day": "timestamp",
            "kind": "string",
            "levels": "array<double>",
            "name": {"type": "string", "required": False, "from": "$.site.name"},
            "floor": {"type": "integer", "required": False, "from": "$.site.floor"},
            "nothing": "double?",
            "bytes": "string",
        },
    }
    assert (proposal.records, proposal.accepted, proposal.rejected) == (2, 2, [])
    assert not [note for note in proposal.notes if "left out" in note]
    (file := tmp_path / "rows.parquet").write_bytes(sample)
    assert sum(map(len, read_records(file, record_format(StreamSpec.from_document(proposal.document))))) == 2
    with pytest.raises(NoSampleError, match="not a readable Parquet file"):
        infer_stream("s", sample[:-20])


def test_an_array_of_parquet_gives_rows_with_the_types_of_its_elements() -> None:
    element = pa.struct({"t": pa.timestamp("ms", "UTC"), "v": pa.float32()})
    schema = pa.schema({"id": pa.string(), "o": pa.struct({"all": pa.list_(element)})})
    t = datetime(2026, 11, 24, 6, tzinfo=UTC)
    proposal = infer_stream("s", parquet([{"id": "5", "o": {"all": [{"t": t, "v": 1.0}, {"t": t, "v": 2.0}]}}], schema))
    assert proposal.document["explode"] == "$.o.all"
    assert proposal.document["schema"] == {"id": "string", "t": "timestamp", "v": "double"}
    assert (proposal.accepted, proposal.rejected) == (2, [])


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array([2**60], pa.timestamp("us")), "beyond the years 1 to 9999"),
        (pa.array([2**30], pa.date32()), "beyond the years 1 to 9999"),
        (pa.array([2**40], pa.timestamp("ms", "Mars/Olympus")), "unknown time zone: 'Mars/Olympus'"),
    ],
)
def test_times_of_parquet_that_are_none_are_said(column: pa.Array, why: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"at": column}), file)
    with pytest.raises(PermanentError, match=f"rows.parquet can't be read as Parquet: .*{why}"):
        list(read_records(file, RecordFormat("json", (), {})))
    with pytest.raises(NoSampleError, match=f"not a readable Parquet file .*{why}"):
        infer_stream("s", file.read_bytes())


def test_columns_of_parquet_with_one_name_are_said(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    lists = pa.array([[{"k": 1}]])
    pq.write_table(pa.table([lists, lists], names=["a", "a"]), file)
    with pytest.raises(NoSampleError, match="more than one column has the name a; give each column its own name"):
        infer_stream("s", file.read_bytes())
    with pytest.raises(PermanentError, match="more than one column has the name a; give each column its own name"):
        list(read_records(file, RecordFormat("json", (), {})))


ROWS = [{"id": f"d{at}", "v": at + 0.5, "o": {"t": [at]}} for at in range(3)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (json.dumps(ROWS), 3),
        (json.dumps(ROWS, indent=1), 3),
        ("\ufeff" + json.dumps(ROWS, indent=2), 3),
        (json.dumps(ROWS, indent=2).replace("\n", "\r\n"), 3),
        ("\n\n" + json.dumps(ROWS) + "\n", 3),
        (json.dumps(ROWS[0], indent=1), 1),
        (json.dumps(ROWS[0]), 1),
        ("\n".join(map(json.dumps, ROWS)), 3),
        ("\n".join(map(json.dumps, ROWS)) + '\n{"id": "d9",', 3),
    ],
)
def test_infer_and_a_run_take_the_same_for_a_record(text: str, count: int, tmp_path: Path) -> None:
    proposal = infer_stream("s", text.encode())
    (file := tmp_path / "records.json").write_text(text, newline="")
    config = record_format(StreamSpec.from_document(proposal.document))
    read = [one for piece in read_records(file, config) for one in piece]
    assert (proposal.records, proposal.accepted) == (count, count)
    assert [json.loads(one) for one in read[:count]] == ROWS[:count]
    assert len(read) == count + text.endswith(",")
    is_one_value = json.dumps(ROWS[0]) not in text.splitlines()
    assert any("per line: jq -c " in note for note in proposal.notes) == is_one_value


EVENT = {"op": "c", "before": None, "after": {"id": 1}, "source": {"ts_ms": 1_764_000_000_000}}


@pytest.mark.guarantee(
    "G747",
    "`pipeline run` and `stream infer` split a file that is one JSON array or object as the HTTP gateway splits such "
    "a request. An unreadable element affects no other.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize(
    ("record_format", "text", "count", "readable"),
    [
        ("json", '[{"a":1},\n{"a":oops},\n{"a":2}]', 3, 2),
        ("json", '[{"a":1},{"a":"\\q"},{"a":2}]', 3, 2),
        ("json", '[\n{"a":1},\n[{"a":3}],\n{"a":2}\n]', 3, 2),
        ("json", '{"a":\n1,\n"b": {"c": [2]}}', 1, 1),
        ("debezium", json.dumps([EVENT] * 3, indent=1), 3, 3),
        ("debezium", json.dumps([EVENT] * 3), 3, 3),
        ("debezium", json.dumps(EVENT, indent=1), 1, 1),
    ],
)
def test_one_json_value_is_split_as_the_gateway_does(
    record_format: str, text: str, count: int, readable: int, tmp_path: Path
) -> None:
    """A record that can't be read costs no other."""
    (file := tmp_path / "records.json").write_text(text)
    config = RecordFormat(record_format, (), {})  # type: ignore[arg-type]
    read = [one for piece in read_records(file, config) for one in piece]
    assert read == split_json(text.encode())
    assert len(read) == count
    proposal = infer_stream("s", text.encode())
    assert (proposal.document["format"], proposal.accepted) == (record_format, readable)


def test_an_object_that_can_not_be_read_is_one_record(tmp_path: Path) -> None:
    (file := tmp_path / "records.json").write_text(text := '{\n"a": NaN,\n"b": "}",\n}')
    assert list(read_records(file, RecordFormat("json", (), {}))) == [split_json(text.encode())]


@pytest.mark.guarantee("G747")
@pytest.mark.parametrize("first", ['[{"v":1},{"v":NaN}]', '{"v":NaN,"w":[1,2]}', '{"v":1}', '{"v":1,'])
def test_a_first_line_that_is_whole_begins_no_value(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of lines may be of any size."""
    monkeypatch.setattr("strandline.processing.desk.record_files.LINE_BYTES_MAX", 100)
    (file := tmp_path / "records.json").write_text("\n".join(lines := [first, *['{"v":2}'] * 99]))
    read = [one.decode() for piece in read_records(file, RecordFormat("json", (), {})) for one in piece]
    assert read == lines


@pytest.mark.parametrize("text", ["[1\n[2]", "[" * 100_000, "{\n}\n{\n}", "[1] [2]"])
def test_what_is_not_one_value_is_read_by_lines(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "records.json").write_text(text)
    config = record_format(StreamSpec.from_document({"stream": "s", "schema": {"v": "long"}}))
    assert [one.decode() for piece in read_records(file, config) for one in piece] == text.split("\n")


def test_an_array_that_is_too_large_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.processing.desk.record_files.LINE_BYTES_MAX", 100)
    (file := tmp_path / "records.json").write_text(json.dumps([*ROWS] * 3, indent=1))
    config = record_format(StreamSpec.from_document({"stream": "s", "schema": {"v": "double"}}))
    with pytest.raises(
        PermanentError, match="seems to be one JSON array of more than 100 bytes; pass one object per line: jq"
    ):
        list(read_records(file, config))
    file.write_text(json.dumps(ROWS[0] | {"x": ["y" * 20] * 9}, indent=1))
    assert sum(map(len, read_records(file, config))) > 9  # lines, as before


def test_columns_without_values_and_of_one_name_are_columns() -> None:
    """There are as many fields as the lines have values. Otherwise each line would be a dead letter."""
    proposal = infer("id,v,note,v\na,1,,2\nb,2,,3\n")
    assert proposal.document["schema"] == {"id": "string", "v": "long", "note": "string?", "v_4": "long"}
    assert (proposal.accepted, proposal.rejected) == (2, [])
    proposal = infer("a,a,a_2\n1,2,x\n3,4,y\n")
    assert proposal.document["schema"] == {"a": "long", "a_2": "long", "a_2_3": "string"}
    assert (proposal.accepted, proposal.rejected) == (2, [])


@pytest.mark.parametrize(
    ("time", "is_one"), [("2026-11-24 06:00:00", True), ("2026-11-24T06:00Z", False), (1_790_000_000, False)]
)
def test_a_time_without_a_zone_is_pointed_out(time: str | int, is_one: bool) -> None:
    proposal = infer(json.dumps({"id": "m1", "time": time}))
    assert [note for note in proposal.notes if "no time zone" in note] == [
        "time has no time zone, so it is read as UTC; otherwise add tz: Asia/Kolkata or another zone"
    ] * is_one


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        (b" \n", "is empty"),
        (b"\x81\xa1", "is not text"),
        (b"\x00\n\xfc\n", "is not text"),
        (b"[1, 2]", "no JSON object"),
        (b'[1]\n[{"a": 1}]\n', "arrays of different forms"),
        (b'{"a":\n{"b":\n', "most lines can't be read"),
    ],
)
def test_where_nothing_can_be_told_it_says_so(sample: bytes, why: str) -> None:
    with pytest.raises(NoSampleError, match=why):
        infer_stream("s", sample)


def test_what_the_document_would_reject_is_said() -> None:
    proposal = infer('{"a": 1}\n{"a": 2}\nnot json\n')
    assert (proposal.records, proposal.accepted) == (2, 2)
    proposal = infer('[{"a": 1}, 7]')
    assert (proposal.records, proposal.accepted) == (2, 1)
    assert proposal.rejected == ["schema: expected an object, got 7"]


GOOD = [f'{{"time": 176400000000{at}, "v": {at}.5, "id": "a"}}'.encode() for at in range(3)]
ODD = {
    "arrays in arrays": b"[" * 100_000 + b"]" * 100_000,
    "objects in objects": b'{"a":' * 3_000 + b"1" + b"}" * 3_000,
    "objects of 500 levels": b'{"a":' * 500 + b"1" + b"}" * 500,
    "a number of 400 digits": b'{"time": %s}' % (b"9" * 400),
    "a number of 5,000 digits": b'{"time": %s}' % (b"9" * 5_000),
    "an infinite number": b'{"v": 1e999}',
    "a name with half of a pair": b'{"\\ud800": 1}',
    "the other half": b'{"\\udc00": 1}',
    "two first halves": b'{"\\ud800\\ud800": 1}',
    "a text with half of a pair": b'{"id": "\\ud800"}',
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("place", [1, 3], ids=["among others", "last"])
def test_an_odd_record_is_left_out_and_it_is_said(odd: bytes, place: int) -> None:
    records = [*GOOD[:place], odd, *GOOD[place:]]
    good = infer_stream("s", b"\n".join(GOOD))
    expected = "records of the sample that can't be read, and are left out: 1"
    proposals = [infer_stream("s", b"\n".join(records)), infer_from_topic("s", records, 4, "7d")]
    if len(odd) < 10_000:
        proposals.append(infer_stream("s", b"[" + b",".join(records) + b"]"))
    for proposal in proposals:
        assert proposal.document["schema"] == good.document["schema"]
        assert (proposal.accepted, expected in proposal.notes) == (3, True)
    assert expected not in good.notes


@pytest.mark.parametrize("digits", [400, 5_000])
def test_a_number_that_no_field_can_hold_changes_no_type(digits: int) -> None:
    number = "9" * digits
    assert infer(f"1\n2\n3\n{number}\n").document["schema"] == {"value": "long"}
    assert infer(f"a,1\nb,2\nc,{number}\n").document["schema"] == {"column_1": "string", "column_2": "long"}
    assert infer(f"w v=1i\nw v=2i\nw v={number}i\n").document["schema"]["v"] == "long"
    assert infer(f"{number}\n{number}\n").document["schema"] == {"value": "string"}
    assert infer(f'{{"t": "1"}}\n{{"t": "{number}"}}').document["schema"] == {"t": "string"}  # which holds both


@pytest.mark.parametrize("name", ["\x00", 'a"b', "a\\b", "a\nb: c"], ids=ascii)
def test_a_member_may_have_any_name(name: str) -> None:
    odd = json.dumps({"time": 1_764_000_000_000, "v": 1, "id": "a", name: 7}).encode()
    for records in ([*GOOD, odd], [odd]):
        proposal = infer_stream("s", b"\n".join(records))
        (field,) = (one for one in proposal.document["schema"].values() if isinstance(one, dict) and "from" in one)
        assert field["from"] == f"$[{json.dumps(name)}]"
        assert (proposal.accepted, proposal.rejected) == (len(records), [])
    proposal = infer_stream("s", json.dumps({"v": 1, name: None}).encode())
    assert all("\n" not in note for note in proposal.notes)


@pytest.mark.parametrize(
    "wrap", [lambda one: one, lambda one: {"before": None, "after": one, "op": "c"}], ids=["json", "debezium"]
)
def test_what_no_document_can_name_is_left_out_and_it_is_said(wrap: Any) -> None:
    deep: Any = 1
    for _ in range(25):
        deep = {"a": deep}
    wide = {f"m{at}": at for at in range(2_000)}
    good = [wrap({"id": at, "v": 1.5}) for at in range(3)]
    expected = infer_stream("s", "\n".join(map(json.dumps, good)).encode()).document["schema"]
    proposal = infer_stream("s", "\n".join(map(json.dumps, [wrap({"id": 1, "v": 2.5, "d": deep}), *good])).encode())
    assert proposal.document["schema"] == expected
    assert any("has more steps than a path may have; left out" in note for note in proposal.notes)
    proposal = infer_stream("s", "\n".join(map(json.dumps, [wrap({**wide, "id": 1, "v": 2.5}), *good])).encode())
    assert expected.items() <= proposal.document["schema"].items()
    assert len(proposal.document["schema"]) <= 1_000
    assert any("fields that occur in the fewest records" in note for note in proposal.notes)


NAMES = st.sampled_from(["a", "A", "b", "wind-speed", "window", "_x", "1st", "ä", "ts", "strandline", "x.y"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e9, 1e9) | st.text(max_size=5),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=6,
)


@examples(150)
@given(st.lists(st.dictionaries(NAMES, VALUES, min_size=1, max_size=5), min_size=1, max_size=4))
def test_whatever_the_objects_are_the_document_is_one_and_reads_them_without_error(
    records: list[dict[str, Any]],
) -> None:
    try:
        proposal = infer_stream("s", "\n".join(map(json.dumps, records)).encode())
    except NoSampleError:
        return
    StreamSpec.from_document(proposal.document)
    assert proposal.accepted + len(proposal.rejected) > 0 or "explode" in proposal.document


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(-1e300, 1e300).filter(lambda one: one != int(one)),
    "boolean": st.booleans(),
    "timestamp": st.datetimes(timezones=st.just(UTC)).map(lambda one: one.isoformat(timespec="seconds")),
}
ODD_VALUES = st.sampled_from(["n/a", "ERR", "", "-", "NaN", "null", "1,5", "True", "0x1F", "2026-13-01", "\u00fc"])


@examples(60)
@given(st.data(), st.sampled_from(sorted(KINDS)), st.sampled_from(["json", "csv"]))
def test_a_few_odd_values_cost_no_more_than_their_records(data: st.DataObject, kind: str, form: str) -> None:
    good = data.draw(st.lists(KINDS[kind], min_size=20, max_size=40))
    odd_values = ODD_VALUES if form == "csv" else ODD_VALUES | st.none() | st.lists(st.integers(), max_size=2)
    odd = data.draw(st.lists(odd_values, max_size=len(good) // 19))
    values = data.draw(st.permutations(good + odd))
    if form == "csv":  # the first row tells whether there is a line of names
        values = [value if isinstance(value, str) else json.dumps(value) for value in [good[0], *values]]
        values = [value for value in values if "," not in value]
        proposal = infer("id;v\n" + "".join(f"d{at};{value}\n" for at, value in enumerate(values)))
    else:
        proposal = of_column(values, "json")
    spec = proposal.document["schema"]["v"]
    found = (spec if isinstance(spec, str) else spec["type"]).removesuffix("?")
    assert found == kind or (kind, found) == ("long", "double")
    assert proposal.records == len(values)
    assert proposal.accepted >= len([value for value in values if value not in odd])
    causes = (f"values that don't fit {found}: ", "v: records without it: ")
    notes = [note for note in proposal.notes if any(cause in note for cause in causes)]
    assert bool(notes) == (proposal.accepted < proposal.records)


def test_the_command_prints_a_document() -> None:
    told = CliRunner().invoke(app, ["stream", "infer", "--sample", str(READINGS), "--name", "machines"])
    assert told.exit_code == 0
    assert yaml.safe_load(told.output) == {
        "stream": "machines",
        "format": "json",
        "schema": {"device": "string", "timestamp": "timestamp", "value": "double"},
    }
    assert "576 records of the sample result in 576 rows" in told.output
    told = CliRunner().invoke(app, ["stream", "infer", "--sample", "-"], input="1\n2\n")
    assert yaml.safe_load(told.output)["schema"] == {"value": "long"}


def test_change_events_are_proposed_by_the_columns_of_their_rows() -> None:
    source = {"ts_ms": 1_764_000_000_000, "table": "t"}
    rows = [{"id": 1, "celsius": 4.5, "a b": "x"}, {"id": 2, "celsius": None, "a b": "y"}]
    events = [{"before": None, "after": row, "op": "c", "source": source, "ts_ms": 1_764_000_000_005} for row in rows]
    events.append({"before": rows[0], "after": None, "op": "d", "source": source, "ts_ms": 1_764_000_000_005})
    for wrapped in (events, [{"schema": {}, "payload": one} for one in events]):
        proposal = infer_stream("s", b"\n".join(json.dumps(one).encode() for one in wrapped))
        assert proposal.document == {
            "stream": "s",
            "format": "debezium",
            "schema": {
                "id": "long",
                "celsius": "double?",
                "a_b": {"type": "string", "from": '$.row["a b"]'},
                "op": {"type": "string", "from": "$.op"},
                "changed": {"type": "timestamp", "from": "$.source.ts_ms"},
            },
        }
        assert (proposal.accepted, proposal.rejected) == (3, [])


def test_a_file_of_avro_brings_its_schema() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "when", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
            {"name": "v", "type": ["null", "double"]},
        ],
    }
    at = datetime(2025, 11, 24, 16, tzinfo=UTC)
    rows = [{"id": "a", "when": at, "cost": Decimal("1.25"), "v": v} for v in (1.5, None)]
    file = BytesIO()
    fastavro.writer(file, schema, rows, codec="deflate")
    proposal = infer_stream("s", file.getvalue())
    fields = {"id": "string", "when": "timestamp", "cost": "decimal(6,2)", "v": "double?"}
    assert proposal.document["schema"] == fields
    assert (proposal.document["format"], proposal.accepted, proposal.rejected) == ("avro", 2, [])
    with pytest.raises(NoSampleError, match="is not a readable Avro file"):
        infer_stream("s", file.getvalue()[:-20])
