"""The table of functions in the docs. `python -m strandline.processing.pipelines.functions.reference docs/functions.md` writes
the part of that page below its mark again."""

from __future__ import annotations

import sys
from pathlib import Path

from strandline.core.times import time_patterns
from strandline.processing.pipelines.functions.array_functions import ELEMENT, OF_ALL
from strandline.processing.pipelines.functions.signature import FIRST, PLAIN, WHOLE, Argument, Function
from strandline.processing.pipelines.functions.table import OTHER_NAMES, TABLE
from strandline.processing.pipelines.functions.units import UNITS_BY_QUANTITY
from strandline.processing.pipelines.functions.written import TIME_UNITS

MARK = "<!-- Below this line the page is made from the code: python -m strandline.processing.pipelines.functions.reference -->"
_TYPES = {WHOLE: "integer or long", PLAIN: "integer, long, or double", "double": "number", "long": "integer or long"}
_RESULTS = {
    "common": "the type of both",
    OF_ALL: "an array of the type of all",
    ELEMENT: "the type of an element",
    FIRST: "as x",
    "signed": "as x",
    "rounded": "as x; of decimals with fewer places",
    "whole": "long; of decimals a decimal",
    "arithmetic": "as `x % y`",
    "same": "the type of all",
    "chosen": "the type of both",
    "nullif": "as the value",
    "cast": "the type",
}


def tables() -> str:
    """Return all functions by groups, then the units and the patterns."""
    groups: dict[str, list[Function]] = {}
    for function in TABLE:
        groups.setdefault(function.group, []).append(function)
    lines = []
    for group, functions in groups.items():
        lines += [
            f"## {group}",
            "",
            "| call | result | gives | no value from | null | examples |",
            "| --- | --- | --- | --- | --- | --- |",
            *map(_row, functions),
            "",
        ]
        if also := [
            f"`{other}` is `{name}`" for other, name in OTHER_NAMES.items() if name in {f.name for f in functions}
        ]:
            lines += [f"{'; '.join(also)}.", ""]
    lines += ["## Units of time", "", f"{', '.join(f'`{unit}`' for unit in TIME_UNITS)}, in any case.", ""]
    lines += ["## Units of measure", "", "| quantity | units |", "| --- | --- |"]
    lines += [f"| {name} | {', '.join(f'`{unit}`' for unit in units)} |" for name, units in UNITS_BY_QUANTITY.items()]
    head, _, rest = (time_patterns.__doc__ or "").partition("\n\n")
    return "\n".join([*lines, "", "## Patterns of times", "", f"{head.replace(chr(10), ' ')}", "", rest])


def _row(function: Function) -> str:
    takes = ", ".join(
        f"{argument.name}: {_type(argument)}" for argument in function.arguments if argument.type != "any"
    )
    examples = "<br>".join(f"{_code(text)} is {_code(value)}" for text, value in function.examples)
    cells = (
        f"`{function.call}`" + (f"<br>{takes}" if takes else ""),
        _RESULTS.get(function.result, function.result),
        function.says,
        function.no_value,
        function.nulls,
        examples,
    )
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _type(argument: Argument) -> str:
    kind = _TYPES.get(argument.type, argument.type)
    return f"{kind}, written out" if argument.written is not None else kind


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`" if text.strip() else "empty"


def page(text: str) -> str:
    """Return the page with the current tables below its mark."""
    head, _, _ = text.partition(MARK)
    return f"{head}{MARK}\n\n{tables()}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(page(file.read_text()))
