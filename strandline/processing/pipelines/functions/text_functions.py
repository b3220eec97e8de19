"""The functions of text."""

from __future__ import annotations

from sqlglot import exp

from strandline.processing.pipelines.functions.regular_expressions import (
    PATTERN_LENGTH_MAX,
    Replacement,
    pattern_of,
    refuse_missing_group,
    replacement_of,
)
from strandline.processing.pipelines.functions.signature import WHOLE, Argument, Function
from strandline.processing.pipelines.functions.written import (
    TEXT_LENGTH_MAX,
    part_number,
    some_text,
    text,
    whole_from,
)

_TEXT, _REGULAR = "Text", "Regular expressions"
_ONE = (Argument("text", "string"),)
_PATTERN = Argument("pattern", "string", pattern_of)
_LENGTH = Argument("length", WHOLE, whole_from(0, TEXT_LENGTH_MAX))
_FILL = Argument("fill", "string", text, default="' '")


def _refuse_missing_groups(_: str, replacement: Replacement) -> None:
    refuse_missing_group(_, replacement.group_max)


def _of_part(name: str, says: str, example: tuple[str, str]) -> Function:
    arguments = (Argument("text", "string"), Argument("part", "string", text))
    return Function(name, _TEXT, arguments, "boolean", says, examples=(example,))


TEXT_FUNCTIONS = (
    Function("lower", _TEXT, _ONE, "string", "in small letters", examples=(("lower('Ab')", "ab"),), node=exp.Lower),
    Function("upper", _TEXT, _ONE, "string", "in capital letters", examples=(("upper('Ab')", "AB"),), node=exp.Upper),
    Function(
        "trim", _TEXT, _ONE, "string", "without the spaces at both ends", examples=(("trim('  a ')", "a"),),
        node=exp.Trim,
    ),
    Function(
        "ltrim", _TEXT, _ONE, "string", "without the spaces at its beginning", examples=(("ltrim('  a')", "a"),),
        node=exp.Trim,
    ),
    Function(
        "rtrim", _TEXT, _ONE, "string", "without the spaces at its end", examples=(("rtrim('a  ')", "a"),), node=exp.Trim
    ),
    Function(
        "length", _TEXT, _ONE, "integer", "the number of characters", examples=(("length('Grüße')", "5"),),
        node=exp.Length,
    ),
    Function(
        "substring", _TEXT,
        (Argument("text", "string"), Argument("start", "integer"), Argument("count", "integer", default="2147483647")),
        "string", "characters from a place on, counted from 1, or from the end if negative; at most this count",
        examples=(("substring('sensor-7', 1, 6)", "sensor"), ("substring('sensor-7', -1)", "7")), node=exp.Substring,
    ),
    Function(
        "concat", _TEXT, (Argument("text", "string", is_repeated=True),), "string",
        "the strings joined; `a || b` is the same", examples=(("concat('a', '-', 'b')", "a-b"),), node=exp.Concat,
    ),
    Function(
        "concat_ws", _TEXT, (Argument("separator", "string", text), Argument("text", "string", is_repeated=True)), "string",
        "the strings joined, with the separator between them", nulls="left out; empty if all are null",
        examples=(("concat_ws('/', 'plant', 'line 3')", "plant/line 3"),),
    ),
    _of_part("contains", "whether the part is in the text", ("contains('pump-17', 'mp-')", "true")),
    _of_part("startswith", "whether the text begins with the part", ("startswith('pump-17', 'pump')", "true")),
    _of_part("endswith", "whether the text ends with the part", ("endswith('pump-17', '-17')", "true")),
    Function(
        "instr", _TEXT, (Argument("text", "string"), Argument("part", "string", text)), "integer",
        "the place of the first occurrence of the part, counted from 1; 0 if there is none",
        examples=(("instr('pump-17', '-')", "5"),),
    ),
    Function(
        "replace", _TEXT,
        (Argument("text", "string"), Argument("part", "string", text), Argument("by", "string", text, default="''")),
        "string", "the string with all occurrences of the part replaced",
        examples=(("replace('1 234', ' ')", "1234"), ("replace('a,b', ',', ';')", "a;b")),
    ),
    Function(
        "split_part", _TEXT,
        (Argument("text", "string"), Argument("separator", "string", some_text), Argument("number", WHOLE, part_number)),
        "string", "a part between separators, counted from 1, or from the end if negative; empty if there is no such part",
        examples=(("split_part('plant/line/pump', '/', 2)", "line"), ("split_part('plant/line/pump', '/', -1)", "pump")),
    ),
    Function(
        "lpad", _TEXT, (Argument("text", "string"), _LENGTH, _FILL), "string",
        "filled up at its beginning to this length, or cut to it", examples=(("lpad('7', 3, '0')", "007"),),
    ),
    Function(
        "rpad", _TEXT, (Argument("text", "string"), _LENGTH, _FILL), "string",
        "filled up at its end to this length, or cut to it", examples=(("rpad('ab', 4, '.')", "ab.."),),
    ),
    Function("reverse", _TEXT, _ONE, "string", "the characters in the other order", examples=(("reverse('abc')", "cba"),)),
    Function(
        "regexp_like", _REGULAR, (Argument("text", "string"), _PATTERN), "boolean",
        "whether the pattern matches somewhere in the text; `text rlike pattern` is the same",
        examples=((r"regexp_like('pump-17', '^pump-\\d+$')", "true"),),
    ),
    Function(
        "regexp_extract", _REGULAR,
        (
            Argument("text", "string"), _PATTERN,
            Argument("group", WHOLE, whole_from(0, PATTERN_LENGTH_MAX), default="1"),
        ),
        "string", "the first match of the pattern's group, where group 0 is the whole match; empty if nothing matches",
        examples=((r"regexp_extract('pump-17', '([a-z]+)-(\\d+)', 2)", "17"),), together=refuse_missing_group,
    ),
    Function(
        "regexp_replace", _REGULAR,
        (Argument("text", "string"), _PATTERN, Argument("by", "string", replacement_of)), "string",
        "the string with each match replaced; `$1` in it is the first group, `$0` the whole match",
        examples=((r"regexp_replace('a1b22', '(\\d+)', '<$1>')", "a<1>b<22>"),), together=_refuse_missing_groups,
    ),
)  # fmt: skip
