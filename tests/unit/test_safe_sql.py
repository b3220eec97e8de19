"""Arithmetic that gives null instead of ending a job."""

import pytest

from tests.support.safe_sql import columns_of, safe_sql

COLUMNS = {"power": "double", "rated": "double", "a": "long", "b": "long", "c": "integer", "d": "double"}


@pytest.mark.parametrize(
    ("sql", "safe"),
    [
        ("`power` / `rated`", "TRY_DIVIDE(`power`, `rated`)"),
        ("sum(`a` * `b`)", "TRY_SUM(TRY_MULTIPLY(`a`, `b`))"),
        ("(`a` + `b`) - -`c`", "TRY_SUBTRACT(TRY_ADD(`a`, `b`), TRY_SUBTRACT(0, `c`))"),
        ("-`d` + abs(`d`)", "TRY_ADD(-`d`, ABS(`d`))"),
        ("abs(`a`)", "IF(`a` < 0, TRY_SUBTRACT(0, `a`), `a`)"),
        ("round(`a`, -1)", "TRY_CAST(ROUND(CAST(`a` AS DECIMAL(20, 0)), -1) AS BIGINT)"),
        ("round(`d`, -1)", "ROUND(`d`, -1)"),
        ("`a` div `b`", "`a` DIV NULLIF(`b`, 0)"),
        ("cast(`a` as bigint)", "TRY_CAST(`a` AS BIGINT)"),
        ("count(*)", "COUNT(*)"),
        ("`a` > 3 and not `b` = 1", "`a` > 3 AND NOT `b` = 1"),
    ],
)
def test_each_operator_that_can_raise_is_replaced(sql, safe):
    assert safe_sql(sql, COLUMNS) == safe


def test_columns_of_names_each_column_once():
    assert columns_of("`a` / (`a` + `b`)") == ("a", "b")
