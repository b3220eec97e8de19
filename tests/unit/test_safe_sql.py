"""Arithmetic that gives null instead of ending a job."""

import pytest

from strandline.processing.safe_sql import columns_of, safe_sql


@pytest.mark.parametrize(
    ("sql", "safe"),
    [
        ("`power` / `rated`", "TRY_DIVIDE(`power`, `rated`)"),
        ("sum(`a` * `b`)", "TRY_SUM(TRY_MULTIPLY(`a`, `b`))"),
        ("(`a` + `b`) - -`c`", "TRY_SUBTRACT(TRY_ADD(`a`, `b`), TRY_SUBTRACT(0, `c`))"),
        ("`a` div `b`", "`a` DIV NULLIF(`b`, 0)"),
        ("cast(`a` as bigint)", "TRY_CAST(`a` AS BIGINT)"),
        ("count(*)", "COUNT(*)"),
        ("`a` > 3 and not `b`", "`a` > 3 AND NOT `b`"),
    ],
)
def test_each_operator_that_can_raise_is_replaced(sql, safe):
    assert safe_sql(sql) == safe


def test_columns_of_names_each_column_once():
    assert columns_of("`a` / (`a` + `b`)") == ("a", "b")
