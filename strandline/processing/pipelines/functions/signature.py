"""What there is to know of a function before it runs. The table of them is in `table`, and what each computes in
`operators.functions`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

WHOLE = "whole"
"""The type of an argument that is an integer or a long."""
NUMBER = "number"
"""The type of an argument that is a number of any type."""
PLAIN = "plain"
"""The type of an argument that is an integer, a long or a double."""
ANY = "any"
COMMON = "common"
"""The type of a result that is the one type which all arguments can take; they are widened to it."""
FIRST = "first"
"""The type of a result that is that of the first argument."""

Written = Callable[[str], object]
"""(what stands there) -> what the function makes of it. Raises ValueError, whose text goes on from the argument's name."""


@dataclass(frozen=True)
class Argument:
    """One argument of a function."""

    name: str
    type: str
    """A field type, WHOLE, NUMBER, PLAIN or ANY; a number is widened where a `double` or a `long` is expected."""
    written: Written | None = None
    """Of an argument that must be written out, because the check must see it: what reads it."""
    default: str | None = None
    """What holds where an optional argument is left out, as it would be written; None: it may not be left out."""
    is_word: bool = False
    """Whether it stands there without quotes, as `HOUR`."""
    is_repeated: bool = False
    """Whether any number of others may follow; of a last argument."""


@dataclass(frozen=True)
class Function:
    """One function: the check types its calls, the evaluation finds what computes it by its name, the docs list it."""

    name: str
    group: str
    """The heading under which the docs list it."""
    arguments: tuple[Argument, ...]
    result: str
    """A field type, COMMON, FIRST, or the name of a rule of its own in `expression_types`."""
    says: str
    """What it gives, in a sentence without its end."""
    no_value: str = ""
    """From which arguments, all of them there, it has no value: such a record is a dead letter. Empty: from none."""
    nulls: str = ""
    """What becomes of a null. Empty: no value where an argument has none."""
    examples: tuple[tuple[str, str], ...] = ()
    """(expression without columns, its value as text)."""
    node: type[exp.Expr] | None = None
    """What the parser makes of a call of it, if it knows the function; None: a plain call."""
    together: Callable[..., None] | None = None
    """Judges the arguments that are written out, as they were read, together. Raises ValueError."""
    is_null_by_choice: bool = False
    """Whether no value is an answer: a filter then leaves the record out instead of refusing it."""

    @property
    def count_min(self) -> int:
        """How many arguments it needs."""
        return sum(argument.default is None for argument in self.arguments)

    @property
    def count_max(self) -> int | None:
        """How many arguments it may have; None: any number."""
        is_open = bool(self.arguments) and self.arguments[-1].is_repeated
        return None if is_open else len(self.arguments)

    def argument(self, at: int) -> Argument:
        """The argument at a place of a call."""
        return self.arguments[min(at, len(self.arguments) - 1)]

    @property
    def call(self) -> str:
        """How a call of it looks, as `round(number [, places])`."""
        shown = ""
        for at, argument in enumerate(self.arguments):
            name = argument.name + (" ..." if argument.is_repeated else "")
            comma = ", " if at else ""
            shown += f" [{comma}{name}]" if argument.default is not None else f"{comma}{name}"
        return f"{self.name}({shown})"
