"""The functions of arrays and structs, and the types of their results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sqlglot import exp

from strandline.core.field_types import NULL, array_type, element_of, kind_of, struct_type
from strandline.processing.pipelines.functions.regular_expressions import may_match_nothing, pattern_of
from strandline.processing.pipelines.functions.signature import ANY, FIRST, Argument, Function
from strandline.processing.pipelines.functions.written import text

ARRAY = "array"
"""Type of an argument that is an array of any type."""
OF_ALL = "array of all"
"""Type of a result that is an array of the common type of all arguments."""
ELEMENT = "element"
"""Type of a result that is an element of the first argument."""
STRUCT = "struct"
"""Type of a result that is a struct of the arguments."""
SOUGHT = ("array_contains", "array_position")
"""Functions that compare their second argument with the elements of the first."""
_GROUP = "Arrays and structs"
_ARRAY = Argument("array", ARRAY)
_PLACE = "counted from 1, or from the end if negative"


def _separating_pattern(written: str) -> str:
    """Return the regular expression `written`, which separates parts of a string. Raises ValueError if RE2 doesn't accept it,
    or if it can match no character: engines differ for such matches."""
    pattern = pattern_of(written)
    if may_match_nothing(pattern):
        raise ValueError("can match between two characters; expected a pattern that matches at least one, as ','")
    return pattern


ARRAY_FUNCTIONS = (
    Function(
        "array", _GROUP, (Argument("value", ANY, is_repeated=True),), OF_ALL, "an array of the values, in their order",
        nulls="stays a null in the array", examples=(("size(array(4, 5, 6))", "3"),),
    ),
    Function(
        "size", _GROUP, (_ARRAY,), "integer", "how many elements it has", examples=(("size(array('a', null))", "2"),),
    ),
    Function(
        "element_at", _GROUP, (_ARRAY, Argument("place", "long")), ELEMENT, f"the element at a place, {_PLACE}",
        no_value="a place that the array doesn't have; a null there",
        examples=(("element_at(array(4, 5, 6), 1)", "4"), ("element_at(array(4, 5, 6), -1)", "6")),
    ),
    Function(
        "try_element_at", _GROUP, (_ARRAY, Argument("place", "long")), ELEMENT,
        "the same, or null if the array doesn't have the place",
        is_null_by_choice=True,
        examples=(("coalesce(try_element_at(array(4, 5), 3), 0)", "0"),),
    ),
    Function(
        "slice", _GROUP, (_ARRAY, Argument("start", "long"), Argument("length", "long")), FIRST,
        f"elements from a place on, {_PLACE}, up to this number of elements", no_value="the place 0; a negative length",
        examples=(("array_join(slice(array('a', 'b', 'c'), 2, 2), '')", "bc"),),
    ),
    Function(
        "array_contains", _GROUP, (_ARRAY, Argument("value", ANY)), "boolean", "whether an element equals the value",
        nulls="no value if the array or the value is null, or if no element is equal and one is null",
        examples=(("array_contains(array(1, 2), 2)", "true"),),
    ),
    Function(
        "array_position", _GROUP, (_ARRAY, Argument("value", ANY)), "long",
        "the first place of an element that equals the value, counted from 1; 0 if there is none",
        examples=(("array_position(array('on', 'off'), 'off')", "2"),),
    ),
    Function(
        "array_min", _GROUP, (_ARRAY,), ELEMENT, "the minimum element", no_value="an array without elements that are not null",
        nulls="in the array: ignored", examples=(("array_min(array(3, 1, null))", "1"),),
    ),
    Function(
        "array_max", _GROUP, (_ARRAY,), ELEMENT, "the maximum element; NaN is the largest double",
        no_value="an array without elements that are not null", nulls="in the array: ignored",
        examples=(("array_max(array(3, 1, null))", "3"),),
    ),
    Function(
        "array_join", _GROUP, (_ARRAY, Argument("separator", "string", text)), "string",
        "the strings of an array, with the separator between them", nulls="in the array: left out",
        examples=(("array_join(array('plant', null, 'pump'), '/')", "plant/pump"),),
    ),
    Function(
        "split", _GROUP, (Argument("text", "string"), Argument("pattern", "string", _separating_pattern)), "array<string>",
        "the parts of a string between the matches of a regular expression, which can be empty",
        examples=(("size(split('a, b,,c', ', *'))", "4"),),
    ),
    Function(
        "named_struct", _GROUP,
        (Argument("name", "string"), Argument("value", ANY), Argument("name, value", ANY, default="", is_repeated=True)),
        STRUCT, "a struct; the names are written as strings. `struct(a, b as c)` is the same with names of fields. A "
        "member is `s.name`", nulls="stays a null in the struct",
        examples=(("named_struct('low', 1, 'high', 9).high", "9"), ("size(array(named_struct('low', 1)))", "1")),
    ),
)  # fmt: skip


def nested_result(
    function: Function, operands: Sequence[exp.Expr], types: Sequence[str], common: Callable[..., str]
) -> str:
    """Return the type of a result that is ELEMENT, OF_ALL or STRUCT. `common`: returns the common type. Raises ValueError."""
    if function.result == OF_ALL:
        found = common(types)
        if found == NULL:
            raise ValueError("contains only nulls, which have no type; write a cast around one")
        return array_type(found)
    if function.result == ELEMENT:
        return element_of(types[0]) or NULL
    names = [one.name for one in operands[::2] if isinstance(one, exp.Literal) and one.is_string]
    if len(operands) % 2 or len(names) < len(operands) // 2:
        raise ValueError(
            "expected names, written out as strings, and values in turn, as named_struct('low', 1, 'high', 9)"
        )
    if wrong := next((one for one in names if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", one)), None):
        raise ValueError(f"'{wrong[:40]}' is not a name of a member; expected letters, digits and '_'")
    if NULL in types[1::2]:
        raise ValueError("has a member that is always null; write a cast around it")
    return struct_type(zip(names, types[1::2], strict=True))


def wanted_types(function: Function, types: Sequence[str], result: str, common: Callable[..., str]) -> list[str]:
    """Return the types to which the arguments of a call are widened, if the signature doesn't specify them."""
    if function.result == OF_ALL:
        return [element_of(result) or NULL] * len(types)
    if function.name in SOUGHT:
        sought = common([element_of(types[0]) or NULL, types[1]])
        return [array_type(sought), sought]
    return list(types)


def refuse_elements(function: Function, types: Sequence[str]) -> None:
    """Raise ValueError if a function can't process arrays of these types, because of their elements."""
    element = element_of(types[0]) or ""
    if function.name == "array_join" and element != "string":
        raise ValueError(
            f"joins strings, but the elements of {types[0]} are none; write a cast around each element before"
        )
    if function.name in (*SOUGHT, "array_min", "array_max") and kind_of(element) == "struct":
        raise ValueError(f"compares elements, but a {element} can't be compared")


def struct_call(node: exp.Anonymous) -> exp.Expr:
    """Return `struct(a, b + 1 as c)` as a call of `named_struct`."""
    arguments: list[exp.Expr] = []
    for one in node.expressions:
        pair = isinstance(one, exp.PropertyEQ)
        arguments += [exp.Literal.string(one.this.name if pair else ""), one.expression if pair else one]
    return exp.Anonymous(this="named_struct", expressions=arguments)
