"""The table of functions: complete, in the docs, and every example has the value next to it."""

from __future__ import annotations

import zoneinfo
from decimal import Decimal
from importlib.resources import files
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.operators.casting import cast
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.operators.functions.kernels import KERNELS
from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import ExpressionError, parse_expression
from strandline.processing.pipelines.functions.reference import page
from strandline.processing.pipelines.functions.table import BY_NAME, CALLS, TABLE
from strandline.processing.pipelines.functions.written import zone

PAGE = Path(__file__).parents[2] / "docs" / "functions.md"
EXAMPLES = [(function.name, *example) for function in TABLE for example in function.examples]


def test_each_function_stands_once_and_has_what_computes_it_and_an_example() -> None:
    assert len(BY_NAME) == len(TABLE)
    assert set(CALLS) | {"sqrt", "exp", "ln", "pow"} == set(KERNELS)
    assert [function.name for function in TABLE if not function.examples] == []


@pytest.mark.guarantee(
    "G410",
    "Every function of expressions is in one table with its types, its cases without a value, and an example. The "
    "check, the evaluation, and the docs use the table, and each example is run.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.parametrize(("name", "text", "value"), EXAMPLES)
def test_the_examples_have_the_values_that_stand_beside_them(name: str, text: str, value: str) -> None:
    assert name in text
    expression = ColumnExpression(parse_expression(text).sql, {})
    assert cast(expression({}, 1), expression.type, "string").to_pylist() == [value]


def test_no_zone_is_asked_of_the_machine(tmp_path: Path) -> None:
    """Else a machine that is newer than the others, or updated between two runs, gives other values."""
    (tmp_path / "Pacific").mkdir()
    tokyo = files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo").read_bytes()
    for name in ("Norfolk", "Atlantis"):
        (tmp_path / "Pacific" / name).write_bytes(tokyo)
    zoneinfo.reset_tzpath([str(tmp_path)])
    try:
        text = "date_format(from_utc_timestamp(timestamp '2026-01-15 00:00:00', 'Pacific/Norfolk'), 'HH:mm')"
        assert ColumnExpression(parse_expression(text).sql, {})({}, 1).to_pylist() == ["12:00"]
        with pytest.raises(ValueError, match="'Pacific/Atlantis', which is not a time zone of the IANA database"):
            zone("Pacific/Atlantis")
    finally:
        zoneinfo.reset_tzpath()
        zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.guarantee("G410")
def test_the_page_of_the_functions_is_that_of_the_table() -> None:
    """To change it: `python -m strandline.processing.pipelines.functions.reference docs/functions.md`."""
    assert PAGE.read_text() == page(PAGE.read_text())


@pytest.mark.parametrize(
    "written", ["2026-10-25 00:00:00 Europe/Berlin", "2026-02-30 00:00:00", "2026-01-01 25:00", "12:00", "2026", ""]
)
def test_a_time_that_is_none_is_refused_where_it_stands(written: str) -> None:
    for text in (f"ts > timestamp '{written}'", f"coalesce(ts, cast('{written}' as timestamp))"):
        with pytest.raises(ExpressionError, match=r"is not a time; expected '2026-03-29'.*to_utc_timestamp"):
            infer_type(parse_expression(text), {"ts": "timestamp"})


@pytest.mark.parametrize(
    "written", ["2026-03-29", "2026-3-29T1:30", "2026-03-29 01:30:00.25Z", "2026-03-29 01:30+02:00"]
)
def test_a_time_that_is_one_has_a_value(written: str) -> None:
    assert ColumnExpression(parse_expression(f"timestamp '{written}'").sql, {})({}, 1).null_count == 0


@pytest.mark.parametrize("places", [-400, -39, 39, 400, 10**12])
def test_a_number_is_rounded_to_no_more_places_than_there_are(places: int) -> None:
    with pytest.raises(ExpressionError, match="the number of places must be from -38 to 38"):
        infer_type(parse_expression(f"round(x, {places})"), {"x": "double"})


@pytest.mark.parametrize("places", [-38, 38])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double", [1.7976931348623157e308, -5e-324, float("inf")]),
        ("long", [2**63 - 1, -(2**63)]),
        ("integer", [-(2**31)]),
        ("decimal(38,0)", [Decimal(10**38 - 1)]),
        ("decimal(38,38)", [Decimal("0.99999999999999999999999999999999999999")]),
    ],
)
def test_a_number_of_any_size_is_rounded(places: int, kind: str, values: list[object]) -> None:
    """Or it has no value; but nothing is raised."""
    found = ColumnExpression(parse_expression(f"round(x, {places})").sql, {"x": kind})
    assert len(found({"x": pa.array(values, arrow_type(kind))}, len(values))) == len(values)


