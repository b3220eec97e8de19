"""The check of an expression agrees with Spark: the types, and the values of the rewritten text."""

from __future__ import annotations

import itertools
import math
import re
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.operators.closing import Closing
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.operators.windows import WindowOperator
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import ExpressionError, parse_expression
from strandline.processing.pipelines.row_step import Column
from strandline.processing.pipelines.stages import Stage, StageInput
from tests.support.safe_sql import safe_sql

COLUMNS = {
    "s": "string",
    "u": "string",
    "i": "integer",
    "l": "long",
    "d": "double",
    "b": "boolean",
    "t": "timestamp",
    "m": "decimal(10,2)",
    "w": "decimal(38,10)",
    "q": "decimal(20,18)",
}
SPARK_NAMES = {"long": "bigint", "integer": "int"}
DDL = ", ".join(f"{name} {SPARK_NAMES.get(of, of)}" for name, of in COLUMNS.items())
NUMBERS = ["i", "l", "d", "m", "w", "q", "-7", "3000000000", "0.05", "1.5e3"]
OF_TWO = [
    *("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "{0} % {1}", "{0} < {1}", "{0} in ({1}, 3)"),
    *("coalesce({0}, {1})", "least({0}, {1})", "case when b then {0} else {1} end", "nullif({0}, {1})"),
]
OF_ONE = [
    *("abs({0})", "-{0}", "round({0})", "round({0}, 1)", "round({0}, -1)", "floor({0})", "ceil({0})", "sqrt({0})"),
    *("pow({0}, 2)", "ln({0})", "exp({0})", "sum({0})", "avg({0})", "min({0})", "max({0})", "stddev_pop({0})"),
    *("count({0})", "cast({0} as double)", "cast({0} as long)", "cast({0} as decimal(12,3))", "cast({0} as string)"),
    *("{0} is null", "sum({0}) / count(*)", "max({0}) - min({0})", "sum({0} * 1.5)", "avg({0}) * 2"),
    *(
        "case when b then {0} end",
        "sum(case when b then {0} else 0 end)",
        "{0} between 1 and 9",
        "mod({0}, 3)",
        "round({0}, -3)",
    ),
]
OTHERS = [
    *(
        "lower(s)",
        "trim(s)",
        "substring(s, 1, 2)",
        "concat(s, u)",
        "s || u",
        "length(s)",
        "s like 'a%'",
        "s in ('a', 'b')",
    ),
    *(
        "min(s)",
        "max(t)",
        "min(b)",
        "count(*)",
        *(
            "stddev(i)",
            "variance(m)",
            "count(distinct t)",
            "approx_count_distinct(s)",
            "percentile(l, 0.5)",
            "median(m)",
        ),
        *(
            "first(m)",
            "last(t)",
            "min_by(t, d)",
            "max_by(m, s)",
            "count(*) filter (where b)",
            "sum(m) filter (where i > 2)",
        ),
        "cast(s as int)",
        "cast(s as double)",
        "cast(t as long)",
        "cast(b as int)",
    ),
    *(
        "cast(s as timestamp)",
        "t > timestamp '2020-01-01 00:00:00'",
        "b and not b or b",
        "greatest(t, t)",
        "if(b, s, u)",
    ),
    *("case s when 'a' then 1 when 'b' then 2 end", "count(*) * 1.5", "-(-i)", "i + null", "2147483648", "s is null"),
]
EXPRESSIONS = [
    *(form.format(left, right) for form in OF_TWO for left, right in itertools.product(NUMBERS, NUMBERS)),
    *(form.format(number) for form in OF_ONE for number in NUMBERS),
    *OTHERS,
]
VALUES = [
    *(r"'it\'s'", r"s = 'it\'s'", r"s like '%\'%'", "i - (i - l)", "-i % 4", "not b = true", "i / l * d", "- -i"),
    *(
        "not (i = 7 or l = 2) and b",
        "i is not null and l is null",
        'case when b then "x\'y" else u end',
        "nullif(i, 7)",
    ),
    *("coalesce(i, l, 0)", "d * -1", "1 - -1", "'a' || 'b' = 'ab'", "(b or b) and not b", "substring(s, -2, 1)"),
    *("least(i, l)", "round(d)", "floor(-d)", "i not between 1 and 3", "i not in (1, 2)", "s not like 'a%'", "'é😀'"),
]
ROWS = [
    ("it's", "a\\b", 7, 10, 2.5, True),
    ("a%b", "x\ny", -7, -3, -1.5, False),
    (None, "é", None, None, None, None),
]
EXTREMES = [
    (
        *("9e9", "y", -(2**31), -(2**63), -1e308, True, datetime(1970, 1, 1, tzinfo=UTC)),
        *(Decimal("-99999999.99"), Decimal("-9" + "9" * 27 + "." + "9" * 10), Decimal("-99." + "9" * 18)),
    ),
    (
        *("", "é", 2**31 - 1, 2**63 - 1, 1.7e308, False, datetime(9999, 1, 1, tzinfo=UTC)),
        *(Decimal("99999999.99"), Decimal("9" * 28 + "." + "9" * 10), Decimal("99." + "9" * 18)),
    ),
    ("1", "1", 0, 0, 0.0, True, datetime(2020, 1, 1, tzinfo=UTC), Decimal(0), Decimal(0), Decimal(0)),
    ("x", "1", -1, -1, math.nan, True, datetime(2020, 1, 1, tzinfo=UTC), Decimal(-1), Decimal(-1), Decimal(-1)),
    (
        "x",
        "1",
        1,
        1,
        math.inf,
        True,
        datetime(2020, 1, 1, tzinfo=UTC),
        Decimal("0.01"),
        Decimal("1e-10"),
        Decimal("1e-18"),
    ),
    (None,) * len(COLUMNS),
]
NEVER_FAIL = ["i / 0", "i % 0", "l + 9223372036854775807", "cast(s as int)", "cast(d * 1e300 as int)", "i * 2147483647"]
"""In Spark's ANSI mode, which is the default, each of these ends the query at the first record it doesn't suit."""


@pytest.fixture(scope="module")
def empty(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], DDL)


