"""The cost of a document is limited before it is processed, and the error names the limit.

This is found by counts, never by times.
"""

import difflib
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import yaml

from strandline.core import documents
from strandline.core.documents import COLUMNS_MAX, read_documents
from strandline.core.errors import PROBLEMS_MAX, InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.processing.operators import evaluation
from strandline.processing.operators.evaluation import ColumnExpression
from strandline.processing.pipelines import expression_types
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.checks import check_context
from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import ExpressionError, parse_expression
from strandline.processing.pipelines.model.pipeline import PipelineSpec

TYPES = {"x": "long", "d": "decimal(10,2)", "s": "string"}
DEEP = 12
"""Depth of nesting. Work that doubles with each level is done thousands of times."""
NESTED = {
    "nullif": "nullif({}, 1)",
    "case of a value": "case {} when 1 then 2 when 3 then 4 else 5 end",
    "between": "if({} between 1 and 2, 1, 2)",
    "sum": "({} + 1)",
    "div": "({} div 2)",
    "ceil": "ceil({})",
    "coalesce": "coalesce({}, 1)",
    "in": "if({} in (1, 2), 1, 2)",
    "decimals": "(d * {})",
    "least": "least({}, d)",
}


def nested(form: str, levels: int = DEEP, inner: str = "x") -> str:
    for _ in range(levels):
        inner = form.format(inner)
    return inner


