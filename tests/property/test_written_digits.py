"""Written times of digits: reading all strings of a column in parallel gives the same times as the regular expression."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.times.time_patterns import read_pattern
from strandline.processing.operators.functions.written_digits import read_digits
from strandline.processing.operators.functions.written_times import _read_parts, _times, read
from tests.support.examples import examples

PATTERNS = [
    "d/M/yyyy HH:mm:ss",
    "yyyy-MM-dd",
    "yyyyMMddHHmmss",
    "dMyyyy",
    "dMyy",
    "yyMMd",
    "dd.MM.yy H:m:s.SSS",
    "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "yyyy 'é' MM dd s",
]
PARTS = st.sampled_from(
    [
        *["0", "1", "2", "9", "00", "05", "12", "29", "31", "45", "99", "2023", "2024", "0000", "123"],
        *["/", "-", ".", ":", " ", "T", "é", "١", "\0"],
    ]
)
NEAR = st.sampled_from(
    [
        *["1/2/2023 10:00:05", "31/12/2024 23:59:59", "1/2/2023 10:00:0", "1/2/2023 10:00:055"],
        *["2024-02-29", "2023-02-29", "20240229235959", "122024", "12224", "24021"],
        *["01.02.24 1:2:3.5", "2024-02-03T04:05:06.7", "2024 é 02 03 4"],
    ]
)
TEXTS = st.lists(st.one_of(NEAR, st.none(), st.lists(PARTS, max_size=12).map("".join)), max_size=20)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(texts=TEXTS, skipped=st.integers(0, 2))
@examples(100)
def test_times_of_digits_are_those_of_the_regular_expression(
    pattern: str, texts: list[str | None], skipped: int
) -> None:
    column, pieces = pa.array(texts, pa.string())[skipped:], read_pattern(pattern)
    assert read(column, pieces).to_pylist() == _times(*_read_parts(column, pieces)).to_pylist()


def test_times_of_digits_are_read_without_the_regular_expression() -> None:
    found = read_digits(pa.array(["1/2/2023 10:00:05", "x", None]), read_pattern("d/M/yyyy HH:mm:ss"))
    assert found is not None
    values, are_read = found
    assert are_read.tolist() == [True, False, False]
    assert {name: int(numbers[0]) for name, numbers in values.items()} == {
        "day": 1, "month": 2, "year": 2023, "hour": 10, "minute": 0, "second": 5
    }  # fmt: skip
