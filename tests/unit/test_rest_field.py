"""A field of type json: the members of a record that aren't declared."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.pipelines.model.pipeline import PipelineSpec

SCHEMA = {"t": "long", "x": {"type": "long", "from": "$.at.x", "required": False}, "rest": {"type": "json"}}


def stream(**parts: Any) -> StreamSpec:
    return StreamSpec.from_document({"stream": "s", "schema": SCHEMA, **parts})


def decoded(
    values: list[bytes], sources: list[bytes | None] | None = None, **parts: Any
) -> tuple[list[Any], list[str]]:
    config = record_format(stream(**parts))
    reader = RowReader(config)
    decoder = Decoder(config.fields, EventTimeSource(None), ["t", "x", "rest"])
    (rows,) = reader.parts(values, sources or [])
    found = decoder.decode(rows.texts, [0] * len(values), None)
    assert found.arrays["rest"].type == "string"
    return found.arrays["rest"].to_pylist(), [one.reason for one in found.rejects]


@pytest.mark.guarantee(
    "G265",
    "A field of type `json` keeps every undeclared member of a record, as it was sent.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
def test_the_members_that_no_field_takes_are_kept_as_they_were_sent() -> None:
    values = [
        b'{"t": 1, "b": 1.50, "u": "\\u00e9", "n": {"deep": [1, null]}}',
        b'{"t": 2}',
        b'{"at": {"x": 5, "y": 6}, "t": 3, "rest": "mine"}',
        '{"t": 4, "é": "ü"}'.encode(),
    ]
    assert decoded(values) == (
        ['{"b":1.50,"u":"\\u00e9","n":{"deep": [1, null]}}', None, '{"rest":"mine"}', '{"é":"ü"}'],
        [],
    )


def test_what_is_refused_is_refused_as_without_it() -> None:
    values = [
        b'{"t": "no", "b": 1}',
        b'{"t": 1, "t": 2}',
        b'{"t": 1, "b": \xff}',
        b"[1]",
        b'{"t": 1, "b": }',
        b'{"t": 5}',
    ]
    assert decoded(values)[1] == ["schema", "decode", "decode", "schema", "decode"]


def test_packed_maps_and_lines_have_a_rest_too() -> None:
    assert decoded([msgspec.msgpack.encode({"t": 1, "b": True})], format="msgpack") == (['{"b":true}'], [])
    rest, _ = decoded([b"w,site=a t=1i,temp=2.5 7"], format="influx")
    assert json.loads(rest[0]) == {"measurement": "w", "site": "a", "temp": 2.5, "time": 7}


def test_the_query_of_the_url_does_not_fill_it() -> None:
    assert decoded([b'{"t": 1}', b"{}"], [b"?rest=5", b"?t=2&rest=5"]) == ([None, None], [])


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"schema": {"v": "json"}, "format": "value"}, "with format value a row has none"),
        ({"explode": "$.a"}, "with explode a row has none"),
        ({"schema": SCHEMA | {"more": "json?"}}, "go to 'rest' already"),
        ({"schema": {"t": "long", "rest": {"type": "json", "required": True}}}, "could have only the declared"),
        ({"schema": {"t": "long", "rest": {"type": "json", "from": "$.a"}}}, "remove 'from'"),
        ({"key": "rest"}, "can't be the key"),
    ],
)
def test_where_it_can_not_be_the_document_is_refused(parts: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidDocument, match=why):
        stream(**parts)


def test_it_is_a_text_in_expressions_and_no_key() -> None:
    def pipeline(by: str) -> PipelineSpec:
        window = {"name": "w", "tumbling": "1m", "by": [by], "aggregate": {"latest": "max(rest)", "n": "count(rest)"}}
        steps = [{"where": "rest is not null"}, {"window": window, "emit": [{"elasticsearch": "w"}]}]
        return PipelineSpec.from_document(
            {
                "pipeline": "p",
                "input": {"stream": "s"},
                "event_time": {"from": "log", "idle_timeout": None},
                "steps": steps,
            }
        )

    checked = check(pipeline("t"), stream())
    assert checked.stages[0].field_types == {"t": "long", "latest": "string", "n": "long"}
    with pytest.raises(InvalidDocument, match="is json, and two strings of JSON can mean the same"):
        check(pipeline("rest"), stream())
