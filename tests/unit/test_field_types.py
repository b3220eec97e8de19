"""One spelling of each type."""

import pytest

from strandline.core.field_types import SIMPLE_TYPES, decimal_type, digits_of, is_number, kind_of, normal_type
from strandline.processing.columns.arrow_types import arrow_type
from strandline.results.mapping import FIELD_MAPPINGS

ALL_TYPES = (*SIMPLE_TYPES, "decimal(10,2)")


def test_every_type_has_an_arrow_type_and_a_mapping():
    assert len({arrow_type(name) for name in ALL_TYPES}) == len(ALL_TYPES)
    assert {kind_of(name) for name in ALL_TYPES} == set(FIELD_MAPPINGS)


def test_a_type_has_one_spelling():
    assert [normal_type(name) for name in ALL_TYPES] == list(ALL_TYPES)
    assert normal_type("decimal( 10 , 2 )") == "decimal(10,2)"
    assert [normal_type(text) for text in ("decimal", "decimal(p,s)", "decimal(100,2)", "float", "")] == [None] * 5
    assert digits_of(decimal_type(38, 38)) == (38, 38)
    assert [name for name in ALL_TYPES if is_number(name)] == ["long", "integer", "double", "decimal(10,2)"]


@pytest.mark.parametrize(("precision", "scale"), [(0, 0), (39, 0), (2, 3), (2, -1)])
def test_a_decimal_has_38_digits_at_most(precision: int, scale: int):
    with pytest.raises(ValueError, match="1 to 38 digits in total, and at most as many after the point"):
        decimal_type(precision, scale)
