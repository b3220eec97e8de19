"""Parsers of fields: the values of a column are those that each value has alone."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.processing.formats.field_parsers.field_parser import MISFIT, Absent
from strandline.processing.formats.record_fields import RecordField, RecordValidator
from tests.support.examples import examples

FIELDS = [
    RecordField("any", "string", is_any=True),
    RecordField("any or null", "string", is_any=True, missing=("x", -1)),
    RecordField("pattern", "timestamp", pattern="d/M/yyyy HH:mm"),
    RecordField("pattern in a zone", "timestamp", pattern="d/M/yyyy HH:mm", tz="Europe/Berlin", or_null=True),
    RecordField("number", "double", missing=(-9999, "-"), or_null=True),
    RecordField("range", "long", min=0, max=9, or_null=True),
    RecordField("text", "string", missing=("x",)),
]
VALUES = st.sampled_from(
    [
        *["null", "true", "1", "-1", "-9999", "2.50", "1e2", "-0"],
        *['""', '"x"', '" X "', '"-"', '"null"', '"ü"', '"\\u0061"', '"a\\"b"', '" "', '"n"'],
        *['"1/2/2023 10:00"', '"26/3/2023 02:30"', '"31/2/2023 10:00"', "[]", '["n"]', "{}", '{"a" : "x"}', '"\\\\"'],
    ]
)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
@given(values=st.lists(VALUES, min_size=1, max_size=12))
@examples(100)
def test_values_of_a_column_are_those_of_each_value(field: RecordField, values: list[str]) -> None:
    parser = RecordValidator([field]).parsers[0]
    texts = [msgspec.Raw(value.encode()) for value in values]
    together = parser.parse_column(texts)
    alone = [parser.parse(bytes(text)) for text in texts]
    plain = [None if isinstance(value, Absent) else value for value in alone]
    assert together.array.to_pylist() == pa.array(plain, together.array.type).to_pylist()
    assert together.strings.tolist() == [value[0] == '"' for value in values]
    assert together.misfits.tolist() == [value is MISFIT for value in alone]
    nulls = together.array.is_null().to_pylist()
    fits = [isinstance(value, Absent) for value in alone]
    assert [at for at, is_null in enumerate(nulls) if is_null and together.absent[at]] == [
        at for at, is_absent in enumerate(fits) if is_absent
    ]
