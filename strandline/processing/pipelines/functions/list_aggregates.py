"""The aggregates whose values are arrays: how each is called, what of a call must be written out, and the type of its value.

Names: `collect_list` is Spark's, with the bound that Spark lacks; `top_n` and `bottom_n` are Hazelcast's `topN` and `bottomN`;
counts between borders are TimescaleDB's `histogram`. `topk` is avoided: it is the greatest values in one system and the most
frequent ones in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from sqlglot import exp

from strandline.core.field_types import array_type, is_nested, kind_of, struct_type

LISTED_MAX = 1_000
"""The longest array; also the most bins of a histogram. It decides results, so it is no setting."""
CALLS_OF_LISTS = {
    "collect_list": "collect_list(x, 100)",
    "top_n": "top_n(x, 5)",
    "bottom_n": "bottom_n(x, 5)",
    "top_n_by": "top_n_by(x, y, 5)",
    "bottom_n_by": "bottom_n_by(x, y, 5)",
    "most_frequent": "most_frequent(x, 5)",
    "histogram": "histogram(x, 0, 100, 10) or histogram(x, array(0, 10, 50))",
}
"""Name -> a call."""
BY = ("top_n_by", "bottom_n_by")
"""Those of two columns: what is given, and by what it is chosen."""


def list_call(name: str) -> Callable[[list[exp.Expr]], exp.Expr]:
    """What the parser makes of a call."""
    return lambda arguments: exp.AnonymousAggFunc(this=name, expressions=arguments)


def columns_of(node: exp.AnonymousAggFunc) -> Sequence[exp.Expr]:
    """The arguments that each row has. Raises ValueError where the call has too few arguments, or too many."""
    name, given = node.name, list(node.expressions)
    count = 2 if name in BY else 1
    expected = (2, 4) if name == "histogram" else (count + 1,)
    if len(given) not in expected or any(isinstance(one, exp.Distinct | exp.Star) for one in given):
        raise ValueError(f"expected {CALLS_OF_LISTS[name]}")
    return given[:count]


def numbers_of_call(node: exp.Expr) -> tuple[float, ...]:
    """What is written out in a call of such an aggregate: how many values it gives at most; of a histogram, the borders between
    its bins, ascending. Nothing of another aggregate. Raises ValueError."""
    if not isinstance(node, exp.AnonymousAggFunc):
        return ()
    if node.name == "histogram":
        return _borders(node)
    columns_of(node)
    count = _number(node.expressions[-1])
    if count is None or count != int(count) or not 1 <= count <= LISTED_MAX:
        raise ValueError(f"the last argument must be written out as a whole number from 1 to {LISTED_MAX:,}")
    return (count,)


def type_of_list(node: exp.AnonymousAggFunc, types: Sequence[str]) -> str:
    """The type of a call's value. `types`: of its `columns_of`. Raises ValueError."""
    name, value = node.name, types[0]
    numbers_of_call(node)
    if name == "histogram":
        return array_type("long")
    if kind_of(value) == "array":
        raise ValueError(f"collects {value}, and no array holds arrays; take what is needed of it, as element_at(x, 1)")
    if name != "collect_list" and is_nested(types[-1]):
        raise ValueError(f"puts values in order, and {types[-1]} has none")
    return array_type(struct_type([("value", value), ("count", "long")]) if name == "most_frequent" else value)


def _borders(node: exp.AnonymousAggFunc) -> tuple[float, ...]:
    columns_of(node)
    _, *written = node.expressions
    if len(written) == 1:
        array = written[0]
        is_array = isinstance(array, exp.Anonymous) and array.name.lower() == "array"
        borders: Sequence[float | None] = [_number(one) for one in array.expressions] if is_array else [None]
    else:
        low, high, bins = map(_number, written)
        if low is None or high is None or bins is None or bins != int(bins) or not 1 <= bins <= LISTED_MAX:
            raise ValueError(f"expected {CALLS_OF_LISTS['histogram']}, written out, with 1 to {LISTED_MAX:,} bins")
        # Each border from the ends, not from the one before: nothing adds up.
        borders = [low + (high - low) * (at / bins) for at in range(int(bins))] + [high]
    found = [one for one in borders if one is not None]
    if len(found) < len(borders) or not found or len(found) > LISTED_MAX + 1:
        raise ValueError(f"expected {CALLS_OF_LISTS['histogram']}, written out, with at most {LISTED_MAX:,} bins")
    if any(before >= after for before, after in pairwise(found)):
        raise ValueError("the borders must ascend, each above the one before")
    return tuple(found)


def _number(node: exp.Expr) -> float | None:
    """The value of a number that is written out, else None."""
    literal = node.this if isinstance(node, exp.Neg) else node
    if not isinstance(literal, exp.Literal) or literal.is_string:
        return None
    return -float(literal.name) if isinstance(node, exp.Neg) else float(literal.name)
