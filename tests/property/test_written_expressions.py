"""The normalized text of an expression is parsed to the tree that was checked, for any nesting."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from strandline.processing.pipelines.expressions import parse_expression, tree_of
from tests.support.examples import examples

NUMBERS = st.sampled_from(["i", "7", "x", "1.5", "length(s)"])
TRUTHS = st.sampled_from(["b", "true", "s is not null"])
TEXTS = st.sampled_from(["s", "'a%'", r"'\0a'", r"'it\'s'", "upper(s)"])
SIGNS = st.sampled_from(["+", "-", "*", "/", "%"])
COMPARED = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"])
NOT = st.sampled_from(["", "not "])


def with_numbers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{} {} {}".format, inner, SIGNS, inner),
        st.builds("{}{}".format, st.sampled_from(["- ", "~ ", "- - "]), inner),  # `~~` is another operator
        st.builds("{}mod({}, {})".format, st.sampled_from(["", "- ", "~ ", "7 - "]), inner, inner),
        st.builds("({})".format, inner),
        st.builds("abs({})".format, inner),
        st.builds("cast({} as {})".format, inner, st.sampled_from(["double", "long", "decimal(10,2)"])),
        st.builds("case {} when {} then {} end".format, inner, inner, inner),
        st.builds("if({}, {}, null)".format, TRUTHS, inner),
    )


def with_truths(numbers: st.SearchStrategy[str]) -> Callable[[st.SearchStrategy[str]], st.SearchStrategy[str]]:
    def more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        operand = st.one_of(inner, numbers)
        return st.one_of(
            st.builds("{} {} {}".format, operand, COMPARED, operand),
            st.builds("{} {} {}".format, inner, st.sampled_from(["and", "or"]), inner),
            st.builds("{}{}".format, st.sampled_from(["not ", "!"]), inner),
            st.builds("({})".format, inner),
            st.builds("{} {}in ({}, {})".format, operand, NOT, operand, operand),
            st.builds("{} not in ({}) {} {}".format, numbers, numbers, COMPARED, inner),
            st.builds("{} {}between {} and {}".format, numbers, NOT, numbers, numbers),
            st.builds("{} {}{} {}".format, TEXTS, NOT, st.sampled_from(["like", "rlike"]), TEXTS),
            st.builds("{} is {}{}".format, inner, NOT, st.sampled_from(["null", "true"])),
        )

    return more


ARITHMETIC = st.recursive(NUMBERS, with_numbers, max_leaves=8)
EXPRESSIONS = st.one_of(ARITHMETIC, st.recursive(TRUTHS, with_truths(ARITHMETIC), max_leaves=8))


def bare(part: object) -> object:
    """A tree without its brackets, and without what says only how it was written."""
    if isinstance(part, exp.Paren):
        return bare(part.this)
    if isinstance(part, list):
        return [bare(one) for one in part]
    if not isinstance(part, exp.Expr):
        return part
    kind = "Cast" if isinstance(part, exp.Cast) else type(part).__name__
    return kind, {name: bare(value) for name, value in part.args.items() if value and name != "quoted"}


@examples(600)
@given(EXPRESSIONS)
def test_what_is_read_again_is_what_was_checked(text: str) -> None:
    expression = parse_expression(text)
    assert bare(tree_of(expression.sql)) == bare(expression.tree)
