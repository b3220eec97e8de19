"""Arrays of values by position: columns of many records have the rows that each record has by its text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.shapes.position_columns import PositionColumns
from tests.property.test_shaped_rows import outcome
from tests.support.examples import examples

SCHEMA: dict[str, Any] = {
    "s": {"type": "string?", "from": "$[0]"},
    "t": {"type": "timestamp?", "from": "$[3]"},
    "v": {"type": "double?", "min": -90, "from": "$[1]"},
    "w": {"type": "boolean", "from": "$[4]"},
}
PLAIN = b'["a",2.5,[],1764000000000,true]'
SCALARS = ['"x"', '"ü"', '"\\u0061"', '""', "1", "2.5", "-100", "-0", "1e400", "null", "true", "false"]
VALUES = st.sampled_from(
    [
        *SCALARS,
        *[
            '"2026-10-05T06:00:00Z"',
            "1764000000000",
            "99999999999999999999",
            "[]",
            "{}",
            '{"site":1,"site":2}',
            "01",
            "[1",
        ],
        *["[" * depth + "]" * depth for depth in (98, 99, 100)],
    ]
)
ARRAYS = st.lists(VALUES, max_size=6).map(lambda some: f"[{','.join(some)}]".encode())
PLAINLY = st.tuples(
    *map(st.sampled_from, (['"x"', "null"], ["1", "2.5", "-100"], SCALARS, ["5", "null"], ["true", "false"]))
)
BROKEN = st.sampled_from(
    [
        b"",
        b"[]",
        b" [] ",
        b"{}",
        b"1],[2",
        b"[1],[2]",
        b'["\xff"]',
        b'["a",1,"\xff",1,true]',
        b"[1,2",
        b'{"site":"x"}',
        b"\xff",
    ]
)
RECORDS = st.lists(
    st.one_of(ARRAYS, PLAINLY.map(lambda some: f"[{' , '.join(some)}]".encode()), BROKEN, st.none()),
    min_size=1,
    max_size=12,
)


@pytest.mark.guarantee("G842")
@given(records=RECORDS)
@examples(100)
def test_arrays_read_as_columns_have_the_rows_of_their_text(records: list[bytes | None]) -> None:
    config = record_format(StreamSpec.from_document({"stream": "s", "schema": SCHEMA}))
    values = [*records, *[PLAIN] * 100]  # columns are read if there are many records, and most are plain
    by_text = RowReader(config)
    by_text.leave_columns()
    assert repr(outcome(RowReader(config), config.fields, values)) == repr(outcome(by_text, config.fields, values))


def test_a_plain_array_is_read_as_columns() -> None:
    config = record_format(StreamSpec.from_document({"stream": "s", "schema": SCHEMA}))
    found = PositionColumns(config.fields).columns([PLAIN, b"{}", PLAIN])
    assert found is not None
    assert found[1].tolist() == [True, False, True]