def spark_types(frame: DataFrame, texts: list[str]) -> list[str]:
    """The type that Spark gives each: asked for all at once, and one by one if it refuses any of them."""
    try:
        schema = frame.selectExpr(*texts).schema
    except PySparkException as error:
        if len(texts) == 1:
            return [f"refused: {str(error).splitlines()[0]}"]
        return [kind for text in texts for kind in spark_types(frame, [text])]
    found = [field.dataType.simpleString() for field in schema]
    return [{name: ours for ours, name in SPARK_NAMES.items()}.get(kind, kind) for kind in found]


@pytest.mark.timeout(600)
def test_the_type_that_the_check_infers_is_the_type_that_spark_gives(empty: DataFrame) -> None:
    """A mapping is made from the inferred type before the first record comes, so it must be right."""
    accepted: dict[bool, list[tuple[str, str, str]]] = {True: [], False: []}
    for text in dict.fromkeys(EXPRESSIONS):
        try:
            expression = parse_expression(text)
            inferred = infer_type(expression, COLUMNS)
        except ExpressionError:
            continue
        accepted[expression.is_aggregate].append((text, inferred, safe_sql(expression.sql, COLUMNS)))
    wrong = []
    for all_of_a_kind in accepted.values():
        for first in range(0, len(all_of_a_kind), 100):
            some = all_of_a_kind[first : first + 100]
            given = spark_types(empty, [sql for _, _, sql in some])
            wrong += [(text, ours, its) for (text, ours, _), its in zip(some, given, strict=True) if ours != its]
    assert not wrong
    assert sum(map(len, accepted.values())) > 0.9 * len(EXPRESSIONS)


def test_the_text_as_rewritten_has_the_values_of_the_text_as_written(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, "s string, u string, i int, l bigint, d double, b boolean")
    rewritten = [safe_sql(parse_expression(text).sql, COLUMNS) for text in VALUES]
    found, expected = (
        frame.selectExpr(*[f"{sql} AS c{number}" for number, sql in enumerate(texts)]).collect()
        for texts in (rewritten, VALUES)
    )
    assert len(found) == len(ROWS)
    for number, text in enumerate(VALUES):
        assert [row[number] for row in found] == [row[number] for row in expected], text


