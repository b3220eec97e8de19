"""The functions of numbers."""

from __future__ import annotations

from sqlglot import exp

from strandline.processing.pipelines.functions.signature import COMMON, FIRST, NUMBER, PLAIN, WHOLE, Argument, Function
from strandline.processing.pipelines.functions.units import refuse_other_quantity, unit_of
from strandline.processing.pipelines.functions.written import whole_from

_NUMBERS, _TRIGONOMETRY, _BITS, _UNITS = "Numbers", "Trigonometry", "Bits", "Units"
_X = (Argument("x", "double"),)
_XY = (Argument("y", "double"), Argument("x", "double"))
_NO_NUMBER = "a root of a negative x"
_TOO_LARGE = "a result that does not fit its type"


def _of_double(
    name: str, says: str, example: tuple[str, str], no_value: str = "", group: str = _TRIGONOMETRY
) -> Function:
    return Function(name, group, _X, "double", says, no_value, examples=(example,))


NUMBER_FUNCTIONS = (
    Function(
        "abs", _NUMBERS, (Argument("x", NUMBER),), "signed", "x without its sign", "the minimum integer of its type",
        examples=(("abs(-7)", "7"),), node=exp.Abs,
    ),
    Function(
        "round", _NUMBERS, (Argument("x", NUMBER), Argument("places", WHOLE, default="0")), "rounded",
        "x rounded half up to this number of places (written out, -38 to 38); before the point, if negative", _TOO_LARGE,
        examples=(("round(2.345, 2)", "2.35"), ("round(1250, -2)", "1300")), node=exp.Round,
    ),
    Function(
        "floor", _NUMBERS, (Argument("x", NUMBER),), "whole", "the largest integer that is not above x",
        examples=(("floor(-1.5)", "-2"),), node=exp.Floor,
    ),
    Function(
        "ceil", _NUMBERS, (Argument("x", NUMBER),), "whole", "the smallest integer that is not below x",
        examples=(("ceil(1.2)", "2"),), node=exp.Ceil,
    ),
    Function(
        "mod", _NUMBERS, (Argument("x", NUMBER), Argument("y", NUMBER)), "arithmetic",
        "the remainder of a division, with the sign of x; `x % y` is the same", "y = 0",
        examples=(("mod(-7, 3)", "-1"),), node=exp.Mod,
    ),
    Function(
        "pmod", _NUMBERS, (Argument("x", PLAIN), Argument("y", PLAIN)), COMMON,
        "the remainder of a division, positive if y is; for angles and hours. Not for decimals", "y = 0",
        examples=(("pmod(-7, 3)", "2"), ("pmod(-90.0e0, 360)", "270.0")),
    ),
    Function(
        "sign", _NUMBERS, _X, "double", "-1, 0 or 1", examples=(("sign(-2.5)", "-1.0"),),
    ),
    Function("sqrt", _NUMBERS, _X, "double", "the square root", "x < 0", examples=(("sqrt(9)", "3.0"),), node=exp.Sqrt),
    _of_double("cbrt", "the cube root", ("cbrt(27)", "3.0"), group=_NUMBERS),
    Function(
        "pow", _NUMBERS, (Argument("x", "double"), Argument("y", "double")), "double", "x to the power y", _NO_NUMBER,
        examples=(("pow(2, 10)", "1024.0"),), node=exp.Pow,
    ),
    Function("exp", _NUMBERS, _X, "double", "e to the power x", examples=(("exp(0)", "1.0"),), node=exp.Exp),
    Function("ln", _NUMBERS, _X, "double", "the natural logarithm", "x <= 0", examples=(("ln(1)", "0.0"),), node=exp.Ln),
    _of_double("log10", "the logarithm to base 10", ("log10(1000)", "3.0"), "x <= 0", _NUMBERS),
    _of_double("log2", "the logarithm to base 2", ("log2(8)", "3.0"), "x <= 0", _NUMBERS),
    Function(
        "isnan", _NUMBERS, _X, "boolean", "whether x is NaN",
        nulls="false", examples=(("isnan(cast('NaN' as double))", "true"),),
    ),
    Function(
        "nanvl", _NUMBERS, (Argument("x", "double"), Argument("other", "double")), "double",
        "x, or the other value if x is NaN", nulls="no value if x or the chosen value is null",
        examples=(("nanvl(cast('NaN' as double), 0)", "0.0"),),
    ),
    Function(
        "pi", _TRIGONOMETRY, (), "double", "3.141592653589793", examples=(("pi()", "3.141592653589793"),),
    ),
    _of_double("sin", "the sine of an angle in radians", ("sin(0)", "0.0"), "an infinite one"),
    _of_double("cos", "the cosine of an angle in radians", ("cos(0)", "1.0"), "an infinite one"),
    _of_double("tan", "the tangent of an angle in radians", ("tan(0)", "0.0"), "an infinite one"),
    _of_double("asin", "the angle, in radians, with this sine", ("asin(0)", "0.0"), "one beyond -1 to 1"),
    _of_double("acos", "the angle, in radians, with this cosine", ("acos(1)", "0.0"), "one beyond -1 to 1"),
    _of_double("atan", "the angle, in radians, with this tangent", ("atan(0)", "0.0")),
    Function(
        "atan2", _TRIGONOMETRY, _XY, "double", "the angle, in radians, of the direction to the point (x, y)",
        examples=(("atan2(0, 1)", "0.0"),),
    ),
    _of_double("degrees", "an angle in radians as degrees", ("degrees(pi())", "180.0")),
    _of_double("radians", "an angle in degrees as radians", ("radians(180)", "3.141592653589793")),
    Function(
        "shiftleft", _BITS, (Argument("x", WHOLE), Argument("bits", "integer")), FIRST,
        "x with its bits moved left; the lowest 5 bits of the second argument count, or 6 if x is a long",
        examples=(("shiftleft(3, 2)", "12"),),
    ),
    Function(
        "shiftright", _BITS, (Argument("x", WHOLE), Argument("bits", "integer")), FIRST,
        "x with its bits moved right; the sign stays",
        examples=(("shiftright(-8, 1)", "-4"),),
    ),
    Function(
        "convert_unit", _UNITS,
        (Argument("x", "double"), Argument("from", "string", unit_of), Argument("to", "string", unit_of)), "double",
        "x in another unit; not in Spark. The units are below",
        examples=(("convert_unit(212, 'degF', 'degC')", "100.0"), ("convert_unit(36, 'km/h', 'm/s')", "10.0")),
        together=refuse_other_quantity,
    ),
    Function(
        "format_number", "Text", (Argument("x", NUMBER), Argument("places", WHOLE, whole_from(0, 30))), "string",
        "x with commas between thousands and with this number of places, rounded half to even",
        "an infinite number or NaN",
        examples=(("format_number(1234567.891, 2)", "1,234,567.89"),),
    ),
)  # fmt: skip