def test_an_if_says_what_holds_else() -> None:
    with pytest.raises(ExpressionError, match=r"expected if\(condition, then, else\)"):
        infer_type(parse_expression("1 + if(d > 1, d, null) * if(d > 2, 5)"), {"d": "double"})
    assert infer_type(parse_expression("if(d > 1, d, null)"), {"d": "double"}) == "double"


@pytest.mark.guarantee("G413")
def test_no_pattern_takes_longer_than_in_proportion_to_the_text() -> None:
    """Patterns for which an engine that tries one way after the other would need longer than the universe is old."""
    texts = pa.array(["a" * 50_000 + "!"])
    for pattern in ("^(a+)+$", "^(a|aa)+$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"):
        found = ColumnExpression(parse_expression(f"regexp_like(s, '{pattern}')").sql, {"s": "string"})
        assert found({"s": texts}, 1).to_pylist() == [False]


def test_no_like_takes_longer_than_in_proportion_to_the_text() -> None:
    """Each `%` more made it take thousands of times as long."""
    texts, pattern = pa.array(["a" * 20_000, "a" * 20_000 + "b"]), "%a%a%a%a%b"
    for written in (f"'{pattern}'", "p"):
        found = ColumnExpression(parse_expression(f"s like {written}").sql, {"s": "string", "p": "string"})
        assert found({"s": texts, "p": pa.array([pattern] * 2)}, 2).to_pylist() == [False, True]


def test_a_like_pattern_out_of_a_column_has_at_most_1000_characters() -> None:
    """A sender could write one as long as its record, and its cost grows with both.

    A pattern in the document can be longer.
    """
    patterns = ["a" * 1_000, "a" * 1_001, "%" + "_" * 1_000, "%" + "_" * 999]
    for written, expected in (("s like p", [True, None, None, True]), ("s not like p", [False, None, None, False])):
        like = ColumnExpression(parse_expression(written).sql, {"s": "string", "p": "string"})
        columns = {"s": pa.array(["a" * 1_000] * 4), "p": pa.array(patterns)}
        assert like(columns, 4).to_pylist() == expected
        assert like.fails(columns, 4).tolist() == [False, True, True, False]
    like = ColumnExpression(parse_expression(f"s like '{patterns[1]}'").sql, {"s": "string"})
    assert like({"s": pa.array(["a" * 1_001, "a"])}, 2).to_pylist() == [True, False]


@pytest.mark.parametrize("written", [r"'C:\\temp%'", r"r'C:\temp%'", r"'%a\\'", r"('a\\b')", r"'a\\\\\\b'"])
def test_a_backslash_in_a_like_pattern_stands_before_what_it_takes_literally(written: str) -> None:
    for operator in ("like", "not like"):
        with pytest.raises(ExpressionError, match=r"only %, _, or a backslash can follow a backslash; write '"):
            infer_type(parse_expression(f"s {operator} {written}"), {"s": "string"})


def test_a_like_pattern_says_a_backslash_by_two() -> None:
    for written in (r"'C:\\\\temp%'", r"r'C:\\temp%'"):
        found = ColumnExpression(parse_expression(f"s like {written}").sql, {"s": "string"})
        assert found({"s": pa.array(["C:\\temp\\a", "C:temp"])}, 2).to_pylist() == [True, False]


@pytest.mark.parametrize("target", ["double", "decimal(10,2)", "long", "integer"])
def test_no_number_takes_longer_to_read_than_in_proportion_to_the_text(target: str) -> None:
    """Digits before other characters were tried in all pairs of parts: hours for these strings."""
    digits = "1" * 800_000
    texts = [f"{digits}x", f"{digits}.{digits}x", f".{digits}x", f"1e{digits}x"]
    assert cast(pa.array(texts), "string", target).to_pylist() == [None] * 4


def test_a_number_with_any_exponent_is_a_decimal_or_has_no_value() -> None:
    texts = ["1e1000000", "-1e1000000", f"1e{'9' * 1_000}", "1e40", "1e-1000000", f"-1e-{'9' * 1_000}", "12e-1"]
    zeros = ["0e50", "0.0e1000000", "-0e-50"]
    found = cast(pa.array(texts + zeros), "string", "decimal(10,2)").to_pylist()
    assert found == [None, None, None, None, 0, 0, Decimal("1.20"), 0, 0, 0]


