"""A document that is proposed from a sample accepts the sample, and says what a person would have written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.inference import NoSampleError, Proposal, infer_from_topic, infer_stream
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
        ("ON\nOFF\n", {"format": "value", "schema": {"value": "string"}}),
    ],
)  # fmt: skip
def test_the_proposal_is_what_a_person_would_write(sample: str, document: dict[str, Any]) -> None:
    proposal = infer(sample)
    assert proposal.document == {"stream": "s", **document}
    assert proposal.rejected == []
    assert proposal.accepted >= proposal.records
    StreamSpec.from_document(yaml.safe_load(yaml.safe_dump(proposal.document)))


@pytest.mark.parametrize(("time", "is_one"), [("02.12.2013 21:15", True), ("2-Dec-13 9:15 PM", True), ("1.2.3", False)])
def test_a_time_in_another_form_is_pointed_out(time: str, is_one: bool) -> None:
    proposal = infer(json.dumps({"id": "m1", "t": time}))
    assert proposal.document["schema"]["t"] == "string"
    assert [note for note in proposal.notes if "seems to be a time" in note][:1] == [
        "t seems to be a time in another form than ISO 8601: read it with to_timestamp(text, pattern), as docs/formats.md shows "
        "(Times in other forms)"
    ] * is_one


@pytest.mark.parametrize(
    ("time", "is_one"), [("2026-11-24 06:00:00", True), ("2026-11-24T06:00Z", False), (1_790_000_000, False)]
)
def test_a_time_without_a_zone_is_pointed_out(time: str | int, is_one: bool) -> None:
    proposal = infer(json.dumps({"id": "m1", "time": time}))
    assert [note for note in proposal.notes if "no time zone" in note] == [
        "time names no time zone, so it is UTC; if it is not, add tz: Asia/Kolkata or another"
    ] * is_one


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        (b" \n", "is empty"),
        (b"\x81\xa1", "is no text"),
        (b"[1, 2]", "no JSON object"),
        (b'{"a":\n{"b":\n', "most lines are none"),
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
    "not a number": b'{"v": NaN}',
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
    assert any("fields that the fewest records have" in note for note in proposal.notes)


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


def test_the_command_prints_a_document() -> None:
    told = CliRunner().invoke(app, ["stream", "infer", "--sample", str(READINGS), "--name", "machines"])
    assert told.exit_code == 0
    assert yaml.safe_load(told.output) == {
        "stream": "machines",
        "format": "json",
        "schema": {"device": "string", "timestamp": "timestamp", "value": "double"},
    }
    assert "576 records of the sample give 576 rows" in told.output
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
    with pytest.raises(NoSampleError, match="is no file of Avro that can be read"):
        infer_stream("s", file.getvalue()[:-20])