def counting(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[None]:
    """One entry for each call of `owner.name` from now on."""
    calls: list[None] = []
    real = getattr(owner, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)
    return calls


def problems(
    text: str, read: Callable[[str], object] = lambda text: StreamSpec.parse(read_documents(text, "f")[0])
) -> list[str]:
    with pytest.raises(InvalidDocument) as caught:
        read(text)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.guarantee(
    "G176",
    "The cost of a document is limited before it is processed: bytes, values, depth, columns, problems, and nesting "
    "of expressions. Each refusal names the limit. Each operand of an expression is typed, compiled, and evaluated "
    "once.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize("form", NESTED.values(), ids=NESTED)
def test_each_operand_is_typed_compiled_and_evaluated_once(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    expression = parse_expression(nested(form))
    nodes = sum(1 for _ in expression.tree.walk())
    typed = counting(monkeypatch, expression_types, "type_of")
    infer_type(expression, TYPES)
    assert len(typed) <= nodes
    compiled = counting(monkeypatch, evaluation._Compiler, "compile")
    compute = ColumnExpression(expression.sql, TYPES)
    assert len(compiled) <= nodes
    read: list[str] = []

    class Columns(dict[str, pa.Array]):
        def __getitem__(self, name: str) -> pa.Array:
            read.append(name)
            return super().__getitem__(name)

    assert len(compute(Columns(x=pa.array([1, None]), d=pa.array([1, 2], pa.decimal128(10, 2))), 2)) == 2
    assert read.count("x") == 1


@pytest.mark.guarantee("G176")
def test_types_that_are_called_can_not_be_nested_deeply() -> None:
    assert parse_expression("double(int(string(x)))").sql == "CAST(CAST(CAST(`x` AS STRING) AS INT) AS DOUBLE)"
    assert parse_expression("date + double(x)").columns == ("date", "x")
    for form in ("date ({})", "array[{}]", "int(1, {})", "struct(1 + {})"):
        with pytest.raises(
            ExpressionError, match=re.escape("has more than 3 types, as double(...), within each other")
        ):
            parse_expression(nested(form, 4))


@pytest.mark.parametrize("form", ["({})", "coalesce({}, 1)", "case when {} > 0 then 1 else 2 end", "[{}]"])
def test_brackets_nest_as_deep_as_every_process_can_take(form: str) -> None:
    if form != "[{}]":
        ColumnExpression(parse_expression(nested(form, 23)).sql, TYPES)
    with pytest.raises(ExpressionError, match="has more than 24 brackets within each other at character"):
        parse_expression(nested(form, 25))


def test_a_long_chain_of_operators_is_refused_by_a_limit_that_does_not_depend_on_the_stack() -> None:
    deep = ColumnExpression(parse_expression("nullif(x, 1)" + " + x" * 140).sql, TYPES)
    assert deep.fails({"x": pa.array([1, 2, 2**62])}, 3).tolist() == [False, False, True]
    with pytest.raises(ExpressionError, match="is nested too deeply, more than 150 levels"):
        parse_expression("x" + " + x" * 150)


@pytest.mark.guarantee("G176")
def test_values_are_counted_before_they_are_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = "stream: a\nb: [{}]"
    (found,) = problems(flow.format("1," * 100_000))
    assert "is after 20,000 values, the maximum for one file; split it into several files" in found
    monkeypatch.setattr(documents, "NODES_MAX", 1_000)
    composed = counting(monkeypatch, yaml.composer.Composer, "compose_node")
    for text in (flow.format("1," * 9_000), "---\n" * 9_000, "stream: a\nb:\n" + "- c: 1\n" * 9_000):
        composed.clear()
        assert "is after 1,000 values" in problems(text)[0]
        assert len(composed) <= 1_000
    assert len(read_documents(flow.format("1," * 990), "f")) == 1


def test_a_stream_has_at_most_a_thousand_columns_and_topics() -> None:
    fields = "".join(f"  f{number}: long\n" for number in range(COLUMNS_MAX))
    assert len(StreamSpec.parse(read_documents(f"stream: a\nschema:\n{fields}", "f")[0]).fields) == COLUMNS_MAX
    (found,) = problems(f"stream: a\nschema:\n{fields}  one_more: long\n")
    assert "schema: expected at most 1,000 entries, got a mapping" in found
    (found,) = problems("stream: a\nschema: {b: long}\nmqtt: {topics: [" + "x," * (COLUMNS_MAX + 1) + "]}")
    assert "mqtt.topics: expected at most 1,000 entries, got a list of 1001" in found


def test_a_step_leads_to_at_most_a_thousand_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StreamSpec.parse(read_documents("stream: a\nschema: {ts: timestamp, x: long}", "s")[0])
    derive = "".join(f"      c{number}: x\n" for number in range(COLUMNS_MAX))
    text = f"pipeline: p\ninput: {{stream: a}}\nevent_time: {{field: ts, delay: 1s}}\nsteps:\n  - derive:\n{derive}  - where: y\n"

    def read(text: str) -> None:
        (document,) = read_documents(text, "f")
        check(PipelineSpec.parse(document), stream, document)

    (found,) = problems(text, read)
    assert "steps[0]: leads to 1,002 columns; expected at most 1,000 in one step" in found


@pytest.mark.guarantee("G176")
def test_of_many_problems_the_first_are_told_and_no_more_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    more = f"there are more problems than these {PROBLEMS_MAX}; correct these first"
    compared = counting(monkeypatch, difflib, "get_close_matches")
    found = problems("stream: a\nschema: {b: long}\n" + "".join(f"c{number}: 1\n" for number in range(5_000)))
    assert (len(found), found[-1], len(compared)) == (PROBLEMS_MAX + 1, more, PROBLEMS_MAX + 1)

    levels = (f"f{number}: 9," for number in range(500))
    text = "stream: a\nschema: {b: long}\nmqtt:\n  topics: [" + "x," * 1_000 + "]\n  fields: {" + "".join(levels) + "}"
    found = problems(text)
    assert (len(found), found[-1]) == (PROBLEMS_MAX + 1, more)

    stream = StreamSpec.parse(read_documents("stream: a\nschema: {ts: timestamp, x: long}", "s")[0])
    parsed = counting(monkeypatch, check_context, "parse_expression")
    head = "pipeline: p\ninput: {stream: a}\nevent_time: {field: ts, delay: 1s}\nsteps:\n"

    def read(text: str) -> None:
        (document,) = read_documents(text, "f")
        check(PipelineSpec.parse(document), stream, document)

    for steps in (
        "  - where: no\n" * 3_000,
        "  - derive: {" + ",".join(f"c{number}: no" for number in range(900)) + "}\n",
    ):
        parsed.clear()
        found = problems(head + steps, read)
        assert (len(found), found[-1], len(parsed)) == (PROBLEMS_MAX + 1, more, PROBLEMS_MAX + 1)


def test_a_word_that_is_too_long_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = counting(monkeypatch, difflib, "get_close_matches")
    assert "is not a type; expected one of" in problems("stream: a\nschema: {b: " + "lo" * 1_000 + "}")[0]
    assert compared == []
