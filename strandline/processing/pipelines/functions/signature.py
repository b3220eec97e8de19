"""The signature of a function: what is known before it runs. The table is in `table`. `operators.functions` computes the
values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

WHOLE = "whole"
"""Type of an argument that is an integer or a long."""
NUMBER = "number"
"""Type of an argument that is a number of any type."""
PLAIN = "plain"
"""Type of an argument that is an integer, a long or a double."""
ANY = "any"
COMMON = "common"
"""Type of a result that is the common type of all arguments. They are widened to it."""
FIRST = "first"
"""Type of a result that has the type of the first argument."""

Written = Callable[[str], object]
"""Converts the written argument to the value for the function. Raises ValueError, whose message continues the argument's name."""


@dataclass(frozen=True)
class Argument:
    """One argument of a function."""

    name: str
    type: str
    """A field type, WHOLE, NUMBER, PLAIN or ANY. Numbers are widened if a `double` or a `long` is expected."""
    written: Written | None = None
    """Reads an argument that must be written out, because the check must see it. None if it can be any expression."""
    default: str | None = None
    """Written form of the default of an optional argument. None if the argument is required."""
    is_word: bool = False
    """True if the argument is written without quotes, as `HOUR`."""
    is_repeated: bool = False
    """True if more arguments of this kind can follow. Only for the last argument."""


@dataclass(frozen=True)
class Function:
    """A function. The check types its calls, the evaluation finds its implementation by name, and the docs list it."""

    name: str
    group: str
    """Heading under which the docs list it."""
    arguments: tuple[Argument, ...]
    result: str
    """A field type, COMMON, FIRST, or the name of a rule in `expression_types`."""
    says: str
    """The value in a sentence without its period."""
    no_value: str = ""
    """Arguments without a value, although none is null: such a record is a dead letter. Empty if there are none."""
    nulls: str = ""
    """Treatment of null arguments. Empty if a null argument means that there is no value."""
    examples: tuple[tuple[str, str], ...] = ()
    """(expression without columns, its value as a string)."""
    node: type[exp.Expr] | None = None
    """Node that the parser makes for a call, if it knows the function. None for a plain call."""
    together: Callable[..., None] | None = None
    """Checks the written arguments together, after they were read. Raises ValueError."""
    is_null_by_choice: bool = False
    """True if null is a valid value: a filter then leaves the record out instead of refusing it."""

    @property
    def count_min(self) -> int:
        """Minimum number of arguments."""
        return sum(argument.default is None for argument in self.arguments)

    @property
    def count_max(self) -> int | None:
        """Maximum number of arguments. None if there is no limit."""
        is_open = bool(self.arguments) and self.arguments[-1].is_repeated
        return None if is_open else len(self.arguments)

    def argument(self, at: int) -> Argument:
        """Return the argument at an index of a call."""
        return self.arguments[min(at, len(self.arguments) - 1)]

    @property
    def call(self) -> str:
        """A call, as messages show it: `round(number [, places])`."""
        shown = ""
        for at, argument in enumerate(self.arguments):
            name = argument.name + (" ..." if argument.is_repeated else "")
            comma = ", " if at else ""
            shown += f" [{comma}{name}]" if argument.default is not None else f"{comma}{name}"
        return f"{self.name}({shown})"