@pytest.mark.parametrize("text", NEVER_FAIL)
def test_what_has_no_value_is_null_and_ends_nothing(spark: SparkSession, text: str) -> None:
    frame = spark.createDataFrame([("x", 2147483647, 1, 1e300)], "s string, i int, l bigint, d double")
    with pytest.raises(PySparkException):
        frame.selectExpr(text).collect()
    assert frame.selectExpr(safe_sql(parse_expression(text).sql, COLUMNS)).collect()[0][0] is None


MORE_ROWS = [
    *EXTREMES,
    (
        *("it's", "a\\b", 7, 10, 2.5, True, datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)),
        *(Decimal("12.35"), Decimal("1234.5678901234"), Decimal("0.5")),
    ),
    (
        *("  12 ", "x\ny", -7, -3, -1.5, False, datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=UTC)),
        *(Decimal("-2.25"), Decimal("-0.0000000005"), Decimal("-1.5")),
    ),
    (
        *("a%b", "é", 3, 4, 0.1, True, datetime(2020, 2, 29, tzinfo=UTC)),
        *(Decimal("0.05"), Decimal(5), Decimal("2.000000000000000001")),
    ),
    (
        *("TRUE", "Straße", 100, 2147483648, 1e-5, False, datetime(2020, 2, 29, tzinfo=UTC)),
        *(Decimal("99.99"), Decimal("0.1"), Decimal("-0.25")),
    ),
    (
        *("1e3", "ΑΣ", -45, -46, 1234567.891, None, datetime(2020, 2, 29, 1, 2, 3, tzinfo=UTC)),
        *(Decimal("2.50"), Decimal("3.5"), Decimal("3.5")),
    ),
]
MORE = [
    *(
        "d div 2",
        "i div 2",
        "l div i",
        "m div 3",
        "i div 0",
        "m % 0.3",
        "d % 0.3",
        "upper(u)",
        "lower(u)",
        "cast(d as int)",
    ),
    *("cast(d as boolean)", "cast(i as boolean)", "cast(m as int)", "cast(m as boolean)", "cast(s as boolean)"),
    *("cast(s as decimal(5,1))", "cast(s as long)", "cast(b as string)", "cast(b as double)", "cast(i as timestamp)"),
    *(
        "cast(d as timestamp)",
        "cast(t as string)",
        "cast(t as double)",
        "cast(b as decimal(3,1))",
        "i <=> l",
        "d <=> d",
    ),
    *("s <=> u", "greatest(d, 1.0, i)", "least(s, u)", "least(b, false)", "u like '%ß%'", "substring(u, 0, 2)"),
    *(
        "substring(u, -3)",
        "substring(s, i, 2)",
        "round(d, 3)",
        "round(d, -2)",
        "round(l, -2)",
        "case i when 7 then 'x' end",
    ),
    *("if(d > 1, d, m)", "t < timestamp '2021-01-01T00:00:00+02:00'", "i in (7, null)", "b is true", "b is not false"),
    *(
        "ltrim(s)",
        "rtrim(s)",
        "concat(s, null)",
        "pow(2, i)",
        "exp(q)",
        "coalesce(null, d, 1)",
        "nullif(d, 0)",
        "q / 3",
    ),
]
NEARLY = ("power(", "exp(", "ln(")
"""Functions whose last bit is the C library's here and Java's there."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_columns_give_the_values_that_spark_gives(spark: SparkSession) -> None:
    """Every form of expression over ordinary and extreme values, without Spark and with it."""
    spark.createDataFrame(MORE_ROWS, DDL).createOrReplaceTempView("more_rows")
    frame = spark.table("more_rows").coalesce(1)
    columns = more_columns()
    compiled = [one for text in dict.fromkeys([*EXPRESSIONS, *VALUES, *MORE]) if (one := compiled_scalar(text))]
    assert len(compiled) > 1_000
    wrong = []
    for first in range(0, len(compiled), 60):
        some = compiled[first : first + 60]
        rows = frame.selectExpr(*[f"{in_spark(one)} AS c{number}" for number, one in enumerate(some)]).collect()
        for number, one in enumerate(some):
            found = one(columns, len(MORE_ROWS))
            values = found.cast(pa.int64()).to_pylist() if one.type == "timestamp" else found.to_pylist()
            differing = [
                (value, row[number])
                for value, row in zip(values, rows, strict=True)
                if not is_same(value, row[number], nearly=any(name in one.sql.lower() for name in NEARLY))
            ]
            wrong += [(one.sql, *pair) for pair in differing]
    assert not wrong


def more_columns() -> dict[str, pa.Array]:
    return {
        name: pa.array([row[at] for row in MORE_ROWS], arrow_type(kind))
        for at, (name, kind) in enumerate(COLUMNS.items())
    }


def compiled_scalar(text: str) -> ColumnExpression | None:
    """The expression on columns; None for one that the check refuses, and for aggregates."""
    try:
        expression = parse_expression(text)
        infer_type(expression, COLUMNS)
    except ExpressionError:
        return None
    return None if expression.is_aggregate else ColumnExpression(expression.sql, COLUMNS)


def in_spark(one: ColumnExpression) -> str:
    sql = safe_sql(one.sql, COLUMNS)
    if one.type == "timestamp":
        return f"unix_micros({sql})"
    return f"try_cast({sql} AS {one.type})" if one.type.startswith("decimal") else sql


def is_same(value: object, expected: object, *, nearly: bool) -> bool:
    if isinstance(value, list) and isinstance(expected, list):
        pairs = zip(value, expected, strict=False)
        return len(value) == len(expected) and all(is_same(*pair, nearly=nearly) for pair in pairs)
    if not (isinstance(value, float) and isinstance(expected, float)):
        return value == expected
    both_nan = math.isnan(value) and math.isnan(expected)
    return both_nan or value == expected or (nearly and math.isclose(value, expected, rel_tol=1e-14))


AGGREGATES = [
    *("stddev(i)", "variance(d)", "stddev_pop(m)", "count(distinct i)", "count(distinct d)", "count(distinct s)"),
    *("percentile(d, 0.95)", "percentile(i, 0.1)", "percentile(m, 1)", "median(d)", "median(m)", "min_by(s, d)"),
    *("max_by(m, d)", "max_by(i, s)", "sum(m) filter (where b)", "count(*) filter (where i > 2 or b is null)"),
    *("min(s) filter (where d > 0)", "stddev(d) filter (where i = 7)", "avg(i) filter (where b) - median(i)"),
]


@pytest.mark.guarantee(
    "G400",
    "Every aggregate, with or without a filter, matches its description. It is the same to the last bit in any "
    "slices, chunks, and buckets, also in sliding windows and cascades. Aggregates that Spark has by the same name "
    "give the same.",
    promise="operators-compute-what-the-reference-describes",
)
def test_aggregates_give_the_values_that_spark_gives(spark: SparkSession) -> None:
    """Over values of which none is as great as another, so that no rule about equal ones comes in."""
    rows = [
        (
            f"s{at * 37 % 101}",
            at % 13,
            None if at % 7 == 0 else math.sin(at) * 1e3,
            [True, False, None][at % 3],
            Decimal(at * at) / 100,
        )
        for at in range(100)
    ]
    names = ["s", "i", "d", "b", "m"]
    types = {name: COLUMNS[name] for name in names}
    ddl = ", ".join(f"{name} {SPARK_NAMES.get(of, of)}" for name, of in types.items())
    columns = {name: pa.array([row[at] for row in rows], arrow_type(types[name])) for at, name in enumerate(names)}
    written = [parse_expression(text) for text in AGGREGATES]
    stage = Stage(
        *("all", WindowShape(60_000, 60_000), (), ()),
        tuple(Column(f"c{at}", one.sql, infer_type(one, types)) for at, one in enumerate(written)),
        *((), (StageInput(tuple(types.items())),), 0),
    )
    operator = WindowOperator(stage, types)
    new = operator.rows(0, np.zeros(len(rows), np.int64), columns)
    (ours,) = operator.step(operator.empty_state(), [new], Closing(None, 60_000))[1].to_pylist()
    frame = spark.createDataFrame(rows, ddl).coalesce(1)
    (theirs,) = frame.selectExpr(*[f"{one.sql} AS c{at}" for at, one in enumerate(written)]).collect()
    found = {text: (ours[f"c{at}"], theirs[at]) for at, text in enumerate(AGGREGATES)}
    assert {text: pair for text, pair in found.items() if not is_near(*pair)} == {}


def is_near(value: object, expected: object) -> bool:
    if isinstance(value, float) and isinstance(expected, float):
        return math.isclose(value, expected, rel_tol=1e-12)
    return type(value) is type(expected) and value == expected


CALLS = [
    *("year(t)", "quarter(t)", "month(t)", "day(t)", "hour(t)", "minute(t)", "second(t)", "dayofweek(t)", "weekday(t)"),
    *("dayofyear(t)", "weekofyear(t)", "extract(week from t)", "extract(doy from t)", "extract(dow from t)"),
    *(f"date_trunc('{unit}', t)" for unit in ("YEAR", "QUARTER", "month", "WEEK", "DAY", "HOUR", "SECOND", "MILLISECOND")),
    *("t + interval '90' minute", "t - interval 1 month"),
    *("timestampadd(HOUR, i % 1000, t)", "timestampadd(MONTH, i % 99, t)"),
    *(
        f"timestampdiff({unit}, t, timestamp '2024-02-29 11:00:00')"
        for unit in ("MILLISECOND", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
    ),
    *("unix_seconds(t)", "unix_millis(t)", "unix_micros(t)", "timestamp_millis(i)", "timestamp_micros(i)"),
    *("date_format(t, 'yyyy-MM-dd HH:mm:ss.SSS')", "date_format(t, 'EEE, d MMM yy h:m a DDD XXX')"),
    *("date_format(t, \"yy''MMMM'T'EEEE\")",),
    *("from_utc_timestamp(t, 'Europe/Berlin')", "to_utc_timestamp(t, 'America/New_York')"),
    *("from_utc_timestamp(t, '+05:30')",),
    *("try_to_timestamp(date_format(t, 'dd.MM.yyyy HH:mm'), 'dd.MM.yyyy HH:mm')", "try_to_timestamp(s, 'yyyy-MM-dd')"),
    *("try_to_timestamp(concat('2024-3-', cast(i as string), ' 1:02 PM'), 'yyyy-M-d h:mm a')",),
    *("to_timestamp('03 Mar 2026', 'dd MMM yyyy')",),
    *("try_to_timestamp('2026-03-01T02:03:04.5+02:00', \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX\")",),
    *("regexp_like(s, '^[a-z%]+$')", "s rlike 'a.b'", r"regexp_extract(s, '(\\d+)e?(\\d)?', 2)", "regexp_extract(s, '[a-z]', 0)"),
    *(r"regexp_replace(s, '([a-z])(\\d)?', '<$1$2>')", r"regexp_replace(u, 'a', '\\$')", r"regexp_like(u, r'\w\\\w')"),
    *("split_part(s, 'e', 1)", "split_part(s, 'e', -1)", "split_part(s, 'e', 7)", "rpad(u, 3)"),
    *("lpad(u, 4, 'xy')", "lpad(u, 9, '')"),
    *("replace(s, '%', '++')", "replace(s, '')", "replace(s, '1')"),
    *("startswith(u, 'é')", "endswith(u, 'b')", "contains(s, 'a')"),
    *("instr(u, 'ß')", "instr(s, '')", "reverse(u)", "concat_ws('-', s, null, u)", "isnan(d)", "nanvl(d, 1)", "nanvl(d, i)"),
    *("sign(d)", "sign(m)", "cbrt(d)", "log10(d)", "log2(i)", "sin(d)", "cos(d)", "tan(i)"),
    *("asin(d)", "acos(d)", "atan(d)"),
    *("atan2(d, i)", "degrees(d)", "radians(d)", "pi()", "pmod(i, 7)", "pmod(l, -7)", "pmod(d, 2.5e0)", "pmod(i, l % 5 + 9)"),
    *("i & l", "i | 6", "l ^ i", "~i", "~l", "shiftleft(i, 3)", "shiftleft(l, i)", "shiftright(l, 2)", "shiftright(i, 40)"),
    *("case when abs(d) <= 1.7e308 then format_number(d, 2) end",),
    *("format_number(m, 1)", "format_number(l, 0)", "format_number(w, 3)", "format_number(q, 4)"),
    *("array(i, l, null)", "array(s, u)", "array(d, 1)", "size(array(i, null))", "try_element_at(array(s, u), 2)"),
    *("try_element_at(array(s, u), -3)", "element_at(array(i, l), 1)", "slice(array(i, 2, 3), -2, 5)", "slice(array(s), 3, 1)"),
    *("array_contains(array(i, 0), l)", "array_contains(array(d, 1.5e0), d)", "array_contains(array(s, null), 'a')"),
    *("array_position(array('a', s, null), s)", "array_position(array(m, 1.5), m)", "array_min(array(i, null, 3))"),
    *("array_max(array(d, 1e0))", "array_max(array(s, u))", "array_min(array(m, w))", "array_join(array(s, null, u), '-')"),
    *("split(s, '[%a]+')", r"split(s, '\\d')", "split('', ',')", "named_struct('a', i, 'b', array(s)).b", "struct(d as x, i).i"),
]  # fmt: skip
NEARLY_CALLS = ("cbrt", "log", "sin", "cos", "tan", "asin", "acos", "atan", "degrees", "radians")


@pytest.mark.guarantee(
    "G411",
    "Functions have their meaning in Spark SQL, and each value equals an independent evaluation of one row, also for "
    "extreme values.",
    promise="operators-compute-what-the-reference-describes",
)
@pytest.mark.timeout(600)
def test_functions_give_the_values_and_types_that_spark_gives(spark: SparkSession) -> None:
    spark.createDataFrame(MORE_ROWS, DDL).createOrReplaceTempView("more_rows")
    frame = spark.table("more_rows").coalesce(1)
    columns = more_columns()
    compiled = {text: compiled_scalar(text) for text in CALLS}
    assert [text for text, one in compiled.items() if one is None] == []
    texts = {
        text: f"unix_micros({text})" if one and one.type == "timestamp" else text for text, one in compiled.items()
    }
    given = frame.selectExpr(*[f"{text} AS c{number}" for number, text in enumerate(compiled)]).schema
    rows = frame.selectExpr(*[f"{text} AS c{number}" for number, text in enumerate(texts.values())]).collect()
    wrong = []
    for number, (text, one) in enumerate(compiled.items()):
        assert one is not None
        kind = given[number].dataType.simpleString()
        kind = re.sub(r"\w+", lambda word: {"bigint": "long", "int": "integer"}.get(word[0], word[0]), kind)
        found = one(columns, len(MORE_ROWS))
        values = found.cast(pa.int64()).to_pylist() if one.type == "timestamp" else found.to_pylist()
        wrong += [(text, one.type, kind)] if one.type != kind else []
        wrong += [
            (text, value, row[number])
            for value, row in zip(values, rows, strict=True)
            if not is_same(value, row[number], nearly=text.startswith(NEARLY_CALLS))
        ]
    assert not wrong


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_value_that_a_record_can_have_ends_a_query(spark: SparkSession) -> None:
    """Least, greatest, none, not a number: null at worst."""
    spark.createDataFrame(EXTREMES, DDL).createOrReplaceTempView("extremes")
    frame = spark.table("extremes").coalesce(1)  # a view: values known to the planner would be computed by it
    safe: dict[bool, list[str]] = {True: [], False: []}
    for text in dict.fromkeys(EXPRESSIONS):
        try:
            expression = parse_expression(text)
            infer_type(expression, COLUMNS)
        except ExpressionError:
            continue
        safe[expression.is_aggregate].append(safe_sql(expression.sql, COLUMNS))
    for all_of_a_kind in safe.values():
        assert len(all_of_a_kind) > 50
        for first in range(0, len(all_of_a_kind), 40):
            some = all_of_a_kind[first : first + 40]
            frame.selectExpr(*[f"{sql} AS c{number}" for number, sql in enumerate(some)]).collect()
