"""Rows of text files against Python's own reader of CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.files.text_rows import PlacedRow, Row, lines_of, rows_of_csv, rows_of_lines
from tests.support.examples import examples

VALUES = st.text('a ";\n\r\u2028', max_size=6)
TABLES = st.integers(2, 3).flatmap(lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), max_size=8))


@pytest.mark.guarantee(
    "G623",
    "A CSV row from a file keeps all its bytes, with the line ends and blank lines of its quoted values. A local run "
    "reads the same rows as file ingest.",
    promise="records-are-stored-once-and-unchanged",
)
@examples(500)
@given(TABLES, st.booleans(), st.integers(1, 20))
def test_rows_of_csv_are_what_was_written_however_the_file_is_cut(
    table: list[list[str]], is_all_quoted: bool, block_bytes: int
) -> None:
    written = StringIO(newline="")
    if is_all_quoted:
        csv.writer(written, delimiter=";", lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(table)
    else:
        csv.writer(written, delimiter=";", lineterminator="\r\n").writerows(table)
    text = written.getvalue().encode()
    blocks = [text[at : at + block_bytes] for at in range(0, len(text), block_bytes)]
    rows = rows_of_csv(lines_of(blocks, 100), b";", 100)
    assert [list(csv.reader(StringIO(row.decode(), newline=""), delimiter=";")) for row, _ in rows] == [  # type: ignore[union-attr]
        [values] for values in table
    ]


CUTS: list[Callable[[list[Row], int], Iterator[PlacedRow]]] = [
    rows_of_lines,
    lambda lines, row_bytes_max: rows_of_csv(lines, b";", row_bytes_max),
]


@pytest.mark.guarantee("G624")
@pytest.mark.parametrize("cut", CUTS, ids=["lines", "csv"])
@examples(1_000)
@given(st.text('a";\n\r ', max_size=60), st.integers(3, 20))
def test_lines_give_the_rows_that_follow_from_the_end_of_any_row(
    cut: Callable[[list[Row], int], Iterator[PlacedRow]], text: str, row_bytes_max: int
) -> None:
    """So an ingest that goes on behind a row takes what it would have taken without a break."""
    lines = list(lines_of([text.encode()], row_bytes_max))
    rows = list(cut(lines, row_bytes_max))
    for number, (_, line_next) in enumerate(rows, 1):
        behind = [(row, line_next + count) for row, count in cut(lines[line_next:], row_bytes_max)]
        assert behind == rows[number:]