@pytest.mark.parametrize("digits", [27, 28, 29, 38])
def test_a_decimal_may_have_as_many_nines_as_its_type_has_digits(digits: int) -> None:
    most, kind = "9" * digits, f"decimal({digits},0)"
    assert cast(pa.array([most, f"{most}.4", f"{most}.5", f"-{most}"]), "string", kind).to_pylist() == [
        Decimal(most), Decimal(most), None, Decimal(most).copy_negate()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        ("100%", r"%0\%", True),
        ("1000", r"%0\%", False),
        ("a_b", r"a\_b", True),
        ("axb", r"a\_b", False),
        ("é😀", "__", True),
        ("é😀", "_", False),
        ("a\nb", "a%b", True),
        ("a\nb", "a_b", True),
        ("a\nb\n", "a%b", False),
        ("a\\b", r"a\\b", True),
        ("ab\\", "ab\\", None),
        ("ab", r"a\b", None),
        ("a\\b", r"a\\\b", None),
        ("a\\%b", r"a\\\%b", True),
        ("abab", "%ab%ab%", True),
        ("aba", "%ab%ba", False),
        ("abcabd", "%ab_b%", False),
        ("aab", "%a_%", True),
        ("", "%", True),
        ("", "%%_%", False),
        ("a.c", "a.c", True),
        ("abc", "a.c", False),
    ],
)
def test_like(text: str, pattern: str, expected: bool | None) -> None:
    found = ColumnExpression(parse_expression("s like p").sql, {"s": "string", "p": "string"})
    assert found({"s": pa.array([text]), "p": pa.array([pattern])}, 1).to_pylist() == [expected]


@pytest.mark.parametrize(
    "pattern",
    [
        "x*", "[[:space:]]*", r"\pZ*", r"\p{P}*\s*", r"\z", r"\b", r"\b$", r"^\b", r"\B", "(?m)^", "(?m)$", "b(?i)c|x*", "|,", "",
        r"(?-s:,)?\pZ*",
    ],
)  # fmt: skip
def test_no_text_is_split_where_a_pattern_takes_nothing(pattern: str) -> None:
    """Arrow would loop endlessly. RE2 is used, whose patterns Python reads differently or not at all."""
    with pytest.raises(ExpressionError, match="can match between two characters"):
        infer_type(parse_expression(f"split(s, r'{pattern}')"), {"s": "string"})


@pytest.mark.parametrize("pattern", [", *", r"\pZ*,\pZ*", r"[,-]\d*", r"\Q\C\E", r"\b,", "[[:space:]]+"])
def test_a_text_is_split_where_a_pattern_takes_something(pattern: str) -> None:
    assert infer_type(parse_expression(f"split(s, r'{pattern}')"), {"s": "string"}) == "array<string>"


def test_no_pattern_takes_a_part_of_a_character() -> None:
    """The rest would be no valid string, and no reader of strings could continue."""
    with pytest.raises(ExpressionError, match=r"has \\C, which matches a byte"):
        infer_type(parse_expression(r"regexp_extract(s, r'^(\C{3})', 1)"), {"s": "string"})
    assert infer_type(parse_expression(r"regexp_extract(s, r'^(\\C)', 1)"), {"s": "string"}) == "string"


@pytest.mark.parametrize(
    ("text", "with_brackets"),
    [
        ("~mod(i, 4)", "~(i % 4)"),
        ("-mod(i, 3)", "-(i % 3)"),
        ("- -mod(i, 3)", "-(-(i % 3))"),
        ("i not in (1, 2) < b", "(i not in (1, 2)) < b"),
        ("i not between 1 and 2 >= b", "(i not between 1 and 2) >= b"),
        ("s not rlike 'a' < b", "(s not rlike 'a') < b"),
        ("b < i not in (1, 2) = b", "(b < (i not in (1, 2))) = b"),
        ("b in (b, i not in (-mod(i, 3)) = b)", "b in (b, (i not in (-(i % 3))) = b)"),
        ("not i not in (1, 2) < b", "not ((i not in (1, 2)) < b)"),
    ],
)
def test_an_expression_has_the_value_of_the_one_with_brackets(text: str, with_brackets: str) -> None:
    types = {"i": "integer", "b": "boolean", "s": "string"}
    columns = {
        "i": pa.array([7, -(2**31), 1, 5, 5, None], pa.int32()),
        "b": pa.array([False, True, False, False, True, True]),
        "s": pa.array(["a", "b", "a", "b", None, "b"]),
    }
    found, wanted = (ColumnExpression(parse_expression(one).sql, types)(columns, 6) for one in (text, with_brackets))
    assert found.to_pylist() == wanted.to_pylist()


def test_an_expression_that_is_right_is_written_as_ever() -> None:
    """Without brackets that it does not need: what an upgrade compares is this text."""
    for text, sql in [("b = not c", "`b` = NOT `c`"), ("mod(i, 4) * 2", "`i` % 4 * 2"), ("-7 + i", "-7 + `i`")]:
        assert parse_expression(text).sql == sql


def test_a_text_that_can_not_be_written_again_is_refused() -> None:
    with pytest.raises(ExpressionError, match=r"^would be read as '\\011', which means something else; "):
        parse_expression(r"'\01\1'")
    assert ColumnExpression(parse_expression(r"'\0a'").sql, {})({}, 1).to_pylist() == ["\0a"]
