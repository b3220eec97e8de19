"""Output of the commands: responses on stdout, as tables or as JSON; errors and progress on stderr.

Responses contain bytes of any sender. So all output passes `printable` or `printable_json`, or the cells of `display.py`.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import StringIO
from typing import Any, Protocol
from unicodedata import category
from urllib.parse import parse_qs, urlsplit

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from strandline.core.errors import InvalidDocument, StrandlineError

JsonObject = dict[str, Any]
LINE_EVERY_S = 10.0
"""Interval in seconds at which a waiting command prints a line while its step stays the same, if the output isn't a terminal."""

_WIDTH_MAX = 1_000_000
"""Maximum number of characters per line of a table that isn't fitted to a terminal. A value has at most a record's bytes."""
_is_wide: ContextVar[bool] = ContextVar("is_wide", default=False)

_UNUSUAL = re.compile(r"[^\t\n -~]")
_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that a terminal executes, doesn't display, or can't receive: controls, formats (some reverse the
order of a line), surrogates, line separators."""


class AnsweredError(Exception):
    """A command got its response but failed. With `--json`, the response and the error are one object."""

    def __init__(self, answer: JsonObject, error: StrandlineError, exit_code: int = 1) -> None:
        super().__init__(str(error))
        self.answer = answer
        self.error = error
        self.exit_code = exit_code


def printable(text: str) -> str:
    r"""Return the text with escapes, as `\\x1b` or `\\u202e`, for each character that a terminal would execute or not display.
    Tabs and line ends stay."""
    return _spelt(text, lambda one: one.encode("unicode_escape").decode())


def printable_json(text: str) -> str:
    """Return a JSON text with the same escapes. Its meaning doesn't change."""
    return _spelt(text, lambda one: re.sub("....", r"\\u\g<0>", one.encode("utf-16-be", "surrogatepass").hex()))


def printable_text(text: str | Text) -> Text:
    """Return the printable text for Rich, which must not read it as markup."""
    if isinstance(text, Text):
        text.plain = printable(text.plain)
        return text
    return Text(printable(text))


def _spelt(text: str, spell: Callable[[str], str]) -> str:
    return _UNUSUAL.sub(lambda found: spell(found[0]) if category(found[0]) in _OBEYED else found[0], text)


def one_line(text: str | Text) -> Text:
    """Return `printable_text` on one line: line ends and tabs are spelled out, too."""
    line = printable_text(text)
    if "\n" in line.plain or "\t" in line.plain:
        line.plain = line.plain.replace("\n", "\\n").replace("\t", "\\t")
    return line


def cell_text(text: str | Text) -> Text:
    """Return `one_line` for a cell of a table, which is shortened with an ellipsis if its column is narrower."""
    cell = one_line(text)
    cell.no_wrap, cell.overflow = True, "ellipsis"
    return cell


def print_wide(is_asked: bool) -> None:
    """Set whether `print_tables` prints long values in full on a terminal, for the rest of this command."""
    _is_wide.set(is_asked)


def show(answer: JsonObject, as_json: bool, tables: Callable[[], Iterable[Table | Text | str]]) -> None:
    """Print the response, as JSON or as tables."""
    if as_json:
        print_json(answer)
    else:
        print_tables(tables())


def print_tables(shown: Iterable[Table | Text | str]) -> None:
    """Print tables and sentences on stdout, one row of a table per line.

    On a terminal, rows have its width and long values are shortened. Elsewhere, and with `--wide`, the columns have the width of
    their content, and nothing is shortened or broken.
    """
    console = Console()
    is_shortened = False
    for one in shown:
        if not isinstance(one, Table):
            console.print(printable_text(one), soft_wrap=True)
            continue
        width = Measurement.get(console, console.options.update(max_width=_WIDTH_MAX), one).maximum
        if not console.is_terminal:
            _print_lines(one, width)
        elif _is_wide.get():
            Console(width=width).print(one)
        else:
            console.print(one)
            is_shortened |= one.show_header and width > console.width
    if is_shortened:
        print("long values are shortened; --wide prints them in full", file=sys.stderr)


def _print_lines(table: Table, width: int) -> None:
    plain = Console(width=width, file=StringIO(), color_system=None, force_terminal=False)
    with plain.capture() as lines:
        plain.print(table)
    print("\n".join(line.rstrip() for line in lines.get().splitlines()))


def after_of(path: str) -> str:
    """Return the id after which the next page begins, from the path of that page."""
    return parse_qs(urlsplit(path).query)["after"][0]


def print_next_page(answer: JsonObject, *others: str) -> None:
    """Print on stderr how to show the rest of a list. `others`: other proposals for the user."""
    if answer["next"]:
        ways = [f"for the next page, pass --after {after_of(answer['next'])}", *others]
        print(f"the list ends here, but there can be more; {'; '.join(ways)}", file=sys.stderr)


def print_json(answer: Any) -> None:
    """Print one JSON value on stdout."""
    print(printable_json(json.dumps(answer, indent=2, ensure_ascii=False)))


def print_error(code: str, message: str, as_json: bool, **more: Any) -> None:
    """Print the message on stderr; with `--json` also an object on stdout with the message in `error`."""
    if as_json:
        print_json(more | {"error": {"code": code, "message": message}})
    print(printable(message), file=sys.stderr)


def print_strandline_error(error: StrandlineError, as_json: bool, answer: JsonObject | None = None) -> None:
    """Print one of our own errors. The JSON lists each problem of a wrong document."""
    more: JsonObject = answer or {}
    if isinstance(error, InvalidDocument) and "problems" not in more:
        more = {
            "problems": [
                {"detail": one.message, "pointer": one.path, "source": one.source, "line": one.line}
                for one in error.problems
            ]
        }
    print_error(error.code, str(error), as_json, **more)


def progress_console(as_json: bool) -> Console:
    """Return the console on which `up` and `down` show their steps: stderr if stdout is JSON."""
    return Console(stderr=as_json)


class ReportProgress(Protocol):
    """Function that a command calls with its current step, details, and progress."""

    def __call__(self, step: str, detail: str = "", done: int = 0, total: int | None = None) -> None: ...


@contextmanager
def waiting(doing: str) -> Iterator[ReportProgress]:
    """Show on stderr that the command waits: a spinner on a terminal; otherwise a line for each step and interval."""
    console = Console(stderr=True)
    with _spinner(doing, console) if console.is_terminal else _lines(console) as report:
        yield report


@contextmanager
def _spinner(doing: str, console: Console) -> Iterator[ReportProgress]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(escape(doing), total=None)

        def report(step: str, detail: str = "", done: int = 0, total: int | None = None) -> None:
            if total:
                progress.columns = (*columns[:2], BarColumn(), MofNCompleteColumn(), columns[2])
            progress.update(task, description=escape(printable(step + detail)), completed=done, total=total)

        yield report


@contextmanager
def _lines(console: Console) -> Iterator[ReportProgress]:
    step_before, line_due_s = "", 0.0

    def report(step: str, detail: str = "", done: int = 0, total: int | None = None) -> None:
        nonlocal step_before, line_due_s
        if step == step_before and time.monotonic() < line_due_s:
            return
        step_before, line_due_s = step, time.monotonic() + LINE_EVERY_S
        count = f", {done:,} of {total:,}" if total else ""
        console.print(printable(f"{step}{detail}{count}"), highlight=False, markup=False, soft_wrap=True)

    yield report
