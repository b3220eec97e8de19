"""The functions that choose between their arguments, and casts."""

from __future__ import annotations

from sqlglot import exp

from strandline.processing.pipelines.functions.signature import ANY, Argument, Function

_CHOICES, _CASTS = "Choices", "Types"
_VALUE = Argument("value", ANY)
_VALUES = (_VALUE, Argument("value", ANY, is_repeated=True))
_NOT_NULL = "ignored; no value if all are null"
_AS = (Argument("value AS type", ANY),)

CHOICE_FUNCTIONS = (
    Function(
        "coalesce", _CHOICES, (Argument("value", ANY, is_repeated=True),), "same", "the first value that is not null",
        nulls=_NOT_NULL, examples=(("coalesce(null, 2, 3)", "2"),), node=exp.Coalesce,
    ),
    Function(
        "if", _CHOICES, (Argument("condition", "boolean"), Argument("then", ANY), Argument("else", ANY)), "chosen",
        "one of two values", nulls="as condition: else", examples=(("if(1 < 2, 'yes', 'no')", "yes"),), node=exp.If,
    ),
    Function(
        "nullif", _CHOICES, (_VALUE, Argument("other", ANY)), "nullif", "null if both are equal, else the value",
        examples=(("nullif(5, 0)", "5"),), node=exp.Nullif, is_null_by_choice=True,
    ),
    Function(
        "least", _CHOICES, _VALUES, "same", "the minimum of them", nulls=_NOT_NULL, examples=(("least(3, 1, 2)", "1"),),
        node=exp.Least,
    ),
    Function(
        "greatest", _CHOICES, _VALUES, "same", "the maximum of them; NaN is the largest double", nulls=_NOT_NULL,
        examples=(("greatest(3, 1, 2)", "3"),), node=exp.Greatest,
    ),
    Function(
        "cast", _CASTS, _AS, "cast", "the value in another type", "a value that the type can't hold",
        examples=(("cast('1.5' as double)", "1.5"), ("cast(2.5 as string)", "2.5")), node=exp.Cast,
    ),
    Function(
        "try_cast", _CASTS, _AS, "cast", "the same, or null if the type can't hold the value",
        examples=(("try_cast('7' as integer)", "7"),), node=exp.TryCast,
        is_null_by_choice=True,
    ),
)  # fmt: skip
