"""A stage's row becomes a document: its id, its index, its JSON, or a refusal."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import pickle
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from strandline.core.errors import InvalidDocument, PermanentError
from strandline.results.document import Document, DocumentShape, document_id
from strandline.results.names import check_emit_name, check_field_name, generation_of, index_name
from strandline.results.writer import Refused
from tests.support.stage_batches import MAY_1_NOON_MS, MINUTE_MS, stage_batch

SHAPE = DocumentShape(
    emit_name="turbine-minute",
    job="turbine-health",
    stage="per_minute",
    version=3,
    by=(("device", "string"),),
    aggregates=(("n", "long"), ("load", "double")),
)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def test_a_document_reads_as_the_design_says() -> None:
    batch = stage_batch(SHAPE.fields, [("t-17", 60, 0.83)])
    (document,) = SHAPE.documents(batch, epoch=4, emission=1234)
    assert isinstance(document, Document)
    assert document.index == "turbine-minute-2024.05"
    assert document.id == document_id(
        "turbine-health", "per_minute", MAY_1_NOON_MS, MAY_1_NOON_MS + MINUTE_MS, ("t-17",)
    )
    assert json.loads(document.source) == {
        "@timestamp": "2024-05-01T12:01:00.000Z",
        "window": {"start": "2024-05-01T12:00:00.000Z", "end": "2024-05-01T12:01:00.000Z"},
        "device": "t-17",
        "n": 60,
        "load": 0.83,
        "strandline": {"job": "turbine-health", "stage": "per_minute", "version": 3, "epoch": 4, "emission": 1234},
    }
    assert b"\n" not in document.source


def test_the_id_is_the_documented_hash() -> None:
    """Written out by hand from the docstring, as an outside program would do it."""
    parts = b"s3:jobs5:stagei4:1000i4:2000i1:7"
    parts += b"s5:t-\xc3\xa9xn0:b1:1i2:-5f16:3ff8000000000000d4:12.5t16:1714564800000000"
    expected = base64.urlsafe_b64encode(hashlib.sha256(parts).digest()[:16]).decode().rstrip("=")
    key = ("t-éx", None, True, -5, 1.5, Decimal("12.50"), datetime(2024, 5, 1, 12, tzinfo=UTC))
    assert document_id("job", "stage", 1000, 2000, key) == expected


def test_ids_from_rows_are_those_of_document_id_for_every_type() -> None:
    by = (
        ("a", "string"),
        ("b", "long"),
        ("c", "integer"),
        ("d", "double"),
        ("e", "boolean"),
        ("f", "timestamp"),
        ("g", "decimal(10,2)"),
    )
    shape = DocumentShape("emit", "job", "stage", 1, by, (("n", "long"),))
    moment = datetime(2024, 5, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    moment_us = MAY_1_NOON_MS * 1000 + 250_000
    rows = [("x", 1, 2, -0.0, False, moment_us, Decimal("-0.00"), 1), (None,) * 7 + (2,)]
    documents = list(shape.documents(stage_batch(shape.fields, rows), 1, 1))
    window = (MAY_1_NOON_MS, MAY_1_NOON_MS + MINUTE_MS)
    keys = [("x", 1, 2, 0.0, False, moment, Decimal(0)), (None,) * 7]
    assert [document.id for document in documents] == [document_id("job", "stage", *window, key) for key in keys]


def test_timestamps_and_decimals_keep_every_digit() -> None:
    fields = (("whole", "timestamp"), ("fraction", "timestamp"), ("old", "timestamp"), ("price", "decimal(10,2)"))
    shape = DocumentShape("emit", "job", "stage", 1, (), fields)
    row = (MAY_1_NOON_MS * 1000, MAY_1_NOON_MS * 1000 + 1, -62_135_596_800_000_000, Decimal("12345678.90"))
    (document,) = shape.documents(stage_batch(fields, [row]), 1, 1)
    content = json.loads(document.source)
    assert content["whole"] == "2024-05-01T12:00:00.000Z"
    assert content["fraction"] == "2024-05-01T12:00:00.000001Z"
    assert content["old"] == "0001-01-01T00:00:00.000Z"
    assert content["price"] == "12345678.90"


@pytest.mark.parametrize(
    ("end", "index"),
    [
        ("2024-05-31T23:59:59.999+00:00", "emit-2024.05"),
        ("2024-06-01T00:00:00+00:00", "emit-2024.06"),
        ("2024-06-01T01:00:00+02:00", "emit-2024.05"),
        ("1969-12-31T23:59:59+00:00", "emit-1969.12"),
    ],
)
def test_the_index_is_the_utc_month_of_the_window_end(end: str, index: str) -> None:
    assert index_name("emit", ms(end)) == index


def test_a_non_finite_number_is_refused_and_its_neighbours_are_not() -> None:
    rows = [("a", 1, 0.5), ("b", 2, math.nan), ("c", 3, -math.inf), ("d", 4, None)]
    documents = list(SHAPE.documents(stage_batch(SHAPE.fields, rows), 1, 1))
    assert [type(document) for document in documents] == [Document, Refused, Refused, Document]
    refused = documents[1]
    assert isinstance(refused, Refused)
    assert (refused.type, refused.status, refused.index) == ("non_finite_number", None, "turbine-minute-2024.05")
    assert "load is nan" in refused.reason
    assert json.loads(refused.source)["load"] == "nan"
    assert json.loads(documents[2].source)["load"] == "-inf"
    assert json.loads(documents[3].source)["load"] is None


def test_a_time_outside_the_calendar_is_refused_and_its_neighbours_are_not() -> None:
    fields = (("seen", "timestamp"), ("n", "long"))
    shape = DocumentShape("emit", "job", "stage", 1, fields[:1], fields[1:])
    year_20000_us = 568_971_820_800_000_000
    batch = stage_batch(
        fields, [(year_20000_us, 1), (0, 2), (0, 3)], starts_ms=[MAY_1_NOON_MS, year_20000_us // 1000, MAY_1_NOON_MS]
    )
    first, second, third = shape.documents(batch, 1, 1)
    assert isinstance(first, Refused) and first.type == "timestamp_out_of_range" and "seen" in first.reason
    assert isinstance(second, Refused) and second.index is None and "window" in second.reason
    assert json.loads(second.source)["n"] == 2
    assert isinstance(third, Document)


def test_a_column_of_another_type_than_declared_stops_the_write() -> None:
    batch = stage_batch((("device", "string"), ("n", "double"), ("load", "double")), [("a", 1.0, 0.5)])
    with pytest.raises(PermanentError, match="column n arrived as double where long was declared"):
        list(SHAPE.documents(batch, 1, 1))


def test_a_row_without_a_result_stops_the_write() -> None:
    """The caller makes a dead letter of the row. A document would be wrong permanently."""
    batch = stage_batch(SHAPE.fields, [("a", 1, 0.5), ("b", None, None)])
    good = batch.append_column("@problem", pa.array([None, None], pa.string()))
    assert list(SHAPE.documents(good, 1, 1)) == list(SHAPE.documents(batch, 1, 1))
    bad = batch.append_column("@problem", pa.array([None, "n overflows"]))
    with pytest.raises(PermanentError, match=r"1 rows have no result but a problem \(n overflows\)"):
        list(SHAPE.documents(bad, 1, 1))


def test_a_field_may_be_called_problem() -> None:
    shape = DocumentShape("emit", "job", "stage", 1, (("problem", "string"),), (("n", "long"),))
    (document,) = shape.documents(stage_batch(shape.fields, [("leak", 1)]), 1, 1)
    assert isinstance(document, Document) and json.loads(document.source)["problem"] == "leak"


@pytest.mark.parametrize("column", [pa.array([0], pa.int32()), pa.array([None], pa.int64())])
def test_a_window_that_is_no_pair_of_int64_stops_the_write(column: pa.Array) -> None:
    batch = stage_batch(SHAPE.fields, [("a", 1, 0.5)]).set_column(1, "@window_end_ms", column)
    with pytest.raises(PermanentError, match="column @window_end_ms arrived as int"):
        list(SHAPE.documents(batch, 1, 1))


def test_an_empty_batch_makes_no_documents() -> None:
    assert list(SHAPE.documents(stage_batch(SHAPE.fields, []), 1, 1)) == []


def test_a_stage_without_by_fields_has_one_document_a_window() -> None:
    shape = DocumentShape("emit", "job", "stage", 1, (), (("n", "long"),))
    (document,) = shape.documents(stage_batch(shape.fields, [(5,)]), 1, 1)
    assert document.id == document_id("job", "stage", MAY_1_NOON_MS, MAY_1_NOON_MS + MINUTE_MS, ())


def test_a_shape_pickles() -> None:
    assert pickle.loads(pickle.dumps(SHAPE)) == SHAPE


@pytest.mark.parametrize("name", ["turbine", "turbine-minute", "a.b_c-1", "2024.05", "x" * 200])
def test_names_that_can_be_an_index(name: str) -> None:
    check_emit_name(name)
    (document,) = replace(SHAPE, emit_name=name).documents(stage_batch(SHAPE.fields, [("t-17", 60, 0.83)]), 1, 1)
    assert document.index == f"{name}-2024.05"
    assert generation_of(name, document.index) == 1


@pytest.mark.parametrize(
    "name",
    ["", "Turbine", "-a", "_a", ".a", "+a", "a b", "a,b", "a*", "a/b", "a#b", "a:b", "é", "x" * 201, "a-2024.05"],
)
def test_names_that_cannot_be_an_index(name: str) -> None:
    with pytest.raises(ValueError, match=r"rename it|cannot name an index"):
        check_emit_name(name)


@pytest.mark.parametrize("name", ["@timestamp", "window", "strandline", "_id", "_source", "a.b", ""])
def test_names_that_cannot_be_a_field(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a result"):
        check_field_name(name)


@pytest.mark.parametrize(
    ("by", "aggregates", "sentence"),
    [
        ((), (), "empty"),
        ((("n", "string"),), (("n", "long"),), "two results"),
        ((), (("n", "array<float>"),), "no mapping"),
        ((("n", "array<long>"),), (), "can't be a key"),
        ((("window", "string"),), (("n", "long"),), "cannot name a result"),
        ((("_id", "string"),), (("n", "long"),), "cannot name a result"),
    ],
)
def test_shapes_that_no_document_can_have(
    by: tuple[tuple[str, str], ...], aggregates: tuple[tuple[str, str], ...], sentence: str
) -> None:
    with pytest.raises(InvalidDocument, match=sentence):
        DocumentShape("emit", "job", "stage", 1, by, aggregates)
