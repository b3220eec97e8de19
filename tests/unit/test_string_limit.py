"""Strings that an expression returns have at most STRING_BYTES_MAX bytes; a longer one fails, and is never built."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.operators.functions.string_limit import STRING_BYTES_MAX

LIMIT = STRING_BYTES_MAX
HALF = "a" * (LIMIT // 2)
TYPES = {"text": "string", "other": "string"}


def values(sql: str, *texts: str | None) -> tuple[list[int | None], list[bool]]:
    """The length of the expression's value for each text, and whether the expression fails."""
    column = pa.array(texts, pa.string())
    expression = ColumnExpression(sql, TYPES)
    columns = {"text": column, "other": column}
    found = expression(columns, len(texts)).to_pylist()
    fails = expression.fails(columns, len(texts)).tolist()
    return [None if one is None else len(one.encode()) for one in found], fails


@pytest.mark.guarantee("G777")
@pytest.mark.parametrize(
    ("sql", "of_null"),
    [
        ("text || other", None),
        ("concat(text, other)", None),
        ("concat_ws('', text, other)", 0),
        ("replace(text, 'a', 'bc')", None),
        ("regexp_replace(text, 'a', 'bc')", None),
        ("regexp_replace(text, '(a)', '$1$0')", None),
        ("array_join(array(text, other), '')", 0),
    ],
)
def test_a_string_may_have_the_limit_and_no_byte_more(sql: str, of_null: int | None) -> None:
    assert values(sql, "a", HALF, None) == ([2, LIMIT, of_null], [False, False, of_null is None])
    lengths, fails = values(sql, "a", HALF + "a", "aa")
    assert (lengths, fails) == ([2, None, 4], [False, True, False])


@pytest.fixture
def memory() -> Iterator[pa.MemoryPool]:
    """A pool that knows the maximum of this test alone. The default pool knows that of all tests in the process."""
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(default)


@pytest.mark.guarantee("G777")
def test_nested_replacements_need_no_more_than_the_limit(memory: pa.MemoryPool) -> None:
    sql = "text"
    for _ in range(12):
        sql = f"replace({sql}, 'a', '{'a' * 10}')"
    expression = ColumnExpression(sql, TYPES)
    column = pa.array(["a", "b", "aaaa"])
    assert expression({"text": column}, 3).to_pylist() == [None, "b", None]
    assert 0 < memory.max_memory() < 64 << 20


def test_separators_and_groups_count() -> None:
    elements = "array(text, text, text)"
    separator = "s" * 1_000
    assert values(f"array_join({elements}, '{separator}')", "a", "a" * (LIMIT // 3 - 600)) == (
        [2_003, None],
        [False, True],
    )
    assert values(f"concat_ws('{separator}', text, other)", HALF, "a") == ([None, 1_002], [True, False])
    assert values("regexp_replace(text, '(.+)', '$1$1')", "ab" * 100, HALF + "a") == ([400, None], [False, True])


@pytest.mark.guarantee("G777")
def test_a_neighbour_changes_no_value() -> None:
    alone, _ = values("replace(text, 'a', 'bb')", "xa")
    beside, _ = values("replace(text, 'a', 'bb')", HALF + "a", "xa", None)
    assert (alone, beside) == ([3], [None, 3, None])
